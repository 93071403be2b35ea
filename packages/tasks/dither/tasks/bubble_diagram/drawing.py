"""Pictures of diagrams: rooms where their relations put them, a line between neighbours, a legend.

Rooms are drawn as boxes with rounded corners, large ones first, so that the living room, whose box often reaches behind
other rooms, shows as the rest. Letters: R rooms, H and W rows and columns of a raster.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import ceil
from typing import Final

import numpy as np
from jaxtyping import Bool, Int
from scipy.ndimage import distance_transform_edt

from .layout import place_rooms
from .page import Line, Page, Rectangle, Shape, Text
from .plans import Diagram, encode
from .realisability import realise
from .relations import edges_of
from .vocabulary import COLOURS, RELATIONS, ROOMS, SHORT, pairs

__all__ = ["draw_diagram", "draw_gallery", "room_names"]

_WHITE, _INK, _PALE, _LINK, _BROKEN = "#ffffff", "#2b2f36", "#6f7782", "#4a515c", "#c8443c"
_SMALLEST, _LARGEST = 6.0, 11.5
"""Sizes of type on a room."""
_LETTER: Final = 0.62
"""Width of a letter as a share of the size of the type."""


@dataclass(frozen=True)
class _Label:
    x: float
    y: float
    size: float
    upright: bool


def room_names(types: Sequence[int]) -> list[str]:
    """Return a short name for each room; rooms of one type are numbered."""
    return [
        f"{SHORT[kind]} {list(types[: place + 1]).count(kind)}" if list(types).count(kind) > 1 else SHORT[kind]
        for place, kind in enumerate(types)
    ]


def draw_diagram(diagram: Diagram, *, size: float = 420.0) -> Page:
    """Draw one diagram, with its relations in words beside it. Relations that the boxes do not show are red."""
    margin, line, letters = 24.0, 17.0, 11.5
    placed = _Placed.of(diagram)
    sentences = placed.sentences()
    height = max(size, line * (len(sentences) + 1) + 2 * margin)
    shapes = placed.draw(margin, margin, size - 2 * margin, height - 2 * margin)
    top = (height - line * (len(sentences) - 1)) / 2
    for row, (sentence, holds) in enumerate(zip(sentences, placed.holds, strict=True)):
        shapes.append(Text(size + 8, top + line * row, sentence, letters, _INK if holds else _BROKEN, left=True))
    width = size + 8 + max(map(len, sentences), default=0) * letters * _LETTER + margin
    legend, legend_height = _legend([diagram], width, height)
    return Page(width, height + legend_height, (*shapes, *legend))


def draw_gallery(diagrams: Sequence[Diagram], *, columns: int = 4, size: float = 230.0) -> Page:
    """Draw many diagrams in a grid, with one legend."""
    columns = max(1, min(columns, len(diagrams)))
    gap, caption = 14.0, 18.0
    shapes: list[Shape] = []
    for place, diagram in enumerate(diagrams):
        row, column = divmod(place, columns)
        x, y = gap + column * (size + gap), gap + row * (size + caption + gap)
        placed = _Placed.of(diagram)
        shapes += placed.draw(x + 6, y + 6, size - 12, size - 12)
        broken = placed.holds.count(False)
        words = f"{len(diagram.types)} rooms, {len(diagram.edges)} relations" + f", {broken} not shown" * bool(broken)
        shapes.append(Text(x + size / 2, y + size + caption / 2 - 2, words, 9.5, _BROKEN if broken else _PALE))
    width = gap + columns * (size + gap)
    height = gap + ceil(len(diagrams) / columns) * (size + caption + gap)
    legend, legend_height = _legend(diagrams, width, height)
    return Page(width, height + legend_height, (*shapes, *legend))


@dataclass(frozen=True)
class _Placed:
    """A diagram, the boxes it is drawn with, and whether they show each of its relations."""

    diagram: Diagram
    boxes: Int[np.ndarray, "R 4"]
    holds: list[bool]

    @classmethod
    def of(cls, diagram: Diagram) -> _Placed:
        """Take the boxes of the diagram, or find some; move them to the corner."""
        boxes = _find_boxes(diagram) if diagram.boxes is None else np.array(diagram.boxes, np.int64)
        drawn = dict(zip(pairs(len(boxes)), edges_of(boxes).tolist(), strict=True))
        holds = [drawn[i, j] == relation for i, j, relation in diagram.edges]
        return cls(diagram, boxes - np.tile(boxes[:, :2].min(0), 2), holds)

    def sentences(self) -> list[str]:
        """Return the relations in words."""
        names = room_names(self.diagram.types)
        return [f"{names[i]}  {RELATIONS[r].replace('-', ' ')}  {names[j]}" for i, j, r in self.diagram.edges]

    def draw(self, x: float, y: float, width: float, height: float) -> list[Shape]:
        """Draw rooms, links and names into a rectangle, as large as they fit."""
        types, (wide, high) = self.diagram.types, self.boxes[:, 2:].max(0).tolist()
        scale = min(width / wide, height / high)
        left, top = x + (width - wide * scale) / 2, y + (height - high * scale) / 2
        sizes = (self.boxes[:, 2:] - self.boxes[:, :2]).prod(1)
        order = np.argsort(-sizes, kind="stable").tolist()
        shapes: list[Shape] = []
        for room in order:
            x0, y0, x1, y1 = (self.boxes[room] * scale).tolist()
            radius = min(7.0, (x1 - x0) / 4, (y1 - y0) / 4)
            colour = COLOURS[types[room]]
            shapes.append(Rectangle(left + x0, top + y0, x1 - x0, y1 - y0, radius, colour, _INK, 1.3))
        names = room_names(types)
        labels = [_label(self.boxes, order, room, name, scale) for room, name in enumerate(names)]
        labels = [replace(label, x=left + label.x, y=top + label.y) for label in labels]
        for (i, j, _), holds in zip(self.diagram.edges, self.holds, strict=True):
            ends = (labels[i].x, labels[i].y, labels[j].x, labels[j].y)
            shapes.append(Line(*ends, _LINK if holds else _BROKEN, 1.1, dashed=not holds))
        return shapes + [shape for name, label in zip(names, labels, strict=True) for shape in _bubble(name, label)]


def _find_boxes(diagram: Diagram) -> Int[np.ndarray, "R 4"]:
    """Place the rooms well; if that breaks a relation, as the witness has them, if there is one."""
    boxes, rooms = place_rooms(diagram), len(diagram.types)
    wanted = encode(diagram, rooms)[rooms:]
    if (edges_of(boxes) == wanted).all():
        return boxes
    witness = realise(wanted, rooms).boxes
    return boxes if witness is None else witness


def _label(boxes: Int[np.ndarray, "R 4"], order: Sequence[int], room: int, name: str, scale: float) -> _Label:
    """Find the place in the part of a room that shows where its name can be written largest."""
    shown = _shown(boxes, order, room)
    aspect = (_LETTER * len(name) + 0.9) / 1.6
    x, y = ((boxes[room, :2] + boxes[room, 2:]) * scale / 2).tolist()
    best = _Label(x, y, 0.0, False)  # stays if the room does not show at all
    for upright, sampling in ((False, (1.0, 1 / aspect)), (True, (1 / aspect, 1.0))):
        space = distance_transform_edt(np.pad(shown, 1), sampling=sampling)[1:-1, 1:-1]
        size = min(_LARGEST, 1.15 * float(space.max()) * scale)
        if size > best.size * (1.25 if upright else 1.0):
            rows, columns = np.nonzero(space >= 0.98 * space.max())
            middle = np.argmin((rows - rows.mean()) ** 2 + (columns - columns.mean()) ** 2)
            best = _Label((columns[middle] + 0.5) * scale, (rows[middle] + 0.5) * scale, size, upright)
    return replace(best, size=max(best.size, _SMALLEST))


def _bubble(name: str, label: _Label) -> list[Shape]:
    """Return a name on a white bubble."""
    long, short = len(name) * label.size * _LETTER + 0.9 * label.size, 1.6 * label.size
    width, height = (short, long) if label.upright else (long, short)
    x, y = label.x - width / 2, label.y - height / 2
    ground = Rectangle(x, y, width, height, short / 2, _WHITE, _LINK, 0.9)
    return [ground, Text(label.x, label.y, name, label.size, _INK, label.upright)]


def _shown(boxes: Int[np.ndarray, "R 4"], order: Sequence[int], room: int) -> Bool[np.ndarray, "H W"]:
    """True for the pixels of a room that no later room covers."""
    shown = np.zeros(boxes[:, [3, 2]].max(0), bool)
    for other in order[order.index(room) :]:
        x0, y0, x1, y1 = boxes[other]
        shown[y0:y1, x0:x1] = other == room
    return shown


def _legend(diagrams: Sequence[Diagram], width: float, top: float) -> tuple[list[Shape], float]:
    """Return a legend of the types that occur, and its height."""
    kinds = sorted({kind for diagram in diagrams for kind in diagram.types})
    size, line = 10.5, 20.0
    shapes: list[Shape] = []
    widths = [len(ROOMS[kind]) * size * _LETTER + 34 for kind in kinds]
    rows: list[list[int]] = [[]]
    for place, one in enumerate(widths):
        if rows[-1] and sum(widths[k] for k in rows[-1]) + one > width - 30:
            rows.append([])
        rows[-1].append(place)
    for number, row in enumerate(rows):
        x = (width - sum(widths[place] for place in row)) / 2
        y = top + 12 + line * number
        for place in row:
            shapes.append(Rectangle(x, y - 6, 12, 12, 3, COLOURS[kinds[place]], _INK, 0.9))
            shapes.append(Text(x + 18, y, ROOMS[kinds[place]], size, _INK, left=True))
            x += widths[place]
    return shapes, 12 + line * len(rows)
