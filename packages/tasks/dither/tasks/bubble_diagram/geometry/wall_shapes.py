"""Walls of thickness around the rooms of a floor plan, as shapely polygons in pixels."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from ..vocabulary import BALCONY, METRES
from .door_swings import OUTER, outward_side
from .floor_plan import Door, FloorPlan, Point, Window, segment, thin_walls
from .wall_rectangles import Rectangle

_PARTITION = 2.0
"""Thickness in pixels of the walls between rooms that touch, half of it in each room."""


def wall_polygons(types: Sequence[int], plan: FloorPlan) -> Iterator[Any]:
    """Yield the walls as shapely polygons, with gaps for doors and windows."""
    import shapely

    gaps = shapely.union_all([gap_box(opening, plan) for opening in openings_in(plan)])
    walls = _between(types, plan).difference(gaps)
    for polygon in shapely.get_parts(walls):
        # Rounding leaves splinters.
        if polygon.geom_type == "Polygon" and polygon.area > 1:
            yield polygon


def solid_walls(types: Sequence[int], plan: FloorPlan) -> Any:
    """Return all walls as one shapely geometry without gaps, also those of rooms that touch."""
    import shapely

    partitions = [
        shapely.LineString(ends).buffer(_PARTITION / 2, cap_style="flat")
        for ends in thin_walls(plan.label)
    ]
    return shapely.union_all([_between(types, plan), *partitions])


def _between(types: Sequence[int], plan: FloorPlan) -> Any:
    """Return what is near rooms, but in none."""
    import shapely

    rooms = [shapely.Polygon(outline) for outline in plan.outlines]
    # Balconies have no walls of their own.
    walled = [
        room.buffer(OUTER, join_style="mitre")
        for room, kind in zip(rooms, types, strict=True)
        if kind != BALCONY
    ]
    return shapely.union_all(walled).difference(shapely.union_all(rooms))


def openings_in(plan: FloorPlan) -> list[Door | Window]:
    """Return the doors that are in a wall, and the windows."""
    return [*(door for door in plan.doors if door.depth >= 0), *plan.windows]


def gap_box(opening: Door | Window, plan: FloorPlan) -> Any:
    """Return the gap of an opening in its wall as a shapely box."""
    import shapely

    corners = gap_corners(opening, plan)
    return shapely.box(*np.min(corners, 0), *np.max(corners, 0))


def gap_corners(opening: Door | Window, plan: FloorPlan) -> list[Point]:
    """Return the corners of the gap of an opening in its wall."""
    if isinstance(opening, Door) and opening.j is not None:
        reach = max(opening.depth, _PARTITION) / 2
        shifts = (-reach, reach)
    else:
        outward = outward_side(opening, plan.label)
        shifts = (0.0, outward * OUTER)
    first = segment(opening, opening.length, shifts[0])
    second = segment(opening, opening.length, shifts[1])
    return [*first, *second[::-1]]


def middle_line(box: Rectangle) -> tuple[tuple[Point, Point], float]:
    """Return the line through the middle of a box along its longer sides, and its thickness."""
    x0, y0, x1, y1 = box
    if x1 - x0 >= y1 - y0:
        y = (y0 + y1) / 2
        return ((x0, y), (x1, y)), y1 - y0
    x = (x0 + x1) / 2
    return ((x, y0), (x, y1)), x1 - x0


def metres(point: Point) -> Point:
    """Return a point of the canvas in metres, to a millimetre, y pointing up."""
    x, y = point
    return round(x * METRES, 3), round(-y * METRES, 3)
