"""The boxes of a diagram as a sketch of a floor plan: walls, names, areas, and a bar of metres.

It is what the boxes say and no more: where a room's box reaches behind other rooms, the room is what shows of it; there
are no doors, since relations know of none. Letters: R rooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np
from jaxtyping import Float, Int

from ..geometry.placement import Placement
from ..relations import GRID, NEAR
from ..vocabulary import COLOURS
from .diagram import BROKEN, INK, PALE, Scene
from .labels import LINE, Label
from .svg import Line, Page, Rectangle, Shape, Text, fit_text

__all__ = ["METRES", "draw_floorplan", "draw_floorplans", "room_areas"]

METRES: Final = 18 / GRID
"""Metres per pixel: the canvas is 18 m wide."""

_WALL, _AREA = "#3a3f47", "#4a515c"
_OUTER: Final = NEAR / 2
"""How far walls reach out from a room, in pixels of its box: gaps between neighbours are walls all through."""

_TINT: Final = 0.45
"""How much of a room's colour is on its floor; the rest is white."""

_BARS: Final = (5, 2, 1)
"""Lengths of the bar, in metres."""


def room_areas(boxes: Int[np.ndarray, "R 4"], order: Sequence[int]) -> Float[np.ndarray, " R"]:
    """Return what shows of each room in square metres, if rooms lie upon each other in this order."""
    low = boxes[:, :2].min(0)
    top = np.full((boxes[:, 2:].max(0) - low)[::-1], -1)
    for room in order:
        x0, y0, x1, y1 = (boxes[room] - np.tile(low, 2)).tolist()
        top[y0:y1, x0:x1] = room
    count = np.bincount(top[top >= 0], minlength=len(boxes))
    areas: Float[np.ndarray, " R"] = count * METRES**2
    return areas


def draw_floorplan(arrangement: Placement, *, size: float = 420.0) -> Page:
    """Draw one floor plan."""
    margin = 10.0
    return Page(size, size, tuple(draw_floorplans(arrangement, margin, margin, size - 2 * margin, size - 2 * margin)))


def draw_floorplans(arrangement: Placement, x: float, y: float, width: float, height: float) -> list[Shape]:
    """Draw a floor plan into a rectangle, with a bar of metres and the sum of the areas below it."""
    foot, rim = 26.0, 6.0
    scene = Scene(arrangement, x + rim, y + rim, width - 2 * rim, height - 2 * rim - foot)
    areas = room_areas(arrangement.boxes, scene.order)
    words = [(name, f"{area:.1f} m²") for name, area in zip(scene.names, areas, strict=True)]
    labels = scene.write(words)
    shapes = _walls(scene)
    for room in scene.order:
        shapes += _floor(scene, room)
    for label in labels:
        shapes += _words(label)
    return shapes + _foot(scene, float(areas.sum()), x + rim, y + height - foot / 2, width - 2 * rim)


def _walls(scene: Scene) -> list[Shape]:
    """Return the ground that shows as walls: all rooms, grown so far that neighbours touch."""
    grown = _OUTER * scene.scale
    boxes = scene.boxes + np.array([-grown, -grown, grown, grown])
    return [Rectangle(x0, y0, x1 - x0, y1 - y0, 0.0, _WALL, _WALL, 0.0) for x0, y0, x1, y1 in boxes.tolist()]


def _floor(scene: Scene, room: int) -> list[Shape]:
    x0, y0, x1, y1 = scene.boxes[room].tolist()
    colour = _tinted(COLOURS[scene.arrangement.diagram.types[room]])
    return [Rectangle(x0, y0, x1 - x0, y1 - y0, 0.0, colour, _WALL, 1.6, scene.names[room])]


def _tinted(colour: str) -> str:
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - _TINT * (255 - part)):02x}" for part in parts)


def _words(label: Label) -> list[Shape]:
    """Return the name above the area; words beside their room stand on white, with a line to it."""
    shapes: list[Shape] = []
    if label.spot:
        width, height = label.extent
        shapes.append(Line(label.x, label.y, *label.spot, INK, 0.8))
        shapes.append(Rectangle(label.x - width / 2, label.y - height / 2, width, height, 2.0, "#ffffff", INK, 0.8))
    for row, line in enumerate(label.lines):
        size, colour = (label.size, INK) if row == 0 else (0.92 * label.size, _AREA)
        down = (row - (len(label.lines) - 1) / 2) * LINE * label.size
        x, y = (label.x + down, label.y) if label.upright else (label.x, label.y + down)
        shapes.append(Text(x, y, line, size, colour, label.upright))
    return shapes


def _foot(scene: Scene, area: float, x: float, y: float, width: float) -> list[Shape]:
    bar = next((metres for metres in _BARS if metres / METRES * scene.scale < 0.35 * width), _BARS[-1])
    long = bar / METRES * scene.scale
    words, broken = f"{bar} m · {area:.0f} m² in {len(scene.names)} rooms", scene.arrangement.broken
    if broken:
        words = f"{bar} m · {area:.0f} m² · {broken} relation{'s' * (broken > 1)} not shown"
    ticks = [Line(at, y - 3, at, y + 3, PALE, 1.2) for at in (x, x + long)]
    text = Text(x + long + 8, y, fit_text(words, 9.5, width - long - 8), 9.5, BROKEN if broken else PALE, left=True)
    return [Line(x, y, x + long, y, PALE, 1.2), *ticks, text]
