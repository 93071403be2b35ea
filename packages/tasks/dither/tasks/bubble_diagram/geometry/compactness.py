"""Compactness of a floor plan: how much of its bounding rectangle it fills, and its corners."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from ..arrays import Boxes, PixelLabels
from .boundary import OUTER_WALL
from .floor_plan import regions_of, trace_outline


def compactness(types: Sequence[int], boxes: Boxes) -> tuple[float, int]:
    """Return the share of the bounding rectangle that a plan fills, and the corners of its outline.

    Walls between rooms belong to the plan, wider slits do not. Of several parts the corners are
    added.
    """
    return label_compactness(regions_of(types, boxes))


def label_compactness(label: PixelLabels) -> tuple[float, int]:
    """Return `compactness` from the room at each pixel, -1 outside."""
    from scipy import ndimage

    # Empty margins would count as a part of the bounding rectangle.
    inside = label >= 0
    (bounds,) = ndimage.find_objects(inside.astype(int))
    floor = inside[bounds]
    margin = 2 * OUTER_WALL
    walled = np.pad(floor, margin)
    # Closing (growing, then shrinking) fills the walls between rooms.
    size = margin + 1
    body = ndimage.minimum_filter(ndimage.maximum_filter(walled, size), size)
    inner = body[margin:-margin, margin:-margin]

    parts, count = ndimage.label(body)
    corners = 0
    for part in range(1, count + 1):
        outline = ndimage.binary_fill_holes(parts == part)
        corners += len(trace_outline(outline, 0, 0))
    return float(inner.mean()), corners
