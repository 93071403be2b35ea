"""Translate the relations of a diagram into difference constraints on the walls of its rooms.

Along each axis a room has three marks, start, middle and end, in half pixels, so that each is an integer. Graph2Plan's
rule (`relations`) only compares marks, so every condition is a `Bound`: the difference of two marks on one axis is at
most a constant. A pair of rooms contributes fixed bounds, and choices between alternative bounds: rooms that are not
close are separated on the left, above, on the right, or below.

Letters: R rooms, C choices, A alternatives of a choice, B bounds of an alternative; M = 3 R + 1 marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final

import numpy as np
from jaxtyping import Bool, Int

from ..relations import GRID, NEAR, RULE
from ..vocabulary import INSIDE, NO_EDGE, SURROUNDING

__all__ = [
    "END",
    "MIDDLE",
    "START",
    "Bound",
    "Canvas",
    "WallConstraints",
    "mark_values",
    "relation_constraints",
    "wall_constraints_of",
]

START: Final = 0
MIDDLE: Final = 1
END: Final = 2
"""Room r has marks 3 r + START, 3 r + MIDDLE and 3 r + END; the last mark is the canvas origin, 0."""

Bound = tuple[int, int, int, int]
"""(axis, first, second, most): along the axis, mark `first` minus mark `second` is at most `most` half pixels."""

Choice = Sequence[Sequence[Bound]]
"""Alternatives; all bounds of at least one of them hold."""

_ALTERNATIVES, _BOUNDS = 4, 4


@dataclass(frozen=True)
class Canvas:
    """Size limits of a plan.

    Attributes:
        side: Side of the square canvas in pixels.
        smallest: Minimum side of a room in pixels; 12 are about 0.8 m.
    """

    side: int = GRID
    smallest: int = 12


@dataclass(frozen=True)
class WallConstraints:
    """Difference constraints of a diagram.

    Attributes:
        rooms: Number of rooms.
        edges: Relation of each pair of rooms.
        constrained: True for the pairs that contribute constraints.
        fixed: Bounds that hold, one per row.
        choices: Bounds of each alternative of each choice, padded with trivial bounds.
        available: True for alternatives that are not padding.
    """

    rooms: int
    edges: Int[np.ndarray, " E"]
    constrained: Bool[np.ndarray, " E"]
    fixed: Int[np.ndarray, "F 4"]
    choices: Int[np.ndarray, "C A B 4"]
    available: Bool[np.ndarray, "C A"]


def wall_constraints_of(
    edges: Int[np.ndarray, " E"], rooms: int, *, apart: bool | Bool[np.ndarray, " E"] = True
) -> WallConstraints:
    """Return the constraints of a diagram.

    Args:
        edges: Relation of each pair of rooms i < j, or `NO_EDGE`.
        rooms: Number of rooms.
        apart: Whether unrelated rooms must be separated, for all pairs or by pair.
    """
    fixed: list[Bound] = []
    choices: list[Choice] = []
    pairs = ((i, j) for i in range(rooms) for j in range(i + 1, rooms))
    edges = np.asarray(edges)
    constrained = np.broadcast_to(apart, edges.shape) | (edges != NO_EDGE)
    for (i, j), relation, counted in zip(pairs, edges.tolist(), constrained.tolist(), strict=True):
        if counted:
            bounds, pair_choices = relation_constraints(i, j, relation)
            fixed += bounds
            choices += pair_choices
    table = np.zeros((len(choices), _ALTERNATIVES, _BOUNDS, 4), np.int64)
    available = np.zeros((len(choices), _ALTERNATIVES), bool)
    for number, choice in enumerate(choices):
        available[number, : len(choice)] = True
        for index, alternative in enumerate(choice):
            table[number, index, : len(alternative)] = alternative
    return WallConstraints(rooms, edges, constrained, np.array(fixed, np.int64).reshape(-1, 4), table, available)


def mark_values(walls: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "2 M"]:
    """Return the marks of rooms in half pixels, by axis."""
    low, high = walls[:, :2].T, walls[:, 2:].T
    marks = np.stack([2 * low, low + high, 2 * high], -1).reshape(2, -1)
    return np.concatenate([marks, np.zeros((2, 1), marks.dtype)], 1)


def relation_constraints(i: int, j: int, relation: int) -> tuple[list[Bound], list[Choice]]:
    """Return the fixed bounds and the choices of the relation of room i to room j, or `NO_EDGE`. Read-only."""
    return ([], [_apart(i, j)]) if relation == NO_EDGE else _related(i, j, relation)


@lru_cache(maxsize=4096)
def _apart(i: int, j: int) -> Choice:
    """The choice of a side on which two rooms are more than `NEAR` apart."""
    return [[(axis, 3 * u + END, 3 * v + START, -2 * NEAR - 2)] for axis in (0, 1) for u, v in ((i, j), (j, i))]


@lru_cache(maxsize=32768)
def _related(i: int, j: int, relation: int) -> tuple[list[Bound], list[Choice]]:
    """Fixed bounds and choices of a relation of room i to room j."""
    beyond = [[(axis, 3 * i + START, 3 * j + START, -2), (axis, 3 * j + END, 3 * i + END, -2)] for axis in (0, 1)]
    if relation == SURROUNDING:
        return [bound for both in beyond for bound in both], []
    near = [(axis, 3 * u + START, 3 * v + END, 2 * NEAR) for axis in (0, 1) for u, v in ((i, j), (j, i))]
    within: Choice = [[_negation(bound)] for both in beyond for bound in both]
    pieces = [list(_cell_bounds(i, j, rows, columns)) for rows, columns in _pieces(relation)]
    hull = list(_cell_bounds(i, j, *_hull(relation)))
    return (hull if relation == INSIDE else near + hull), [within] + [pieces] * (len(pieces) > 1)


def _negation(bound: Bound) -> Bound:
    """The negation of a bound on marks at whole pixels."""
    axis, first, second, most = bound
    return axis, second, first, -most - 2


def _cell_bounds(i: int, j: int, rows: tuple[int, int], columns: tuple[int, int]) -> Iterator[Bound]:
    """Bounds that put the middle of room i into a range of cells of `RULE` relative to room j."""
    middle = 3 * i + MIDDLE
    for axis, (least, most) in ((0, columns), (1, rows)):
        if least > 0:
            yield axis, 3 * j + (START if least < 3 else END), middle, -(1 - least % 2)
        if most < 4:
            yield axis, middle, 3 * j + (START if most < 2 else END), most % 2 - 1


@lru_cache(maxsize=16)
def _hull(relation: int) -> tuple[tuple[int, int], tuple[int, int]]:
    """First and last row, and first and last column, of the cells of a relation."""
    rows, columns = np.nonzero(np.equal(RULE, relation))
    return (int(rows.min()), int(rows.max())), (int(columns.min()), int(columns.max()))


@lru_cache(maxsize=16)
def _pieces(relation: int) -> list[tuple[tuple[int, int], tuple[int, int]]]:
    """Maximal rectangles of cells that contain one relation only, those with most open sides first."""
    ranges = [(a, b) for a in range(5) for b in range(a, 5)]
    good = [(rows, columns) for rows, columns in product(ranges, ranges)
            if (RULE[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] == relation).all()]  # fmt: skip

    def covers(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> bool:
        return all(a <= c and d <= b for (a, b), (c, d) in zip(one, other, strict=True))

    largest = [one for one in good if not any(other != one and covers(other, one) for other in good)]
    return sorted(largest, key=lambda piece: -sum(edge in (0, 2, 4) for edge in (*piece[0], *piece[1])))
