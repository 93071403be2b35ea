"""ResPlan and MSD: pickles of shapely geometries and networkx graphs, read without execution.

ResPlan: a list of 17,000 dicts with one geometry per kind of room, of one or more parts, in units
that differ by plan: `area` is the area of `inner` in square metres. MSD: one graph per file whose
nodes have `room_type` and `geometry`. Relations follow from the bounding boxes of rooms. Whole
floors of MSD exceed the grid and are scaled down, so rooms count as close there at more than 0.6
metres.
Source: Abouagour and Garyfallidis, ResPlan, 2025 (arXiv 2508.14006); van Engelenburg et al., MSD,
ECCV 2024.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from dataclasses import replace
from math import sqrt
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dither.registry.files.limits import TABLE_BYTES, read_bytes
from dither.registry.files.restricted_pickle import Stub, load_restricted

from ...missing_library import require_extra
from ..geometry.boundary import Point, ends_of_door, pack_boundary
from ..plans import Diagram, Doors, sort_doors
from ..relations import areas_of
from ..vocabulary import GRID, ROOM_IDS
from .entries import (
    Entry,
    Fault,
    ReadOptions,
    RejectedPlan,
    diagram_of_boxes,
    entry_of,
    name_bedrooms,
    single_plan,
)

RESPLAN_ROOMS = {
    "living": "LivingRoom",
    "kitchen": "Kitchen",
    "bedroom": "SecondRoom",
    "bathroom": "Bathroom",
    "balcony": "Balcony",
    # As the published file spells it.
    "balacony": "Balcony",
    "storage": "Storage",
    "stair": "Storage",
}
"""Room type by key of a plan; stairs as in MSD."""

MSD_ROOMS = (
    "SecondRoom",
    "LivingRoom",
    "Kitchen",
    "DiningRoom",
    "Entrance",
    "Storage",
    "Storage",
    "Bathroom",
    "Balcony",
)
"""Room type by id: bedroom, living room, kitchen, dining, corridor, stairs, storeroom, bathroom,
balcony."""

PIXELS_PER_METRE = GRID / 18
"""The grid is 18 metres wide."""

_WALLS = 1.5
"""Distance of a door from the rooms that it joins, in walls."""

_WALL_WIDTH = 3.5
"""Thickness of a wall if the plan states none."""

_LARGEST = 1e5
"""Area in square metres above which a plan is rejected."""


def read_resplan(file: Path, options: ReadOptions) -> Iterator[Entry]:
    """Yield the plans of `ResPlan.pkl`."""
    try:
        plans = _load(file)
        if not isinstance(plans, list):
            message = f"expected a list of plans, got {type(plans).__name__}"
            raise RejectedPlan(Fault("file", message))
    except RejectedPlan as rejected:
        yield Entry(file, faults=rejected.faults)
        return
    for number, plan in enumerate(plans):
        name = str(plan.get("id", number)) if isinstance(plan, dict) else str(number)
        yield entry_of(file, f"plan {number}", _read_resplan, plan, name, options)


def _load(file: Path) -> Any:
    try:
        # Classes become stubs: nothing that the file names is called.
        return load_restricted(read_bytes(file, TABLE_BYTES))
    except (OSError, pickle.UnpicklingError) as error:
        raise RejectedPlan(Fault("file", f"unreadable pickle: {error}")) from None


def _read_resplan(
    plan: Any,
    name: str,
    options: ReadOptions,
) -> Diagram:
    if not isinstance(plan, dict):
        raise RejectedPlan(Fault("types", "expected a dict"))
    types: list[int] = []
    shapes: list[list[Any]] = []
    for key, kind in RESPLAN_ROOMS.items():
        rooms = [[part] for part in polygons_of(plan, key)]
        if key == "living":
            # One living room, also in parts.
            rooms = []
            if parts := polygons_of(plan, key):
                rooms = [parts]
        shapes += rooms
        types += [ROOM_IDS[kind]] * len(rooms)
    boxes = []
    for parts in shapes:
        x0, y0, x1, y1 = np.array([part.bounds for part in parts]).T
        boxes.append((x0.min(), y0.min(), x1.max(), y1.max()))

    # The outline and the front door are moved and scaled as the rooms are.
    outline, door = _outline(plan)
    points = [(x, y, x, y) for x, y in (*outline, *door)]
    placed = on_grid([*boxes, *points], _pixels_per_unit(plan))
    diagram = _diagram(types, placed[: len(boxes)], name, options)
    ends = placed[len(boxes) :, :2].tolist()
    boundary = pack_boundary(ends[: len(outline)], ends[len(outline) :])
    return replace(diagram, doors=_doors_of(plan, shapes), boundary=boundary)


def _outline(plan: dict[str, Any]) -> tuple[list[Point], list[Point]]:
    """Return the corners of the largest part inside the walls, and the ends of the front door."""
    parts = polygons_of(plan, "inner")
    doors = polygons_of(plan, "front_door", "doors")
    if not parts:
        return [], []
    largest = max(parts, key=lambda part: part.area)
    # Without points on straight walls, and without the first corner again at the end.
    corners = largest.exterior.simplify(0).coords[:-1]

    door = []
    if doors:
        door = ends_of_door(*doors[0].bounds)

    return [(x, y) for x, y, *_ in corners], door


def _doors_of(plan: dict[str, Any], shapes: Sequence[Sequence[Any]]) -> Doors | None:
    """Return the doors of a plan, given the polygons of each room; None if they are unknown.

    Each door joins the two rooms next to it, a front door is that of the nearest room. Doors with a
    room on one side only are dropped.
    """
    if "door" not in plan and "front_door" not in plan:
        return None
    width = plan.get("wall_width")
    if not isinstance(width, int | float) or width <= 0:
        width = _WALL_WIDTH
    reach = _WALLS * width

    def next_to(door: Any, sides: int) -> list[int]:
        distances = []
        for room in shapes:
            distances.append(min(door.distance(part) for part in room))
        nearest = np.argsort(distances, kind="stable")[:sides].tolist()
        return sorted(room for room in nearest if distances[room] <= reach)

    doors: list[tuple[int, int | None]] = []
    for door in polygons_of(plan, "door", "doors"):
        rooms = next_to(door, 2)
        if len(rooms) == 2:
            doors.append((rooms[0], rooms[1]))
    for door in polygons_of(plan, "front_door", "doors"):
        doors += [(room, None) for room in next_to(door, 1)]
    return sort_doors(doors)


def _pixels_per_unit(plan: dict[str, Any]) -> float:
    """Grid pixels per unit of a plan; 1 without its area, as ResPlan is drawn on 256 pixels."""
    area = plan.get("area")
    inner = sum(polygon.area for polygon in polygons_of(plan, "inner"))
    if not isinstance(area, int | float) or not inner > 0:
        return 1.0
    if not 0 < area < _LARGEST:
        raise RejectedPlan(Fault("boxes", f"area: expected square metres, got {area}"))
    return PIXELS_PER_METRE * sqrt(area / inner)


@single_plan
def read_msd(file: Path, options: ReadOptions) -> Diagram:
    """Yield the plan of an MSD graph."""
    graph = _load(file)
    # A pickled object is a stub with its state.
    state = graph.state if isinstance(graph, Stub) else None
    state = dict(_items(state))
    nodes = state.get("_node")
    if not isinstance(nodes, dict):
        raise RejectedPlan(Fault("file", "not a networkx graph"))
    types = []
    boxes = []
    for node, value in nodes.items():
        attributes = value if isinstance(value, dict) else {}
        number: Any = attributes.get("room_type")
        if number not in range(len(MSD_ROOMS)):
            message = f"unknown room_type {number!r}, expected 0..{len(MSD_ROOMS) - 1}"
            raise RejectedPlan(Fault("types", f"node {node}: {message}"))
        try:
            x, y = np.asarray(attributes.get("geometry"), np.float64).T
            boxes.append((x.min(), y.min(), x.max(), y.max()))
        except (ValueError, TypeError):
            message = f"node {node}: geometry is not a list of points"
            raise RejectedPlan(Fault("boxes", message)) from None
        types.append(ROOM_IDS[MSD_ROOMS[int(number)]])
    diagram = _diagram(
        types=types,
        boxes=on_grid(boxes, PIXELS_PER_METRE, flip=True),
        name=file.stem,
        options=options,
    )
    return replace(diagram, doors=_msd_doors(state.get("_adj"), list(nodes)))


def _msd_doors(links: Any, nodes: list[Any]) -> Doors | None:
    """Return the pairs of rooms whose edge has a connectivity: door, passage or entrance.

    None without any.
    """
    number = {node: room for room, node in enumerate(nodes)}
    joined = []
    for u, others in _items(links):
        for v, edge in _items(others):
            known = u in number and v in number and number[u] < number[v]
            if known and isinstance(dict(_items(edge)).get("connectivity"), str):
                joined.append((number[u], number[v]))
    return sort_doors(joined) if joined else None


def _items(value: Any) -> list[tuple[Any, Any]]:
    """Return the items of a dict, none of anything else."""
    if isinstance(value, dict):
        return list(value.items())
    return []


def _diagram(
    types: Sequence[int],
    boxes: Float[ndarray, "R 4"],
    name: str,
    options: ReadOptions,
) -> Diagram:
    named = name_bedrooms(types, areas_of(boxes).tolist(), options.bedrooms)
    return diagram_of_boxes(named, boxes, name, options.most)


def on_grid(
    boxes: Sequence[Sequence[float]],
    scale: float,
    *,
    flip: bool = False,
) -> Float[ndarray, "R 4"]:
    """Return boxes in pixels, centred on the grid, scaled down if the plan is larger than the grid.

    `scale` is the number of pixels per unit of the source, `flip` whether y points up in it.
    """
    walls = np.asarray(boxes, np.float64).reshape(-1, 4) * scale
    if flip:
        # The upper wall is the one with the larger y where y points up.
        walls = walls[:, [0, 3, 2, 1]] * [1, -1, 1, -1]
    if not len(walls):
        return walls
    low = walls[:, :2].min(0)
    high = walls[:, 2:].max(0)
    # A plan of a single point has no size.
    shrink = min(1.0, GRID / max((high - low).max(), 1.0))
    # A shift by whole pixels preserves the relations of walls at whole pixels.
    shift = np.ceil((GRID - (low + high) * shrink) / 2 - 0.5)
    pixels: Float[ndarray, "R 4"] = np.floor(walls * shrink + np.tile(shift, 2) + 0.5)
    return pixels.clip(0, GRID)


def polygons_of(
    plan: dict[str, Any],
    key: str,
    sort: Literal["boxes", "doors"] = "boxes",
) -> list[Any]:
    """Return the polygons of a pickled shapely geometry; none for None, points and lines.

    Raises:
        RejectedPlan: The object is not a valid geometry.
        Refused: shapely is not installed (`missing-dependency`).
    """
    shape = plan.get(key)
    if shape is None:
        return []
    require_extra("resplan", "ResPlan")
    import shapely

    # The well-known binary is an argument in shapely 2, and the state in shapely 1.
    candidates: tuple[Any, ...] = ()
    if isinstance(shape, Stub):
        candidates = (shape.state, *shape.args)

    content = next(
        (part for part in candidates if isinstance(part, bytes | bytearray)), None
    )
    if content is None:
        raise RejectedPlan(Fault(sort, f"{key}: not a shapely geometry"))
    try:
        parts = [shapely.from_wkb(bytes(content))]
    except shapely.errors.ShapelyError as error:
        raise RejectedPlan(
            Fault(sort, f"{key}: invalid shapely geometry: {error}")
        ) from None
    # It grows: collections may be nested.
    for part in parts:
        parts += getattr(part, "geoms", ())
    return [part for part in parts if part.geom_type == "Polygon" and not part.is_empty]
