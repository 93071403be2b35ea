"""Division of the walls of a floor plan into rectangles, each with the openings in it.

Letters: Y X cells between the coordinates of all corners.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import product
from typing import Any

import numpy as np
from jaxtyping import Bool
from numpy import ndarray

_Cells = Bool[ndarray, "Y X"]

_CellBox = tuple[int, int, int, int]

Rectangle = tuple[float, float, float, float]


def divide_walls(walls: Any, gaps: Sequence[Any]) -> Iterator[Rectangle]:
    """Yield rectangles that fill walls (shapely, pixels) without overlap.

    Those around gaps come first, so that each gap is in one rectangle of the thickness there.
    """
    import shapely

    parts = [walls.intersection(gap) for gap in gaps]
    # Unions of equal corners differ in the last digits.
    corners = shapely.get_coordinates([walls, *parts]).round(3)
    xs = np.unique(corners[:, 0])
    ys = np.unique(corners[:, 1])
    # A cell is in the walls as a whole or not at all, so its middle decides.
    middle_xs = (xs[1:] + xs[:-1]) / 2
    middle_ys = (ys[1:] + ys[:-1]) / 2
    free = shapely.contains_xy(walls, *np.meshgrid(middle_xs, middle_ys))

    openings = []
    for part in parts:
        # Rounding leaves splinters.
        if part.area > 0.01:
            x0, y0, x1, y1 = np.round(part.bounds, 3)
            left, right = np.searchsorted(xs, (x0, x1)).tolist()
            top, bottom = np.searchsorted(ys, (y0, y1)).tolist()
            openings.append((left, top, right, bottom))
    cells = [(x, y, x + 1, y + 1) for y, x in np.argwhere(free).tolist()]
    for seed in (*openings, *cells):
        if _is_free(free, seed):
            x0, y0, x1, y1 = _largest(free, seed, openings, (xs, ys))
            free[y0:y1, x0:x1] = False
            yield xs[x0], ys[y0], xs[x1], ys[y1]


def _largest(
    free: _Cells, seed: _CellBox, openings: Sequence[_CellBox], axes: Sequence[Any]
) -> _CellBox:
    """Return the largest box around a seed that has no part of an opening, but all or none of it."""
    xs, ys = axes
    others = free.copy()
    for x0, y0, x1, y1 in openings:
        if (x0, y0, x1, y1) != seed:
            others[y0:y1, x0:x1] = False
    sizes = {}
    for cells, order in product((free, others), ((0, 1), (1, 0))):
        box = _grown(cells, seed, order)
        if not any(_cuts(box, opening) for opening in openings):
            x0, y0, x1, y1 = box
            width = xs[x1] - xs[x0]
            height = ys[y1] - ys[y0]
            sizes[box] = float(width * height)
    # Where openings overlap, none has a wall for itself.
    plain = _grown(others, seed, (0, 1))
    return max(sizes, key=lambda box: sizes[box], default=plain)


def _cuts(box: _CellBox, opening: _CellBox) -> bool:
    """Whether a box has a part of an opening, but not all of it."""
    low = np.maximum(box[:2], opening[:2])
    high = np.minimum(box[2:], opening[2:])
    return bool((low < high).all()) and (*low, *high) != opening


def _grown(free: _Cells, seed: _CellBox, axes: tuple[int, int]) -> _CellBox:
    """Extend a box of cells along each axis in turn, as far as all of it is free."""
    box = list(seed)
    for axis in axes:
        for side, step in ((axis, -1), (axis + 2, 1)):
            box[side] += step
            while _is_free(free, box):
                box[side] += step
            box[side] -= step
    return box[0], box[1], box[2], box[3]


def _is_free(free: _Cells, box: Sequence[int]) -> bool:
    x0, y0, x1, y1 = box
    height, width = free.shape
    inside = min(x0, y0) >= 0 and x1 <= width and y1 <= height
    return inside and bool(free[y0:y1, x0:x1].all())
