"""Regions beside a region: the nearest ones of a window of which something may be seen.

Letters: B batch, L length, M columns.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float32, Integer

__all__ = ["nearest_visible", "regions_beside"]


def _both_sides(
    visible: Bool[np.ndarray, "B L K"],
) -> tuple[Integer[np.ndarray, "B L K"], Integer[np.ndarray, "B L K"]]:
    """Return the nearest visible place at or before each, or -1, and at or behind it, or L."""
    length = visible.shape[1]
    place = np.arange(length)[None, :, None]
    before = np.maximum.accumulate(np.where(visible, place, -1), axis=1)
    behind = np.minimum.accumulate(np.where(visible, place, length)[:, ::-1], axis=1)[:, ::-1]
    return before, behind


def nearest_visible(
    values: Float32[np.ndarray, "B L M"], visible: Bool[np.ndarray, "B L M"], centre: Integer[np.ndarray, "B L"]
) -> tuple[Bool[np.ndarray, "B L M"], Float32[np.ndarray, "B L M"]]:
    """Return, for each element, the same column of the nearest region where it is visible, and whether there is one.

    Near is meant in bases; of two regions as near, the earlier one counts.
    """
    before, behind = _both_sides(visible)
    length = values.shape[1]
    has_before, has_behind = before >= 0, behind < length
    before, behind = before.clip(min=0), behind.clip(max=length - 1)
    where = centre[..., None].astype(np.int64)
    where = np.broadcast_to(where, values.shape)
    to_before = where - np.take_along_axis(where, before, 1)
    to_behind = np.take_along_axis(where, behind, 1) - where
    later = has_behind & (~has_before | (to_behind < to_before))
    return has_before | has_behind, np.take_along_axis(values, np.where(later, behind, before), 1)


def regions_beside(z: Float32[np.ndarray, "B L M"], visible: Bool[np.ndarray, "B L M"]) -> Float32[np.ndarray, "B L M"]:
    """Return the mean of the nearest regions on either side of which something is visible; 0 where there is none.

    Args:
        z: Standardised values, 0 where they are not visible.
        visible: What may be seen.
    """
    seen = visible.any(-1, keepdims=True)
    length, total, count = z.shape[1], np.zeros_like(z), np.zeros(seen.shape, np.float32)
    for place in _both_sides(np.asarray(seen)):
        there = (place >= 0) & (place < length)
        total += np.take_along_axis(z, place.clip(0, length - 1), 1) * there
        count += there
    beside: Float32[np.ndarray, "B L M"] = total / np.maximum(count, 1)
    return beside
