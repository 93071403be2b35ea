"""Isomorphism of diagrams: equality up to the order of rooms.

A diagram stores the relation of room i to room j for i < j only. Reordering the rooms reverses some pairs, and the
reversed relation is not determined by the original one: the reverse of "left of" may be "right of" or "right above".
With known boxes both directions follow from the boxes and the comparison is exact. Without boxes two diagrams match
unless some pair rules it out, that is unless no two boxes have both relations; so the number of distinct or novel
diagrams is never overestimated.

Letters: N diagrams, R room slots, E pairs of slots, L tokens.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
from jaxtyping import Bool, Int, UInt

from .plans import Plans, real_edges
from .relations import labels_of, pair_ends
from .vocabulary import EDGE_MASK, EDGE_PAD, NO_EDGE, NODE_PAD

__all__ = ["PlanIndex", "canonical_forms", "is_first_occurrence", "plan_groups", "room_hashes"]

_REVERSE_ONLY: Final = -1
"""Relation of a pair that is known in the other direction only."""


class PlanIndex:
    """Hash index for isomorphism lookups.

    Args:
        tokens: Valid diagrams.
        rooms: Room slots of each.
        boxes: Room boxes where known; zeros elsewhere.
    """

    def __init__(
        self, tokens: Int[np.ndarray, "N L"], rooms: int, boxes: Int[np.ndarray, "N R 4"] | None = None
    ) -> None:
        self._rooms = rooms
        self._hashes = room_hashes(tokens, rooms)
        self._relations = _relation_matrices(tokens, rooms, boxes)
        self._rows: dict[int, list[int]] = defaultdict(list)
        for row, key in enumerate(_plan_hashes(self._hashes)):
            self._rows[key].append(row)

    def holds(self, tokens: Int[np.ndarray, "n L"]) -> Bool[np.ndarray, " n"]:
        """True for diagrams isomorphic to one in the index."""
        hashes = room_hashes(tokens, self._rooms)
        relations = _relation_matrices(tokens, self._rooms, None)
        hits = np.zeros(len(tokens), bool)
        for row, key in enumerate(_plan_hashes(hashes)):
            candidates = self._rows.get(key, ())
            hits[row] = any(
                _isomorphic(hashes[row], relations[row], self._hashes[k], self._relations[k]) for k in candidates
            )
        return hits


def is_first_occurrence(tokens: Int[np.ndarray, "N L"], rooms: int) -> Bool[np.ndarray, " N"]:
    """True for diagrams that are isomorphic to no earlier one."""
    hashes, relations = room_hashes(tokens, rooms), _relation_matrices(tokens, rooms, None)
    distinct: dict[int, list[int]] = defaultdict(list)
    first = np.zeros(len(tokens), bool)
    for row, key in enumerate(_plan_hashes(hashes)):
        if not any(_isomorphic(hashes[row], relations[row], hashes[k], relations[k]) for k in distinct[key]):
            distinct[key].append(row)
            first[row] = True
    return first


def room_hashes(tokens: Int[np.ndarray, "N L"], rooms: int) -> Int[np.ndarray, "N R"]:
    """Return Weisfeiler-Lehman hashes of the rooms after three rounds; 0 in empty slots.

    A hash depends on the room's type and the adjacency graph, not on the order of rooms or the kind of relation.
    """
    real = tokens[:, :rooms] != NODE_PAD
    i, j = pair_ends(rooms)
    near = np.zeros((len(tokens), rooms, rooms), np.uint64)
    near[:, i, j] = near[:, j, i] = (tokens[:, rooms:] < NO_EDGE) & real_edges(real)
    colour = _splitmix(tokens[:, :rooms].astype(np.uint64)) * real
    for _ in range(3):
        colour = _splitmix(colour + _splitmix(colour[:, None, :] * near).sum(2, dtype=np.uint64)) * real
    hashes: Int[np.ndarray, "N R"] = colour.astype(np.int64)
    return hashes


def _plan_hashes(hashes: Int[np.ndarray, "N R"]) -> list[int]:
    sums: list[int] = _splitmix(hashes.astype(np.uint64)).sum(1, dtype=np.uint64).tolist()
    return sums


def _relation_matrices(
    tokens: Int[np.ndarray, "N L"], rooms: int, boxes: Int[np.ndarray, "N R 4"] | None
) -> Int[np.ndarray, "N R R"]:
    """Relation of each room to each other; `_REVERSE_ONLY` below the diagonal unless boxes are known."""
    i, j = pair_ends(rooms)
    edges = tokens[:, rooms:]
    reverse = np.where(edges < NO_EDGE, _REVERSE_ONLY, edges)
    if boxes is not None:
        known = np.asarray(boxes.any((1, 2)))[:, None] & (edges < NO_EDGE)
        reverse = np.where(known, labels_of(boxes[:, j], boxes[:, i]), reverse)
    matrix = np.full((len(tokens), rooms, rooms), EDGE_PAD, np.int8)
    matrix[:, i, j], matrix[:, j, i] = edges, reverse
    return matrix


def _isomorphic(
    hashes: Int[np.ndarray, " R"],
    relations: Int[np.ndarray, "R R"],
    other_hashes: Int[np.ndarray, " R"],
    other_relations: Int[np.ndarray, "R R"],
) -> bool:
    """Backtracking search for an order of the other diagram's rooms that matches this one."""
    rooms = int((hashes != 0).sum())
    ours, theirs = relations.tolist(), other_relations.tolist()
    candidates = [np.flatnonzero(other_hashes == key).tolist() for key in hashes[:rooms]]
    reversible = _reversible()

    def matches(order: Sequence[int], room: int) -> bool:
        for earlier in range(room):
            relation, (a, b) = ours[earlier][room], (order[earlier], order[room])
            other = theirs[a][b]
            if not (relation == other or (other == _REVERSE_ONLY and reversible[relation][theirs[b][a]])):
                return False
        return True

    def extend(order: tuple[int, ...]) -> bool:
        room = len(order)
        return room == rooms or any(
            one not in order and matches((*order, one), room) and extend((*order, one)) for one in candidates[room]
        )

    return extend(())


@lru_cache(maxsize=1)
def _reversible() -> list[list[bool]]:
    """For each two relations, whether some pair of boxes has the first forwards and the second backwards."""
    spans = [(low, high) for low in range(7) for high in range(low + 1, 7)]
    boxes = np.array([(x0, y0, x1, y1) for x0, x1 in spans for y0, y1 in spans], np.int64)
    u, v = boxes[:, None], boxes[None, :]
    occurs = np.zeros((NO_EDGE + 1, NO_EDGE + 1), bool)
    occurs[labels_of(u, v), labels_of(v, u)] = True
    table: list[list[bool]] = occurs.tolist()
    return table


def _splitmix(value: UInt[np.ndarray, "*n"]) -> UInt[np.ndarray, "*n"]:
    """SplitMix64 finaliser (Steele et al. 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: UInt[np.ndarray, "*n"] = value ^ (value >> np.uint64(31))
    return mixed


_UNKNOWN_REVERSE: Final = EDGE_MASK
"""Relation of the second room of a pair to the first, where only the forward direction is known."""

_Matrix = Int[np.ndarray, "R R"]


def plan_groups(plans: Plans) -> list[bytes]:
    """Return a group key for each plan; isomorphic plans share a key.

    Plans are grouped if the canonical forms of their boxes' relations, in both directions, are equal, or if those of
    their tokens are. Both are needed: in one case of three neither implies the other.
    """
    parent: dict[bytes, bytes] = {}

    def root(key: bytes) -> bytes:
        while parent.setdefault(key, key) != key:
            key = parent[key]
        return key

    keys = [b""] * len(plans)
    for rooms in np.unique(plans.rooms).tolist():
        rows = np.flatnonzero(plans.rooms == rooms)
        types, forward = plans.types[rows, :rooms], _forward_relations(plans, rows, rooms)
        placed = plans.boxes[rows].any((1, 2))
        for row, form in zip(rows.tolist(), canonical_forms(types, forward), strict=True):
            keys[row] = b"s" + blake2b(form, digest_size=16).digest()
        boxes = plans.boxes[rows[placed], :rooms]
        every = labels_of(boxes[:, :, None], boxes[:, None])
        both = np.where(forward[placed] == NO_EDGE, NO_EDGE, every)
        for row, form in zip(rows[placed].tolist(), canonical_forms(types[placed], both), strict=True):
            key = b"b" + blake2b(form, digest_size=16).digest()
            # "b" sorts before "s", so with known boxes the key of a group is independent of the order of rooms.
            one, other = sorted((root(keys[row]), root(key)))
            parent[other] = one
    return [root(key) for key in keys]


def _forward_relations(plans: Plans, rows: Int[np.ndarray, " N"], rooms: int) -> Int[np.ndarray, "N R R"]:
    """Relations as stored in the tokens, `_UNKNOWN_REVERSE` below the diagonal."""
    i, j = pair_ends(plans.types.shape[1])
    real = j < rooms
    matrix = np.full((len(rows), rooms, rooms), NO_EDGE, np.int64)
    edges = plans.edges[rows][:, real]
    matrix[:, i[real], j[real]] = edges
    matrix[:, j[real], i[real]] = np.where(edges == NO_EDGE, NO_EDGE, _UNKNOWN_REVERSE)
    return matrix


def canonical_forms(types: Int[np.ndarray, "N R"], labels: Int[np.ndarray, "N R R"]) -> Iterator[bytes]:
    """Yield the canonical form of each plan: equal for isomorphic plans, different for all others.

    Args:
        types: Room types; all plans have R rooms.
        labels: Relation of room u (row) to room v; the diagonal is ignored.
    """
    rooms = types.shape[1]
    # One number holds the relations of u to v and of v to u; the diagonal holds the type.
    both = labels.astype(np.int64) * 16 + np.swapaxes(labels, 1, 2)
    both[:, np.arange(rooms), np.arange(rooms)] = types.astype(np.int64) + 256
    colours = _hashed_colours(both)
    order = np.argsort(colours, 1)
    discrete: Bool[np.ndarray, " N"] = np.all(np.diff(np.take_along_axis(colours, order, 1), axis=1) > 0, axis=1)
    sorted_rooms = np.take_along_axis(np.take_along_axis(both, order[:, :, None], 1), order[:, None], 2)
    for plan, unique in enumerate(discrete.tolist()):
        if unique:
            yield b"a" + sorted_rooms[plan].astype(np.int16).tobytes()
        else:
            yield b"b" + _smallest(both[plan], _refine(both[plan], np.zeros(rooms, np.int64)))


def _hashed_colours(both: Int[np.ndarray, "N R R"]) -> UInt[np.ndarray, "N R"]:
    """Colour refinement of all plans together with hashed colours; separates the rooms of most plans."""
    labels = _murmur(both.astype(np.uint64))
    colours: UInt[np.ndarray, "N R"] = labels.sum(2, dtype=np.uint64) + labels.diagonal(axis1=1, axis2=2)
    for _ in range(2):
        colours = _murmur(colours) + _murmur(labels + _murmur(colours)[:, None]).sum(2, dtype=np.uint64)
    return colours


def _murmur(value: UInt[np.ndarray, "*n"]) -> UInt[np.ndarray, "*n"]:
    """MurmurHash3 finaliser (Appleby)."""
    value = (value + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    mixed: UInt[np.ndarray, "*n"] = value ^ (value >> np.uint64(33))
    return mixed


def _refine(pairs: _Matrix, colours: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
    """Exact colour refinement to a fixed point; colours are 0, 1, ..."""
    while True:
        seen = np.sort(pairs * 4096 + colours[None], axis=1)
        rows = np.column_stack([colours, pairs.diagonal(), seen])
        _, finer = np.unique(rows, axis=0, return_inverse=True)
        finer = finer.reshape(-1).astype(np.int64)
        if finer.max() == colours.max():
            return finer
        colours = finer


def _smallest(pairs: _Matrix, colours: Int[np.ndarray, " R"]) -> bytes:
    """Smallest matrix over all individualisations of the first ambiguous colour class."""
    counts = np.bincount(colours)
    if counts.max() == 1:
        order = np.argsort(colours)
        return pairs[np.ix_(order, order)].astype(np.int16).tobytes()
    ambiguous = np.flatnonzero(colours == np.flatnonzero(counts > 1)[0])
    best: bytes | None = None
    tried: list[int] = []
    for room in ambiguous.tolist():
        if any(_interchangeable(pairs, room, other) for other in tried):
            continue
        tried.append(room)
        # Doubling the colours makes space for this room before the others of its class.
        individualised = 2 * colours + 1
        individualised[room] -= 1
        compact = np.unique(individualised, return_inverse=True)[1].reshape(-1).astype(np.int64)
        form = _smallest(pairs, _refine(pairs, compact))
        best = form if best is None else min(best, form)
    assert best is not None
    return best


def _interchangeable(pairs: _Matrix, first: int, second: int) -> bool:
    """Whether swapping two rooms leaves the matrix unchanged."""
    order = np.arange(len(pairs))
    order[[first, second]] = second, first
    return bool((pairs[np.ix_(order, order)] == pairs).all())
