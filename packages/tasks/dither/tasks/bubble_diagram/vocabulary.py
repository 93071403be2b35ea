"""Graph2Plan's vocabulary: 13 room types and 10 spatial relations with ids, names and colours; option types. No torch.

A sample is a row of tokens: one per room slot ("nodes"), then one per pair of slots i < j ("edges") in the row-major
order of the upper triangle: (0,1), (0,2), ..., (0,R-1), (1,2), ... The token of a pair is the relation of room i to
room j. Ids as in Hu et al., Graph2Plan, SIGGRAPH 2020 (arXiv 2004.13204).
"""

from __future__ import annotations

from typing import Final, Literal

__all__ = [
    "ABOVE",
    "BEDROOMS",
    "BELOW",
    "BOUNDARY_POINTS",
    "COLOURS",
    "EDGE_MASK",
    "EDGE_PAD",
    "EDGE_SIZE",
    "ENTRANCE",
    "INSIDE",
    "LEFT",
    "LIVING",
    "NODE_MASK",
    "NODE_PAD",
    "NODE_SIZE",
    "NO_EDGE",
    "RELATED",
    "RELATIONS",
    "RIGHT",
    "ROOMS",
    "ROOM_COUNTS",
    "ROOM_IDS",
    "SHORT",
    "SURROUNDING",
    "Adjacency",
    "Bedrooms",
    "Export",
    "Format",
    "Order",
    "Orientation",
    "pair_index",
    "pairs",
]

_TYPES: Final = (
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
"""Name, short name and fill colour by id; colours stay distinguishable under protan-, deuteran- and tritanopia."""

ROOMS: Final = tuple(name for name, _, _ in _TYPES)
SHORT: Final = tuple(short for _, short, _ in _TYPES)
COLOURS: Final = tuple(colour for _, _, colour in _TYPES)
"""Names of room types, short names for labels, and fill colours, by id."""

ROOM_IDS: Final = {name: index for index, name in enumerate(ROOMS)}
BEDROOMS: Final = ("MasterRoom", "ChildRoom", "StudyRoom", "SecondRoom", "GuestRoom")
"""Types of bedrooms, as in Graph2Plan."""

LIVING: Final = ROOM_IDS["LivingRoom"]
ENTRANCE: Final = ROOM_IDS["Entrance"]

ROOM_COUNTS: Final = {4: 0.003, 5: 0.072, 6: 0.311, 7: 0.362, 8: 0.252}
"""Distribution of the number of rooms in RPLAN, and in procedural plans."""

NODE_MASK: Final = 13
NODE_PAD: Final = 14
NODE_SIZE: Final = 15
"""Token ids of MASK and PAD in a room slot, and the vocabulary size."""

RELATIONS: Final = (
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

RELATED: Final = frozenset(range(len(RELATIONS)))
"""Ids of all relations, that is everything but `NO_EDGE`."""

LEFT: Final = frozenset({0, 1, 2})
RIGHT: Final = frozenset({7, 8, 9})
ABOVE: Final = frozenset({0, 3, 8})
BELOW: Final = frozenset({1, 6, 9})
"""Relations by the direction of the first room's centre as seen from the second's."""

INSIDE: Final = 4
SURROUNDING: Final = 5
"""The two containment relations."""

NO_EDGE: Final = 10
"""The two rooms are not adjacent. Unlike MASK and PAD this is a data token."""

EDGE_MASK: Final = 11
EDGE_PAD: Final = 12
EDGE_SIZE: Final = 13
"""Token ids of MASK and PAD in a pair of slots, and the vocabulary size."""


BOUNDARY_POINTS: Final = 48
"""Points of a boundary: the two ends of the front door, and at most 46 corners of the outline."""

Format = Literal["auto", "rplan-png", "graph2plan", "housegan", "resplan", "msd", "jsonl"]
"""Input formats; "auto" selects one by file suffix."""

Order = Literal["given", "from-left-to-right"]
"""Order of the rooms of a plan."""

Orientation = Literal["given", "upright"]
"""Orientation of a plan."""

Adjacency = Literal["proximity", "door"]
"""Which rooms are related: those close to each other, or those joined by a door."""

Bedrooms = Literal["largest-is-master", "all-second"]
"""How bedrooms are mapped to Graph2Plan's types where a format has a single bedroom type."""

Export = Literal["jsonl", "housegan", "svg", "geojson", "dxf"]
"""Output formats of diagrams."""


def pairs(rooms: int) -> list[tuple[int, int]]:
    """Return the pairs of room slots i < j in token order."""
    return [(i, j) for i in range(rooms) for j in range(i + 1, rooms)]


def pair_index(i: int, j: int, rooms: int) -> int:
    """Return the index of the pair i < j among the edge tokens of diagrams with `rooms` room slots."""
    if not 0 <= i < j < rooms:
        raise ValueError(f"a pair needs 0 <= i < j < {rooms}, got ({i}, {j})")
    return i * (2 * rooms - i - 1) // 2 + j - i - 1
