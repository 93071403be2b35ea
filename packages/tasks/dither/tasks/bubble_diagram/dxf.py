"""Floor plans as DXF drawings in metres, y pointing up: walls of thickness, door leaves, windows, names.

Letters: R rooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from io import StringIO
from math import atan2, degrees
from typing import Any

import numpy as np

from ..missing_library import require_extra
from .geometry.door_swings import Swing, door_swings
from .geometry.floor_plan import DOOR_WIDTH, Corner, Door, FloorPlan, Window
from .geometry.wall_shapes import (
    gap_box,
    gap_corners,
    metres,
    middle_line,
    wall_polygons,
)
from .vocabulary import BALCONY, METRES

LAYERS = (
    "rooms",
    "doors",
    "front-door",
    "windows",
    "names",
    "walls",
    "railings",
    "areas",
)
"""Names of the layers, in the order of their colours from 1 on."""

_HEIGHT = 0.25
"""Height of names in metres, legible at the scale of a sheet, 1 to 100."""

_Point = tuple[float, float]


def draw_dxf(names: Sequence[str], types: Sequence[int], plan: FloorPlan) -> str:
    """Return a drawing of a floor plan.

    Raises:
        Refused: ezdxf is not installed (`missing-dependency`).
    """
    require_extra("dxf", "DXF")
    import ezdxf
    from ezdxf import bbox, zoom
    from ezdxf.enums import TextEntityAlignment

    drawing = ezdxf.new()  # type: ignore[attr-defined,unused-ignore]
    drawing.header["$INSUNITS"] = 6  # metres
    drawing.header["$MEASUREMENT"] = 1  # metric
    for color, layer in enumerate(LAYERS, 1):
        drawing.layers.add(layer, color=color)
    space = drawing.modelspace()
    for kind, outline in zip(types, plan.outlines, strict=True):
        _add_line(space, outline, "rooms", close=True)
        if kind == BALCONY:
            _add_line(space, outline, "railings", close=True)
    _add_walls(space, types, plan)
    for door, swing in zip(plan.doors, door_swings(types, plan), strict=True):
        _add_door(space, door, swing, plan)
    for window in plan.windows:
        _add_glass(space, window, plan, "windows")
    for room, area in enumerate((plan.room_areas() * METRES**2).tolist()):
        y, x = np.argwhere(plan.label == room).mean(0).tolist()
        place = metres((x + 0.5, y + 0.5))
        texts = (("names", names[room], 0.0), ("areas", f"{area:.1f} m2", -1.6))
        for layer, text, lines in texts:
            label = space.add_text(text, height=_HEIGHT, dxfattribs={"layer": layer})
            at = (place[0], place[1] + lines * _HEIGHT)
            label.set_placement(at, align=TextEntityAlignment.MIDDLE_CENTER)

    # What a viewer shows at first, and the size that other programs read.
    extents = bbox.extents(space)
    space.reset_extents(extents.extmin, extents.extmax)
    space.reset_limits(extents.extmin.vec2, extents.extmax.vec2)
    zoom.extents(space)
    content = StringIO()
    drawing.write(content)
    return content.getvalue()


def _add_line(
    space: Any,
    points: Sequence[_Point] | Sequence[Corner],
    layer: str,
    *,
    close: bool = False,
) -> None:
    corners = [metres((float(x), float(y))) for x, y in points]
    space.add_lwpolyline(corners, close=close, dxfattribs={"layer": layer})


def _add_glass(
    space: Any,
    opening: Door | Window,
    plan: FloorPlan,
    layer: str,
) -> None:
    """Add the gap of an opening, and the line along its middle."""
    _add_line(space, gap_corners(opening, plan), layer, close=True)
    ends, _ = middle_line(gap_box(opening, plan).bounds)
    _add_line(space, ends, layer)


def _add_walls(space: Any, types: Sequence[int], plan: FloorPlan) -> None:
    """Add closed outlines of the walls, and a hatch that fills them."""
    for polygon in wall_polygons(types, plan):
        hatch = space.add_hatch(color=8, dxfattribs={"layer": "walls"})
        for ring in (polygon.exterior, *polygon.interiors):
            corners = list(ring.coords)[:-1]
            _add_line(space, corners, "walls", close=True)
            hatch.paths.add_polyline_path(
                [metres(corner) for corner in corners], is_closed=True
            )


def _add_door(space: Any, door: Door, swing: Swing | None, plan: FloorPlan) -> None:
    """Add the leaf of a door and its arc, or the glass of a sliding door."""
    layer = "front-door" if door.j is None else "doors"
    if door.depth < 0:
        return
    if swing is None:
        _add_glass(space, door, plan, layer)
        return
    _add_line(space, (swing.hinge, swing.opened), layer)
    start = _angle(swing.hinge, swing.closed)
    end = _angle(swing.hinge, swing.opened)
    # Arcs go counterclockwise.
    if (end - start) % 360 > 180:
        start, end = end, start
    space.add_arc(
        metres(swing.hinge),
        radius=DOOR_WIDTH * METRES,
        start_angle=start,
        end_angle=end,
        dxfattribs={"layer": layer},
    )


def _angle(centre: _Point, point: _Point) -> float:
    """Return the direction of a point in degrees, y pointing up."""
    return degrees(atan2(centre[1] - point[1], point[0] - centre[0]))
