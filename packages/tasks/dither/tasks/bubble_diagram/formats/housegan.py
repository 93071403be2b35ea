"""The JSON layout of HouseGAN++ and HouseDiffusion: one plan per file.

    room_type  type of each node; doors are nodes, too, after the rooms
    boxes      [x0, y0, x1, y1] of each node, x1 and y1 inclusive
    edges      [x0, y0, x1, y1, type of the node, type of the other side or 0] for each wall segment, node by node
    ed_rm      for each wall segment its node, and the node on the other side if a door joins the two

The file lists rooms joined by doors (adjacency "door"); proximity follows from the boxes.
Source: Nauata et al., House-GAN++, CVPR 2021; Shabani et al., HouseDiffusion, CVPR 2023.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path
from typing import Final

import numpy as np
from pydantic import BaseModel

from dither.registry.files.limits import read_bytes

from ..plans import Diagram, Doors, sort_doors
from ..relations import labels_of
from ..vocabulary import ROOM_IDS
from .entries import (
    Fault,
    ReadOptions,
    RejectedPlan,
    diagram_of_boxes,
    name_bedrooms,
    parse_json,
    single_plan,
)

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


class _House(BaseModel):
    room_type: list[int]
    boxes: list[tuple[float, float, float, float]]
    ed_rm: list[list[int]] | None = None


@single_plan
def read_housegan(file: Path, options: ReadOptions) -> Diagram:
    """Yield the plan of a file."""
    plan = parse_json(_House, read_bytes(file))
    name = file.stem
    rooms = [node for node, number in enumerate(plan.room_type) if number not in (FRONT_DOOR, DOOR)]
    known = ", ".join(f"{number} {name}" for number, name in FROM_HOUSEGAN.items())
    faults = [
        Fault(
            "types", f"room_type[{node}]: unknown type {plan.room_type[node]}; known types: {known}"
        )
        for node in rooms
        if plan.room_type[node] not in FROM_HOUSEGAN
    ]
    if len(plan.boxes) != len(plan.room_type):
        faults.append(Fault("boxes", f"{len(plan.room_type)} nodes, but {len(plan.boxes)} boxes"))
    if options.adjacency == "door" and plan.ed_rm is None:
        faults.append(Fault("edges", "missing list: ed_rm"))
    if faults:
        raise RejectedPlan(*faults)
    types = [ROOM_IDS[FROM_HOUSEGAN[plan.room_type[node]]] for node in rooms]
    boxes = np.array([plan.boxes[node] for node in rooms]).reshape(-1, 4) + np.array([0, 0, 1, 1])
    diagram = diagram_of_boxes(types, boxes, name, options.most)
    edges = diagram.edges
    doors = None
    if plan.ed_rm is not None:
        fronts = {node for node, number in enumerate(plan.room_type) if number == FRONT_DOOR}
        doors = _joined_rooms(plan.ed_rm, rooms, len(plan.room_type), fronts)
        if options.adjacency == "door":
            walls = np.array(diagram.boxes)
            edges = tuple(
                (i, j, int(labels_of(walls[i], walls[j]))) for i, j in doors if j is not None
            )
    types_named = name_bedrooms(
        types, (boxes[:, 2:] - boxes[:, :2]).prod(1).tolist(), options.bedrooms
    )
    return replace(diagram, types=types_named, edges=edges, doors=doors)


def _joined_rooms(
    walls: list[list[int]],
    rooms: Sequence[int],
    nodes: int,
    fronts: set[int],
) -> Doors:
    """Return the rooms with a door between them, listed as a wall of both or as a shared door node, and front doors."""
    for index, ends in enumerate(walls):
        if not (ends and all(0 <= node < nodes for node in ends)):
            message = f"ed_rm[{index}]: expected one or two nodes of 0..{nodes - 1}, got {ends}"
            raise RejectedPlan(Fault("edges", message))
    import networkx  # it takes .1 s

    graph = networkx.Graph(pair for ends in walls for pair in combinations(set(ends), 2))
    number = {node: room for room, node in enumerate(rooms)}
    joined: list[tuple[int, int | None]] = []
    for u, v in graph.edges:
        joined += (
            [(min(number[u], number[v]), max(number[u], number[v]))]
            if u in number and v in number
            else []
        )
    for door in graph.nodes - number.keys():
        sides = sorted(number[node] for node in graph[door] if node in number)
        joined += [(room, None) for room in sides] if door in fronts else combinations(sides, 2)
    return sort_doors(joined)
