"""Isomorphism of diagrams: equality up to the order of rooms.

Tokens hold the relation of room i to room j for i < j only, and the reverse of "left of" may be
"right of" or "right above". With known boxes the comparison is exact; without, two diagrams match
unless no two boxes have both relations of some pair, so the number of distinct or novel diagrams is
never overestimated.
Letters: N diagrams, R room slots, E pairs of slots, L tokens.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache
from hashlib import blake2b
from itertools import combinations, product

import numpy as np
from jaxtyping import Bool, Int, UInt
from numpy import ndarray

from .arrays import BoxBatch, Rows, Tokens, Types
from .plans import Plans, real_edges
from .relations import labels_of, pair_ends, pair_matrix
from .vocabulary import EDGE_MASK, NO_EDGE, NODE_PAD

_Matrices = Int[ndarray, "N R R"]
_Hashes = UInt[ndarray, "*n"]

_UNKNOWN_REVERSE = EDGE_MASK
"""Relation of the second room of a pair to the first, where only the forward direction is known."""

_Matrix = Int[ndarray, "R R"]


class PlanIndex:
    """Hash index of valid diagrams for isomorphism lookups; `boxes` are zeros if unknown."""

    def __init__(
        self,
        tokens: Tokens,
        rooms: int,
        boxes: BoxBatch | None = None,
    ) -> None:
        self.rooms = rooms
        self.hashes = room_hashes(tokens, rooms)
        self.relations = _relation_matrices(tokens, rooms, boxes)
        self.keys = plan_keys(self.hashes)
        self.order = np.argsort(self.keys, kind="stable")

    def holds(self, tokens: Int[ndarray, "n L"]) -> Bool[ndarray, " n"]:
        """True for diagrams isomorphic to one in the index."""
        samples = PlanIndex(tokens, self.rooms)
        sorted_keys = self.keys[self.order]
        first = np.searchsorted(sorted_keys, samples.keys, "left")
        last = np.searchsorted(sorted_keys, samples.keys, "right")
        hits = np.zeros(len(tokens), bool)
        for row, (start, stop) in enumerate(zip(first, last, strict=True)):
            candidates = self.order[start:stop].tolist()
            hits[row] = any(self.matches(other, samples, row) for other in candidates)
        return hits

    def matches(self, number: int, samples: PlanIndex, row: int) -> bool:
        """Backtracking search for an order of the rooms of plan `number` that matches sample `row`."""
        # Isomorphic rooms share a hash, which leaves few candidates, mostly one.
        keys = samples.hashes[row]
        keys = keys[keys != 0]
        ours = samples.relations[row].tolist()
        theirs = self.relations[number].tolist()
        candidates = [
            np.flatnonzero(self.hashes[number] == key).tolist() for key in keys
        ]
        reversible = _reversible()

        def agree(
            relation: int,
            a: int,
            b: int,
        ) -> bool:
            """Whether rooms a and b of the plan may have a relation of the sample."""
            known = theirs[a][b]
            if known == relation:
                return True
            return bool(
                known == _UNKNOWN_REVERSE and reversible[relation][theirs[b][a]]
            )

        def extend(order: tuple[int, ...]) -> bool:
            room = len(order)
            if room == len(keys):
                return True
            for candidate in candidates[room]:
                if candidate in order:
                    continue
                pairs = enumerate(order)
                fits = all(
                    agree(ours[earlier][room], at, candidate) for earlier, at in pairs
                )
                if fits and extend((*order, candidate)):
                    return True
            return False

        return extend(())


def is_first_occurrence(tokens: Tokens, rooms: int) -> Rows:
    """True for diagrams that are isomorphic to no earlier one."""
    index = PlanIndex(tokens, rooms)
    first = np.zeros(len(tokens), bool)
    # Isomorphic diagrams share a key, and the order of rows with equal keys is stable.
    ends = np.flatnonzero(np.diff(index.keys[index.order])) + 1
    for rows in np.split(index.order, ends):
        distinct: list[int] = []
        for row in rows.tolist():
            if not any(index.matches(other, index, row) for other in distinct):
                distinct.append(row)
        first[distinct] = True
    return first


def plan_keys(hashes: Types) -> UInt[ndarray, " N"]:
    """Return a hash of each diagram that isomorphic diagrams share, given `room_hashes`."""
    return _hash(hashes.astype(np.uint64)).sum(1, dtype=np.uint64)


def room_hashes(tokens: Tokens, rooms: int) -> Types:
    """Return Weisfeiler-Lehman hashes of the rooms; 0 in empty slots.

    A hash depends on the rooms' types and the adjacency graph, not on the order of rooms or the
    kind of relation.
    """
    types = tokens[:, :rooms]
    real = types != NODE_PAD
    near = (tokens[:, rooms:] < NO_EDGE) & real_edges(real)
    slots = np.arange(rooms)
    matrix = pair_matrix(near, near, rooms).astype(np.int64)
    # Types are on the diagonal, and above every entry of a pair.
    matrix[:, slots, slots] = types.astype(np.int64) + 256
    return np.where(real, _colours(matrix), 0).astype(np.int64)


def _relation_matrices(
    tokens: Tokens,
    rooms: int,
    boxes: BoxBatch | None,
) -> _Matrices:
    """Relation of each room to each other.

    `_UNKNOWN_REVERSE` below the diagonal unless boxes are known.
    """
    edges = tokens[:, rooms:]
    related = edges < NO_EDGE
    reverse = np.where(related, _UNKNOWN_REVERSE, edges)
    if boxes is not None:
        i, j = pair_ends(rooms)
        known = np.asarray(boxes.any((1, 2)))[:, None] & related
        reverse = np.where(known, labels_of(boxes[:, j], boxes[:, i]), reverse)
    return pair_matrix(edges.astype(np.int8), reverse, rooms)


@lru_cache(maxsize=1)
def _reversible() -> list[list[bool]]:
    """For each two relations, whether some boxes have the first one way and the second back."""
    # Walls at 0..6 show every order of the walls and the middles of two boxes.
    spans = list(combinations(range(7), 2))
    boxes = np.array([(x0, y0, x1, y1) for (x0, x1), (y0, y1) in product(spans, spans)])
    forward = labels_of(boxes[:, None], boxes)
    labels = NO_EDGE + 1
    occurs = np.zeros((labels, labels), bool)
    occurs[forward, forward.T] = True
    # Lists, of which the search reads single entries several times as fast as of arrays.
    return occurs.tolist()


def plan_groups(plans: Plans) -> list[bytes]:
    """Return a group key for each plan; isomorphic plans share a key.

    Plans are grouped if the canonical forms of their boxes' relations, in both directions, are
    equal, or if those of their tokens are. Both are needed: in one case of three neither implies
    the other.
    """
    import networkx

    graph = networkx.Graph()
    keys = [b""] * len(plans)
    slots = plans.types.shape[1]
    # Canonical forms are batched over plans with equally many rooms.
    for rooms in np.unique(plans.rooms).tolist():
        rows = np.flatnonzero(plans.rooms == rooms)
        types = plans.types[rows, :rooms]
        boxes = plans.boxes[rows, :rooms]
        matrices = _relation_matrices(plans[rows].tokens(slots), slots, None)
        forward = matrices[:, :rooms, :rooms]
        forms = canonical_forms(types, forward)
        for row, form in zip(rows.tolist(), forms, strict=True):
            keys[row] = b"s" + _digest(form)
            graph.add_node(keys[row])

        # Reverse relations are known only where there are boxes.
        placed = boxes.any((1, 2))
        labels = labels_of(boxes[placed, :, None], boxes[placed, None])
        both = np.where(forward[placed] == NO_EDGE, NO_EDGE, labels)
        forms = canonical_forms(types[placed], both)
        for row, form in zip(rows[placed].tolist(), forms, strict=True):
            graph.add_edge(keys[row], b"b" + _digest(form))

    # "b" sorts before "s", so with known boxes the key of a group is independent of the order of
    # rooms.
    group_of: dict[bytes, bytes] = {}
    for group in networkx.connected_components(graph):
        group_of |= dict.fromkeys(group, min(group))
    return [group_of[key] for key in keys]


def _digest(form: bytes) -> bytes:
    return blake2b(form, digest_size=16).digest()


def canonical_forms(types: Types, labels: _Matrices) -> Iterator[bytes]:
    """Yield the canonical form of each plan: equal for isomorphic plans, different for all others.

    All plans have R rooms; `labels` are the relations of room u (row) to room v, their diagonal is
    ignored.
    """
    rooms = np.arange(types.shape[1])
    # One number holds the relations of u to v and of v to u; the diagonal holds the type.
    both = labels.astype(np.int64) * 16 + np.swapaxes(labels, 1, 2)
    both[:, rooms, rooms] = types.astype(np.int64) + 256
    # Rooms in the order of their colours: a canonical order if all colours are distinct.
    colours = _colours(both)
    order = np.argsort(colours, 1)
    gaps = np.diff(np.take_along_axis(colours, order, 1), axis=1)
    distinct = np.all(gaps > 0, axis=1).tolist()
    by_room = np.take_along_axis(both, order[:, :, None], 1)
    by_room = np.take_along_axis(by_room, order[:, None], 2).astype(np.int16)
    for plan, unique in enumerate(distinct):
        if unique:
            yield b"a" + by_room[plan].tobytes()
        else:
            yield b"b" + _smallest(both[plan], both[plan])


def _smallest(pairs: _Matrix, marked: _Matrix) -> bytes:
    """Smallest matrix over all individualisations of the first ambiguous colour class.

    `marked` is `pairs` with unique marks on the diagonal for the rooms that are individualised.
    """
    colours = _colours(marked[None])[0]
    values, counts = np.unique(colours, return_counts=True)
    if counts.max() == 1:
        order = np.argsort(colours)
        return pairs[np.ix_(order, order)].astype(np.int16).tobytes()

    forms = []
    tried: list[int] = []
    for room in np.flatnonzero(colours == values[counts > 1][0]).tolist():
        # An automorphism maps it to one that was tried, so its forms are the same.
        if any(_interchangeable(marked, room, other) for other in tried):
            continue
        tried.append(room)
        individualised = marked.copy()
        individualised[room, room] = marked.max() + 1
        forms.append(_smallest(pairs, individualised))
    return min(forms)


def _interchangeable(
    pairs: _Matrix,
    first: int,
    second: int,
) -> bool:
    """Whether swapping two rooms leaves the matrix unchanged."""
    order = np.arange(len(pairs))
    order[[first, second]] = [second, first]
    return bool((pairs[np.ix_(order, order)] == pairs).all())


def _colours(pairs: _Matrices) -> UInt[ndarray, "N R"]:
    """Weisfeiler-Lehman refinement with hashed colours; networkx takes 80 times as long."""
    labels = _hash(pairs.astype(np.uint64))
    own = labels.diagonal(axis1=1, axis2=2)
    colours: UInt[ndarray, "N R"] = labels.sum(2, dtype=np.uint64) + own
    # Two rounds reach three steps away, and most plans have a smaller radius.
    for _ in range(2):
        colours = _hash(colours)
        neighbours = _hash(labels + colours[:, None])
        colours = colours + neighbours.sum(2, dtype=np.uint64)
    return colours


def _hash(value: _Hashes) -> _Hashes:
    """MurmurHash3 finaliser (Appleby)."""
    # Sums of hashes wrap around, which keeps them independent of the order of rooms.
    shift = np.uint64(33)
    value = (value + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> shift)) * np.uint64(0xC4CEB9FE1A85EC53)
    mixed: _Hashes = value ^ (value >> shift)
    return mixed
