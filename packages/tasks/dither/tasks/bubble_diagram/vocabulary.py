"""Graph2Plan's vocabulary: ids, names and colours of 13 room types and 10 relations. No torch.

A sample is a row of tokens: one per room slot ("nodes"), then one per pair of slots i < j ("edges")
in the row-major order of the upper triangle: (0,1), (0,2), ..., (0,R-1), (1,2), ... The token of a
pair is the relation of room i to room j. Ids as in Hu et al., Graph2Plan, SIGGRAPH 2020 (arXiv
2004.13204). Optional fields follow: "doors", one token per pair of slots and then one per slot for
its front door, and "areas", one per slot; or "left", "top", "right" and "bottom", the walls of the
box of each slot.
"""

from __future__ import annotations

import re
from itertools import combinations
from typing import Literal

GRID = 256
"""Side of the square canvas in pixels; about 18 metres."""
METRES = 18 / GRID
"""Metres per pixel."""

# In the order of Graph2Plan's ids, which its files hold.
_TYPES = (
    ("LivingRoom", "Living", "#f6ecd2"),
    ("MasterRoom", "Master", "#e4888e"),
    ("Kitchen", "Kitchen", "#d0b86c"),
    ("Bathroom", "Bath", "#b0e0fe"),
    ("DiningRoom", "Dining", "#9fa23b"),
    ("ChildRoom", "Child", "#b9b3ff"),
    ("StudyRoom", "Study", "#488eb2"),
    ("SecondRoom", "Second", "#8493e6"),
    ("GuestRoom", "Guest", "#aa6d80"),
    ("Balcony", "Balcony", "#cbe48d"),
    ("Entrance", "Entry", "#52b6bc"),
    ("Storage", "Storage", "#708539"),
    ("Wall-in", "Closet", "#82d7b7"),
)
"""Name, short name and fill colour by id; colours stay distinguishable under protan-, deuteran- and
tritanopia."""

ROOMS = tuple(name for name, _, _ in _TYPES)
SHORT = tuple(short for _, short, _ in _TYPES)
COLOURS = tuple(colour for _, _, colour in _TYPES)
"""Names of room types, short names for labels, and fill colours, by id."""

# Spelled out, since type checkers accept no computed names.
RoomType = Literal[
    "LivingRoom",
    "MasterRoom",
    "Kitchen",
    "Bathroom",
    "DiningRoom",
    "ChildRoom",
    "StudyRoom",
    "SecondRoom",
    "GuestRoom",
    "Balcony",
    "Entrance",
    "Storage",
    "Wall-in",
]
"""One of `ROOMS`."""

ROOM_IDS = {name: index for index, name in enumerate(ROOMS)}
BEDROOMS = ("MasterRoom", "ChildRoom", "StudyRoom", "SecondRoom", "GuestRoom")
"""Types of bedrooms, as in Graph2Plan."""


def type_ids(*names: str) -> frozenset[int]:
    """Return the ids of room types."""
    return frozenset(ROOM_IDS[name] for name in names)


BEDROOM_IDS = type_ids(*BEDROOMS)
LIVING = ROOM_IDS["LivingRoom"]
BALCONY = ROOM_IDS["Balcony"]
ENTRANCE = ROOM_IDS["Entrance"]

ROOM_COUNTS = {4: 0.003, 5: 0.072, 6: 0.311, 7: 0.362, 8: 0.252}
"""Distribution of the number of rooms in RPLAN, and in procedural plans."""

NODE_MASK = 13
NODE_PAD = 14
NODE_SIZE = 15
"""Token ids of MASK and PAD in a room slot, and the vocabulary size."""

RELATIONS = (
    "left-above",
    "left-below",
    "left-of",
    "above",
    "inside",
    "surrounding",
    "below",
    "right-of",
    "right-above",
    "right-below",
)
"""Relations of the first room of a pair to the second, by id. The y axis points down."""

RELATED = frozenset(range(len(RELATIONS)))
"""Ids of all relations, that is everything but `NO_EDGE`."""

LEFT = frozenset({0, 1, 2})
RIGHT = frozenset({7, 8, 9})
ABOVE = frozenset({0, 3, 8})
BELOW = frozenset({1, 6, 9})
"""Relations by the direction of the first room's centre as seen from the second's."""

INSIDE = 4
SURROUNDING = 5
"""The two containment relations."""

NO_EDGE = 10
"""The two rooms are not adjacent. Unlike MASK and PAD this is a data token."""

EDGE_MASK = 11
EDGE_PAD = 12
EDGE_SIZE = 13
"""Token ids of MASK and PAD in a pair of slots, and the vocabulary size."""

NO_DOOR = 0
DOOR = 1
DOOR_MASK = 2
DOOR_PAD = 3
"""Token ids of a pair without and with a door, of MASK and PAD."""

OUTSIDE = "outside"
"""The other side of a front door."""

AREAS = (0.5, 2.0, 3.0, 4.0, 6.0, 8.0, 10.0, 12.0, 15.0, 20.0, 30.0, 45.0, 90.0)
"""Bounds of the area bins in square metres; the first and the last bin also hold smaller and larger
rooms."""

AREA_MASK = len(AREAS) - 1
AREA_PAD = AREA_MASK + 1
"""Token ids of MASK and PAD of an area."""

IDS = {
    "nodes": NODE_MASK,
    "edges": EDGE_MASK,
    "doors": DOOR_MASK,
    "areas": AREA_MASK,
}
"""Number of data ids of each field; the next two ids are MASK and PAD."""

SIDES = ("left", "top", "right", "bottom")
"""Fields of the boxes, one token per slot in each, in the order of the coordinates of a box."""

BIN = 4
"""Pixels of a bin of coordinates, as thick as the walls of procedural plans."""

BOX_MASK = 64
BOX_PAD = 65
"""Token ids of MASK and PAD of a wall; those before are the bins of the canvas."""

_AREA = re.compile(r"(?:(\d+(?:\.\d+)?) to|at (least|most)) (\d+(?:\.\d+)?) m(?:2|²)")
BOUNDARY_POINTS = 48
"""Points of a boundary: the two ends of the front door, and at most 46 corners of the outline."""

Format = Literal[
    "auto", "rplan-png", "graph2plan", "housegan", "resplan", "msd", "jsonl"
]
"""Input formats; "auto" selects one by file suffix."""

Unit = Literal["px", "m", "cm", "mm"]
"""Units of coordinates; a pixel of the canvas is 7 cm."""

Order = Literal["given", "from-left-to-right"]
"""Order of the rooms of a plan."""

Orientation = Literal["given", "upright"]
"""Orientation of a plan."""

Adjacency = Literal["proximity", "door"]
"""Which rooms are related: those close to each other, or those joined by a door."""

Bedrooms = Literal["largest-is-master", "all-second"]
"""How bedrooms are mapped to Graph2Plan's types where a format has a single bedroom type."""

Export = Literal["jsonl", "housegan", "svg", "geojson", "dxf", "ifc"]
"""Output formats of diagrams."""


def pairs(rooms: int) -> list[tuple[int, int]]:
    """Return the pairs of room slots i < j in token order."""
    return list(combinations(range(rooms), 2))


def pair_index(
    i: int,
    j: int,
    rooms: int,
) -> int:
    """Return the index of the pair i < j among the edge tokens of `rooms` room slots."""
    if not 0 <= i < j < rooms:
        raise ValueError(f"a pair needs 0 <= i < j < {rooms}, got ({i}, {j})")
    return i * (2 * rooms - i - 1) // 2 + j - i - 1


def door_ends(rooms: int) -> list[tuple[int, int]]:
    """Return the sides of each door token: pairs of slots, then slots with `rooms`, the outside."""
    return [*pairs(rooms), *((i, rooms) for i in range(rooms))]


def door_index(
    i: int,
    j: int | None,
    rooms: int,
) -> int:
    """Return the index of the door token of rooms i < j, or of the front door of i if j is None."""
    if j is None:
        return rooms * (rooms - 1) // 2 + i
    return pair_index(i, j, rooms)


def parse_area(text: object) -> tuple[float, float] | None:
    """Parse "8 to 10 m2", "at least 8 m2" or "at most 10 m²" to bounds; None if invalid."""
    match = None
    if isinstance(text, str):
        match = _AREA.fullmatch(text)

    if match is None:
        return None

    low, side, number = match.groups()
    bound = float(number)
    if side == "least":
        # Without an upper bound the middle of the two, at which rooms are drawn, needs one.
        return bound, max(AREAS[-1], 2 * bound)
    least = float(low or 0)

    if least < bound:
        return (least, bound)
    return None


def area_text(bounds: tuple[float, float]) -> str:
    """Return bounds in the syntax of `parse_area`."""
    return f"{bounds[0]:g} to {bounds[1]:g} m2"
