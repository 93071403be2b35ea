"""Validity levels of diagrams, from legal tokens to a geometric proof of realisability.

Each level includes the one before:

    0  tokens      every token is a data id or PAD, and PAD follows the rooms
    1  program     exactly one living room, at most one entrance, and the adjacency graph is connected
    2  order       neither "left of" nor "above" contains a cycle
    3  edges       some boxes show every relation of the diagram
    4  realisable  some boxes show every relation of the diagram and no other
    5  buildable   such boxes exist without overlap, except with the living room, which may be an L or a T around
                   others, and of rooms with the relation inside or surrounding

Levels 0 to 2 are read off the tokens, 3 to 5 require a search (`geometry.realisability`). Where the
search gives up the level counts as not reached, and the diagram also as unknown. Letters: N
diagrams, R room slots, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from subprocess import CalledProcessError
from typing import Final

import numpy as np
from jaxtyping import Bool, Int

from ..child_process import ChildProcess, usable_cores
from .geometry.realisability import LIMIT, Realisation, realise, realises
from .plans import real_edges, split_fields
from .relations import exclusive, pair_ends
from .vocabulary import (
    ABOVE,
    BELOW,
    DOOR,
    EDGE_PAD,
    ENTRANCE,
    LEFT,
    LIVING,
    NO_EDGE,
    NODE_MASK,
    NODE_PAD,
    RIGHT,
)

__all__ = [
    "Levels",
    "TokenValidity",
    "connects",
    "is_buildable",
    "is_reachable",
    "token_validity",
    "validity_levels",
]

SHARE: Final = 1000
"""Least number of diagrams whose boxes are searched by a process of their own, which needs half a
second to start."""

_SEARCH: Final = """
import json, sys, numpy
from dither.tasks.bubble_diagram.validity import search_boxes
tokens, rooms, limit = json.load(sys.stdin)
json.dump([part.tolist() for part in search_boxes(numpy.array(tokens), rooms, None, limit)], sys.stdout)
"""

_CACHED: Final = 16_384
"""Cached searches; a few hundred bytes each."""


@dataclass(frozen=True)
class TokenValidity:
    """Levels 0 to 2 of each diagram, and two parts of level 1. All are False where the tokens are illegal."""

    tokens: Bool[np.ndarray, " N"]
    one_living_room: Bool[np.ndarray, " N"]
    connected: Bool[np.ndarray, " N"]
    program: Bool[np.ndarray, " N"]
    order: Bool[np.ndarray, " N"]


@dataclass(frozen=True)
class Levels:
    """Validity levels of each diagram.

    Attributes:
        structure: Levels 0 to 2; `edges` is level 3, `realisable` level 4, `buildable` level 5.
        unknown: The search gave up before levels 3 to 5 were decided.
        boxes: Boxes that prove level 5, or else 4, in pixels; zeros where there are none, and in
            empty slots.
    """

    structure: TokenValidity
    edges: Bool[np.ndarray, " N"]
    realisable: Bool[np.ndarray, " N"]
    buildable: Bool[np.ndarray, " N"]
    unknown: Bool[np.ndarray, " N"]
    boxes: Int[np.ndarray, "N R 4"]

    def reached(self) -> tuple[Bool[np.ndarray, " N"], ...]:
        """Return levels 0 to 5."""
        structure = self.structure
        return (
            structure.tokens,
            structure.program,
            structure.order,
            self.edges,
            self.realisable,
            self.buildable,
        )

    def rates(self) -> dict[str, float]:
        """Return the share of diagrams that reach each level, and of those that are unknown."""
        rates = {f"level_{level}": float(mask.mean()) for level, mask in enumerate(self.reached())}
        return rates | {"unknown": float(self.unknown.mean())}


def validity_levels(
    tokens: Int[np.ndarray, "N L"],
    rooms: int,
    *,
    boxes: Int[np.ndarray, "N R 4"] | None = None,
    limit: int = LIMIT,
) -> Levels:
    """Determine the levels of diagrams.

    Args:
        tokens: The diagrams.
        rooms: Room slots of each.
        boxes: Room boxes, if known; boxes that prove their diagram make the search unnecessary.
        limit: Most linear programs for one level of one diagram.
    """
    structure = token_validity(tokens, rooms)
    rows = np.flatnonzero(structure.order)
    cores = max(min(usable_cores(), len(rows) // SHARE), 1) if boxes is None else 1
    shares = [rows[first::cores] for first in range(cores)]
    try:
        children = [
            ChildProcess(_SEARCH, (tokens[share].tolist(), rooms, limit)) for share in shares[1:]
        ]
    except OSError:  # such as a full disk, or too many processes
        shares = [rows]
        children = []
    levels = [
        search_boxes(tokens[shares[0]], rooms, None if boxes is None else boxes[shares[0]], limit)
    ]
    for share, child in zip(shares[1:], children, strict=True):
        try:
            done, unsure, found = map(np.array, child.result())
            levels.append((done, unsure, found))
        except (CalledProcessError, ValueError):  # killed, such as for lack of memory
            levels.append(search_boxes(tokens[share], rooms, None, limit))
    reached = np.zeros((3, len(tokens)), bool)
    unknown = np.zeros(len(tokens), bool)
    proof = np.zeros((len(tokens), rooms, 4), np.int16)
    for share, parts in zip(shares, levels, strict=True):
        reached[:, share], unknown[share], proof[share] = parts
    return Levels(structure, reached[0], reached[1], reached[2], unknown, proof)


def search_boxes(
    tokens: Int[np.ndarray, "N L"],
    rooms: int,
    boxes: Int[np.ndarray, "N R 4"] | None,
    limit: int,
) -> tuple[Bool[np.ndarray, "3 N"], Bool[np.ndarray, " N"], Int[np.ndarray, "N R 4"]]:
    """Return levels 3 to 5 of diagrams that reach level 2, which are unknown, and boxes that prove them."""
    proof = np.zeros((len(tokens), rooms, 4), np.int16)
    reached = np.zeros((3, len(tokens)), bool)
    unknown = np.zeros(len(tokens), bool)
    for row in range(len(tokens)):
        relations, exclude, count = _relations(tokens[row], rooms)
        best = (
            None
            if boxes is None or not realises(boxes[row, :count], relations)
            else boxes[row, :count]
        )
        if best is not None and realises(best, relations, disjoint=exclude):
            reached[:, row] = True
            proof[row, :count] = best
            continue
        # From level 5 down to the first that is reached; levels below the boxes that are known need
        # no search.
        for level, (apart, disjoint) in (
            (2, (True, True)),
            (1, (True, False)),
            (0, (False, False)),
        ):
            if level < 2 and best is not None:
                reached[: level + 1, row] = True
                break
            result = _realise(
                relations.tobytes(), exclude.tobytes() if disjoint else b"", count, limit, apart
            )
            unknown[row] |= result.verdict == "unknown"
            if result.boxes is not None:
                best = result.boxes if level else None
                reached[: level + 1, row] = True
                break
        if best is not None:
            proof[row, :count] = best
    return reached, unknown, proof


def is_buildable(tokens: Int[np.ndarray, "N L"], rooms: int) -> Bool[np.ndarray, " N"]:
    """Return whether diagrams reach level 5, without other searches; False where the search gives up."""
    mask = token_validity(tokens, rooms).order
    for row in np.flatnonzero(mask).tolist():
        relations, exclude, count = _relations(tokens[row], rooms)
        mask[row] = (
            _realise(relations.tobytes(), exclude.tobytes(), count, LIMIT, True).boxes is not None
        )
    return mask


def _relations(
    tokens: Int[np.ndarray, " L"], rooms: int
) -> tuple[Int[np.ndarray, " E"], Bool[np.ndarray, " E"], int]:
    """Return the relations of a legal diagram, which pairs of rooms may not overlap, and the number of rooms."""
    real = tokens[:rooms] != NODE_PAD
    types = tokens[:rooms][real]
    edges = tokens[rooms:][real_edges(real[None])[0]]
    return edges.astype(np.int8), exclusive(types), len(types)


@lru_cache(maxsize=_CACHED)  # samples are checked while sampling, then evaluated, then drawn
def _realise(
    edges: bytes,
    exclude: bytes,
    rooms: int,
    limit: int,
    apart: bool,
) -> Realisation:
    disjoint = np.frombuffer(exclude, bool) if exclude else False
    result = realise(
        np.frombuffer(edges, np.int8), rooms, limit=limit, apart=apart, disjoint=disjoint
    )
    if result.boxes is not None:
        result.boxes.flags.writeable = False
    return result


def token_validity(tokens: Int[np.ndarray, "N L"], rooms: int) -> TokenValidity:
    """Determine levels 0 to 2 of diagrams with `rooms` room slots."""
    types = tokens[:, :rooms]
    edges = tokens[:, rooms:]
    real = types != NODE_PAD
    legal = real[:, 0] & np.all(real[:, :-1] | ~real[:, 1:], axis=1)
    legal &= np.all(~real | ((types >= 0) & (types < NODE_MASK)), axis=1)
    legal &= np.all(
        np.where(real_edges(real), (edges >= 0) & (edges <= NO_EDGE), edges == EDGE_PAD), axis=1
    )
    living = legal & ((types == LIVING).sum(1) == 1)
    connected = legal & connects(edges < NO_EDGE, real)
    program = living & connected & ((types == ENTRANCE).sum(1) <= 1)
    order = program
    for before, after in ((LEFT, RIGHT), (ABOVE, BELOW)):
        reach = _closure(_directed(np.isin(edges, [*before]), np.isin(edges, [*after]), rooms))
        order = order & ~np.diagonal(reach, axis1=1, axis2=2).any(1)
    return TokenValidity(legal, living, connected, program, order)


def is_reachable(tokens: Int[np.ndarray, "N L"], rooms: int) -> Bool[np.ndarray, " N"]:
    """Return in which diagrams with door tokens doors join all rooms, only close ones, with exactly one front door."""
    types, edges, doors, _ = split_fields(tokens, rooms)
    inner = doors[:, : edges.shape[1]] == DOOR
    front = doors[:, edges.shape[1] :] == DOOR
    return np.asarray(
        connects(inner, types != NODE_PAD)
        & (~inner | (edges < NO_EDGE)).all(1)
        & (front.sum(1) == 1)
    )


def connects(
    pairs: Bool[np.ndarray, "N E"], real: Bool[np.ndarray, "N R"]
) -> Bool[np.ndarray, " N"]:
    """Return whether links between pairs of rooms connect all real rooms, of which slot 0 is one."""
    rooms = real.shape[1]
    links = _directed(pairs, pairs, rooms) & real[:, :, None] & real[:, None]
    return np.asarray((_closure(links | np.eye(rooms, dtype=bool))[:, 0] | ~real).all(1))


def _directed(
    forward: Bool[np.ndarray, "N E"], backward: Bool[np.ndarray, "N E"], rooms: int
) -> Bool[np.ndarray, "N R R"]:
    """Return the adjacency matrix with i -> j where `forward` and j -> i where `backward`."""
    matrix = np.zeros((len(forward), rooms, rooms), bool)
    i, j = pair_ends(rooms)
    matrix[:, i, j] = forward
    matrix[:, j, i] = backward
    return matrix


def _closure(matrix: Bool[np.ndarray, "N R R"]) -> Bool[np.ndarray, "N R R"]:
    """Transitive closure: True where one or more steps lead from the first to the second."""
    reach = matrix
    for _ in range(max(1, int(np.ceil(np.log2(matrix.shape[-1]))))):
        reach = reach | (np.matmul(reach.astype(np.float32), reach.astype(np.float32)) > 0)
    return reach
