"""Boxes of a diagram as a sketched floor plan: walls, names, areas and a scale bar.

A room whose box extends behind other rooms is the visible part of it. There are no doors, because relations do not
determine them. Letters: R rooms.
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

__all__ = ["METRES", "draw_floorplan", "floorplan_shapes", "room_areas"]

METRES: Final = 18 / GRID
"""Metres per pixel: the canvas is 18 m wide."""

_WALL, _AREA = "#3a3f47", "#4a515c"
_OUTER: Final = NEAR / 2
"""Wall thickness around a room in box pixels, such that gaps between neighbours are filled."""

_TINT: Final = 0.45
"""Share of the room colour in the floor colour; the rest is white."""

_BARS: Final = (5, 2, 1)
"""Possible lengths of the scale bar in metres."""


def room_areas(boxes: Int[np.ndarray, "R 4"], order: Sequence[int]) -> Float[np.ndarray, " R"]:
    """Return the visible area of each room in square metres if rooms are drawn in this order."""
    low = boxes[:, :2].min(0)
    top = np.full((boxes[:, 2:].max(0) - low)[::-1], -1)
    for room in order:
        x0, y0, x1, y1 = (boxes[room] - np.tile(low, 2)).tolist()
        top[y0:y1, x0:x1] = room
    count = np.bincount(top[top >= 0], minlength=len(boxes))
    areas: Float[np.ndarray, " R"] = count * METRES**2
    return areas


def draw_floorplan(placement: Placement, *, size: float = 420.0) -> Page:
    """Draw one floor plan."""
    margin = 10.0
    return Page(size, size, tuple(floorplan_shapes(placement, margin, margin, size - 2 * margin, size - 2 * margin)))


def floorplan_shapes(placement: Placement, x: float, y: float, width: float, height: float) -> list[Shape]:
    """Return a floor plan in a rectangle, with a scale bar and the total area below it."""
    foot, rim = 26.0, 6.0
    scene = Scene(placement, x + rim, y + rim, width - 2 * rim, height - 2 * rim - foot)
    areas = room_areas(placement.boxes, scene.order)
    labels = scene.label_rooms([(name, f"{area:.1f} m²") for name, area in zip(scene.names, areas, strict=True)])
    shapes = _walls(scene)
    for room in scene.order:
        shapes += _floor(scene, room)
    for label in labels:
        shapes += _label_shapes(label)
    return shapes + _foot(scene, float(areas.sum()), x + rim, y + height - foot / 2, width - 2 * rim)


def _walls(scene: Scene) -> list[Shape]:
    """Return dark boxes grown by the wall thickness, which are visible as walls."""
    grown = _OUTER * scene.scale
    boxes = scene.boxes + np.array([-grown, -grown, grown, grown])
    return [Rectangle(x0, y0, x1 - x0, y1 - y0, 0.0, _WALL, _WALL, 0.0) for x0, y0, x1, y1 in boxes.tolist()]


def _floor(scene: Scene, room: int) -> list[Shape]:
    x0, y0, x1, y1 = scene.boxes[room].tolist()
    colour = _tinted(COLOURS[scene.placement.diagram.types[room]])
    return [Rectangle(x0, y0, x1 - x0, y1 - y0, 0.0, colour, _WALL, 1.6, scene.names[room])]


def _tinted(colour: str) -> str:
    parts = (int(colour[at : at + 2], 16) for at in (1, 3, 5))
    return "#" + "".join(f"{round(255 - _TINT * (255 - part)):02x}" for part in parts)


def _label_shapes(label: Label) -> list[Shape]:
    """Return the name above the area; a label outside its room has a white background and a line to the room."""
    shapes: list[Shape] = []
    if label.spot:
        width, height = label.extent
        shapes.append(Line(label.x, label.y, *label.spot, INK, 0.8))
        shapes.append(Rectangle(label.x - width / 2, label.y - height / 2, width, height, 2.0, "#ffffff", INK, 0.8))
    for row, line in enumerate(label.lines):
        size, colour = (label.size, INK) if row == 0 else (0.92 * label.size, _AREA)
        offset = (row - (len(label.lines) - 1) / 2) * LINE * label.size
        x, y = (label.x + offset, label.y) if label.upright else (label.x, label.y + offset)
        shapes.append(Text(x, y, line, size, colour, label.upright))
    return shapes


def _foot(scene: Scene, area: float, x: float, y: float, width: float) -> list[Shape]:
    bar = next((metres for metres in _BARS if metres / METRES * scene.scale < 0.35 * width), _BARS[-1])
    length = bar / METRES * scene.scale
    caption, broken = f"{bar} m · {area:.0f} m² in {len(scene.names)} rooms", scene.placement.broken
    if broken:
        caption = f"{bar} m · {area:.0f} m² · {broken} relation{'s' * (broken > 1)} violated"
    ticks = [Line(at, y - 3, at, y + 3, PALE, 1.2) for at in (x, x + length)]
    text = Text(
        x + length + 8, y, fit_text(caption, 9.5, width - length - 8), 9.5, BROKEN if broken else PALE, left=True
    )
    return [Line(x, y, x + length, y, PALE, 1.2), *ticks, text]
