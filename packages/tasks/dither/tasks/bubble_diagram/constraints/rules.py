"""What a diagram must fulfil, in ids: the rules that a table of constraints comes down to. No torch, no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

from dither.registry.spec.misfit import Path

from ..vocabulary import NO_EDGE, RELATIONS, ROOMS

__all__ = [
    "EVERY_TYPE",
    "NEAR",
    "Adjacency",
    "Buildable",
    "Count",
    "PairRelation",
    "RoomType",
    "Rule",
    "Size",
    "turned",
]

EVERY_TYPE: Final = frozenset(range(len(ROOMS)))
"""Ids of all types of room."""

NEAR: Final = frozenset(range(len(RELATIONS)))
"""Relations of two rooms that are near each other: all but `NO_EDGE`."""


@dataclass(frozen=True)
class Size:
    """The diagram has `low` to `high` rooms.

    Attributes:
        path: Keys from the table down to what says so; of every rule.
    """

    path: Path
    low: int
    high: int


@dataclass(frozen=True)
class RoomType:
    """There is a room with this number, and it is of one of these types."""

    path: Path
    room: int
    types: frozenset[int]


@dataclass(frozen=True)
class PairRelation:
    """There are rooms with these numbers, i < j, and i lies to j in one of these ways; `NO_EDGE` may be one."""

    path: Path
    i: int
    j: int
    relations: frozenset[int]


@dataclass(frozen=True)
class Count:
    """From `low` to `high` rooms are of one of these types."""

    path: Path
    types: frozenset[int]
    low: int
    high: int


@dataclass(frozen=True)
class Adjacency:
    """A room of the first types lies to one of the second in one of these ways; or, unless `wanted`, none does."""

    path: Path
    first: frozenset[int]
    second: frozenset[int]
    relations: frozenset[int] = NEAR
    wanted: bool = True


@dataclass(frozen=True)
class Buildable:
    """There are boxes that give the diagram, which has one living room and hangs together: level 4 (see `levels`)."""

    path: Path

    def counts(self) -> tuple[Count, Count]:
        """Return what level 1 says of the rooms: one living room, and one entrance or none."""
        living, entrance = ROOMS.index("LivingRoom"), ROOMS.index("Entrance")
        return Count(self.path, frozenset({living}), 1, 1), Count(self.path, frozenset({entrance}), 0, 1)


Rule = Size | RoomType | PairRelation | Count | Adjacency | Buildable


def turned(relations: frozenset[int]) -> frozenset[int]:
    """Return the relations seen from the other room: right of for left of, surrounding for inside."""
    return frozenset(r if r == NO_EDGE else len(RELATIONS) - 1 - r for r in relations)
