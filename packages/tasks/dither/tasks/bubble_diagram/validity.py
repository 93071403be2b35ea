"""How far diagrams hold together, from legal tokens up to boxes that prove that they can be built.

Five levels, each on top of the one before:

    0  tokens      every token is an id of clean data or PAD, and PAD stands behind the rooms
    1  programme   exactly one living room, at most one entrance, and from every room there is a way to every other
    2  order       "left of" runs in no circle, and neither does "above"
    3  edges       some boxes show every relation that is there
    4  realisable  some boxes show every relation that is there, and no other

The first three are read off (`structure`), the last two searched for (`realisability`). What the search gave up on
counts as not reached, and is counted apart. Letters: N diagrams, R room slots, L tokens.
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
from .relations import edges_of
from .vocabulary import EDGE_PAD, NO_EDGE, NODE_MASK, NODE_PAD, ROOMS, pairs

__all__ = ["Levels", "TokenValidity", "is_realisable", "realise_all", "token_validity", "validity_levels"]

Found = tuple[Verdict, Verdict, Int[np.ndarray, "R 4"] | None]
"""Levels 3 and 4 of a diagram, and the witness of level 4."""

_CHUNK: Final = 16

_REMEMBERED: Final = 16_384
"""Searches that are remembered; a few hundred bytes each."""


@dataclass(frozen=True)
class Levels:
    """What holds of each diagram.

    Attributes:
        structure: Levels 0 to 2.
        edges: Level 3.
        realisable: Level 4.
        unknown: The search gave up before level 3 or level 4 was decided.
        boxes: The witness of level 4 in pixels, (x0, y0, x1, y1); zeros where there is none, and in empty slots.
    """

    structure: TokenValidity
    edges: Bool[np.ndarray, " N"]
    realisable: Bool[np.ndarray, " N"]
    unknown: Bool[np.ndarray, " N"]
    boxes: Int[np.ndarray, "N R 4"]

    def rates(self) -> dict[str, float]:
        """Return the share of the diagrams that reach each level, and of those that are unknown."""
        reached = (self.structure.tokens, self.structure.programme, self.structure.order, self.edges, self.realisable)
        rates = {f"level_{level}": float(found.mean()) for level, found in enumerate(reached)}
        return rates | {"unknown": float(self.unknown.mean())}


def validity_levels(
    tokens: Int[np.ndarray, "N L"],
    rooms: int,
    *,
    boxes: Int[np.ndarray, "N R 4"] | None = None,
    limit: int = LIMIT,
    processes: int = 1,
) -> Levels:
    """Find the levels of diagrams of `rooms` room slots.

    Args:
        tokens: The diagrams.
        rooms: Room slots of each.
        boxes: Where the rooms are, if that is known; boxes that prove their diagram spare the search.
        limit: Most linear programs for one level of one diagram.
        processes: Processes to search in; with more than one they are started afresh, which takes about a second.
    """
    structure = token_validity(tokens, rooms)
    witness = np.zeros((len(tokens), rooms, 4), np.int16)
    given = np.zeros(len(tokens), bool) if boxes is None else _proved(tokens, rooms, boxes)
    if boxes is not None:
        witness[given] = boxes[given]
    edges, realisable = structure.order & given, structure.order & given
    unknown = np.zeros(len(tokens), bool)
    rows = np.flatnonzero(structure.order & ~given)
    distinct, where = np.unique(tokens[rows], axis=0, return_inverse=True)
    real = distinct[:, :rooms] != NODE_PAD
    edges_of_each = [row[both] for row, both in zip(distinct[:, rooms:], real_edges(real), strict=True)]
    jobs = list(zip(edges_of_each, real.sum(1).tolist(), strict=True))
    found = realise_all(jobs, limit=limit, processes=processes)
    for row, place in zip(rows.tolist(), where.reshape(-1).tolist(), strict=True):
        third, fourth, walls = found[place]
        edges[row], realisable[row] = third == "realisable", fourth == "realisable"
        unknown[row] = "unknown" in (third, fourth)
        if walls is not None:
            witness[row, : len(walls)] = walls
    return Levels(structure, edges, realisable, unknown, witness)


def is_realisable(tokens: Int[np.ndarray, "N L"], rooms: int, *, limit: int = LIMIT) -> Bool[np.ndarray, " N"]:
    """Return whether diagrams reach level 4, and do not ask for level 3; False where the search gave up."""
    built = token_validity(tokens, rooms).order
    real = tokens[:, :rooms] != NODE_PAD
    for row in np.flatnonzero(built).tolist():
        edges = tokens[row, rooms:][real_edges(real[row : row + 1])[0]].astype(np.int8)
        built[row] = _realised(edges.tobytes(), int(real[row].sum()), limit, True).boxes is not None
    return built


def realise_all(
    diagrams: Sequence[tuple[Int[np.ndarray, " E"], int]], *, limit: int = LIMIT, processes: int = 1
) -> list[Found]:
    """Find levels 3 and 4 of diagrams, given as relations and number of rooms; the order is kept."""
    search = partial(_search, limit=limit)
    if processes == 1 or len(diagrams) <= _CHUNK:
        return [search(diagram) for diagram in diagrams]
    with ProcessPoolExecutor(processes, mp_context=get_context("spawn")) as pool:
        found: Iterable[Found] = pool.map(search, diagrams, chunksize=_CHUNK)
        return list(found)


def _search(diagram: tuple[Int[np.ndarray, " E"], int], limit: int) -> Found:
    whole = _realised(diagram[0].astype(np.int8).tobytes(), diagram[1], limit, True)
    if whole.boxes is not None:
        return "realisable", "realisable", whole.boxes
    return _realised(diagram[0].astype(np.int8).tobytes(), diagram[1], limit, False).verdict, whole.verdict, None


@lru_cache(maxsize=_REMEMBERED)  # what is drawn was often judged a moment before, and put to the test while sampled
def _realised(edges: bytes, rooms: int, limit: int, apart: bool) -> Realisation:
    found = realise(np.frombuffer(edges, np.int8), rooms, limit=limit, apart=apart)
    if found.boxes is not None:
        found.boxes.flags.writeable = False
    return found


def _proved(tokens: Int[np.ndarray, "N L"], rooms: int, boxes: Int[np.ndarray, "N R 4"]) -> Bool[np.ndarray, " N"]:
    """True where boxes, drawn again by the rule, give the diagram."""
    canvas, real = Canvas(), tokens[:, :rooms] != NODE_PAD
    fits = (boxes.min(-1) >= 0) & (boxes.max(-1) <= canvas.side)
    fits &= (boxes[..., 2:] - boxes[..., :2]).min(-1) >= canvas.smallest
    shown = (edges_of(boxes) == tokens[:, rooms:]) | ~real_edges(real)
    proved: Bool[np.ndarray, " N"] = (fits | ~real).all(1) & shown.all(1)
    return proved


_LIVING, _ENTRANCE = ROOMS.index("LivingRoom"), ROOMS.index("Entrance")
_LEFT, _RIGHT, _ABOVE, _BELOW = (0, 1, 2), (7, 8, 9), (0, 3, 8), (1, 6, 9)
"""Relations by what they say of the centres of the two rooms."""


@dataclass(frozen=True)
class TokenValidity:
    """What holds of each diagram. Everything is False where the tokens are not legal.

    Attributes:
        tokens: Level 0.
        one_living_room: There is exactly one living room.
        connected: From every room there is a way to every other.
        programme: Level 1.
        order: Level 2.
    """

    tokens: Bool[np.ndarray, " N"]
    one_living_room: Bool[np.ndarray, " N"]
    connected: Bool[np.ndarray, " N"]
    programme: Bool[np.ndarray, " N"]
    order: Bool[np.ndarray, " N"]


def token_validity(tokens: Int[np.ndarray, "N L"], rooms: int) -> TokenValidity:
    """Say what holds of diagrams of `rooms` room slots."""
    types, edges = tokens[:, :rooms], tokens[:, rooms:]
    legal = _legal(types, edges)
    real = types != NODE_PAD
    living = legal & ((types == _LIVING).sum(1) == 1)
    connected = legal & _connected(real, _matrix(edges < NO_EDGE, rooms))
    programme = living & connected & ((types == _ENTRANCE).sum(1) <= 1)
    before_x = _directed(np.isin(edges, _LEFT), np.isin(edges, _RIGHT), rooms)
    before_y = _directed(np.isin(edges, _ABOVE), np.isin(edges, _BELOW), rooms)
    return TokenValidity(legal, living, connected, programme, programme & _acyclic(before_x) & _acyclic(before_y))


def _legal(types: Int[np.ndarray, "N R"], edges: Int[np.ndarray, "N E"]) -> Bool[np.ndarray, " N"]:
    real = types != NODE_PAD
    prefix = np.all(real[:, :-1] | ~real[:, 1:], axis=1) & real[:, 0]
    nodes = np.all(~real | ((types >= 0) & (types < NODE_MASK)), axis=1)
    wanted = np.where(real_edges(real), (edges >= 0) & (edges <= NO_EDGE), edges == EDGE_PAD)
    legal: Bool[np.ndarray, " N"] = prefix & nodes & np.all(wanted, axis=1)
    return legal


def _directed(
    forward: Bool[np.ndarray, "N E"], backward: Bool[np.ndarray, "N E"], rooms: int
) -> Bool[np.ndarray, "N R R"]:
    """Return the matrix with i -> j where `forward` and j -> i where `backward`."""
    matrix = np.zeros((len(forward), rooms, rooms), bool)
    i, j = np.array(pairs(rooms), int).reshape(-1, 2).T
    matrix[:, i, j] = forward
    matrix[:, j, i] = backward
    return matrix


def _matrix(related: Bool[np.ndarray, "N E"], rooms: int) -> Bool[np.ndarray, "N R R"]:
    return _directed(related, related, rooms)


def _closure(matrix: Bool[np.ndarray, "N R R"]) -> Bool[np.ndarray, "N R R"]:
    """True where one or more steps lead from the first to the second."""
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
