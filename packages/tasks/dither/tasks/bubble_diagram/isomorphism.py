"""Whether two diagrams are one plan whose rooms were written in another order.

A diagram says how room i lies to room j for i < j only. In another order of the rooms some pairs are told the other way
round, and what is told then does not follow from what was told before: the opposite of "left of" may be "right of" or
"right above". Where boxes are known, both ways follow from them, and the answer is exact. Where they are not, two
diagrams count as one if no pair speaks against it: each pair told the other way round is so in some plan. That never
overrates how many diagrams are different or new.

Letters: N diagrams, R room slots, L tokens.
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
from .relations import labels_of
from .vocabulary import EDGE_MASK, EDGE_PAD, NO_EDGE, NODE_PAD, pairs

__all__ = ["PlanIndex", "canonical_forms", "fingerprints", "is_first_occurrence", "mix64", "plan_groups", "room_hashes"]

_UNTOLD = -1
"""The relation of a pair that is told the other way round only."""


class PlanIndex:
    """Diagrams among which others are looked up.

    Args:
        tokens: Diagrams that are legal.
        rooms: Room slots of each.
        boxes: Where the rooms are, if that is known; zeros where it is not.
    """

    def __init__(
        self, tokens: Int[np.ndarray, "N L"], rooms: int, boxes: Int[np.ndarray, "N R 4"] | None = None
    ) -> None:
        self._rooms = rooms
        self._marks = room_hashes(tokens, rooms)
        self._told = _told(tokens, rooms, boxes)
        self._shelf: dict[int, list[int]] = defaultdict(list)
        for row, mark in enumerate(_summed(self._marks)):
            self._shelf[mark].append(row)

    def holds(self, tokens: Int[np.ndarray, "n L"]) -> Bool[np.ndarray, " n"]:
        """True for diagrams that are one of these in some order of their rooms."""
        marks = room_hashes(tokens, self._rooms)
        told = _told(tokens, self._rooms, None)
        found = np.zeros(len(tokens), bool)
        for row, mark in enumerate(_summed(marks)):
            shelf = self._shelf.get(mark, ())
            found[row] = any(_same(marks[row], told[row], self._marks[k], self._told[k]) for k in shelf)
        return found


def is_first_occurrence(tokens: Int[np.ndarray, "N L"], rooms: int) -> Bool[np.ndarray, " N"]:
    """True for diagrams that are none of those before them, in any order of their rooms."""
    marks, told = room_hashes(tokens, rooms), _told(tokens, rooms, None)
    kinds: dict[int, list[int]] = defaultdict(list)
    first = np.zeros(len(tokens), bool)
    for row, mark in enumerate(_summed(marks)):
        if not any(_same(marks[row], told[row], marks[other], told[other]) for other in kinds[mark]):
            kinds[mark].append(row)
            first[row] = True
    return first


def room_hashes(tokens: Int[np.ndarray, "N L"], rooms: int) -> Int[np.ndarray, "N R"]:
    """Return a number per room that follows from its type and from who is near whom, whatever the order of the rooms.

    Weisfeiler and Lehman's colours after three rounds; 0 in empty slots.
    """
    real = tokens[:, :rooms] != NODE_PAD
    i, j = np.array(pairs(rooms), int).reshape(-1, 2).T
    near = np.zeros((len(tokens), rooms, rooms), np.uint64)
    near[:, i, j] = near[:, j, i] = (tokens[:, rooms:] < NO_EDGE) & real_edges(real)
    colour = mix64(tokens[:, :rooms].astype(np.uint64)) * real
    for _ in range(3):
        colour = mix64(colour + mix64(colour[:, None, :] * near).sum(2, dtype=np.uint64)) * real
    marks: Int[np.ndarray, "N R"] = colour.astype(np.int64)
    return marks


def _summed(marks: Int[np.ndarray, "N R"]) -> list[int]:
    sums: list[int] = mix64(marks.astype(np.uint64)).sum(1, dtype=np.uint64).tolist()
    return sums


def _told(
    tokens: Int[np.ndarray, "N L"], rooms: int, boxes: Int[np.ndarray, "N R 4"] | None
) -> Int[np.ndarray, "N R R"]:
    """How each room lies to each other; `_UNTOLD` below the diagonal unless boxes say it."""
    i, j = np.array(pairs(rooms), int).reshape(-1, 2).T
    edges = tokens[:, rooms:]
    back = np.where(edges < NO_EDGE, _UNTOLD, edges)
    if boxes is not None:
        known = np.asarray(boxes.any((1, 2)))[:, None] & (edges < NO_EDGE)
        back = np.where(known, labels_of(boxes[:, j], boxes[:, i]), back)
    told = np.full((len(tokens), rooms, rooms), EDGE_PAD, np.int8)
    told[:, i, j], told[:, j, i] = edges, back
    return told


def _same(
    marks: Int[np.ndarray, " R"],
    told: Int[np.ndarray, "R R"],
    other_marks: Int[np.ndarray, " R"],
    other_told: Int[np.ndarray, "R R"],
) -> bool:
    """Whether some order of the other's rooms makes it this diagram."""
    rooms = int((marks != 0).sum())
    mine, theirs = told.tolist(), other_told.tolist()
    ways = [np.flatnonzero(other_marks == mark).tolist() for mark in marks[:rooms]]
    turned = _turned()

    def fits(place: Sequence[int], room: int) -> bool:
        """Whether a room may stand in its place, seen from those before it."""
        for before in range(room):
            relation, (a, b) = mine[before][room], (place[before], place[room])
            said = theirs[a][b]
            if not (relation == said or (said == _UNTOLD and turned[relation][theirs[b][a]])):
                return False
        return True

    def extend(place: tuple[int, ...]) -> bool:
        room = len(place)
        return room == rooms or any(
            way not in place and fits((*place, way), room) and extend((*place, way)) for way in ways[room]
        )

    return extend(())


@lru_cache(maxsize=1)
def _turned() -> list[list[bool]]:
    """For each two relations, whether some two boxes have the first one way and the second the other way round."""
    walls = [(low, high) for low in range(7) for high in range(low + 1, 7)]
    boxes = np.array([(x0, y0, x1, y1) for x0, x1 in walls for y0, y1 in walls], np.int64)
    u, v = boxes[:, None], boxes[None, :]
    found = np.zeros((NO_EDGE + 1, NO_EDGE + 1), bool)
    found[labels_of(u, v), labels_of(v, u)] = True
    table: list[list[bool]] = found.tolist()
    return table


_UNSAID: Final = EDGE_MASK
"""How the second room of a pair lies to the first, where only the other way round is known."""

_Matrix = Int[np.ndarray, "R R"]


def plan_groups(plans: Plans) -> list[bytes]:
    """Return a digest for each plan; plans that a model could not or should not tell apart have the same.

    The same are plans with the same form, where both ways of each relation are known from boxes, and plans with the
    same form of what the tokens alone say. Both ways, since in one case of three neither follows from the other.
    """
    leader: dict[bytes, bytes] = {}

    def first_of(mark: bytes) -> bytes:
        while leader.setdefault(mark, mark) != mark:
            mark = leader[mark]
        return mark

    marks = [b""] * len(plans)
    for rooms in np.unique(plans.rooms).tolist():
        rows = np.flatnonzero(plans.rooms == rooms)
        types, said = plans.types[rows, :rooms], _said(plans, rows, rooms)
        placed = plans.boxes[rows].any((1, 2))
        for row, form in zip(rows.tolist(), canonical_forms(types, said), strict=True):
            marks[row] = b"s" + blake2b(form, digest_size=16).digest()
        boxes = plans.boxes[rows[placed], :rooms]
        every = labels_of(boxes[:, :, None], boxes[:, None])
        both = np.where(said[placed] == NO_EDGE, NO_EDGE, every)
        for row, form in zip(rows[placed].tolist(), canonical_forms(types[placed], both), strict=True):
            mark = b"b" + blake2b(form, digest_size=16).digest()
            # "b" comes before "s": the name of a group does not follow from the order of rooms, if boxes are known.
            one, other = sorted((first_of(marks[row]), first_of(mark)))
            leader[other] = one
    return [first_of(mark) for mark in marks]


def _said(plans: Plans, rows: Int[np.ndarray, " N"], rooms: int) -> Int[np.ndarray, "N R R"]:
    """What the tokens say: how each room lies to those behind it."""
    slots = plans.types.shape[1]
    i, j = np.array(pairs(slots), int).reshape(-1, 2).T
    real = j < rooms
    matrix = np.full((len(rows), rooms, rooms), NO_EDGE, np.int64)
    edges = plans.edges[rows][:, real]
    matrix[:, i[real], j[real]] = edges
    matrix[:, j[real], i[real]] = np.where(edges == NO_EDGE, NO_EDGE, _UNSAID)
    return matrix


def canonical_forms(types: Int[np.ndarray, "N R"], labels: Int[np.ndarray, "N R R"]) -> Iterator[bytes]:
    """Yield for each plan what is the same for all orders of its rooms, and for no other plan.

    Args:
        types: Type of each room; all plans have R rooms.
        labels: How room u (row) lies to room v; the diagonal is not looked at.
    """
    rooms = types.shape[1]
    # One number says both how u lies to v and v to u; the diagonal carries the type.
    both = labels.astype(np.int64) * 16 + np.swapaxes(labels, 1, 2)
    both[:, np.arange(rooms), np.arange(rooms)] = types.astype(np.int64) + 256
    colours = _scrambled_colours(both)
    order = np.argsort(colours, 1)
    told_apart: Bool[np.ndarray, " N"] = np.all(np.diff(np.take_along_axis(colours, order, 1), axis=1) > 0, axis=1)
    sorted_rooms = np.take_along_axis(np.take_along_axis(both, order[:, :, None], 1), order[:, None], 2)
    for plan, apart in enumerate(told_apart.tolist()):
        if apart:
            yield b"a" + sorted_rooms[plan].astype(np.int16).tobytes()
        else:
            yield b"b" + _smallest(both[plan], _refine(both[plan], np.zeros(rooms, np.int64)))


def _scrambled_colours(both: Int[np.ndarray, "N R R"]) -> UInt[np.ndarray, "N R"]:
    """Three rounds of refinement of all plans together, each colour a scrambled number; most rooms are told apart."""
    labels = _scrambled(both.astype(np.uint64))
    colours: UInt[np.ndarray, "N R"] = labels.sum(2, dtype=np.uint64) + labels.diagonal(axis1=1, axis2=2)
    for _ in range(2):
        colours = _scrambled(colours) + _scrambled(labels + _scrambled(colours)[:, None]).sum(2, dtype=np.uint64)
    return colours


def _scrambled(value: UInt[np.ndarray, "*n"]) -> UInt[np.ndarray, "*n"]:
    """Scramble 64 bits (MurmurHash3's last step, Appleby)."""
    value = (value + np.uint64(0x9E3779B97F4A7C15)) * np.uint64(0xFF51AFD7ED558CCD)
    value = (value ^ (value >> np.uint64(33))) * np.uint64(0xC4CEB9FE1A85EC53)
    mixed: UInt[np.ndarray, "*n"] = value ^ (value >> np.uint64(33))
    return mixed


def _refine(pairs: _Matrix, colours: Int[np.ndarray, " R"]) -> Int[np.ndarray, " R"]:
    """Return colours 0, 1, ... that follow from how a room lies to rooms of each colour, whatever their order."""
    while True:
        seen = np.sort(pairs * 4096 + colours[None], axis=1)
        rows = np.column_stack([colours, pairs.diagonal(), seen])
        _, finer = np.unique(rows, axis=0, return_inverse=True)
        finer = finer.reshape(-1).astype(np.int64)
        if finer.max() == colours.max():
            return finer
        colours = finer


def _smallest(pairs: _Matrix, colours: Int[np.ndarray, " R"]) -> bytes:
    counts = np.bincount(colours)
    if counts.max() == 1:
        order = np.argsort(colours)
        return pairs[np.ix_(order, order)].astype(np.int16).tobytes()
    alike = np.flatnonzero(colours == np.flatnonzero(counts > 1)[0])
    best: bytes | None = None
    tried: list[int] = []
    for room in alike.tolist():
        if any(_twins(pairs, room, other) for other in tried):
            continue
        tried.append(room)
        # Twice the colour leaves place for this room before the others that look like it.
        chosen = 2 * colours + 1
        chosen[room] -= 1
        form = _smallest(pairs, _refine(pairs, np.unique(chosen, return_inverse=True)[1].reshape(-1).astype(np.int64)))
        best = form if best is None else min(best, form)
    assert best is not None
    return best


def _twins(pairs: _Matrix, first: int, second: int) -> bool:
    """Whether nothing changes when two rooms change places."""
    order = np.arange(len(pairs))
    order[[first, second]] = second, first
    return bool((pairs[np.ix_(order, order)] == pairs).all())


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
    colour = mix64(types.astype(np.uint64))
    for _ in range(3):
        seen = mix64(colour[:, None, :] + mix64(label.astype(np.uint64)))
        colour = mix64(colour + seen.sum(2, dtype=np.uint64))
    marks: Int[np.ndarray, " N"] = mix64(colour.sum(1, dtype=np.uint64)).astype(np.int64)
    return marks


def mix64(value: UInt[np.ndarray, "*n"]) -> UInt[np.ndarray, "*n"]:
    """Scramble 64 bits (the finish of SplitMix64, Steele and others 2014)."""
    value = value + np.uint64(0x9E3779B97F4A7C15)
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mix64: UInt[np.ndarray, "*n"] = value ^ (value >> np.uint64(31))
    return mix64
