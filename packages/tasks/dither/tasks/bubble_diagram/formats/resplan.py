"""ResPlan and MSD, which are handed out as pickles of shapely shapes and networkx graphs.

ResPlan: one list of 17,000 tables, a shape for each sort of room (living, kitchen, bedroom, bathroom, balcony), of one
or more parts. MSD: a graph a file, its nodes with `room_type` and `geometry`. Nothing of a pickle is run here, and even
its data is looked at only if that is asked for (`pickles`). Relations follow from the boxes around the rooms. Whole
floors of MSD are wider than the grid and are drawn smaller, so rooms are near each other there at more than 0.6 metres.
Source: Abouagour and Garyfallidis, ResPlan, 2025 (arXiv 2508.14006); van Engelenburg et al., MSD, ECCV 2024.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float

from ..plans import Diagram
from ..vocabulary import ROOMS
from .geometry import PIXELS_PER_METRE, on_grid, outlines_of
from .pickled import Made, NotPlain, read_plain
from .reading import Choices, Entry, Fault, Unfit, diagram_of_boxes, entry_of, name_bedrooms

__all__ = ["MSD_ROOMS", "RESPLAN_ROOMS", "WHY_NO_PICKLES", "read_msd", "read_resplan"]

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


def read_resplan(file: Path, choices: Choices) -> Iterator[Entry]:
    """Yield the plans of `ResPlan.pkl`."""
    try:
        plans = _open(file, choices)
        if not isinstance(plans, list):
            raise Unfit(Fault("file", f"holds {type(plans).__name__} and no list of plans"))
    except Unfit as unfit:
        yield Entry(file, faults=unfit.faults)
        return
    for number, plan in enumerate(plans):
        name = str(plan.get("id", number)) if isinstance(plan, dict) else str(number)
        yield entry_of(file, f"plan {number}", _read_resplan, plan, name, choices)


def read_msd(file: Path, choices: Choices) -> Iterator[Entry]:
    """Yield the plan of a graph of MSD."""
    yield entry_of(file, "", _read_msd, file, choices)


def _open(file: Path, choices: Choices) -> Any:
    if not choices.pickles:
        raise Unfit(Fault("file", WHY_NO_PICKLES))
    try:
        return read_plain(file.read_bytes())
    except OSError as error:
        raise Unfit(Fault("file", f"cannot be read: {error.strerror}")) from None
    except NotPlain as error:
        raise Unfit(Fault("file", str(error))) from None


def _read_resplan(plan: Any, name: str, choices: Choices) -> Diagram:
    if not isinstance(plan, dict):
        raise Unfit(Fault("types", "is no table"))
    types, boxes = [], []
    for key, kind in RESPLAN_ROOMS.items():
        if key not in plan:
            continue
        try:
            parts = outlines_of(plan[key])
        except ValueError as error:
            raise Unfit(Fault("boxes", f"{key} is {error}")) from None
        found = [_around(part) for part in parts]
        if key == "living" and found:  # one room, of however many parts it is drawn
            found = [_around(np.concatenate(parts))]
        types += [ROOMS.index(kind)] * len(found)
        boxes += found
    # The drawings are made for a canvas of 256 pixels, as the grid is.
    return _diagram(types, on_grid(boxes, 1.0), name, choices)


def _read_msd(file: Path, choices: Choices) -> Diagram:
    graph = _open(file, choices)
    state = graph.state if isinstance(graph, Made) else None
    nodes = state.get("_node") if isinstance(state, dict) else None
    if not isinstance(nodes, dict):
        raise Unfit(Fault("file", "holds no graph of networkx"))
    types, boxes = [], []
    for node, given in nodes.items():
        said = given if isinstance(given, dict) else {}
        number = said.get("room_type")
        if not isinstance(number, int) or number not in range(len(MSD_ROOMS)):
            raise Unfit(Fault("types", f"node {node}: room_type {number!r} is none of 0..{len(MSD_ROOMS) - 1}"))
        try:
            outline = np.asarray(said.get("geometry"), np.float64)
        except (ValueError, TypeError):
            outline = np.zeros(0)
        if outline.ndim != 2 or outline.shape[1] != 2:
            raise Unfit(Fault("boxes", f"node {node}: geometry is no list of points"))
        types.append(ROOMS.index(MSD_ROOMS[number]))
        boxes.append(_around(outline))
    return _diagram(types, on_grid(boxes, PIXELS_PER_METRE, upwards=True), file.stem, choices)


def _around(outline: Float[np.ndarray, "n 2"]) -> list[float]:
    return [*outline.min(0).tolist(), *outline.max(0).tolist()]


def _diagram(types: Sequence[int], boxes: Float[np.ndarray, "R 4"], name: str, choices: Choices) -> Diagram:
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1).tolist()
    return diagram_of_boxes(name_bedrooms(types, areas, choices.bedrooms), boxes, name, choices)
