"""Maximal rectangles inside an outline: a box is inside the outline if it is inside one of them.

Exact for outlines of level and upright sides. Slanted sides are followed in steps, so that every
rectangle is inside the outline there, too.
Letters: K rectangles, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import lru_cache

import numpy as np
from jaxtyping import Bool

from ..arrays import Boundary, Boxes, Mask
from ..relations import areas_of
from .boundary import OUTER_WALL, mask_of
from .wall_constraints import SMALLEST

_STEPS = (1, 6, 12, 24, 48)
"""Pixels between the lines at which slanted sides are cut, tried in this order."""

_MOST = 48
"""Most rectangles, which bounds the search for boxes."""

_LINES = 48
"""Most lines along an axis; an outline of level and upright sides has up to 23."""

_LONG = 24
"""Length from which on a side of the outline is always one of the lines."""


def rectangles_within(boundary: Boundary) -> Boxes:
    """Return the maximal rectangles inside an outline and its walls that are large enough for a room."""
    return _rectangles(boundary.astype(np.int64).tobytes())


def most_rooms(boundary: Boundary) -> int:
    """Return a number of rooms of the smallest size that is not exceeded inside an outline."""
    if not len(rectangles_within(boundary)):
        return 0
    return int(floor_within(boundary).sum()) // SMALLEST**2


def floor_within(boundary: Boundary) -> Mask:
    """Return the pixels that are inside an outline and its walls."""
    from scipy import ndimage

    # A pixel of the floor has the thickness of a wall around it on all sides.
    inside = mask_of(boundary)
    floor: Mask = ndimage.minimum_filter(inside, 2 * OUTER_WALL + 1, mode="constant")
    return floor


# Every sample of a set has the same outline, or one of a few.
@lru_cache(maxsize=64)
def _rectangles(content: bytes) -> Boxes:
    floor = floor_within(np.frombuffer(content, np.int64).reshape(-1, 2))
    found: list[list[int]] = []
    for step in _STEPS:
        xs = _lines(floor.T, step)
        ys = _lines(floor, step)
        if max(len(xs), len(ys)) > _LINES:
            continue
        found = list(_maximal(floor, xs, ys))
        if len(found) <= _MOST:
            break
    # The largest ones, if a jagged outline has more of them in the coarsest steps.
    boxes: Boxes = np.array(found, np.int64).reshape(-1, 4)
    order = np.argsort(-areas_of(boxes), kind="stable")
    boxes = boxes[order[:_MOST]]
    boxes.flags.writeable = False
    return boxes


def _lines(floor: Mask, step: int) -> list[int]:
    """Return the rows at which the floor changes; short changes in multiples of a step only."""
    padded = np.pad(floor, ((1, 1), (0, 0)))
    changes = (padded[1:] != padded[:-1]).sum(1)
    rows = np.flatnonzero(changes)
    return [int(row) for row in rows if changes[row] >= _LONG or row % step == 0]


def _maximal(floor: Mask, xs: list[int], ys: list[int]) -> Iterator[list[int]]:
    """Yield the rectangles of cells between lines that are inside and cannot grow."""
    if not xs or not ys:
        return
    # The last interval of `reduceat` ends with the array.
    within = floor[: ys[-1], : xs[-1]]
    rows = np.logical_and.reduceat(within, ys[:-1], axis=0)
    cells = np.logical_and.reduceat(rows, xs[:-1], axis=1)
    # A row outside at both ends, so that every rectangle has a neighbour above and below.
    cells = np.pad(cells, ((1, 1), (0, 0)))
    for top in range(len(ys) - 1):
        for bottom in range(top + 1, len(ys)):
            # Rows top .. bottom - 1 of the cells are `top + 1 : bottom + 1` of the padded ones.
            band = cells[top + 1 : bottom + 1]
            inside: Bool[np.ndarray, " K"] = np.all(band, axis=0)
            if not inside.any():
                break
            if ys[bottom] - ys[top] < SMALLEST:
                continue
            for left, right in _intervals(inside):
                if xs[right] - xs[left] < SMALLEST:
                    continue
                above = cells[top, left:right].all()
                below = cells[bottom + 1, left:right].all()
                if not (above or below):
                    yield [xs[left], ys[top], xs[right], ys[bottom]]


def _intervals(inside: Bool[np.ndarray, " K"]) -> list[list[int]]:
    """Return start and end (exclusive) of each interval of True."""
    padded = np.pad(inside, 1).astype(np.int8)
    edges = np.flatnonzero(np.diff(padded))
    intervals: list[list[int]] = edges.reshape(-1, 2).tolist()
    return intervals
