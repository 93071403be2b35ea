"""Floor plans as building models (IFC4) in metres: a storey with spaces, walls, doors and windows."""

from __future__ import annotations

from collections.abc import Sequence
from math import dist
from typing import Any

import numpy as np

from ..missing_library import require_extra
from .geometry.door_swings import Swing, door_swings
from .geometry.floor_plan import Door, FloorPlan, Point
from .geometry.wall_rectangles import Rectangle, divide_walls
from .geometry.wall_shapes import gap_box, middle_line, openings_in, solid_walls
from .vocabulary import BALCONY, METRES, ROOMS

STOREY = 2.7
"""Height of rooms and walls in metres."""

_HEAD = 2.1
"""Height of the heads of doors and windows."""

_SILL = 0.9
"""Height of the sills of windows."""

_LEAF = 0.05
"""Thickness of doors and windows."""

_Ends = tuple[Point, Point]


def draw_ifc(
    project: str, names: Sequence[str], types: Sequence[int], plan: FloorPlan
) -> str:
    """Return a building model of a floor plan as the text of an IFC file.

    Raises:
        Refused: ifcopenshell is not installed (`missing-dependency`).
    """
    require_extra("ifc", "IFC")
    model = _Model(project)
    areas = (plan.room_areas() * METRES**2).tolist()
    for room, outline in enumerate(plan.outlines):
        model.add_space(names[room], types[room], outline, areas[room])

    openings = openings_in(plan)
    gaps = [gap_box(opening, plan) for opening in openings]
    walls = []
    for box in divide_walls(solid_walls(types, plan), gaps):
        ends, thickness = middle_line(box)
        wall = model.add_box("IfcWall", ends, thickness * METRES, 0.0, STOREY)
        walls.append((wall, box))

    swings = dict(zip(plan.doors, door_swings(types, plan), strict=True))
    for opening, gap in zip(openings, gaps, strict=True):
        ends, depth = middle_line(gap.bounds)
        low = _SILL
        if isinstance(opening, Door):
            low = 0.0
            leaf = model.add_door(opening, ends, swings[opening])
        else:
            leaf = model.add_panel("IfcWindow", "window", ends, low)
        for wall, box in walls:
            if _overlap(box, gap.bounds):
                void = model.add_box(
                    "IfcOpeningElement", ends, depth * METRES, low, _HEAD
                )
                model.cut(wall, void, leaf)
    return model.file.to_string()


class _Model:
    """An IFC file with one storey, to which the elements of a plan are added."""

    def __init__(self, project: str) -> None:
        from ifcopenshell import file
        from ifcopenshell.util.shape_builder import ShapeBuilder

        self.file: Any = file(schema="IFC4")
        self.shapes = ShapeBuilder(self.file)
        whole = self._create("IfcProject", project)
        units = [
            self._run("unit.add_si_unit", unit_type=unit)
            for unit in ("LENGTHUNIT", "AREAUNIT", "VOLUMEUNIT", "PLANEANGLEUNIT")
        ]
        self._run("unit.assign_unit", units=units)
        self.body = self._run(
            "context.add_context",
            context_type="Model",
            context_identifier="Body",
            target_view="MODEL_VIEW",
            parent=self._run("context.add_context", context_type="Model"),
        )
        # Each contains the next one, and the storey everything else.
        for kind in ("IfcSite", "IfcBuilding", "IfcBuildingStorey"):
            part = self._create(kind, kind.removeprefix("Ifc"))
            self._aggregate(part, whole)
            whole = part
        self.storey = whole

    def add_space(
        self, name: str, kind: int, outline: Sequence[Point], area: float
    ) -> None:
        """Add a room of a type, with its outline in pixels and its area in square metres."""
        space = self._create("IfcSpace", name)
        space.LongName = ROOMS[kind]
        space.ObjectType = ROOMS[kind]
        space.PredefinedType = "EXTERNAL" if kind == BALCONY else "INTERNAL"
        self._aggregate(space, self.storey)
        corners = [_metres(point) for point in outline]
        self._shape(space, corners, STOREY, np.eye(4))
        quantities = self._run(
            "pset.add_qto", product=space, name="Qto_SpaceBaseQuantities"
        )
        properties = {"GrossFloorArea": area, "Height": STOREY}
        self._run("pset.edit_qto", qto=quantities, properties=properties)

    def add_door(self, door: Door, ends: _Ends, swing: Swing | None) -> Any:
        """Add a door as its leaf swings, or a sliding door along a line."""
        operation = "SLIDING_TO_LEFT"
        if swing is not None:
            # IFC4: SINGLE_SWING_LEFT opens to the left of the line from hinge to lock.
            ends = (swing.hinge, swing.closed)
            operation = "SINGLE_SWING_LEFT"
            if not _is_left(swing.opened, ends):
                ends = (swing.closed, swing.hinge)
                operation = "SINGLE_SWING_RIGHT"
        name = "front door" if door.j is None else "door"
        leaf = self.add_panel("IfcDoor", name, ends, 0.0)
        leaf.OperationType = operation
        return leaf

    def add_panel(self, kind: str, name: str, ends: _Ends, low: float) -> Any:
        """Add a door or a window along a line in pixels, from a height to its head."""
        leaf = self.add_box(kind, ends, _LEAF, low, _HEAD)
        leaf.Name = name
        leaf.OverallWidth = dist(*ends) * METRES
        leaf.OverallHeight = _HEAD - low
        return leaf

    def add_box(
        self, kind: str, ends: _Ends, thickness: float, low: float, high: float
    ) -> Any:
        """Add an element along a line in pixels, between two heights in metres."""
        start, end = (np.array(_metres(point)) for point in ends)
        length = float(np.hypot(*(end - start)))
        x, y = (end - start) / length
        placement = np.eye(4)
        placement[:2, :2] = [[x, -y], [y, x]]
        placement[:3, 3] = [*start, low]
        half = thickness / 2
        corners = [(0.0, -half), (length, -half), (length, half), (0.0, half)]
        element = self._create(kind, None)
        self._shape(element, corners, high - low, placement)
        # An opening belongs to its wall.
        if kind != "IfcOpeningElement":
            self._run(
                "spatial.assign_container",
                products=[element],
                relating_structure=self.storey,
            )
        return element

    def cut(self, wall: Any, void: Any, leaf: Any) -> None:
        """Cut an opening, in which there is a door or a window, out of a wall."""
        self._run("feature.add_feature", feature=void, element=wall)
        # A leaf in two walls fills the opening in the first one.
        if not leaf.FillsVoids:
            self._run("feature.add_filling", opening=void, element=leaf)

    def _create(self, kind: str, name: str | None) -> Any:
        return self._run("root.create_entity", ifc_class=kind, name=name)

    def _aggregate(self, part: Any, whole: Any) -> None:
        self._run("aggregate.assign_object", products=[part], relating_object=whole)

    def _shape(
        self, element: Any, corners: Sequence[Point], height: float, placement: Any
    ) -> None:
        """Give an element its place, and the prism over a polygon in metres as its shape."""
        curve = self.shapes.polyline(corners, closed=True)
        prism = self.shapes.extrude(curve, height)
        shape = self.shapes.get_representation(self.body, [prism])
        self._run("geometry.edit_object_placement", product=element, matrix=placement)
        self._run(
            "geometry.assign_representation", product=element, representation=shape
        )

    def _run(self, usecase: str, **arguments: Any) -> Any:
        from ifcopenshell import api

        return api.run(usecase, self.file, **arguments)


def _metres(point: Point) -> Point:
    """Return a point in metres, y pointing up."""
    return point[0] * METRES, -point[1] * METRES


def _is_left(point: Point, ends: _Ends) -> bool:
    """Whether a point in pixels is to the left of a directed line, as seen on the page."""
    (x0, y0), (x1, y1) = ends
    return (x1 - x0) * (point[1] - y0) < (y1 - y0) * (point[0] - x0)


def _overlap(first: Rectangle, second: Rectangle) -> bool:
    """Whether two boxes share an area of more than splinters."""
    low = np.maximum(first[:2], second[:2])
    high = np.minimum(first[2:], second[2:])
    return bool(((high - low) > 0.01).all())
