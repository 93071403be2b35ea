"""Pictures of diagrams: rooms at their boxes, links between related rooms, a legend.

Large rooms are drawn first, so that the living room, whose box often extends behind others, is visible around them.
Relations that the boxes violate are red. Letters: R rooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import ceil
from typing import Final

import numpy as np
from jaxtyping import Float

from ..geometry.placement import Placement, place_diagram, room_names
from ..plans import Diagram
from ..vocabulary import COLOURS, RELATIONS, ROOMS
from .labels import Label, Surface
from .svg import Line, Page, Rectangle, Shape, Text, fit_text, text_width

__all__ = [
    "BROKEN",
    "INK",
    "LINK",
    "PALE",
    "Scene",
    "draw_bubbles",
    "draw_diagram",
    "draw_gallery",
    "draw_room",
    "label_shapes",
]

INK: Final = "#2b2f36"
PALE: Final = "#6f7782"
BROKEN: Final = "#c8443c"
LINK: Final = "#4a515c"
"""Colours of names and walls, of captions, of violated relations, and of links."""

_WHITE: Final = "#ffffff"
_SIZES: Final = (12.5, 11.5, 10.5, 9.5, 8.5, 7.5)
_TAG: Final = 8.0
"""Font sizes of names, and of relation tags on links."""

_MIN_RATIO: Final = 24
"""Smallest ratio of the width of the picture to the font size of names."""

_TAG_POSITIONS: Final = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73)
"""Positions of a tag along its link, best first."""


def tag_of(relation: int) -> str:
    """Return the abbreviation of a relation, such as LA for left-above."""
    return "".join(word[0] for word in RELATIONS[relation].split("-") if word != "of").upper()


class Scene:
    """A placed diagram scaled into a rectangle of a page, with labels."""

    def __init__(self, placement: Placement, x: float, y: float, width: float, height: float) -> None:
        self.placement, self.x, self.y, self.width = placement, x, y, width
        boxes = placement.boxes
        wide, high = boxes[:, 2:].max(0).tolist()
        self.scale = min(width / wide, height / high)
        corner = np.array([(width - wide * self.scale) / 2, (height - high * self.scale) / 2])
        within = boxes * self.scale + np.tile(corner, 2)
        self.boxes: Float[np.ndarray, "R 4"] = within + np.array([x, y, x, y])
        self.order: list[int] = np.argsort(-(boxes[:, 2:] - boxes[:, :2]).prod(1), kind="stable").tolist()
        self.surface = Surface(width, height, within, self.order)
        self.names = room_names(placement.diagram)
        self.labels: list[Label] = []

    def label_rooms(self, texts: Sequence[tuple[str, ...]] | None = None) -> list[Label]:
        """Place a label for each room, by default its name."""
        sizes = [size for size in _SIZES if size <= max(self.width / _MIN_RATIO, _SIZES[-1])]
        placed = self.surface.place(texts or [(name,) for name in self.names], sizes)
        self.labels = [self._to_page(label) for label in placed]
        return self.labels

    def _to_page(self, label: Label) -> Label:
        """Convert a label from surface to page coordinates."""
        spot = None if label.spot is None else (label.spot[0] + self.x, label.spot[1] + self.y)
        return replace(label, x=label.x + self.x, y=label.y + self.y, spot=spot)

    def anchor(self, room: int) -> tuple[float, float]:
        """Return the end point of links to a room."""
        label = self.labels[room]
        return label.spot or (label.x, label.y)

    def tag(self, ends: tuple[float, float, float, float], text: str) -> Label | None:
        """Place a tag on a link; None if there is no space."""
        x0, y0, x1, y1 = ends
        for share in _TAG_POSITIONS:
            x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
            label = Label(x - self.x, y - self.y, _TAG, (text,))
            if self.surface.free(label):
                self.surface.reserve(label)
                return self._to_page(label)
        return None


def draw_diagram(diagram: Diagram, *, size: float = 420.0, placement: Placement | None = None) -> Page:
    """Draw one diagram and list its relations. Relations that the boxes violate are red."""
    margin, line, font = 24.0, 16.0, 11.0
    placement = placement or place_diagram(diagram)
    sentences = placement.sentences()
    height = max(size, line * (len(sentences) + 1) + 2 * margin)
    shapes = draw_bubbles(Scene(placement, margin, margin, size - 2 * margin, height - 2 * margin), tags=True)
    top = (height - line * (len(sentences) - 1)) / 2
    for row, (sentence, holds) in enumerate(zip(sentences, placement.holds, strict=True)):
        shapes.append(Text(size + 8, top + line * row, sentence, font, INK if holds else BROKEN, left=True))
    width = size + 8 + max((text_width(sentence, font) for sentence in sentences), default=0.0) + margin
    caption = f"{_summary(placement)}. Tags give the relation of the room with the dot to the other."
    shapes.append(Text(margin, height, fit_text(caption, 9.5, width - 2 * margin), 9.5, PALE, left=True))
    legend, legend_height = draw_legend([diagram], width, height + 10)
    return Page(width, height + 10 + legend_height, (*shapes, *legend))


def _summary(placement: Placement) -> str:
    summary = f"{len(placement.diagram.types)} rooms, {len(placement.diagram.edges)} relations"
    return summary + f", {placement.broken} violated" * bool(placement.broken)


def draw_gallery(
    diagrams: Sequence[Diagram],
    *,
    columns: int = 4,
    size: float = 230.0,
    placements: Sequence[Placement] | None = None,
) -> Page:
    """Draw diagrams in a grid with a common legend."""
    columns = max(1, min(columns, len(diagrams)))
    gap, caption = 14.0, 18.0
    shapes: list[Shape] = []
    for index, placement in enumerate(placements or map(place_diagram, diagrams)):
        row, column = divmod(index, columns)
        x, y = gap + column * (size + gap), gap + row * (size + caption + gap)
        shapes += draw_bubbles(Scene(placement, x + 6, y + 6, size - 12, size - 12))
        colour = BROKEN if placement.broken else PALE
        shapes.append(Text(x + size / 2, y + size + caption / 2 - 2, _summary(placement), 9.5, colour))
    width = gap + columns * (size + gap)
    height = gap + ceil(len(diagrams) / columns) * (size + caption + gap)
    legend, legend_height = draw_legend(diagrams, width, height)
    return Page(width, height + legend_height, (*shapes, *legend))


def draw_bubbles(scene: Scene, *, tags: bool = False) -> list[Shape]:
    """Draw rooms, links and names, and with `tags` the abbreviated relations where they fit."""
    scene.label_rooms()
    placement, shapes = scene.placement, [draw_room(scene, room) for room in scene.order]
    drawn_tags: list[Shape] = []
    sentences = placement.sentences()
    for (i, j, relation), holds, sentence in zip(placement.diagram.edges, placement.holds, sentences, strict=True):
        ends, colour = (*scene.anchor(i), *scene.anchor(j)), LINK if holds else BROKEN
        shapes.append(Line(*ends, colour, 1.1, dashed=not holds, title=sentence))
        label = scene.tag(ends, tag_of(relation)) if tags else None
        if label is not None:
            drawn_tags += [_dot(scene.labels[i], ends, colour), *_tag(label, colour)]
    return shapes + drawn_tags + [shape for label in scene.labels for shape in label_shapes(label)]


def draw_room(scene: Scene, room: int, fill: str = "", stroke: str = INK, *, title: bool = True) -> Shape:
    """Return the box of a room, by default in the colour of its type."""
    x0, y0, x1, y1 = scene.boxes[room].tolist()
    radius, fill = min(7.0, (x1 - x0) / 4, (y1 - y0) / 4), fill or COLOURS[scene.placement.diagram.types[room]]
    return Rectangle(x0, y0, x1 - x0, y1 - y0, radius, fill, stroke, 1.3, scene.names[room] if title else "")


def _dot(label: Label, ends: tuple[float, float, float, float], colour: str) -> Shape:
    """Return a dot at the start of a link, next to the label of its first room."""
    x0, y0, x1, y1 = ends
    half_width, half_height = (0.0, 0.0) if label.spot else (side / 2 + 2.5 for side in label.extent)
    share = min(half_width / max(abs(x1 - x0), 1e-9), half_height / max(abs(y1 - y0), 1e-9), 1.0)
    x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
    return Rectangle(x - 2.2, y - 2.2, 4.4, 4.4, 2.2, colour, colour, 0.0)


def _tag(label: Label, colour: str) -> list[Shape]:
    """Return a tag with a white background."""
    width, height = label.extent
    x, y = label.x - width / 2, label.y - height / 2
    background = Rectangle(x, y, width, height, 3.0, _WHITE, _WHITE, 0.0)
    return [background, Text(label.x, label.y, label.lines[0], label.size, PALE if colour == LINK else colour)]


def label_shapes(label: Label) -> list[Shape]:
    """Return a label with a white background, and a line to its spot if it is elsewhere."""
    width, height = label.extent
    background = Rectangle(
        label.x - width / 2, label.y - height / 2, width, height, min(width, height) / 2, _WHITE, LINK, 0.9
    )
    shapes: list[Shape] = [Line(label.x, label.y, *label.spot, LINK, 0.9)] if label.spot else []
    return [*shapes, background, Text(label.x, label.y, label.lines[0], label.size, INK, label.upright)]


def draw_legend(diagrams: Sequence[Diagram], width: float, top: float) -> tuple[list[Shape], float]:
    """Return a legend of the room types that occur, and its height."""
    kinds = sorted({kind for diagram in diagrams for kind in diagram.types})
    size, line = 10.5, 20.0
    shapes: list[Shape] = []
    widths = [text_width(ROOMS[kind], size) + 34 for kind in kinds]
    rows: list[list[int]] = [[]]
    for index, item in enumerate(widths):
        if rows[-1] and sum(widths[k] for k in rows[-1]) + item > width - 30:
            rows.append([])
        rows[-1].append(index)
    for number, row in enumerate(rows):
        x = (width - sum(widths[index] for index in row)) / 2
        y = top + 12 + line * number
        for index in row:
            shapes.append(Rectangle(x, y - 6, 12, 12, 3, COLOURS[kinds[index]], INK, 0.9))
            shapes.append(Text(x + 18, y, ROOMS[kinds[index]], size, INK, left=True))
            x += widths[index]
    return shapes, 12 + line * len(rows)
