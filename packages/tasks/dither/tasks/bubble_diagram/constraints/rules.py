"""Constraint rules in ids: the compiled form of a table of constraints. No torch, no numpy."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import pairwise
from math import inf
from typing import Final

from dither.registry.spec.misfit import Path

from ..vocabulary import AREAS, ENTRANCE, LIVING, NO_EDGE, RELATED, RELATIONS, ROOMS

__all__ = [
    "ALL",
    "FRONT",
    "Adjacency",
    "Area",
    "Buildable",
    "Count",
    "PairRelation",
    "Reachable",
    "RoomType",
    "Rule",
    "reversed_ids",
]

FRONT: Final = frozenset({-1})
"""The outside, in place of the types of a room."""

ALL: Final = frozenset(range(len(ROOMS)))
"""All types, for the number of rooms."""


@dataclass(frozen=True)
class RoomType:
    """Room number `room` exists and has one of the types. `path`, of every rule: keys from the table to it."""

    path: Path
    room: int
    types: frozenset[int]


@dataclass(frozen=True)
class PairRelation:
    """Rooms i < j exist, and i has one of the relations to j, which may include `NO_EDGE`.

    With `doors` the ids are those of doors instead, and `j` may be None for the front door of room
    i.
    """

    path: Path
    i: int
    j: int | None
    relations: frozenset[int]
    doors: bool = False


@dataclass(frozen=True)
class Count:
    """`low` to `high` rooms have one of the types."""

    path: Path
    types: frozenset[int]
    low: int
    high: int


@dataclass(frozen=True)
class Adjacency:
    """Some room of the first types has one of the relations to one of the second; with `required` False, none has.

    With `doors` the ids are those of doors instead, and `second` may be `FRONT` for the outside.
    """

    path: Path
    first: frozenset[int]
    second: frozenset[int]
    relations: frozenset[int] = RELATED
    required: bool = True
    doors: bool = False

    @property
    def reversed(self) -> frozenset[int]:
        """Ids of the relations of the second room to the first."""
        return self.relations if self.doors else reversed_ids(self.relations)


@dataclass(frozen=True)
class Area:
    """Room number `room` exists and has, or all rooms of some types have, an area within bounds in square metres."""

    path: Path
    room: int | None
    types: frozenset[int]
    low: float
    high: float

    @property
    def bins(self) -> frozenset[int]:
        """Area bins that share more than a point with the bounds."""
        bins = enumerate(pairwise((0.0, *AREAS[1:-1], inf)))
        return frozenset(
            number for number, (low, high) in bins if max(low, self.low) < min(high, self.high)
        )


@dataclass(frozen=True)
class Reachable:
    """Doors join all rooms, only close ones, and exactly one room has a front door."""

    path: Path


@dataclass(frozen=True)
class Buildable:
    """The diagram reaches validity level 5: valid program, and boxes without forbidden overlap realise it."""

    path: Path

    def counts(self) -> tuple[Count, Count]:
        """Return the counts that level 1 implies: one living room, at most one entrance."""
        return Count(self.path, frozenset({LIVING}), 1, 1), Count(
            self.path, frozenset({ENTRANCE}), 0, 1
        )


Rule = RoomType | PairRelation | Count | Adjacency | Buildable | Area | Reachable


def reversed_ids(relations: frozenset[int]) -> frozenset[int]:
    """Return the opposite relations: right of for left of, surrounding for inside."""
    return frozenset(r if r == NO_EDGE else len(RELATIONS) - 1 - r for r in relations)
