"""Graph2Plan's rule that derives the relation of two rooms from their bounding boxes, in exact integer arithmetic.

Letters: R rooms, E pairs of rooms. A box is (x0, y0, x1, y1) in pixels on a 256 x 256 grid, x1 and
y1 exclusive, y pointing down. Two rooms are related if their boxes touch after one of them is grown
by 9 pixels, so relations express proximity, not doors. Source: Hu et al., Graph2Plan, SIGGRAPH 2020
(arXiv 2004.13204), and its reference code.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from jaxtyping import Bool, Int

from .vocabulary import INSIDE, LIVING, NO_EDGE, SURROUNDING, pairs

__all__ = [
    "GRID",
    "METRES",
    "NEAR",
    "RULE",
    "edges_of",
    "exclusive",
    "labels_of",
    "net_areas",
    "overlapping",
    "pair_ends",
]

GRID: Final = 256
"""Side of the square canvas in pixels; about 18 metres."""

METRES: Final = 18 / GRID
"""Metres per pixel."""

NEAR: Final = 9
"""Largest gap, in pixels along each axis, between related rooms."""

_NAMES = {"LA": 0, "LB": 1, "L": 2, "A": 3, "I": INSIDE, "B": 6, "R": 7, "RA": 8, "RB": 9}
RULE: Final[Int[np.ndarray, "5 5"]] = np.array(
    [
        [_NAMES[name] for name in row.split()]
        for row in (
            "LA A  A RA RA",
            "LA LA A RA R",
            "L  L  I R  R",
            "L  LB B RB RB",
            "LB LB B B  RB",
        )
    ],
    dtype=np.int8,
)
"""Relation by the position of the first box's centre, row by y and column by x: before the second
box, on its start, within, on its end, after it. The corner cells are asymmetric so that the table
is invariant under quarter turns."""


@lru_cache(maxsize=64)
def pair_ends(rooms: int) -> Int[np.ndarray, "2 E"]:
    """Return the first and the second room of every pair in token order. Read-only."""
    ends: Int[np.ndarray, "2 E"] = np.array(pairs(rooms), int).reshape(-1, 2).T
    ends.flags.writeable = False
    return ends


def labels_of(u: Int[np.ndarray, "*n 4"], v: Int[np.ndarray, "*n 4"]) -> Int[np.ndarray, "*n"]:
    """Return the relation of box u to box v, whether or not they are close.

    Surrounding: u strictly contains v. Inside: v contains u, walls may coincide, or the centre of u
    is inside v. Otherwise the relation is looked up in `RULE`.
    """
    u = u.astype(np.int64)
    v = v.astype(np.int64)
    low = 2 * v[..., :2]
    high = 2 * v[..., 2:]
    centre = u[..., :2] + u[..., 2:]
    cell = (centre >= low).astype(np.int8) + (centre > low) + (centre >= high) + (centre > high)
    label = RULE[cell[..., 1], cell[..., 0]]
    contains = np.all((u[..., :2] < v[..., :2]) & (u[..., 2:] > v[..., 2:]), axis=-1)
    within = np.all((u[..., :2] >= v[..., :2]) & (u[..., 2:] <= v[..., 2:]), axis=-1)
    return np.where(contains, SURROUNDING, np.where(within, INSIDE, label)).astype(np.int8)


def edges_of(boxes: Int[np.ndarray, "*n R 4"]) -> Int[np.ndarray, "*n E"]:
    """Return the relation of every pair of rooms i < j, `NO_EDGE` where they are not close."""
    i, j = pair_ends(boxes.shape[-2])
    u = boxes[..., i, :]
    v = boxes[..., j, :]
    near = ((u[..., :2] - NEAR <= v[..., 2:]) & (v[..., :2] <= u[..., 2:] + NEAR)).all(-1)
    return np.where(near, labels_of(u, v), NO_EDGE).astype(np.int8)


def exclusive(types: Int[np.ndarray, "*n R"]) -> Bool[np.ndarray, "*n E"]:
    """True for the pairs of rooms that may not overlap, that is those without the living room (level 5)."""
    i, j = pair_ends(types.shape[-1])
    return np.asarray((types[..., i] != LIVING) & (types[..., j] != LIVING))


def overlapping(boxes: Int[np.ndarray, "*n R 4"]) -> Bool[np.ndarray, "*n E"]:
    """True for the pairs of boxes that overlap, unless one is inside the other by the rule."""
    i, j = pair_ends(boxes.shape[-2])
    u = boxes[..., i, :]
    v = boxes[..., j, :]
    shared = ((u[..., :2] < v[..., 2:]) & (v[..., :2] < u[..., 2:])).all(-1)
    return np.asarray(shared & ~np.isin(labels_of(u, v), [INSIDE, SURROUNDING]))


def net_areas(
    types: Int[np.ndarray, "*n R"], boxes: Int[np.ndarray, "*n R 4"]
) -> Int[np.ndarray, "*n R"]:
    """Return the area of each box in square pixels, less its overlap with rooms that come before it, at least 1.

    Of two rooms that overlap the living room gives way, and else the larger one. Exact unless three
    rooms overlap.
    """
    boxes = np.asarray(boxes, np.int64)
    sides = np.minimum(boxes[..., :, None, 2:], boxes[..., None, :, 2:])
    sides = sides - np.maximum(boxes[..., :, None, :2], boxes[..., None, :, :2])
    shared = sides.clip(0).prod(-1)
    areas = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    rank = np.arange(boxes.shape[-2])
    size = areas + GRID**2 * 4 * (np.asarray(types) == LIVING)
    gives_way = (size[..., :, None] > size[..., None, :]) | (
        (size[..., :, None] == size[..., None, :]) & (rank[:, None] < rank)
    )
    return np.asarray(np.maximum(areas - (shared * gives_way).sum(-1), 1))
