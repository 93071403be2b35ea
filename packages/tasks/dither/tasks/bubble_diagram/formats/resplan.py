"""ResPlan and MSD, which are handed out as pickles of shapely shapes and networkx graphs.

ResPlan: one list of 17,000 tables, a shape for each sort of room (living, kitchen, bedroom, bathroom, balcony), of one
or more parts. MSD: a graph a file, its nodes with `room_type` and `geometry`. Nothing of a pickle is run here, and even
its data is looked at only if that is asked for (`pickles`). Relations follow from the boxes around the rooms. Whole
floors of MSD are wider than the grid and are drawn smaller, so rooms are near each other there at more than 0.6 metres.
Source: Abouagour and Garyfallidis, ResPlan, 2025 (arXiv 2508.14006); van Engelenburg et al., MSD, ECCV 2024.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from ..plans import Diagram
from ..relations import GRID
from ..vocabulary import ROOMS
from .common import Entry, Fault, ReadOptions, RejectedPlan, diagram_of_boxes, entry_of, name_bedrooms
from .restricted_pickle import Stub, UnsafePickleError, load_restricted

__all__ = [
    "MSD_ROOMS",
    "PIXELS_PER_METRE",
    "RESPLAN_ROOMS",
    "WHY_NO_PICKLES",
    "on_grid",
    "outlines_of",
    "read_msd",
    "read_resplan",
]

RESPLAN_ROOMS: Final = {
    "living": "LivingRoom",
    "kitchen": "Kitchen",
    "bedroom": "SecondRoom",
    "bathroom": "Bathroom",
    "balcony": "Balcony",
    "balacony": "Balcony",
}
"""Type of room by key of a plan."""

MSD_ROOMS: Final = (
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
"""Type of room by number: bedroom, living room, kitchen, dining, corridor, stairs, storeroom, bathroom, balcony."""

WHY_NO_PICKLES: Final = (
    "is a pickle. A pickle is a program that runs when it is opened, so it is not opened here; pickles = true reads "
    "the plain data in it without running any of it"
)
"""What is said of a pickle that was not asked for."""


def read_resplan(file: Path, choices: ReadOptions) -> Iterator[Entry]:
    """Yield the plans of `ResPlan.pkl`."""
    try:
        plans = _open(file, choices)
        if not isinstance(plans, list):
            raise RejectedPlan(Fault("file", f"holds {type(plans).__name__} and no list of plans"))
    except RejectedPlan as unfit:
        yield Entry(file, faults=unfit.faults)
        return
    for number, plan in enumerate(plans):
        name = str(plan.get("id", number)) if isinstance(plan, dict) else str(number)
        yield entry_of(file, f"plan {number}", _read_resplan, plan, name, choices)


def read_msd(file: Path, choices: ReadOptions) -> Iterator[Entry]:
    """Yield the plan of a graph of MSD."""
    yield entry_of(file, "", _read_msd, file, choices)


def _open(file: Path, choices: ReadOptions) -> Any:
    if not choices.pickles:
        raise RejectedPlan(Fault("file", WHY_NO_PICKLES))
    try:
        return load_restricted(file.read_bytes())
    except OSError as error:
        raise RejectedPlan(Fault("file", f"cannot be read: {error.strerror}")) from None
    except UnsafePickleError as error:
        raise RejectedPlan(Fault("file", str(error))) from None


def _read_resplan(plan: Any, name: str, choices: ReadOptions) -> Diagram:
    if not isinstance(plan, dict):
        raise RejectedPlan(Fault("types", "is no table"))
    types, boxes = [], []
    for key, kind in RESPLAN_ROOMS.items():
        if key not in plan:
            continue
        try:
            parts = outlines_of(plan[key])
        except ValueError as error:
            raise RejectedPlan(Fault("boxes", f"{key} is {error}")) from None
        found = [_around(part) for part in parts]
        if key == "living" and found:  # one room, of however many parts it is drawn
            found = [_around(np.concatenate(parts))]
        types += [ROOMS.index(kind)] * len(found)
        boxes += found
    # The drawings are made for a canvas of 256 pixels, as the grid is.
    return _diagram(types, on_grid(boxes, 1.0), name, choices)


def _read_msd(file: Path, choices: ReadOptions) -> Diagram:
    graph = _open(file, choices)
    state = graph.state if isinstance(graph, Stub) else None
    nodes = state.get("_node") if isinstance(state, dict) else None
    if not isinstance(nodes, dict):
        raise RejectedPlan(Fault("file", "holds no graph of networkx"))
    types, boxes = [], []
    for node, given in nodes.items():
        said = given if isinstance(given, dict) else {}
        number = said.get("room_type")
        if not isinstance(number, int) or number not in range(len(MSD_ROOMS)):
            raise RejectedPlan(Fault("types", f"node {node}: room_type {number!r} is none of 0..{len(MSD_ROOMS) - 1}"))
        try:
            outline = np.asarray(said.get("geometry"), np.float64)
        except (ValueError, TypeError):
            outline = np.zeros(0)
        if outline.ndim != 2 or outline.shape[1] != 2:
            raise RejectedPlan(Fault("boxes", f"node {node}: geometry is no list of points"))
        types.append(ROOMS.index(MSD_ROOMS[number]))
        boxes.append(_around(outline))
    return _diagram(types, on_grid(boxes, PIXELS_PER_METRE, upwards=True), file.stem, choices)


def _around(outline: Float[np.ndarray, "n 2"]) -> list[float]:
    return [*outline.min(0).tolist(), *outline.max(0).tolist()]


def _diagram(types: Sequence[int], boxes: Float[np.ndarray, "R 4"], name: str, choices: ReadOptions) -> Diagram:
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1).tolist()
    return diagram_of_boxes(name_bedrooms(types, areas, choices.bedrooms), boxes, name, choices)


PIXELS_PER_METRE: Final = GRID / 18
"""The grid is 18 metres wide."""

_POLYGON, _COLLECTIONS = 3, (6, 7)
_OTHERS: Final = {1, 2, 4, 5}


def outlines_of(shape: Any) -> list[Float[np.ndarray, "n 2"]]:
    """Return the outer outline of each polygon of a pickled shape of shapely; none for nothing, points and lines.

    Raises:
        ValueError: It is no shape.
    """
    content = _binary(shape)
    if content is None:
        return []
    try:
        outlines, _ = _read(content, 0)
    except (struct.error, IndexError):
        raise ValueError("a shape that is cut off") from None
    return outlines


def _binary(shape: Any) -> bytes | None:
    """The well-known binary in a shape: shapely 2 makes it from that, shapely 1 sets it afterwards."""
    if shape is None:
        return None
    if isinstance(shape, Stub):
        parts = [shape.state, *(shape.given if isinstance(shape.given, tuple) else ())]
        for part in parts:
            if isinstance(part, bytes | bytearray):
                return bytes(part)
    raise ValueError("no shape of shapely")


def _read(content: bytes, at: int) -> tuple[list[Float[np.ndarray, "n 2"]], int]:
    order = "<" if content[at] == 1 else ">"
    (kind,) = struct.unpack_from(order + "I", content, at + 1)
    at += 5 + (4 if kind & 0x20000000 else 0)
    extra = bool(kind & 0x80000000) + bool(kind & 0x40000000)
    kind &= 0xFFFFFFF
    extra += (0, 1, 1, 2)[min(kind // 1000, 3)]
    kind %= 1000
    if kind == _POLYGON:
        return _polygon(content, at, order, 2 + extra)
    if kind in _COLLECTIONS:
        (count,) = struct.unpack_from(order + "I", content, at)
        at, outlines = at + 4, []
        for _ in range(count):
            found, at = _read(content, at)
            outlines += found
        return outlines, at
    if kind in _OTHERS:
        return [], len(content)
    raise ValueError(f"a shape of kind {kind}")


def _polygon(content: bytes, at: int, order: str, numbers: int) -> tuple[list[Float[np.ndarray, "n 2"]], int]:
    (rings,) = struct.unpack_from(order + "I", content, at)
    at += 4
    outlines = []
    for ring in range(rings):
        (points,) = struct.unpack_from(order + "I", content, at)
        size = 8 * numbers * points
        if len(content) < at + 4 + size:
            raise ValueError("a shape that is cut off")
        walls = np.frombuffer(content, order + "f8", numbers * points, at + 4).reshape(points, numbers)
        at += 4 + size
        if ring == 0 and points:
            outlines.append(walls[:, :2].astype(np.float64))
    return outlines, at


def on_grid(boxes: Sequence[Sequence[float]], scale: float, *, upwards: bool = False) -> Float[np.ndarray, "R 4"]:
    """Return boxes in pixels, the plan in the middle of the grid; one that is larger than the grid is drawn smaller.

    Args:
        boxes: x0, y0, x1, y1 of each room in any unit.
        scale: Pixels per unit.
        upwards: Whether y grows upwards there; on the grid it grows downwards.
    """
    walls = np.asarray(boxes, np.float64).reshape(-1, 4) * scale
    if upwards:
        walls = walls[:, [0, 3, 2, 1]] * [1, -1, 1, -1]
    if not len(walls):
        return walls
    low, high = walls[:, :2].min(0), walls[:, 2:].max(0)
    smaller = min(1.0, GRID / max((high - low).max(), 1.0))
    pixels: Float[np.ndarray, "R 4"] = np.rint((walls - np.tile((low + high) / 2, 2)) * smaller + GRID / 2)
    return pixels
