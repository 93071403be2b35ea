"""The JSON layout of HouseGAN++ and HouseDiffusion: one plan per file.

    room_type  type of each node; doors are nodes, too, after the rooms
    boxes      [x0, y0, x1, y1] of each node, x1 and y1 inclusive
    edges      [x0, y0, x1, y1, type of the node, type of the other side or 0] of each wall
               segment, node by node
    ed_rm      for each wall segment its node, and the node on the other side of a door

The file lists rooms joined by doors (adjacency "door"); proximity follows from the boxes.
Source: Nauata et al., House-GAN++, CVPR 2021; Shabani et al., HouseDiffusion, CVPR 2023.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import combinations
from pathlib import Path

import numpy as np
from pydantic import BaseModel

from dither.registry.files.limits import read_bytes

from ..plans import Diagram, Doors, sort_doors
from ..relations import areas_of, labels_of
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

FRONT_DOOR = 15
DOOR = 17
"""Node types of doors: to the outside, and between two rooms."""

FROM_HOUSEGAN = {
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

TO_HOUSEGAN = {
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
    kinds = plan.room_type
    rooms = [node for node, kind in enumerate(kinds) if kind not in (FRONT_DOOR, DOOR)]
    faults = list(_faults(plan, rooms))
    if options.adjacency == "door" and plan.ed_rm is None:
        faults.append(Fault("edges", "missing list: ed_rm"))
    if faults:
        raise RejectedPlan(*faults)

    # Their last pixels are inside, ours are not.
    types = [ROOM_IDS[FROM_HOUSEGAN[kinds[node]]] for node in rooms]
    inclusive = np.array([plan.boxes[node] for node in rooms]).reshape(-1, 4)
    boxes = inclusive + np.array([0, 0, 1, 1])
    diagram = diagram_of_boxes(types, boxes, file.stem, options.most)
    edges = diagram.edges
    doors = None
    if plan.ed_rm is not None:
        doors = _joined_rooms(plan, plan.ed_rm, rooms)
        # Doors say which rooms are related, boxes how.
        if options.adjacency == "door":
            walls = np.array(diagram.boxes)
            labelled = []
            for i, j in doors:
                if j is not None:
                    labelled.append((i, j, int(labels_of(walls[i], walls[j]))))
            edges = tuple(labelled)
    named = name_bedrooms(types, areas_of(boxes).tolist(), options.bedrooms)
    return replace(diagram, types=named, edges=edges, doors=doors)


def _faults(plan: _House, rooms: Sequence[int]) -> Iterator[Fault]:
    known = ", ".join(f"{number} {name}" for number, name in FROM_HOUSEGAN.items())
    for node in rooms:
        kind = plan.room_type[node]
        if kind not in FROM_HOUSEGAN:
            message = f"room_type[{node}]: unknown type {kind}; known types: {known}"
            yield Fault("types", message)
    if len(plan.boxes) != len(plan.room_type):
        yield Fault(
            "boxes", f"{len(plan.room_type)} nodes, but {len(plan.boxes)} boxes"
        )


def _joined_rooms(
    plan: _House,
    walls: list[list[int]],
    rooms: Sequence[int],
) -> Doors:
    """Return the rooms with a door between them, and front doors.

    A door is listed as a wall of both rooms, or as a node of its own next to both.
    """
    import networkx

    nodes = len(plan.room_type)
    # A door may be an edge of this graph, or a node between two rooms.
    graph = networkx.Graph()
    for index, ends in enumerate(walls):
        if not (ends and all(0 <= node < nodes for node in ends)):
            message = f"ed_rm[{index}]: expected one or two nodes of 0..{nodes - 1}, got {ends}"
            raise RejectedPlan(Fault("edges", message))
        graph.add_edges_from(combinations(set(ends), 2))

    # Nodes of doors may be anywhere in the file, so rooms are numbered without them.
    number = {node: room for room, node in enumerate(rooms)}
    joined: list[tuple[int, int | None]] = []
    for u, v in graph.edges:
        if u in number and v in number:
            i, j = sorted((number[u], number[v]))
            joined.append((i, j))
    for door in graph.nodes - number.keys():
        sides = sorted(number[node] for node in graph[door] if node in number)
        if plan.room_type[door] == FRONT_DOOR:
            joined += [(room, None) for room in sides]
        else:
            joined += combinations(sides, 2)
    return sort_doors(joined)
