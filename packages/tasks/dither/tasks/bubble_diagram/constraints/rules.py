"""Constraint rules in ids: the compiled form of a table of constraints. No torch, no numpy."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from itertools import pairwise
from math import inf

from dither.registry.spec.misfit import Path

from ..vocabulary import AREAS, ENTRANCE, LIVING, NO_EDGE, RELATED, RELATIONS, ROOMS

FRONT = frozenset({-1})
"""The outside, in place of the types of a room."""

ALL = frozenset(range(len(ROOMS)))
"""All types, for the number of rooms."""


@dataclass(frozen=True)
class _Rule:
    """A constraint; `path` are the keys from the table to it."""

    path: Path

    # No field of the dataclass, as it has no annotation.
    doors = False
    """Whether the rule is on doors."""

    @property
    def separates(self) -> bool:
        """Whether the rule may require rooms that are not close."""
        return False


@dataclass(frozen=True)
class RoomType(_Rule):
    """Room number `room` exists and has one of the types."""

    room: int
    types: frozenset[int]


@dataclass(frozen=True)
class PairRelation(_Rule):
    """Rooms i < j exist, and i has one of the relations to j, which may include `NO_EDGE`.

    With `doors` the ids are those of doors instead, and `j` may be None for the front door of room
    i.
    """

    i: int
    j: int | None
    relations: frozenset[int]
    doors: bool = False

    @property
    def separates(self) -> bool:
        return not self.doors and self.relations != RELATED


@dataclass(frozen=True)
class Count(_Rule):
    """`low` to `high` rooms have one of the types."""

    types: frozenset[int]
    low: int
    high: int


@dataclass(frozen=True)
class Adjacency(_Rule):
    """Some room of the first types has one of the relations to one of the second.

    With `required` False, no such rooms have one of them.
    With `doors` the ids are those of doors instead, and `second` may be `FRONT` for the outside.
    """

    first: frozenset[int]
    second: frozenset[int]
    relations: frozenset[int] = RELATED
    required: bool = True
    doors: bool = False

    @property
    def separates(self) -> bool:
        return not self.doors and (self.relations != RELATED or not self.required)

    @property
    def reversed(self) -> frozenset[int]:
        """Ids of the relations of the second room to the first."""
        if self.doors:
            return self.relations
        return reversed_ids(self.relations)


@dataclass(frozen=True)
class Area(_Rule):
    """A room, or all rooms of some types, have an area within bounds in square metres.

    Room number `room`, if it is not None, must exist.
    """

    room: int | None
    types: frozenset[int]
    low: float
    high: float

    @property
    def bins(self) -> frozenset[int]:
        """Area bins that share more than a point with the bounds."""
        # The first and the last bin also hold smaller and larger rooms.
        bounds = pairwise((0.0, *AREAS[1:-1], inf))
        shared = [max(low, self.low) < min(high, self.high) for low, high in bounds]
        return frozenset(number for number, overlaps in enumerate(shared) if overlaps)


@dataclass(frozen=True)
class Reachable(_Rule):
    """Doors join all rooms, only close ones, and exactly one room has a front door."""

    doors = True


@dataclass(frozen=True)
class Buildable(_Rule):
    """The diagram reaches level 5: a valid program, and boxes without forbidden overlap."""

    def counts(self) -> tuple[Count, Count]:
        """Return the counts that level 1 implies: one living room, at most one entrance."""
        living = Count(self.path, frozenset({LIVING}), 1, 1)
        return living, Count(self.path, frozenset({ENTRANCE}), 0, 1)


@dataclass(frozen=True)
class Dwelling(Buildable):
    """The layout of the diagram is a dwelling, level 6; see `geometry.dwelling`.

    `areas` are usual ones by type, in square metres, and `ranges` further options of
    `DwellingLimits`.
    """

    areas: Mapping[int, tuple[float, float]] = field(default_factory=dict)
    ranges: Mapping[str, float] = field(default_factory=dict)


Rule = RoomType | PairRelation | Count | Adjacency | Buildable | Area | Reachable


def reversed_ids(relations: frozenset[int]) -> frozenset[int]:
    """Return the opposite relations: right of for left of, surrounding for inside."""
    # Ids are in an order in which opposite relations mirror each other.
    last = len(RELATIONS) - 1
    return frozenset(r if r == NO_EDGE else last - r for r in relations)
