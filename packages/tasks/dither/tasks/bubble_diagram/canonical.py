"""One form for all orders of a plan's rooms, exact: two plans have the same form if and only if they are the same.

Rooms are told apart by type, then by how they lie to rooms already told apart, until nothing changes (colour
refinement, Weisfeiler and Lehman 1968). Where some rooms still look alike, each of them is tried in turn as the next,
and the smallest form counts; rooms that can be exchanged with each other need one trial only (twins).

Letters: R rooms.
"""

from __future__ import annotations

from collections.abc import Iterator
from hashlib import blake2b
from typing import Final

import numpy as np
from jaxtyping import Bool, Int, UInt

from .plans import Plans
from .relations import labels_of
from .vocabulary import EDGE_MASK, NO_EDGE, pairs

__all__ = ["canonical_forms", "plan_groups"]

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
