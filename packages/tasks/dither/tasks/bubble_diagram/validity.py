"""Validity levels of diagrams, from legal tokens to a geometric proof of realisability.

Each level includes the one before:

    0  tokens      every token is a data id or PAD, and PAD follows the rooms
    1  program     exactly one living room, at most one entrance, and the adjacency graph is connected
    2  order       neither "left of" nor "above" contains a cycle
    3  edges       some boxes show every relation of the diagram
    4  realisable  some boxes show every relation of the diagram and no other

Levels 0 to 2 are read off the tokens, 3 and 4 require a search (`geometry.realisability`). Where the search gives up
the level counts as not reached, and the diagram also as unknown. Letters: N diagrams, R room slots, L tokens.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from functools import lru_cache, partial
from multiprocessing import get_context
from typing import Final

import numpy as np
from jaxtyping import Bool, Int

from .geometry.realisability import LIMIT, Realisation, Verdict, realise
from .geometry.wall_constraints import Canvas
from .plans import real_edges
from .relations import edges_of, pair_ends
from .vocabulary import ABOVE, BELOW, EDGE_PAD, ENTRANCE, LEFT, LIVING, NO_EDGE, NODE_MASK, NODE_PAD, RIGHT

__all__ = ["Levels", "TokenValidity", "is_realisable", "realise_all", "token_validity", "validity_levels"]

SearchResult = tuple[Verdict, Verdict, Int[np.ndarray, "R 4"] | None]
"""Verdicts of levels 3 and 4, and the boxes that prove level 4."""

_CHUNK: Final = 16

_CACHED: Final = 16_384
"""Cached searches; a few hundred bytes each."""


@dataclass(frozen=True)
class TokenValidity:
    """Levels 0 to 2 of each diagram. All are False where the tokens are illegal.

    Attributes:
        tokens: Level 0.
        one_living_room: There is exactly one living room.
        connected: The adjacency graph is connected.
        program: Level 1.
        order: Level 2.
    """

    tokens: Bool[np.ndarray, " N"]
    one_living_room: Bool[np.ndarray, " N"]
    connected: Bool[np.ndarray, " N"]
    program: Bool[np.ndarray, " N"]
    order: Bool[np.ndarray, " N"]


@dataclass(frozen=True)
class Levels:
    """Validity levels of each diagram.

    Attributes:
        structure: Levels 0 to 2.
        edges: Level 3.
        realisable: Level 4.
        unknown: The search gave up before level 3 or 4 was decided.
        boxes: Boxes that prove level 4, in pixels; zeros where there are none, and in empty slots.
    """

    structure: TokenValidity
    edges: Bool[np.ndarray, " N"]
    realisable: Bool[np.ndarray, " N"]
    unknown: Bool[np.ndarray, " N"]
    boxes: Int[np.ndarray, "N R 4"]

    def reached(self) -> tuple[Bool[np.ndarray, " N"], ...]:
        """Return levels 0 to 4."""
        return self.structure.tokens, self.structure.program, self.structure.order, self.edges, self.realisable

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
    processes: int = 1,
) -> Levels:
    """Determine the levels of diagrams.

    Args:
        tokens: The diagrams.
        rooms: Room slots of each.
        boxes: Room boxes, if known; boxes that prove their diagram make the search unnecessary.
        limit: Most linear programs for one level of one diagram.
        processes: Worker processes for the search; starting them takes about a second.
    """
    structure = token_validity(tokens, rooms)
    proof = np.zeros((len(tokens), rooms, 4), np.int16)
    proved = np.zeros(len(tokens), bool) if boxes is None else _proved(tokens, rooms, boxes)
    if boxes is not None:
        proof[proved] = boxes[proved]
    edges, realisable = structure.order & proved, structure.order & proved
    unknown = np.zeros(len(tokens), bool)
    rows = np.flatnonzero(structure.order & ~proved)
    distinct, where = np.unique(tokens[rows], axis=0, return_inverse=True)
    real = distinct[:, :rooms] != NODE_PAD
    edges_of_each = [row[both] for row, both in zip(distinct[:, rooms:], real_edges(real), strict=True)]
    jobs = list(zip(edges_of_each, real.sum(1).tolist(), strict=True))
    results = realise_all(jobs, limit=limit, processes=processes)
    for row, number in zip(rows.tolist(), where.reshape(-1).tolist(), strict=True):
        third, fourth, walls = results[number]
        edges[row], realisable[row] = third == "realisable", fourth == "realisable"
        unknown[row] = "unknown" in (third, fourth)
        if walls is not None:
            proof[row, : len(walls)] = walls
    return Levels(structure, edges, realisable, unknown, proof)


def is_realisable(tokens: Int[np.ndarray, "N L"], rooms: int, *, limit: int = LIMIT) -> Bool[np.ndarray, " N"]:
    """Return whether diagrams reach level 4, skipping the search for level 3; False where the search gives up."""
    mask = token_validity(tokens, rooms).order
    real = tokens[:, :rooms] != NODE_PAD
    for row in np.flatnonzero(mask).tolist():
        edges = tokens[row, rooms:][real_edges(real[row : row + 1])[0]].astype(np.int8)
        mask[row] = _realise(edges.tobytes(), int(real[row].sum()), limit, True).boxes is not None
    return mask


def realise_all(
    diagrams: Sequence[tuple[Int[np.ndarray, " E"], int]], *, limit: int = LIMIT, processes: int = 1
) -> list[SearchResult]:
    """Decide levels 3 and 4 of diagrams given as relations and number of rooms, in order."""
    search = partial(_search, limit=limit)
    if processes == 1 or len(diagrams) <= _CHUNK:
        return [search(diagram) for diagram in diagrams]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        results: Iterable[SearchResult] = pool.map(search, diagrams, chunksize=_CHUNK)
        return list(results)


def _search(diagram: tuple[Int[np.ndarray, " E"], int], limit: int) -> SearchResult:
    edges, rooms = diagram[0].astype(np.int8).tobytes(), diagram[1]
    full = _realise(edges, rooms, limit, True)
    if full.boxes is not None:
        return "realisable", "realisable", full.boxes
    return _realise(edges, rooms, limit, False).verdict, full.verdict, None


@lru_cache(maxsize=_CACHED)  # samples are checked while sampling, then evaluated, then drawn
def _realise(edges: bytes, rooms: int, limit: int, apart: bool) -> Realisation:
    result = realise(np.frombuffer(edges, np.int8), rooms, limit=limit, apart=apart)
    if result.boxes is not None:
        result.boxes.flags.writeable = False
    return result


def _proved(tokens: Int[np.ndarray, "N L"], rooms: int, boxes: Int[np.ndarray, "N R 4"]) -> Bool[np.ndarray, " N"]:
    """True where the relations derived from the boxes are those of the diagram."""
    canvas, real = Canvas(), tokens[:, :rooms] != NODE_PAD
    fits = (boxes.min(-1) >= 0) & (boxes.max(-1) <= canvas.side)
    fits &= (boxes[..., 2:] - boxes[..., :2]).min(-1) >= canvas.smallest
    equal = (edges_of(boxes) == tokens[:, rooms:]) | ~real_edges(real)
    proved: Bool[np.ndarray, " N"] = (fits | ~real).all(1) & equal.all(1)
    return proved


def token_validity(tokens: Int[np.ndarray, "N L"], rooms: int) -> TokenValidity:
    """Determine levels 0 to 2 of diagrams with `rooms` room slots."""
    types, edges = tokens[:, :rooms], tokens[:, rooms:]
    legal = _legal(types, edges)
    real = types != NODE_PAD
    living = legal & ((types == LIVING).sum(1) == 1)
    connected = legal & _connected(real, _directed(edges < NO_EDGE, edges < NO_EDGE, rooms))
    program = living & connected & ((types == ENTRANCE).sum(1) <= 1)
    before_x = _directed(np.isin(edges, [*LEFT]), np.isin(edges, [*RIGHT]), rooms)
    before_y = _directed(np.isin(edges, [*ABOVE]), np.isin(edges, [*BELOW]), rooms)
    return TokenValidity(legal, living, connected, program, program & _acyclic(before_x) & _acyclic(before_y))


def _legal(types: Int[np.ndarray, "N R"], edges: Int[np.ndarray, "N E"]) -> Bool[np.ndarray, " N"]:
    real = types != NODE_PAD
    prefix = np.all(real[:, :-1] | ~real[:, 1:], axis=1) & real[:, 0]
    nodes = np.all(~real | ((types >= 0) & (types < NODE_MASK)), axis=1)
    pairs = np.where(real_edges(real), (edges >= 0) & (edges <= NO_EDGE), edges == EDGE_PAD)
    legal: Bool[np.ndarray, " N"] = prefix & nodes & np.all(pairs, axis=1)
    return legal


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


def _connected(real: Bool[np.ndarray, "N R"], near: Bool[np.ndarray, "N R R"]) -> Bool[np.ndarray, " N"]:
    reach = _closure(near & real[:, :, None] & real[:, None, :])[:, 0]
    reach[:, 0] = True
    connected: Bool[np.ndarray, " N"] = np.all(reach | ~real, axis=1) & real[:, 0]
    return connected


def _acyclic(matrix: Bool[np.ndarray, "N R R"]) -> Bool[np.ndarray, " N"]:
    cyclic: Bool[np.ndarray, " N"] = np.any(np.diagonal(_closure(matrix), axis1=1, axis2=2), axis=1)
    return ~cyclic
