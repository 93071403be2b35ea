"""Pictures of diagrams: rooms where their relations put them, a line between neighbours, a legend.

Rooms are drawn as boxes with rounded corners, large ones first, so that the living room, whose box often reaches behind
other rooms, shows as the rest. What the boxes do not show of the relations is red. Letters: R rooms.
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
    "PALE",
    "Scene",
    "draw_bubbles",
    "draw_diagram",
    "draw_gallery",
    "draw_legend",
    "label_shapes",
    "tag_of",
]

INK: Final = "#2b2f36"
PALE: Final = "#6f7782"
BROKEN: Final = "#c8443c"
"""Colours of names and walls, of remarks, and of what does not hold."""

_WHITE, _LINK = "#ffffff", "#4a515c"
_SIZES: Final = (12.5, 11.5, 10.5, 9.5, 8.5, 7.5)
_TAG: Final = 8.0
"""Sizes of type: of names, and of the letters on a line that say the relation."""

_LARGEST: Final = 24
"""Names are at most so much smaller than their picture is wide."""

_PLACES: Final = (0.5, 0.42, 0.58, 0.34, 0.66, 0.27, 0.73)
"""Where along a line its letters may stand, the best first."""


def tag_of(relation: int) -> str:
    """Return the letters for a relation: LA for left-above."""
    return "".join(word[0] for word in RELATIONS[relation].split("-") if word != "of").upper()


class Scene:
    """An arrangement scaled into a rectangle of a page, with places for words.

    Args:
        arrangement: What is shown.
        x: Left side of the rectangle.
        y: Upper side of the rectangle.
        width: Of the rectangle.
        height: Of the rectangle.
    """

    def __init__(self, arrangement: Placement, x: float, y: float, width: float, height: float) -> None:
        self.arrangement, self.x, self.y, self.width = arrangement, x, y, width
        boxes = arrangement.boxes
        wide, high = boxes[:, 2:].max(0).tolist()
        self.scale = min(width / wide, height / high)
        corner = np.array([(width - wide * self.scale) / 2, (height - high * self.scale) / 2])
        within = boxes * self.scale + np.tile(corner, 2)
        self.boxes: Float[np.ndarray, "R 4"] = within + np.array([x, y, x, y])
        self.order: list[int] = np.argsort(-(boxes[:, 2:] - boxes[:, :2]).prod(1), kind="stable").tolist()
        self.surface = Surface(width, height, within, self.order)
        self.names = room_names(arrangement.diagram)
        self.labels: list[Label] = []

    def write(self, words: Sequence[tuple[str, ...]] | None = None) -> list[Label]:
        """Find places for words on each room, by default its name."""
        sizes = [size for size in _SIZES if size <= max(self.width / _LARGEST, _SIZES[-1])]
        placed = self.surface.name(words or [(name,) for name in self.names], sizes)
        self.labels = [self._out(label) for label in placed]
        return self.labels

    def _out(self, label: Label) -> Label:
        """Move a label from the surface to where the rectangle is on the page."""
        spot = None if label.spot is None else (label.spot[0] + self.x, label.spot[1] + self.y)
        return replace(label, x=label.x + self.x, y=label.y + self.y, spot=spot)

    def anchor(self, room: int) -> tuple[float, float]:
        """Return where lines to a room end."""
        label = self.labels[room]
        return label.spot or (label.x, label.y)

    def tag(self, ends: tuple[float, float, float, float], words: str) -> Label | None:
        """Return the place of letters on a line, and take it; None if there is none."""
        x0, y0, x1, y1 = ends
        for share in _PLACES:
            x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
            label = Label(x - self.x, y - self.y, _TAG, (words,))
            if self.surface.free(label):
                self.surface.take(label)
                return self._out(label)
        return None


def draw_diagram(diagram: Diagram, *, size: float = 420.0, arrangement: Placement | None = None) -> Page:
    """Draw one diagram, with its relations in words beside it. Relations that the boxes do not show are red."""
    margin, line, letters = 24.0, 16.0, 11.0
    arrangement = arrangement or place_diagram(diagram)
    sentences = arrangement.sentences()
    height = max(size, line * (len(sentences) + 1) + 2 * margin)
    shapes = draw_bubbles(Scene(arrangement, margin, margin, size - 2 * margin, height - 2 * margin), tags=True)
    top = (height - line * (len(sentences) - 1)) / 2
    for row, (sentence, holds) in enumerate(zip(sentences, arrangement.holds, strict=True)):
        shapes.append(Text(size + 8, top + line * row, sentence, letters, INK if holds else BROKEN, left=True))
    width = size + 8 + max((text_width(sentence, letters) for sentence in sentences), default=0.0) + margin
    words = f"{_summary(arrangement)}. Letters on a line say how the room with the dot lies to the other."
    shapes.append(Text(margin, height, fit_text(words, 9.5, width - 2 * margin), 9.5, PALE, left=True))
    legend, legend_height = draw_legend([diagram], width, height + 10)
    return Page(width, height + 10 + legend_height, (*shapes, *legend))


def _summary(arrangement: Placement) -> str:
    words = f"{len(arrangement.diagram.types)} rooms, {len(arrangement.diagram.edges)} relations"
    return words + f", {arrangement.broken} not shown" * bool(arrangement.broken)


def draw_gallery(
    diagrams: Sequence[Diagram],
    *,
    columns: int = 4,
    size: float = 230.0,
    arrangements: Sequence[Placement] | None = None,
) -> Page:
    """Draw many diagrams in a grid, with one legend."""
    columns = max(1, min(columns, len(diagrams)))
    gap, caption = 14.0, 18.0
    shapes: list[Shape] = []
    for place, arrangement in enumerate(arrangements or map(place_diagram, diagrams)):
        row, column = divmod(place, columns)
        x, y = gap + column * (size + gap), gap + row * (size + caption + gap)
        shapes += draw_bubbles(Scene(arrangement, x + 6, y + 6, size - 12, size - 12))
        colour = BROKEN if arrangement.broken else PALE
        shapes.append(Text(x + size / 2, y + size + caption / 2 - 2, _summary(arrangement), 9.5, colour))
    width = gap + columns * (size + gap)
    height = gap + ceil(len(diagrams) / columns) * (size + caption + gap)
    legend, legend_height = draw_legend(diagrams, width, height)
    return Page(width, height + legend_height, (*shapes, *legend))


def draw_bubbles(scene: Scene, *, tags: bool = False) -> list[Shape]:
    """Draw rooms, links and names, and with `tags` the letters of the relations where there is room for them."""
    scene.write()
    arrangement, shapes = scene.arrangement, [_room(scene, room) for room in scene.order]
    letters: list[Shape] = []
    sentences = arrangement.sentences()
    for (i, j, relation), holds, sentence in zip(arrangement.diagram.edges, arrangement.holds, sentences, strict=True):
        ends, colour = (*scene.anchor(i), *scene.anchor(j)), _LINK if holds else BROKEN
        shapes.append(Line(*ends, colour, 1.1, dashed=not holds, title=" ".join(sentence.split())))
        label = scene.tag(ends, tag_of(relation)) if tags else None
        if label is not None:
            letters += [_dot(scene.labels[i], ends, colour), *_tag(label, colour)]
    return shapes + letters + [shape for label in scene.labels for shape in label_shapes(label)]


def _room(scene: Scene, room: int) -> Shape:
    x0, y0, x1, y1 = scene.boxes[room].tolist()
    kind, radius = scene.arrangement.diagram.types[room], min(7.0, (x1 - x0) / 4, (y1 - y0) / 4)
    return Rectangle(x0, y0, x1 - x0, y1 - y0, radius, COLOURS[kind], INK, 1.3, scene.names[room])


def _dot(label: Label, ends: tuple[float, float, float, float], colour: str) -> Shape:
    """Return a dot where a line leaves the name that it begins at."""
    x0, y0, x1, y1 = ends
    half_width, half_height = (0.0, 0.0) if label.spot else (side / 2 + 2.5 for side in label.extent)
    share = min(half_width / max(abs(x1 - x0), 1e-9), half_height / max(abs(y1 - y0), 1e-9), 1.0)
    x, y = x0 + share * (x1 - x0), y0 + share * (y1 - y0)
    return Rectangle(x - 2.2, y - 2.2, 4.4, 4.4, 2.2, colour, colour, 0.0)


def _tag(label: Label, colour: str) -> list[Shape]:
    """Return letters on a small white ground."""
    width, height = label.extent
    x, y = label.x - width / 2, label.y - height / 2
    ground = Rectangle(x, y, width, height, 3.0, _WHITE, _WHITE, 0.0)
    return [ground, Text(label.x, label.y, label.lines[0], label.size, PALE if colour == _LINK else colour)]


def label_shapes(label: Label) -> list[Shape]:
    """Return words on a white bubble, and a line to the spot that they speak of."""
    width, height = label.extent
    ground = Rectangle(
        label.x - width / 2, label.y - height / 2, width, height, min(width, height) / 2, _WHITE, _LINK, 0.9
    )
    shapes: list[Shape] = [Line(label.x, label.y, *label.spot, _LINK, 0.9)] if label.spot else []
    return [*shapes, ground, Text(label.x, label.y, label.lines[0], label.size, INK, label.upright)]


def draw_legend(diagrams: Sequence[Diagram], width: float, top: float) -> tuple[list[Shape], float]:
    """Return a legend of the types that occur, and its height."""
    kinds = sorted({kind for diagram in diagrams for kind in diagram.types})
    size, line = 10.5, 20.0
    shapes: list[Shape] = []
    widths = [text_width(ROOMS[kind], size) + 34 for kind in kinds]
    rows: list[list[int]] = [[]]
    for place, one in enumerate(widths):
        if rows[-1] and sum(widths[k] for k in rows[-1]) + one > width - 30:
            rows.append([])
        rows[-1].append(place)
    for number, row in enumerate(rows):
        x = (width - sum(widths[place] for place in row)) / 2
        y = top + 12 + line * number
        for place in row:
            shapes.append(Rectangle(x, y - 6, 12, 12, 3, COLOURS[kinds[place]], INK, 0.9))
            shapes.append(Text(x + 18, y, ROOMS[kinds[place]], size, INK, left=True))
            x += widths[place]
    return shapes, 12 + line * len(rows)
