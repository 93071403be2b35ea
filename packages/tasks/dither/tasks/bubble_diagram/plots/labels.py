"""Label placement: labels on the visible part of their rooms, without overlaps, inside the picture.

The picture is a grid of cells. A label gets the largest font size at which it fits on visible cells of its room;
otherwise it goes to the nearest free cells, with a line to the room. Letters: R rooms, H and W cells.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np
from jaxtyping import Bool, Float, Int

from .svg import text_width

__all__ = ["LINE", "Label", "Surface"]

LINE: Final = 1.3
"""Line spacing as a multiple of the font size."""

_CELL: Final = 2.0
_UPRIGHT: Final = 1.3
"""Factor by which upright text must be larger to be preferred."""


@dataclass(frozen=True)
class Label:
    """A label centred at (x, y), upright if rotated by 90 degrees. `spot` is the point it refers to, if elsewhere."""

    x: float
    y: float
    size: float
    lines: tuple[str, ...]
    upright: bool = False
    spot: tuple[float, float] | None = None

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height, with padding."""
        long = max(text_width(line, self.size) for line in self.lines) + 0.8 * self.size
        short = self.size * (LINE * len(self.lines) + 0.3)
        return (short, long) if self.upright else (long, short)


class Surface:
    """Visible room and occupancy of each cell of a picture; `order` lists the rooms from bottom to top."""

    def __init__(self, width: float, height: float, boxes: Float[np.ndarray, "R 4"], order: Sequence[int]) -> None:
        self.boxes = boxes
        self.room: Int[np.ndarray, "H W"] = np.full((int(height / _CELL), int(width / _CELL)), -1)
        self.taken: Bool[np.ndarray, "H W"] = np.zeros(self.room.shape, bool)
        for room in order:
            x0, y0, x1, y1 = np.round(boxes[room] / _CELL).astype(int)
            self.room[y0:y1, x0:x1] = room

    def place(self, texts: Sequence[tuple[str, ...]], sizes: Sequence[float]) -> list[Label]:
        """Return the labels of all rooms and reserve their cells; font sizes are tried in the given order."""
        labels: list[Label | None] = []
        for room, lines in enumerate(texts):
            label = self._on_room(room, Label(0, 0, 0, lines), sizes)
            if label is not None:
                self.reserve(label)
            labels.append(label)
        for room, lines in enumerate(texts):
            if labels[room] is None:
                labels[room] = self._near_room(room, Label(0, 0, sizes[-1], lines[:1]))
        return [label for label in labels if label is not None]

    def reserve(self, label: Label) -> None:
        """Mark the cells of a label as taken."""
        x0, y0, x1, y1 = self._cells(label)
        self.taken[max(y0, 0) : y1, max(x0, 0) : x1] = True

    def free(self, label: Label) -> bool:
        """Whether a label is inside the picture and overlaps no other."""
        x0, y0, x1, y1 = self._cells(label)
        inside = x0 >= 0 and y0 >= 0 and y1 <= self.taken.shape[0] and x1 <= self.taken.shape[1]
        return inside and not self.taken[y0:y1, x0:x1].any()

    def _cells(self, label: Label) -> tuple[int, int, int, int]:
        (width, height), x, y = label.extent, label.x / _CELL, label.y / _CELL
        width, height = width / _CELL / 2, height / _CELL / 2
        return int(np.floor(x - width)), int(np.floor(y - height)), ceil(x + width), ceil(y + height)

    def _on_room(self, room: int, label: Label, sizes: Sequence[float]) -> Label | None:
        """Return the largest label that fits on the visible part of its room."""
        rows, columns = np.nonzero(self.room == room)
        if not len(rows):
            return None
        top, left = rows.min(), columns.min()
        visible = self.room[top : rows.max() + 1, left : columns.max() + 1] == room
        middle = ((rows.mean() - top + 0.5), (columns.mean() - left + 0.5))
        options = [(size, upright) for size in sizes for upright in (False, True)]
        for size, upright in sorted(options, key=lambda option: -option[0] / (_UPRIGHT if option[1] else 1.0)):
            placed = _nearest(visible, replace(label, size=size, upright=upright), middle)
            if placed is not None:
                return replace(placed, x=placed.x + left * _CELL, y=placed.y + top * _CELL)
        return None

    def _near_room(self, room: int, label: Label) -> Label:
        """Return the label at the nearest free cells, shrunk until it fits, and reserve them."""
        x0, y0, x1, y1 = self.boxes[room].tolist()
        spot = ((x0 + x1) / 2, (y0 + y1) / 2)
        while True:
            placed = _nearest(~self.taken, label, (spot[1] / _CELL, spot[0] / _CELL))
            if placed is not None:
                self.reserve(placed)
                return replace(placed, spot=spot)
            label = replace(label, size=0.9 * label.size)


def _nearest(free: Bool[np.ndarray, "H W"], label: Label, middle: tuple[float, float]) -> Label | None:
    """Return the label at the free cells nearest to a point (row, column)."""
    width, height = (ceil(side / _CELL) for side in label.extent)
    if height > free.shape[0] or width > free.shape[1]:
        return None
    sums = np.pad(free.cumsum(0, dtype=np.int32).cumsum(1, dtype=np.int32), ((1, 0), (1, 0)))
    count = sums[height:, width:] - sums[:-height, width:] - sums[height:, :-width] + sums[:-height, :-width]
    rows, columns = np.nonzero(count == height * width)
    if not len(rows):
        return None
    y, x = rows + height / 2, columns + width / 2
    best = int(np.argmin((y - middle[0]) ** 2 + (x - middle[1]) ** 2))
    return replace(label, x=float(x[best]) * _CELL, y=float(y[best]) * _CELL)
