"""Outlines of rooms as other programs store them (well-known binary), and their place on the grid.

Letters: R rooms.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from ..relations import GRID
from .pickled import Made

__all__ = ["PIXELS_PER_METRE", "on_grid", "outlines_of"]

PIXELS_PER_METRE: Final = GRID / 18
"""The grid is 18 metres wide."""

_POLYGON, _COLLECTIONS = 3, (6, 7)
_OTHERS: Final = {1, 2, 4, 5}


def outlines_of(shape: Any) -> list[Float[np.ndarray, "n 2"]]:
    """Return the outer outline of each polygon of a pickled shape of shapely; none for nothing, points and lines.

    Raises:
        ValueError: It is no shape.
    """
    content = _binary(shape)
    if content is None:
        return []
    try:
        outlines, _ = _read(content, 0)
    except (struct.error, IndexError):
        raise ValueError("a shape that is cut off") from None
    return outlines


def _binary(shape: Any) -> bytes | None:
    """The well-known binary in a shape: shapely 2 makes it from that, shapely 1 sets it afterwards."""
    if shape is None:
        return None
    if isinstance(shape, Made):
        parts = [shape.state, *(shape.given if isinstance(shape.given, tuple) else ())]
        for part in parts:
            if isinstance(part, bytes | bytearray):
                return bytes(part)
    raise ValueError("no shape of shapely")


def _read(content: bytes, at: int) -> tuple[list[Float[np.ndarray, "n 2"]], int]:
    order = "<" if content[at] == 1 else ">"
    (kind,) = struct.unpack_from(order + "I", content, at + 1)
    at += 5 + (4 if kind & 0x20000000 else 0)
    extra = bool(kind & 0x80000000) + bool(kind & 0x40000000)
    kind &= 0xFFFFFFF
    extra += (0, 1, 1, 2)[min(kind // 1000, 3)]
    kind %= 1000
    if kind == _POLYGON:
        return _polygon(content, at, order, 2 + extra)
    if kind in _COLLECTIONS:
        (count,) = struct.unpack_from(order + "I", content, at)
        at, outlines = at + 4, []
        for _ in range(count):
            found, at = _read(content, at)
            outlines += found
        return outlines, at
    if kind in _OTHERS:
        return [], len(content)
    raise ValueError(f"a shape of kind {kind}")


def _polygon(content: bytes, at: int, order: str, numbers: int) -> tuple[list[Float[np.ndarray, "n 2"]], int]:
    (rings,) = struct.unpack_from(order + "I", content, at)
    at += 4
    outlines = []
    for ring in range(rings):
        (points,) = struct.unpack_from(order + "I", content, at)
        size = 8 * numbers * points
        if len(content) < at + 4 + size:
            raise ValueError("a shape that is cut off")
        walls = np.frombuffer(content, order + "f8", numbers * points, at + 4).reshape(points, numbers)
        at += 4 + size
        if ring == 0 and points:
            outlines.append(walls[:, :2].astype(np.float64))
    return outlines, at


def on_grid(boxes: Sequence[Sequence[float]], scale: float, *, upwards: bool = False) -> Float[np.ndarray, "R 4"]:
    """Return boxes in pixels, the plan in the middle of the grid; one that is larger than the grid is drawn smaller.

    Args:
        boxes: x0, y0, x1, y1 of each room in any unit.
        scale: Pixels per unit.
        upwards: Whether y grows upwards there; on the grid it grows downwards.
    """
    walls = np.asarray(boxes, np.float64).reshape(-1, 4) * scale
    if upwards:
        walls = walls[:, [0, 3, 2, 1]] * [1, -1, 1, -1]
    if not len(walls):
        return walls
    low, high = walls[:, :2].min(0), walls[:, 2:].max(0)
    smaller = min(1.0, GRID / max((high - low).max(), 1.0))
    pixels: Float[np.ndarray, "R 4"] = np.rint((walls - np.tile((low + high) / 2, 2)) * smaller + GRID / 2)
    return pixels
