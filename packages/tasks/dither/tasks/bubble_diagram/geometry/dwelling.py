"""Level 6 (0 to 5: `bubble_diagram.validity`): whether a floor plan is a dwelling, as an architect would check it.

One connected body, doors in walls that rooms share, every room reachable, usual sizes and
proportions, and windows. Smallest areas, widths and windows of habitable rooms are those of the
International Residential Code (ICC 2021; R303.1, R304.1, R304.2), the other ranges are our own.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from types import MappingProxyType

import numpy as np

from ..arrays import Boxes
from ..plans import Diagram, room_names
from ..relations import sides_of
from ..vocabulary import (
    BALCONY,
    BEDROOM_IDS,
    ENTRANCE,
    METRES,
    ROOM_IDS,
    ROOMS,
    type_ids,
)
from .floor_plan import DEAD_ENDS, FloorPlan

Range = tuple[float, float]

_AREAS = {
    "LivingRoom": (12, 60),
    "MasterRoom": (6.5, 35),
    "Kitchen": (3.5, 25),
    "Bathroom": (2, 15),
    "DiningRoom": (6.5, 30),
    "ChildRoom": (6.5, 25),
    "StudyRoom": (6.5, 25),
    "SecondRoom": (6.5, 25),
    "GuestRoom": (6.5, 25),
    "Balcony": (1.5, 20),
    "Entrance": (1.5, 20),
    "Storage": (0.8, 12),
    "Wall-in": (0.8, 12),
}
AREAS_OF: Mapping[int, Range] = MappingProxyType(
    {ROOM_IDS[name]: area for name, area in _AREAS.items()}
)
"""Usual areas by type in square metres."""

_NOT_HABITABLE = type_ids(
    "Kitchen", "Bathroom", "Balcony", "Entrance", "Storage", "Wall-in"
)
"""Types without a smallest width."""

LIT = type_ids(*ROOMS) - _NOT_HABITABLE | type_ids("Kitchen")
"""Types that must have a window."""

LONGISH = frozenset({BALCONY, ENTRANCE})
"""Types of any proportion."""

_WIDTH = 2.13
"""Smallest width of a habitable room in metres."""

THICKEST = 6
"""Largest distance in pixels between rooms that share a wall, 0.4 m."""


@dataclass(frozen=True)
class DwellingLimits:
    """Usual ranges.

    Attributes:
        areas: By type, in square metres.
        proportion: Largest ratio of the sides of a room, balconies and entrances excepted.
        wall: Smallest length of the wall that two rooms share, in metres.
    """

    # A mapping proxy has no hash, without which a dataclass refuses it as a default.
    areas: Mapping[int, Range] = field(default_factory=lambda: AREAS_OF)
    proportion: float = 3.0
    wall: float = 0.9


LIMITS = DwellingLimits()


def plan_problems(
    diagram: Diagram,
    boxes: Boxes,
    plan: FloorPlan,
    limits: DwellingLimits = LIMITS,
) -> Iterator[str]:
    """Yield why a floor plan of rooms at boxes is not a dwelling."""
    import networkx

    names = room_names(diagram)
    shared = plan.shared_walls(limits.wall / METRES, THICKEST)
    rooms = range(len(names))
    touching = networkx.Graph(shared)
    touching.add_nodes_from(rooms)
    # From any room: connected rooms reach each other.
    body = networkx.node_connected_component(touching, 0)
    for room in rooms:
        if room not in body:
            yield f"{names[room]} shares no wall of {limits.wall:g} m with the others"
    yield from _door_problems(diagram, plan, shared, names)
    yield from _size_problems(diagram, plan, boxes, names, limits)
    lit = lit_rooms(diagram, plan, shared)
    for room in rooms:
        if diagram.types[room] in LIT and room not in lit:
            yield f"{names[room]} has no window"
        if diagram.types[room] == BALCONY and room not in plan.facade:
            yield f"{names[room]} is not at an outer wall"


def lit_rooms(
    diagram: Diagram, plan: FloorPlan, shared: Iterable[tuple[int, int]]
) -> set[int]:
    """Return the rooms with a window, or with a wall that they share with a balcony outside."""
    lit = {window.room for window in plan.windows}
    for i, j in shared:
        for room, other in ((i, j), (j, i)):
            if diagram.types[other] == BALCONY and other in plan.facade:
                lit.add(room)
    return lit


def _door_problems(
    diagram: Diagram,
    plan: FloorPlan,
    shared: set[tuple[int, int]],
    names: list[str],
) -> Iterator[str]:
    """Yield doors without a shared wall, and rooms that are reached through a private one, or not at all."""
    fronts = [door.i for door in plan.doors if door.j is None and door.depth >= 0]
    ends = []
    for door in plan.doors:
        if door.j is None:
            continue
        pair = (min(door.i, door.j), max(door.i, door.j))
        if pair in shared:
            ends.append(pair)
        else:
            yield f"no wall for the door between {names[pair[0]]} and {names[pair[1]]}"
    if not fronts:
        yield "no front door in an outer wall"
        return
    for room in _badly_reached(diagram.types, fronts[0], ends):
        yield f"{names[room]} is reached through a private room, or not at all"


def _badly_reached(
    types: Sequence[int], front: int, ends: Sequence[tuple[int, int]]
) -> Iterator[int]:
    """Yield rooms without a way from the front door through public rooms."""
    import networkx

    links = [*ends, *((j, i) for i, j in ends)]
    # A private room is reached, but leads nowhere.
    private = DEAD_ENDS | BEDROOM_IDS
    ways = networkx.DiGraph([(i, j) for i, j in links if types[i] not in private])
    ways.add_node(front)
    reached = {front, *networkx.descendants(ways, front)}
    behind = {j for i, j in links if i in reached and types[i] in BEDROOM_IDS}
    # One room may be reached through a bedroom, such as its bathroom.
    through_bedroom = 0
    for room in range(len(types)):
        if room in reached:
            continue
        through_bedroom += 1
        if room not in behind or through_bedroom > 1:
            yield room


def _size_problems(
    diagram: Diagram,
    plan: FloorPlan,
    boxes: Boxes,
    names: list[str],
    limits: DwellingLimits,
) -> Iterator[str]:
    """Yield rooms of unusual areas, widths and proportions."""
    areas = plan.room_areas() * METRES**2
    sides = np.sort(sides_of(boxes), 1) * METRES
    for room, kind in enumerate(diagram.types):
        low, high = limits.areas[kind]
        if not low <= areas[room] <= high:
            yield f"{names[room]} has {areas[room]:.1f} m2, not {low:g} to {high:g} m2"
        narrow, wide = sides[room]
        if kind not in _NOT_HABITABLE and narrow < _WIDTH:
            yield f"{names[room]} is {narrow:.2f} m wide, less than {_WIDTH} m"
        if kind not in LONGISH and wide > limits.proportion * narrow:
            yield f"{names[room]} is more than {limits.proportion:g} times as long as wide"
