"""The JSON layout of HouseGAN++ and HouseDiffusion: one plan per file.

    room_type  type of each node; doors are nodes, too, after the rooms
    boxes      [x0, y0, x1, y1] of each node, x1 and y1 inclusive
    edges      [x0, y0, x1, y1, type of the node, type of the other side or 0] for each wall segment, node by node
    ed_rm      for each wall segment its node, and the node on the other side if a door joins the two

The file lists rooms joined by doors (adjacency "door"); proximity follows from the boxes.
Source: Nauata et al., House-GAN++, CVPR 2021; Shabani et al., HouseDiffusion, CVPR 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from itertools import combinations
from pathlib import Path
from typing import Any, Final

import numpy as np

from ..plans import Diagram
from ..relations import labels_of
from ..vocabulary import ROOM_IDS
from .entries import Entry, Fault, ReadOptions, RejectedPlan, diagram_of_boxes, entry_of, name_bedrooms, read_json

__all__ = ["DOOR", "FROM_HOUSEGAN", "FRONT_DOOR", "TO_HOUSEGAN", "read_housegan"]

FRONT_DOOR: Final = 15
DOOR: Final = 17
"""Node types of doors: to the outside, and between two rooms."""

FROM_HOUSEGAN: Final = {
    1: "LivingRoom",
    2: "Kitchen",
    3: "SecondRoom",
    4: "Bathroom",
    5: "Balcony",
    6: "Entrance",
    7: "DiningRoom",
    8: "StudyRoom",
    10: "Storage",
    16: "Wall-in",
}
"""Room type by number; 3 is any bedroom and 16 unknown."""

TO_HOUSEGAN: Final = {
    **{name: number for number, name in FROM_HOUSEGAN.items()},
    **dict.fromkeys(("MasterRoom", "ChildRoom", "GuestRoom"), 3),
}
"""Number by room type; all bedroom types map to 3."""


def read_housegan(file: Path, options: ReadOptions) -> Iterator[Entry]:
    """Yield the plan of a file."""
    yield entry_of(file, "", _read, file, options)


def _read(file: Path, options: ReadOptions) -> Diagram:
    plan, name = read_json(file), file.stem
    if not isinstance(plan, dict):
        raise RejectedPlan(Fault("text", 'expected {"room_type": [...], "boxes": [...], "ed_rm": [...]}'))
    keys = ("room_type", "boxes", *(("ed_rm",) if options.adjacency == "door" else ()))
    missing = [key for key in keys if not isinstance(plan.get(key), list)]
    if missing:
        raise RejectedPlan(Fault("text", f"missing list: {', '.join(missing)}"))
    numbers = plan["room_type"]
    rooms = [node for node, number in enumerate(numbers) if number not in (FRONT_DOOR, DOOR)]
    known = [_name(number) for number in numbers]
    faults = [
        Fault("types", f"room_type[{node}]: unknown type {numbers[node]!r}; known types: {_known_types()}")
        for node in rooms
        if known[node] is None
    ]
    if len(plan["boxes"]) != len(numbers):
        faults.append(Fault("boxes", f"{len(numbers)} nodes, but {len(plan['boxes'])} boxes"))
    if faults:
        raise RejectedPlan(*faults)
    types = [ROOM_IDS[known[node] or ""] for node in rooms]
    diagram = diagram_of_boxes(types, [_exclusive(plan["boxes"][node]) for node in rooms], name, options)
    assert diagram.boxes is not None
    areas = [(x1 - x0) * (y1 - y0) for x0, y0, x1, y1 in diagram.boxes]
    edges = diagram.edges
    if options.adjacency == "door":
        edges = _door_edges(_joined_rooms(plan["ed_rm"], rooms, len(numbers)), diagram.boxes)
    return Diagram(name_bedrooms(types, areas, options.bedrooms), edges, diagram.boxes, name)


def _name(number: Any) -> str | None:
    return FROM_HOUSEGAN.get(int(number)) if type(number) in (int, float) and number % 1 == 0 else None


def _known_types() -> str:
    return ", ".join(f"{number} {name}" for number, name in FROM_HOUSEGAN.items())


def _exclusive(box: Any) -> Any:
    """Return a box with exclusive far walls; NaN for invalid boxes, which later checks report."""
    if isinstance(box, list) and len(box) == 4 and all(isinstance(wall, int | float) for wall in box):
        return [box[0], box[1], box[2] + 1, box[3] + 1]
    return [float("nan")] * 4


def _joined_rooms(walls: list[Any], rooms: Sequence[int], nodes: int) -> set[tuple[int, int]]:
    """Return the pairs of rooms with a door between them, listed as a wall of both or as a shared door node."""
    neighbours: dict[int, set[int]] = {}
    for index, ends in enumerate(walls):
        if not (isinstance(ends, list) and ends and all(type(node) is int and 0 <= node < nodes for node in ends)):
            raise RejectedPlan(
                Fault("edges", f"ed_rm[{index}]: expected one or two nodes of 0..{nodes - 1}, got {ends!r}")
            )
        for first, second in combinations(set(ends), 2):
            neighbours.setdefault(first, set()).add(second)
            neighbours.setdefault(second, set()).add(first)
    number = {node: room for room, node in enumerate(rooms)}
    pairs: set[tuple[int, int]] = set()
    for node, others in neighbours.items():
        near = sorted(number[other] for other in others if other in number)
        if node in number:
            pairs |= {(min(number[node], room), max(number[node], room)) for room in near}
        else:
            pairs |= set(combinations(near, 2))
    return pairs


def _door_edges(pairs: set[tuple[int, int]], boxes: Sequence[Any]) -> tuple[tuple[int, int, int], ...]:
    """Return the relation of each pair."""
    if not pairs:
        return ()
    ordered, walls = sorted(pairs), np.array(boxes)
    first, second = np.array(ordered).T
    labels = labels_of(walls[first], walls[second]).tolist()
    return tuple((i, j, label) for (i, j), label in zip(ordered, labels, strict=True))
