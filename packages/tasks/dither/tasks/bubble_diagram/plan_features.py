"""Features of rendered floor plans, for distances of samples from real plans.

Letters: N plans, R rooms, F features, S pixels of a side.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from jaxtyping import Float, UInt8
from numpy import ndarray

from ..feature_distances import FeatureExtractor, extract_features
from .arrays import Boxes
from .relations import areas_of
from .vocabulary import COLOURS, GRID, LIVING, NODE_MASK

__all__ = ["grid_shares", "plan_features", "plan_image", "type_map"]

OUTSIDE = NODE_MASK
"""Number of pixels outside of rooms, after the room types."""
SIDE = 64
"""Pixels of a rendered plan for features of the user."""
CELLS = 4
"""Cells of a side of the grid in which room types are counted."""


def plan_features(
    plans: Iterable[tuple[Sequence[int], Boxes]], extractor: FeatureExtractor | None
) -> Float[ndarray, "N F"]:
    """Return `grid_shares` of plans of types and boxes, or the features of their images."""
    maps = [type_map(types, boxes) for types, boxes in plans]
    # Data may have no boxes.
    if extractor is None or not maps:
        return np.array([grid_shares(kinds) for kinds in maps])
    return extract_features(extractor, np.array([plan_image(kinds) for kinds in maps]))


def type_map(types: Sequence[int], boxes: Boxes) -> UInt8[ndarray, "S S"]:
    """Return the room type at each pixel, in the middle of a square of at least 18 m."""
    boxes = np.asarray(boxes, np.int64)
    low = boxes[:, :2].min(0)
    size = boxes[:, 2:].max(0) - low
    side = max(GRID, int(size.max()))
    corner = (side - size) // 2 - low
    # A larger plan is drawn smaller.
    moved = boxes + np.tile(corner, 2)
    walls = moved * GRID // side
    kinds = np.full((GRID, GRID), OUTSIDE, np.uint8)
    # The living room gives way to others, and large rooms to small ones, as in drawings.
    largest_first = np.argsort(-areas_of(boxes), kind="stable").tolist()
    for room in sorted(largest_first, key=lambda room: types[room] != LIVING):
        x0, y0, x1, y1 = walls[room].tolist()
        kinds[y0:y1, x0:x1] = types[room]
    return kinds


def grid_shares(kinds: UInt8[ndarray, "S S"]) -> Float[ndarray, " F"]:
    """Return the share of each room type in each cell of a 4 x 4 grid of the square.

    Times the root of 13, the number of types: then x y / F is the mean over cells of the overlap of
    their types, between 0 and 1.
    """
    cell = len(kinds) // CELLS
    cells = kinds.reshape(CELLS, cell, CELLS, cell).swapaxes(1, 2)
    shares = [
        np.bincount(pixels, minlength=OUTSIDE + 1)[:OUTSIDE] / cell**2
        for pixels in cells.reshape(CELLS**2, -1)
    ]
    return OUTSIDE**0.5 * np.concatenate(shares)


def plan_image(kinds: UInt8[ndarray, "S S"]) -> Float[ndarray, "64 64 3"]:
    """Return a plan in the colours of room types from 0 to 1, white outside."""
    # "#rrggbb", and white for `OUTSIDE`.
    palette = [[*bytes.fromhex(colour[1:])] for colour in (*COLOURS, "#ffffff")]
    colours = np.array(palette)[kinds] / 255
    block = len(kinds) // SIDE
    return colours.reshape(SIDE, block, SIDE, block, 3).mean((1, 3))
