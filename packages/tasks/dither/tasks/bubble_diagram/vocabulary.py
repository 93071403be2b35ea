"""Graph2Plan's words: thirteen types of room and ten relations, their ids, names and colours. No torch, no numpy.

A sample is a row of tokens: one per room slot ("nodes"), then one per pair of slots i < j ("edges"), row after row of
the upper triangle: (0,1), (0,2), ..., (0,R-1), (1,2), ... The token of a pair says how room i lies to room j.
Ids as in Hu et al., Graph2Plan, SIGGRAPH 2020 (arXiv 2004.13204).
"""

from __future__ import annotations

from typing import Final

__all__ = [
    "COLOURS",
    "EDGE_MASK",
    "EDGE_PAD",
    "EDGE_SIZE",
    "INSIDE",
    "LIVING",
    "NODE_MASK",
    "NODE_PAD",
    "NODE_SIZE",
    "NO_EDGE",
    "RELATIONS",
    "ROOMS",
    "ROOM_COUNTS",
    "SHORT",
    "SURROUNDING",
    "pair_index",
    "pairs",
]

ROOMS: Final = (
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
)
"""Types of room by id."""

ROOM_COUNTS: Final = {4: 0.003, 5: 0.072, 6: 0.311, 7: 0.362, 8: 0.252}
"""Share of the plans of RPLAN, and of made-up ones, with so many rooms."""

NODE_MASK: Final = 13
NODE_PAD: Final = 14
NODE_SIZE: Final = 15
"""MASK, PAD and the number of ids of a room slot."""

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
"""Relations by id: how the first room of a pair lies to the second. y grows downwards."""

INSIDE: Final = 4
SURROUNDING: Final = 5
"""The two relations that say that one room lies about the other."""

NO_EDGE: Final = 10
"""The two rooms are not near each other. It is data, unlike MASK and PAD."""

EDGE_MASK: Final = 11
EDGE_PAD: Final = 12
EDGE_SIZE: Final = 13
"""MASK, PAD and the number of ids of a pair of slots."""

SHORT: Final = (
    "Living",
    "Master",
    "Kitchen",
    "Bath",
    "Dining",
    "Child",
    "Study",
    "Second",
    "Guest",
    "Balcony",
    "Entry",
    "Storage",
    "Closet",
)
"""What stands on a room in a picture."""

COLOURS: Final = (
    "#f6ecd2",  # LivingRoom
    "#e4888e",  # MasterRoom
    "#d0b86c",  # Kitchen
    "#b0e0fe",  # Bathroom
    "#9fa23b",  # DiningRoom
    "#b9b3ff",  # ChildRoom
    "#488eb2",  # StudyRoom
    "#8493e6",  # SecondRoom
    "#aa6d80",  # GuestRoom
    "#cbe48d",  # Balcony
    "#52b6bc",  # Entrance
    "#708539",  # Storage
    "#82d7b7",  # Wall-in
)
"""Fill of a room in a picture, by type: as far from each other as muted colours can be, for eyes that see all colours
and for those that lack one of the three kinds of cone."""


def pairs(rooms: int) -> list[tuple[int, int]]:
    """Return the pairs of room slots i < j in the order of their tokens."""
    return [(i, j) for i in range(rooms) for j in range(i + 1, rooms)]


def pair_index(i: int, j: int, rooms: int) -> int:
    """Return the place of the pair i < j among the edge tokens of diagrams of up to `rooms` rooms."""
    if not 0 <= i < j < rooms:
        raise ValueError(f"a pair needs 0 <= i < j < {rooms}, got ({i}, {j})")
    return i * (2 * rooms - i - 1) // 2 + j - i - 1


ROOM_IDS = {name: index for index, name in enumerate(ROOMS)}
LIVING: Final = ROOM_IDS["LivingRoom"]
