"""Graph2Plan's rule: from bounding boxes to the relation of two rooms, exact in integers.

Letters: R rooms, E pairs of rooms. A box is (x0, y0, x1, y1) in pixels on a 256 x 256 grid, x1 and y1 exclusive, y
grows downwards. Source: Hu et al., Graph2Plan, SIGGRAPH 2020 (arXiv 2004.13204), and its published program. Two rooms
are related if their boxes, one of them grown by 9 pixels, touch; that is nearness, not a door.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from jaxtyping import Bool, Int

from .vocabulary import INSIDE, NO_EDGE, RELATIONS, SURROUNDING, pairs

__all__ = ["GRID", "NEAR", "RULE", "edges_of", "labels_of", "nearby"]

GRID: Final = 256
"""Side of the square canvas in pixels; about 18 metres."""

NEAR: Final = 9
"""Largest gap, in pixels along each axis, between rooms that are related."""

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
"""Relation by where the centre of the first box is: row by y, column by x; before, at the start of, within, at the end
of, behind the second box. The corners lean to one side, so that relations turn with a plan by quarters."""

assert len(RELATIONS) == NO_EDGE


def nearby(u: Int[np.ndarray, "*n 4"], v: Int[np.ndarray, "*n 4"]) -> Bool[np.ndarray, "*n"]:
    """True where two boxes are at most `NEAR` pixels apart along both axes."""
    close = (u[..., :2] - NEAR <= v[..., 2:]) & (v[..., :2] <= u[..., 2:] + NEAR)
    return np.asarray(close.all(-1))


def labels_of(u: Int[np.ndarray, "*n 4"], v: Int[np.ndarray, "*n 4"]) -> Int[np.ndarray, "*n"]:
    """How box u lies to box v, whether or not they are near.

    Surrounding: u contains v with room to spare on all sides. Inside: u lies within v, walls may coincide, or else the
    centre of u is within v. Otherwise `RULE` says it.
    """
    u, v = u.astype(np.int64), v.astype(np.int64)
    low, high = 2 * v[..., :2], 2 * v[..., 2:]
    centre = u[..., :2] + u[..., 2:]
    place = (centre >= low).astype(np.int8) + (centre > low) + (centre >= high) + (centre > high)
    label = RULE[place[..., 1], place[..., 0]]
    contains = np.all((u[..., :2] < v[..., :2]) & (u[..., 2:] > v[..., 2:]), axis=-1)
    within = np.all((u[..., :2] >= v[..., :2]) & (u[..., 2:] <= v[..., 2:]), axis=-1)
    return np.where(contains, SURROUNDING, np.where(within, INSIDE, label)).astype(np.int8)


def edges_of(boxes: Int[np.ndarray, "*n R 4"]) -> Int[np.ndarray, "*n E"]:
    """Return the relation of every pair of rooms i < j, `NO_EDGE` where they are not near."""
    i, j = np.array(pairs(boxes.shape[-2]), int).reshape(-1, 2).T
    u, v = boxes[..., i, :], boxes[..., j, :]
    return np.where(nearby(u, v), labels_of(u, v), NO_EDGE).astype(np.int8)
