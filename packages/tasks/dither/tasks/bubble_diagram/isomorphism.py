"""Isomorphism of diagrams: equality up to the order of rooms.

Tokens hold the relation of room i to room j for i < j only, and the reverse of "left of" may be
"right of" or "right above". With known boxes the comparison is exact; without, two diagrams match
unless no two boxes have both relations of some pair, so the number of distinct or novel diagrams is
never overestimated.
Letters: N diagrams, R room slots, E pairs of slots, L tokens.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import lru_cache
from hashlib import blake2b
from typing import Final

import numpy as np
from jaxtyping import Bool, Int, UInt

from .plans import Plans, real_edges
from .relations import labels_of, pair_ends
from .vocabulary import EDGE_MASK, EDGE_PAD, NO_EDGE, NODE_PAD

__all__ = [
    "PlanIndex",
    "canonical_forms",
    "is_first_occurrence",
    "plan_groups",
    "plan_keys",
    "room_hashes",
]

_UNKNOWN_REVERSE: Final = EDGE_MASK
"""Relation of the second room of a pair to the first, where only the forward direction is known."""

_Matrix = Int[np.ndarray, "R R"]


class PlanIndex:
    """Hash index of valid diagrams for isomorphism lookups; `boxes` are zeros where they are unknown."""

    def __init__(
        self,
        tokens: Int[np.ndarray, "N L"],
        rooms: int,
        boxes: Int[np.ndarray, "N R 4"] | None = None,
    ) -> None:
        self.rooms = rooms
        self.hashes = room_hashes(tokens, rooms)
        self.relations = _relation_matrices(tokens, rooms, boxes)
        self.keys = plan_keys(self.hashes)
        self.order = np.argsort(self.keys, kind="stable")

    def holds(self, tokens: Int[np.ndarray, "n L"]) -> Bool[np.ndarray, " n"]:
        """True for diagrams isomorphic to one in the index."""
        other = PlanIndex(tokens, self.rooms)
        sorted_keys = self.keys[self.order]
        first, last = (np.searchsorted(sorted_keys, other.keys, side) for side in ("left", "right"))
        hits = [
            any(
                _isomorphic(other, row, self, candidate)
                for candidate in self.order[start:stop].tolist()
            )
            for row, (start, stop) in enumerate(zip(first, last, strict=True))
        ]
        return np.array(hits, bool)


def is_first_occurrence(tokens: Int[np.ndarray, "N L"], rooms: int) -> Bool[np.ndarray, " N"]:
    """True for diagrams that are isomorphic to no earlier one."""
    index = PlanIndex(tokens, rooms)
    first = np.zeros(len(tokens), bool)
    for rows in np.split(index.order, np.flatnonzero(np.diff(index.keys[index.order])) + 1):
        distinct: list[int] = []
        for row in rows.tolist():
            if not any(_isomorphic(index, row, index, other) for other in distinct):
                distinct.append(row)
        first[distinct] = True
    return first


def plan_keys(hashes: Int[np.ndarray, "N R"]) -> UInt[np.ndarray, " N"]:
    """Return a hash of each diagram that isomorphic diagrams share, given `room_hashes`."""
    return np.asarray(_hash(hashes.astype(np.uint64)).sum(1, dtype=np.uint64))


def room_hashes(tokens: Int[np.ndarray, "N L"], rooms: int) -> Int[np.ndarray, "N R"]:
    """Return Weisfeiler-Lehman hashes of the rooms; 0 in empty slots.

    A hash depends on the rooms' types and the adjacency graph, not on the order of rooms or the
    kind of relation.
    """
    types = tokens[:, :rooms]
    near = tokens[:, rooms:] < NO_EDGE
    (i, j), slots = pair_ends(rooms), np.arange(rooms)
    matrix = np.zeros((len(tokens), rooms, rooms), np.int64)
    matrix[:, i, j] = matrix[:, j, i] = near & real_edges(types != NODE_PAD)
    matrix[:, slots, slots] = types.astype(np.int64) + 256
    return np.asarray(np.where(types != NODE_PAD, _colours(matrix), 0).astype(np.int64))


def _relation_matrices(
    tokens: Int[np.ndarray, "N L"], rooms: int, boxes: Int[np.ndarray, "N R 4"] | None
) -> Int[np.ndarray, "N R R"]:
    """Relation of each room to each other; `_UNKNOWN_REVERSE` below the diagonal unless boxes are known."""
    i, j = pair_ends(rooms)
    edges = tokens[:, rooms:]
    reverse = np.where(edges < NO_EDGE, _UNKNOWN_REVERSE, edges)
    if boxes is not None:
        known = np.asarray(boxes.any((1, 2)))[:, None] & (edges < NO_EDGE)
        reverse = np.where(known, labels_of(boxes[:, j], boxes[:, i]), reverse)
    matrix = np.full((len(tokens), rooms, rooms), EDGE_PAD, np.int8)
    matrix[:, i, j] = edges
    matrix[:, j, i] = reverse
    return matrix


def _isomorphic(
    index: PlanIndex,
    row: int,
    other: PlanIndex,
    number: int,
) -> bool:
    """Backtracking search for an order of the rooms of diagram `number` that matches diagram `row`."""
    hashes = index.hashes[row]
    theirs = other.relations[number].tolist()
    rooms = int((hashes != 0).sum())
    ours = index.relations[row].tolist()
    candidates = [np.flatnonzero(other.hashes[number] == key).tolist() for key in hashes[:rooms]]
    reversible = _reversible()

    def matches(order: Sequence[int], room: int) -> bool:
        for earlier in range(room):
            relation, (a, b) = ours[earlier][room], (order[earlier], order[room])
            found = theirs[a][b]
            if not (
                relation == found
                or (found == _UNKNOWN_REVERSE and reversible[relation][theirs[b][a]])
            ):
                return False
        return True

    def extend(order: tuple[int, ...]) -> bool:
        room = len(order)
        return room == rooms or any(
            one not in order and matches((*order, one), room) and extend((*order, one))
            for one in candidates[room]
        )

    return extend(())


@lru_cache(maxsize=1)
def _reversible() -> list[list[bool]]:
    """For each two relations, whether some pair of boxes has the first forwards and the second backwards."""
    spans = [(low, high) for low in range(7) for high in range(low + 1, 7)]
    boxes = np.array([(x0, y0, x1, y1) for x0, x1 in spans for y0, y1 in spans], np.int64)
    u = boxes[:, None]
    v = boxes[None, :]
    occurs = np.zeros((NO_EDGE + 1, NO_EDGE + 1), bool)
    occurs[labels_of(u, v), labels_of(v, u)] = True
    return [list(map(bool, row)) for row in occurs]


def plan_groups(plans: Plans) -> list[bytes]:
    """Return a group key for each plan; isomorphic plans share a key.

    Plans are grouped if the canonical forms of their boxes' relations, in both directions, are
    equal, or if those of their tokens are. Both are needed: in one case of three neither implies
    the other.
    """
    import networkx  # it takes .1 s

    graph = networkx.Graph()
    keys = [b""] * len(plans)
    for rooms in np.unique(plans.rooms).tolist():
        rows = np.flatnonzero(plans.rooms == rooms)
        slots = plans.types.shape[1]
        types = plans.types[rows, :rooms]
        boxes = plans.boxes[rows, :rooms]
        forward = _relation_matrices(plans[rows].tokens(slots), slots, None)[:, :rooms, :rooms]
        for row, form in zip(rows.tolist(), canonical_forms(types, forward), strict=True):
            keys[row] = b"s" + blake2b(form, digest_size=16).digest()
            graph.add_node(keys[row])
        placed = boxes.any((1, 2))
        every = labels_of(boxes[placed, :, None], boxes[placed, None])
        both = np.where(forward[placed] == NO_EDGE, NO_EDGE, every)
        for row, form in zip(
            rows[placed].tolist(), canonical_forms(types[placed], both), strict=True
        ):
            graph.add_edge(keys[row], b"b" + blake2b(form, digest_size=16).digest())
    # "b" sorts before "s", so with known boxes the key of a group is independent of the order of
    # rooms.
    key_of = {key: min(group) for group in networkx.connected_components(graph) for key in group}
    return [key_of[key] for key in keys]


def canonical_forms(
    types: Int[np.ndarray, "N R"], labels: Int[np.ndarray, "N R R"]
) -> Iterator[bytes]:
    """Yield the canonical form of each plan: equal for isomorphic plans, different for all others.

    All plans have R rooms; `labels` are the relations of room u (row) to room v, their diagonal is
    ignored.
    """
    rooms = types.shape[1]
    # One number holds the relations of u to v and of v to u; the diagonal holds the type.
    both = labels.astype(np.int64) * 16 + np.swapaxes(labels, 1, 2)
    both[:, np.arange(rooms), np.arange(rooms)] = types.astype(np.int64) + 256
    colours = _colours(both)
    order = np.argsort(colours, 1)
    distinct: Bool[np.ndarray, " N"] = np.all(
        np.diff(np.take_along_axis(colours, order, 1), axis=1) > 0, axis=1
    )
    sorted_rooms = np.take_along_axis(
        np.take_along_axis(both, order[:, :, None], 1), order[:, None], 2
    )
    for plan, unique in enumerate(distinct.tolist()):
        if unique:
            yield b"a" + sorted_rooms[plan].astype(np.int16).tobytes()
        else:
            yield b"b" + _smallest(both[plan], both[plan])


def _smallest(pairs: _Matrix, marked: _Matrix) -> bytes:
    """Smallest matrix over all individualisations of the first ambiguous colour class; `marked` has unique marks."""
    colours = _colours(marked[None])[0]
    values, counts = np.unique(colours, return_counts=True)
    if counts.max() == 1:
        order = np.argsort(colours)
        return pairs[np.ix_(order, order)].astype(np.int16).tobytes()
    forms = []
    tried = list[int]()
    for room in np.flatnonzero(colours == values[counts > 1][0]).tolist():
        if not any(_interchangeable(marked, room, other) for other in tried):
            tried.append(room)
            individualised = marked.copy()
            individualised[room, room] = marked.max() + 1
            forms.append(_smallest(pairs, individualised))
    return min(forms)


def _interchangeable(pairs: _Matrix, first: int, second: int) -> bool:
    """Whether swapping two rooms leaves the matrix unchanged."""
    order = np.arange(len(pairs))
    order[[first, second]] = second, first
    return bool((pairs[np.ix_(order, order)] == pairs).all())


def _colours(pairs: Int[np.ndarray, "N R R"]) -> UInt[np.ndarray, "N R"]:
    """Weisfeiler-Lehman refinement with hashed colours; networkx takes 80 times as long for a plan."""
    labels = _hash(pairs.astype(np.uint64))
    colours: UInt[np.ndarray, "N R"] = labels.sum(2, dtype=np.uint64) + labels.diagonal(
        axis1=1, axis2=2
    )
    for _ in range(2):
        colours = _hash(colours) + _hash(labels + _hash(colours)[:, None]).sum(2, dtype=np.uint64)
    return colours


def _hash(value: UInt[np.ndarray, "*n"]) -> UInt[np.ndarray, "*n"]:
    """MurmurHash3 finaliser (Appleby)."""
    value = (value + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    mixed: UInt[np.ndarray, "*n"] = value ^ (value >> np.uint64(33))
    return mixed
