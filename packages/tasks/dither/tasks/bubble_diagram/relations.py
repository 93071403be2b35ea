"""Graph2Plan's rule: the relation of two rooms from their bounding boxes, in exact integers.

A box is (x0, y0, x1, y1) in pixels on a 256 x 256 grid, x1 and y1 exclusive, y pointing down. Two
rooms are related if their boxes touch after one of them is grown by 9 pixels, so relations express
proximity, not doors. Source: Hu et al., Graph2Plan, SIGGRAPH 2020 (arXiv 2004.13204), and its
reference code. Letters: R rooms, E pairs of rooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np
from jaxtyping import Bool, Int, Shaped
from numpy import ndarray

from .vocabulary import GRID, INSIDE, LIVING, METRES, NO_EDGE, SURROUNDING, pairs

_PerRoom = Int[ndarray, "*n R"]

UNITS = {"px": 1.0, "m": 1 / METRES, "cm": 0.01 / METRES, "mm": 0.001 / METRES}
"""Pixels of the canvas per unit."""

NEAR = 9
"""Largest gap, in pixels along each axis, between related rooms."""

_BoxArray = Int[ndarray, "*n 4"]
_Points = Int[ndarray, "*n 2"]
_Plans = Int[ndarray, "*n R 4"]
_PairFlags = Bool[ndarray, "*n E"]

RULE: Int[ndarray, "5 5"] = np.array(
    [
        [0, 3, 3, 8, 8],
        [0, 0, 3, 8, 7],
        [2, 2, INSIDE, 7, 7],
        [2, 1, 6, 9, 9],
        [1, 1, 6, 6, 9],
    ],
    dtype=np.int8,
)
"""Relation by the position of the first box's centre, row by y and column by x: before the second
box, on its start, within, on its end, after it. The corner cells are asymmetric so that the table
is invariant under quarter turns."""


@lru_cache(maxsize=64)
def pair_ends(rooms: int) -> Int[ndarray, "2 E"]:
    """Return the first and the second room of every pair in token order. Read-only."""
    ends: Int[ndarray, "2 E"] = np.array(pairs(rooms), int).reshape(-1, 2).T
    # All callers share the cached array.
    ends.flags.writeable = False
    return ends


def pair_matrix(
    forward: Shaped[ndarray, "N E"],
    backward: Shaped[ndarray, "N E"],
    rooms: int,
) -> Shaped[ndarray, "N R R"]:
    """Return values of each room (row) and each other room, from those of pairs; 0 on the diagonal."""
    i, j = pair_ends(rooms)
    matrix = np.zeros((len(forward), rooms, rooms), forward.dtype)
    matrix[:, i, j] = forward
    matrix[:, j, i] = backward
    return matrix


def pair_labels(boxes: _Plans) -> Int[ndarray, "*n E"]:
    """Return the relation of every pair of rooms i < j, whether or not they are close."""
    return labels_of(*_box_pairs(boxes))


def corners(boxes: _BoxArray) -> tuple[_Points, _Points]:
    """Return the upper left and the lower right corner of each box."""
    return boxes[..., :2], boxes[..., 2:]


def sides_of(boxes: _BoxArray) -> _Points:
    """Return width and height of each box."""
    low, high = corners(boxes)
    return high - low


def areas_of(boxes: _BoxArray) -> Int[ndarray, "*n"]:
    """Return the area of each box in square pixels."""
    return sides_of(boxes).prod(-1)


def edges_of(boxes: _Plans) -> Int[ndarray, "*n E"]:
    """Return the relation of every pair of rooms i < j, `NO_EDGE` where they are not close."""
    u, v = _box_pairs(boxes)
    u_low, u_high = corners(u)
    v_low, v_high = corners(v)
    # Touching counts: x1 and y1 are exclusive, so a gap of 9 pixels is still close.
    near = (u_low - NEAR <= v_high) & (v_low <= u_high + NEAR)
    return np.where(near.all(-1), labels_of(u, v), NO_EDGE).astype(np.int8)


def labels_of(u: _BoxArray, v: _BoxArray) -> Int[ndarray, "*n"]:
    """Return the relation of box u to box v, whether or not they are close.

    Surrounding: u strictly contains v. Inside: v contains u, walls may coincide, or the centre of u
    is inside v. Otherwise the relation is looked up in `RULE`.
    """
    u_low, u_high = corners(u.astype(np.int64))
    v_low, v_high = corners(v.astype(np.int64))

    # Twice the coordinates, so that the centre is an integer.
    centre = u_low + u_high
    start = 2 * v_low
    end = 2 * v_high
    # From 0 to 4: before, on the start, within, on the end, after.
    position = (centre >= start).astype(np.int8)
    position += centre > start
    position += centre >= end
    position += centre > end
    column, row = np.moveaxis(position, -1, 0)
    label = RULE[row, column]

    surrounds = (u_low < v_low) & (u_high > v_high)
    within = (u_low >= v_low) & (u_high <= v_high)
    label = np.where(within.all(-1), INSIDE, label)
    return np.where(surrounds.all(-1), SURROUNDING, label).astype(np.int8)


def exclusive(types: _PerRoom | Sequence[int]) -> _PairFlags:
    """True for the pairs of rooms that may not overlap: those without the living room (level 5)."""
    other = np.asarray(types) != LIVING
    i, j = pair_ends(other.shape[-1])
    return other[..., i] & other[..., j]


def overlapping(boxes: _Plans) -> _PairFlags:
    """True for the pairs of boxes that overlap, unless one is inside the other by the rule."""
    u, v = _box_pairs(boxes)
    u_low, u_high = corners(u)
    v_low, v_high = corners(v)
    shared = (u_low < v_high) & (v_low < u_high)
    nested = np.isin(labels_of(u, v), [INSIDE, SURROUNDING])
    return shared.all(-1) & ~nested


def net_areas(types: _PerRoom, boxes: _Plans) -> _PerRoom:
    """Return the area of each box in square pixels without what rooms before it cover, at least 1.

    Of two rooms that overlap the living room gives way, and else the larger one. Exact unless three
    rooms overlap.
    """
    boxes = np.asarray(boxes, np.int64)
    low, high = corners(boxes)
    shared_low = np.maximum(low[..., :, None, :], low[..., None, :, :])
    shared_high = np.minimum(high[..., :, None, :], high[..., None, :, :])
    shared = (shared_high - shared_low).clip(0).prod(-1)

    areas = areas_of(boxes)
    # The living room counts as larger than any other, of which none exceeds the canvas.
    size = areas + np.where(np.asarray(types) == LIVING, 4 * GRID**2, 0)
    one = size[..., :, None]
    other = size[..., None, :]

    # Rooms of equal size give way in the order of their slots.
    rank = np.arange(boxes.shape[-2])
    gives_way = (one > other) | ((one == other) & (rank[:, None] < rank))
    covered = (shared * gives_way).sum(-1)
    return np.maximum(areas - covered, 1)


def _box_pairs(boxes: _Plans) -> tuple[_BoxArray, _BoxArray]:
    """Return the boxes of the first and of the second room of every pair."""
    i, j = pair_ends(boxes.shape[-2])
    return boxes[..., i, :], boxes[..., j, :]
