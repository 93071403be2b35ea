"""Constraint rules in ids: the compiled form of a table of constraints. No torch, no numpy."""

from __future__ import annotations

from dataclasses import dataclass

from dither.registry.spec.misfit import Path

from ..vocabulary import ENTRANCE, LIVING, NO_EDGE, RELATED, RELATIONS

__all__ = ["Adjacency", "Buildable", "Count", "PairRelation", "RoomType", "Rule", "Size", "reversed_ids"]


@dataclass(frozen=True)
class Size:
    """The diagram has `low` to `high` rooms. `path`, of every rule: keys from the table to the constraint."""

    path: Path
    low: int
    high: int


@dataclass(frozen=True)
class RoomType:
    """Room number `room` exists and has one of the types."""

    path: Path
    room: int
    types: frozenset[int]


@dataclass(frozen=True)
class PairRelation:
    """Rooms i < j exist, and i has one of the relations to j, which may include `NO_EDGE`."""

    path: Path
    i: int
    j: int
    relations: frozenset[int]


@dataclass(frozen=True)
class Count:
    """`low` to `high` rooms have one of the types."""

    path: Path
    types: frozenset[int]
    low: int
    high: int


@dataclass(frozen=True)
class Adjacency:
    """Some room of the first types has one of the relations to one of the second; with `required` False, none has."""

    path: Path
    first: frozenset[int]
    second: frozenset[int]
    relations: frozenset[int] = RELATED
    required: bool = True


@dataclass(frozen=True)
class Buildable:
    """The diagram reaches validity level 5: valid program, and boxes without forbidden overlap realise it."""

    path: Path

    def counts(self) -> tuple[Count, Count]:
        """Return the counts that level 1 implies: one living room, at most one entrance."""
        return Count(self.path, frozenset({LIVING}), 1, 1), Count(self.path, frozenset({ENTRANCE}), 0, 1)


Rule = Size | RoomType | PairRelation | Count | Adjacency | Buildable


def reversed_ids(relations: frozenset[int]) -> frozenset[int]:
    """Return the opposite relations: right of for left of, surrounding for inside."""
    return frozenset(r if r == NO_EDGE else len(RELATIONS) - 1 - r for r in relations)
