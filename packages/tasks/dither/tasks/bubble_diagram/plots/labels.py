"""Where words go in a picture: each on the part of its room that shows, none on another, none outside.

The picture is cut into cells. A room's words take the largest size at which some block of its own cells holds them;
what fits nowhere on its room goes to the nearest free place, with a line to the room. Letters: R rooms, H and W cells.
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
"""Distance of two lines of text, as a multiple of their size."""

_CELL: Final = 2.0
_UPRIGHT: Final = 1.3
"""Words stand upright where they can be so many times larger then."""


@dataclass(frozen=True)
class Label:
    """Words in a picture.

    Attributes:
        x: Middle.
        y: Middle.
        size: Of the type.
        lines: The words.
        upright: Whether they read from below.
        spot: The place that they speak of, where they do not stand on it.
    """

    x: float
    y: float
    size: float
    lines: tuple[str, ...]
    upright: bool = False
    spot: tuple[float, float] | None = None

    @property
    def extent(self) -> tuple[float, float]:
        """Width and height, with the space around the words."""
        long = max(text_width(line, self.size) for line in self.lines) + 0.8 * self.size
        short = self.size * (LINE * len(self.lines) + 0.3)
        return (short, long) if self.upright else (long, short)


class Surface:
    """What is shown where, and which places are taken by words.

    Args:
        width: Of the picture.
        height: Of the picture.
        boxes: Of the rooms in it, (x0, y0, x1, y1).
        order: The rooms from the bottom to the top.
    """

    def __init__(self, width: float, height: float, boxes: Float[np.ndarray, "R 4"], order: Sequence[int]) -> None:
        self.boxes = boxes
        self.room: Int[np.ndarray, "H W"] = np.full((int(height / _CELL), int(width / _CELL)), -1)
        self.taken: Bool[np.ndarray, "H W"] = np.zeros(self.room.shape, bool)
        for room in order:
            x0, y0, x1, y1 = np.round(boxes[room] / _CELL).astype(int)
            self.room[y0:y1, x0:x1] = room

    def name(self, words: Sequence[tuple[str, ...]], sizes: Sequence[float]) -> list[Label]:
        """Return the places of the words of all rooms.

        Args:
            words: Lines for each room.
            sizes: Of the type, from the largest to the smallest.
        """
        found: list[Label | None] = []
        for room, lines in enumerate(words):
            label = self._on_room(room, Label(0, 0, 0, lines), sizes)
            if label is not None:
                self.take(label)
            found.append(label)
        for room, lines in enumerate(words):
            if found[room] is None:
                found[room] = self._beside(room, Label(0, 0, sizes[-1], lines[:1]))
        return [label for label in found if label is not None]

    def take(self, label: Label) -> None:
        """Mark the place of a label, so that none comes to stand there."""
        x0, y0, x1, y1 = self._cells(label)
        self.taken[max(y0, 0) : y1, max(x0, 0) : x1] = True

    def free(self, label: Label) -> bool:
        """Whether a label is within the picture and stands on no other."""
        x0, y0, x1, y1 = self._cells(label)
        inside = x0 >= 0 and y0 >= 0 and y1 <= self.taken.shape[0] and x1 <= self.taken.shape[1]
        return inside and not self.taken[y0:y1, x0:x1].any()

    def _cells(self, label: Label) -> tuple[int, int, int, int]:
        (width, height), x, y = label.extent, label.x / _CELL, label.y / _CELL
        width, height = width / _CELL / 2, height / _CELL / 2
        return int(np.floor(x - width)), int(np.floor(y - height)), ceil(x + width), ceil(y + height)

    def _on_room(self, room: int, label: Label, sizes: Sequence[float]) -> Label | None:
        """Return the label as large as it fits on the part of its room that shows."""
        rows, columns = np.nonzero(self.room == room)
        if not len(rows):
            return None
        top, left = rows.min(), columns.min()
        shown = self.room[top : rows.max() + 1, left : columns.max() + 1] == room
        middle = ((rows.mean() - top + 0.5), (columns.mean() - left + 0.5))
        ways = [(size, upright) for size in sizes for upright in (False, True)]
        for size, upright in sorted(ways, key=lambda way: -way[0] / (_UPRIGHT if way[1] else 1.0)):
            placed = _nearest(shown, replace(label, size=size, upright=upright), middle)
            if placed is not None:
                return replace(placed, x=placed.x + left * _CELL, y=placed.y + top * _CELL)
        return None

    def _beside(self, room: int, label: Label) -> Label:
        """Return the label at the nearest free place, smaller if there is none, and take it."""
        x0, y0, x1, y1 = self.boxes[room].tolist()
        spot = ((x0 + x1) / 2, (y0 + y1) / 2)
        while True:
            placed = _nearest(~self.taken, label, (spot[1] / _CELL, spot[0] / _CELL))
            if placed is not None:
                self.take(placed)
                return replace(placed, spot=spot)
            label = replace(label, size=0.9 * label.size)


def _nearest(free: Bool[np.ndarray, "H W"], label: Label, middle: tuple[float, float]) -> Label | None:
    """Return the label where all cells below it are free, as near to the middle (row, column) as can be."""
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
