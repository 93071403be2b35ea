"""ResPlan and MSD, distributed as pickles of shapely geometries and networkx graphs, which are read without execution.

ResPlan: a list of 17,000 dicts with one geometry per kind of room, of one or more parts, in units that differ by plan:
`area` is the area of `inner` in square metres. MSD: one graph per file whose nodes have `room_type` and `geometry`.
Relations follow from the bounding boxes of rooms. Whole floors of MSD exceed the grid and are scaled down, so rooms
count as close there at more than 0.6 metres.
Source: Abouagour and Garyfallidis, ResPlan, 2025 (arXiv 2508.14006); van Engelenburg et al., MSD, ECCV 2024.
"""

from __future__ import annotations

import pickle
from collections.abc import Iterator, Sequence
from math import sqrt
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import TABLE_BYTES, read_bytes
from dither.registry.files.restricted_pickle import Stub, load_restricted
from dither.registry.plugins.install_command import install_command

from ..plans import Diagram
from ..relations import GRID
from ..vocabulary import ROOM_IDS
from .entries import Entry, Fault, ReadOptions, RejectedPlan, diagram_of_boxes, entry_of, name_bedrooms

__all__ = ["read_msd", "read_resplan"]

RESPLAN_ROOMS: Final = {
    "living": "LivingRoom",
    "kitchen": "Kitchen",
    "bedroom": "SecondRoom",
    "bathroom": "Bathroom",
    "balcony": "Balcony",
    "balacony": "Balcony",
    "storage": "Storage",
    "stair": "Storage",
}
"""Room type by key of a plan; stairs as in MSD."""

MSD_ROOMS: Final = tuple(
    "SecondRoom LivingRoom Kitchen DiningRoom Entrance Storage Storage Bathroom Balcony".split()  # noqa: SIM905
)
"""Room type by id: bedroom, living room, kitchen, dining, corridor, stairs, storeroom, bathroom, balcony."""

PIXELS_PER_METRE: Final = GRID / 18
"""The grid is 18 metres wide."""

_LARGEST: Final = 1e5
"""Area in square metres above which a plan is rejected."""


def read_resplan(file: Path, options: ReadOptions) -> Iterator[Entry]:
    """Yield the plans of `ResPlan.pkl`."""
    try:
        plans = _load(file)
        if not isinstance(plans, list):
            raise RejectedPlan(Fault("file", f"expected a list of plans, got {type(plans).__name__}"))
    except RejectedPlan as rejected:
        yield Entry(file, faults=rejected.faults)
        return
    for number, plan in enumerate(plans):
        name = str(plan.get("id", number)) if isinstance(plan, dict) else str(number)
        yield entry_of(file, f"plan {number}", _read_resplan, plan, name, options)


def read_msd(file: Path, options: ReadOptions) -> Iterator[Entry]:
    """Yield the plan of an MSD graph."""
    yield entry_of(file, "", _read_msd, file, options)


def _load(file: Path) -> Any:
    try:
        return load_restricted(read_bytes(file, TABLE_BYTES))
    except (OSError, pickle.UnpicklingError) as error:
        raise RejectedPlan(Fault("file", f"unreadable pickle: {error}")) from None


def _read_resplan(plan: Any, name: str, options: ReadOptions) -> Diagram:
    if not isinstance(plan, dict):
        raise RejectedPlan(Fault("types", "expected a dict"))
    types, boxes = list[int](), list[Sequence[float]]()
    for key, kind in RESPLAN_ROOMS.items():
        try:
            bounds = [polygon.bounds for polygon in polygons_of(plan.get(key))]
        except ValueError as error:
            raise RejectedPlan(Fault("boxes", f"{key}: {error}")) from None
        if key == "living" and bounds:  # a single room, even if it is drawn in parts
            low, high = np.array(bounds).min(0), np.array(bounds).max(0)
            bounds = [(*low[:2].tolist(), *high[2:].tolist())]
        types += [ROOM_IDS[kind]] * len(bounds)
        boxes += bounds
    return _diagram(types, on_grid(boxes, _pixels_per_unit(plan)), name, options)


def _pixels_per_unit(plan: dict[str, Any]) -> float:
    """Grid pixels per unit of a plan; 1 if it does not state its area, because ResPlan is drawn on 256 pixels."""
    area = plan.get("area")
    try:
        inner = sum(polygon.area for polygon in polygons_of(plan.get("inner")))
    except ValueError as error:
        raise RejectedPlan(Fault("boxes", f"inner: {error}")) from None
    if not isinstance(area, int | float) or not inner > 0:
        return 1.0
    if not 0 < area < _LARGEST:
        raise RejectedPlan(Fault("boxes", f"area: expected square metres, got {area}"))
    return PIXELS_PER_METRE * sqrt(area / inner)


def _read_msd(file: Path, options: ReadOptions) -> Diagram:
    graph = _load(file)
    state = graph.state if isinstance(graph, Stub) else None
    nodes = state.get("_node") if isinstance(state, dict) else None
    if not isinstance(nodes, dict):
        raise RejectedPlan(Fault("file", "not a networkx graph"))
    types, boxes = [], []
    for node, value in nodes.items():
        attributes = value if isinstance(value, dict) else {}
        number: Any = attributes.get("room_type")
        if number not in range(len(MSD_ROOMS)):
            message = f"node {node}: unknown room_type {number!r}, expected 0..{len(MSD_ROOMS) - 1}"
            raise RejectedPlan(Fault("types", message))
        try:
            x, y = np.asarray(attributes.get("geometry"), np.float64).T
            boxes.append((x.min(), y.min(), x.max(), y.max()))
        except (ValueError, TypeError):
            raise RejectedPlan(Fault("boxes", f"node {node}: geometry is not a list of points")) from None
        types.append(ROOM_IDS[MSD_ROOMS[int(number)]])
    return _diagram(types, on_grid(boxes, PIXELS_PER_METRE, flip=True), file.stem, options)


def _diagram(types: Sequence[int], boxes: Float[np.ndarray, "R 4"], name: str, options: ReadOptions) -> Diagram:
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1).tolist()
    return diagram_of_boxes(name_bedrooms(types, areas, options.bedrooms), boxes, name, options.most)


def on_grid(boxes: Sequence[Sequence[float]], scale: float, *, flip: bool = False) -> Float[np.ndarray, "R 4"]:
    """Return boxes in pixels, centred on the grid, scaled down if the plan is larger than the grid.

    `scale` is the number of pixels per unit of the source, `flip` whether y points up in it.
    """
    walls = np.asarray(boxes, np.float64).reshape(-1, 4) * scale
    if flip:
        walls = walls[:, [0, 3, 2, 1]] * [1, -1, 1, -1]
    if not len(walls):
        return walls
    low, high = walls[:, :2].min(0), walls[:, 2:].max(0)
    shrink = min(1.0, GRID / max((high - low).max(), 1.0))
    # A shift by whole pixels preserves the relations of walls at whole pixels.
    shift = np.ceil((GRID - (low + high) * shrink) / 2 - 0.5)
    pixels: Float[np.ndarray, "R 4"] = np.floor(walls * shrink + np.tile(shift, 2) + 0.5)
    return pixels.clip(0, GRID)


def polygons_of(shape: Any) -> list[Any]:
    """Return the polygons of a pickled shapely geometry; none for None, points and lines.

    Raises:
        ValueError: The object is not a valid geometry.
        Refused: shapely is not installed (`missing-dependency`).
    """
    if shape is None:
        return []
    try:
        import shapely
    except ImportError:
        hint = install_command("dither-tasks", "resplan")
        raise Refused(Problem("ResPlan requires shapely", help=hint, code="missing-dependency")) from None
    # The well-known binary is an argument in shapely 2, and the state in shapely 1.
    candidates = (shape.state, *shape.args) if isinstance(shape, Stub) else ()
    content = next((part for part in candidates if isinstance(part, bytes | bytearray)), None)
    if content is None:
        raise ValueError("not a shapely geometry")
    try:
        parts = [shapely.from_wkb(bytes(content))]
    except shapely.errors.ShapelyError as error:
        raise ValueError(f"invalid shapely geometry: {error}") from None
    for part in parts:  # grows: collections may be nested
        parts += getattr(part, "geoms", ())
    return [part for part in parts if part.geom_type == "Polygon" and not part.is_empty]
