"""Whether diagrams hold together, from their tokens alone.

Three levels, each on top of the one before:

    0  tokens     every token is an id of clean data or PAD, and PAD stands behind the rooms
    1  programme  exactly one living room, at most one entrance, and from every room there is a way to every other
    2  order      "left of" runs in no circle, and neither does "above": the centres could be put in order

Level 2 is necessary for a diagram that can be built, not enough. Letters: N diagrams, R room slots, E pairs, L = R + E.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Int, UInt

from .plans import real_edges
from .vocabulary import EDGE_PAD, NO_EDGE, NODE_MASK, NODE_PAD, ROOMS, pairs

__all__ = ["Structure", "fingerprints", "mixed", "structure_of"]

_LIVING, _ENTRANCE = ROOMS.index("LivingRoom"), ROOMS.index("Entrance")
_LEFT, _RIGHT, _ABOVE, _BELOW = (0, 1, 2), (7, 8, 9), (0, 3, 8), (1, 6, 9)
"""Relations by what they say of the centres of the two rooms."""


@dataclass(frozen=True)
class Structure:
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


def structure_of(tokens: Int[np.ndarray, "N L"], rooms: int) -> Structure:
    """Say what holds of diagrams of `rooms` room slots."""
    types, edges = tokens[:, :rooms], tokens[:, rooms:]
    legal = _legal(types, edges)
    real = types != NODE_PAD
    living = legal & ((types == _LIVING).sum(1) == 1)
    connected = legal & _connected(real, _matrix(edges < NO_EDGE, rooms))
    programme = living & connected & ((types == _ENTRANCE).sum(1) <= 1)
    before_x = _directed(np.isin(edges, _LEFT), np.isin(edges, _RIGHT), rooms)
    before_y = _directed(np.isin(edges, _ABOVE), np.isin(edges, _BELOW), rooms)
    return Structure(legal, living, connected, programme, programme & _acyclic(before_x) & _acyclic(before_y))


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


def fingerprints(tokens: Int[np.ndarray, "N L"], rooms: int) -> Int[np.ndarray, " N"]:
    """Return a number per diagram that does not depend on the order of its rooms (Weisfeiler and Lehman, three rounds).

    A relation seen from its second room counts as the opposite one, which Graph2Plan's rule makes it in about two cases
    of three; so one plan in two orders may get two numbers.
    """
    types, edges = tokens[:, :rooms].astype(np.int64), tokens[:, rooms:].astype(np.int64)
    i, j = np.array(pairs(rooms), int).reshape(-1, 2).T
    label = np.full((len(tokens), rooms, rooms), NO_EDGE, np.int64)
    label[:, i, j] = edges
    label[:, j, i] = np.where(edges < NO_EDGE, NO_EDGE - 1 - edges, edges)
    label[:, np.arange(rooms), np.arange(rooms)] = EDGE_PAD
    colour = mixed(types.astype(np.uint64))
    for _ in range(3):
        seen = mixed(colour[:, None, :] + mixed(label.astype(np.uint64)))
        colour = mixed(colour + seen.sum(2, dtype=np.uint64))
    marks: Int[np.ndarray, " N"] = mixed(colour.sum(1, dtype=np.uint64)).astype(np.int64)
    return marks


def mixed(value: UInt[np.ndarray, "*n"]) -> UInt[np.ndarray, "*n"]:
    """Scramble 64 bits (the finish of SplitMix64, Steele and others 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt[np.ndarray, "*n"] = value ^ (value >> np.uint64(31))
    return mixed
