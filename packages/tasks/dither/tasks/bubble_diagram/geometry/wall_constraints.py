"""Translate the relations of a diagram into difference constraints on the walls of its rooms, and close these.

Graph2Plan's rule (`relations`) only compares the start, middle and end of rooms along an axis, so
every condition is a `Bound`. A pair of rooms contributes fixed bounds, and choices between
alternative bounds, such as the side on which rooms that are not close are separated. Marks are in
half pixels, so that each is an integer. Bounds are closed as difference bound matrices (Dill 1989)
by Floyd-Warshall: a contradiction proves that a diagram is impossible, the absence of one proves
nothing.
Letters: N diagrams, R rooms, E pairs, C choices, A alternatives of a choice, B bounds of an
alternative; M = 3 R + 1 marks.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import product
from typing import Final, NamedTuple

import numpy as np
from jaxtyping import Bool, Int

from ..relations import GRID, NEAR, RULE
from ..vocabulary import ABOVE, BELOW, INSIDE, LEFT, NO_EDGE, RIGHT, SURROUNDING, pairs

__all__ = [
    "DISJOINT",
    "END",
    "MIDDLE",
    "OPEN",
    "START",
    "Canvas",
    "WallConstraints",
    "close_bounds",
    "constraint_table",
    "initial_bounds",
    "mark_values",
    "wall_constraints_of",
]

START: Final = 0
MIDDLE: Final = 1
END: Final = 2
"""Room r has marks 3 r + START, 3 r + MIDDLE and 3 r + END; the last mark is the canvas origin,
0."""

Bound = tuple[int, int, int, int]
"""(axis, first, second, most): along the axis, mark `first` minus mark `second` is at most `most`
half pixels."""

Choice = Sequence[Sequence[Bound]]
"""Alternatives; all bounds of at least one of them hold."""

OPEN: Final = NO_EDGE + 1
"""Relation of an undecided pair, which has no constraints."""

DISJOINT: Final = OPEN + 1
"""Added to the relation of a pair whose boxes must not overlap; without effect on inside and
surrounding."""

_FIXED = 8
_CHOICES = 2
_ALTERNATIVES = 4
_BOUNDS = 4
"""Largest number of fixed bounds and choices of a relation, of alternatives of a choice, and of
their bounds."""


@dataclass(frozen=True)
class Canvas:
    """Side of the square canvas, and minimum side of a room in pixels; 12 are about 0.8 m."""

    side: int = GRID
    smallest: int = 12


@dataclass(frozen=True)
class WallConstraints:
    """Difference constraints of a diagram.

    Attributes:
        constrained: True for the pairs of rooms that contribute constraints.
        disjoint: True for those of them whose boxes must not overlap.
        fixed: Bounds that hold, one per row.
        choices: Bounds of each alternative of each choice, padded with trivial bounds.
        available: True for alternatives that are not padding.
    """

    rooms: int
    edges: Int[np.ndarray, " E"]
    constrained: Bool[np.ndarray, " E"]
    disjoint: Bool[np.ndarray, " E"]
    fixed: Int[np.ndarray, "F 4"]
    choices: Int[np.ndarray, "C A B 4"]
    available: Bool[np.ndarray, "C A"]

    def closed_bounds(self, canvas: Canvas) -> Int[np.ndarray, "2 M M"] | None:
        """Return the fixed bounds on a canvas, closed; None if they contradict each other."""
        most = initial_bounds(self.rooms, canvas).copy()
        np.minimum.at(most, tuple(self.fixed[:, :3].T), self.fixed[:, 3])
        return most if close_bounds(most[None]).all() else None


class Table(NamedTuple):
    """Constraints of each relation, then of each with `DISJOINT`, of each pair of rooms; padded with trivial bounds.

    `available` is True for alternatives; each choice has at least one, which may be trivial.
    """

    fixed: Int[np.ndarray, "E 24 F 4"]
    choices: Int[np.ndarray, "E 24 C A B 4"]
    available: Bool[np.ndarray, "E 24 C A"]


@lru_cache(maxsize=64)
def constraint_table(rooms: int) -> Table:
    """Return the constraints of all relations of rooms i < j."""
    pairwise = [
        [
            ([], []) if r == OPEN else _constraints_of(i, j, r, apart)
            for apart in (False, True)
            for r in range(OPEN + 1)
        ]
        for i, j in pairs(rooms)
    ]
    fixed = np.zeros((len(pairwise), 2 * DISJOINT, _FIXED, 4), np.int16)
    choices = np.zeros((len(pairwise), 2 * DISJOINT, _CHOICES, _ALTERNATIVES, _BOUNDS, 4), np.int16)
    available = np.zeros(choices.shape[:4], bool)
    available[..., 0] = True
    for pair, row in enumerate(pairwise):
        for relation, (bounds, pair_choices) in enumerate(row):
            fixed[pair, relation, : len(bounds)] = np.array(bounds).reshape(-1, 4)
            for number, choice in enumerate(pair_choices):
                available[pair, relation, number, : len(choice)] = True
                for index, alternative in enumerate(choice):
                    choices[pair, relation, number, index, : len(alternative)] = alternative
    return Table(fixed, choices, available)


def wall_constraints_of(
    edges: Int[np.ndarray, " E"],
    rooms: int,
    *,
    apart: bool | Bool[np.ndarray, " E"] = True,
    disjoint: bool | Bool[np.ndarray, " E"] = False,
) -> WallConstraints:
    """Return the constraints of a diagram.

    `apart`: whether unrelated rooms must be separated, `disjoint`: whether others must not overlap;
    for all or by pair.
    """
    constrained = np.broadcast_to(apart, edges.shape) | (edges != NO_EDGE)
    disjoint = np.asarray(constrained & disjoint)
    selected = (
        np.arange(len(edges)),
        np.where(constrained, edges + np.multiply(disjoint, DISJOINT), OPEN),
    )
    fixed, choices, available = (part[selected] for part in constraint_table(rooms))
    choices = choices.reshape(-1, *choices.shape[2:]).astype(np.int64)
    fixed = fixed.reshape(-1, 4).astype(np.int64)
    real = choices.any((1, 2, 3))
    available = available.reshape(-1, _ALTERNATIVES)
    return WallConstraints(
        rooms, edges, constrained, disjoint, fixed[fixed.any(1)], choices[real], available[real]
    )


def mark_values(walls: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "2 M"]:
    """Return the marks of rooms in half pixels, by axis."""
    low = walls[:, :2].T
    high = walls[:, 2:].T
    marks = np.stack([2 * low, low + high, 2 * high], -1).reshape(2, -1)
    return np.concatenate([marks, np.zeros((2, 1), marks.dtype)], 1)


def _constraints_of(
    i: int,
    j: int,
    relation: int,
    disjoint: bool,
) -> tuple[list[Bound], list[Choice]]:
    """Return the fixed bounds and the choices of the relation of room i to room j, or `NO_EDGE`."""
    if relation == NO_EDGE:  # a choice of the side on which the rooms are more than `NEAR` apart
        return [], [
            [
                [(axis, 3 * u + END, 3 * v + START, -2 * NEAR - 2)]
                for axis in (0, 1)
                for u, v in ((i, j), (j, i))
            ]
        ]
    beyond = [
        [(axis, 3 * i + START, 3 * j + START, -2), (axis, 3 * j + END, 3 * i + END, -2)]
        for axis in (0, 1)
    ]
    if relation == SURROUNDING:
        return [bound for both in beyond for bound in both], []
    near = [
        (axis, 3 * u + START, 3 * v + END, 2 * NEAR) for axis in (0, 1) for u, v in ((i, j), (j, i))
    ]
    # The negation of each bound, at whole pixels.
    within: Choice = [
        [(axis, second, first, -most - 2)] for both in beyond for axis, first, second, most in both
    ]
    pieces = [list(_cell_bounds(i, j, rows, columns)) for rows, columns in _pieces(relation)]
    hull = list(_cell_bounds(i, j, *_hull(relation)))
    if relation == INSIDE:
        return hull, [within]
    cells: list[Choice] = [pieces] * (len(pieces) > 1)
    if not disjoint:
        return near + hull, [within, *cells]
    # The centre of room i lies on one or two sides of room j, and disjoint boxes are separated on
    # one of them.
    sides: Choice = [
        [(axis, 3 * u + END, 3 * v + START, 0)]
        for axis, u, v, where in (
            (0, i, j, LEFT),
            (0, j, i, RIGHT),
            (1, i, j, ABOVE),
            (1, j, i, BELOW),
        )
        if relation in where
    ]
    if len(sides) > 1:
        return near + hull, [sides, *cells]
    return [*near, *hull, *sides[0]], cells


def _cell_bounds(
    i: int,
    j: int,
    rows: tuple[int, int],
    columns: tuple[int, int],
) -> Iterator[Bound]:
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
    good = [
        (rows, columns)
        for rows, columns in product(ranges, ranges)
        if (RULE[rows[0] : rows[1] + 1, columns[0] : columns[1] + 1] == relation).all()
    ]

    def covers(one: tuple[tuple[int, int], ...], other: tuple[tuple[int, int], ...]) -> bool:
        return all(a <= c and d <= b for (a, b), (c, d) in zip(one, other, strict=True))

    largest = [
        one for one in good if not any(other != one and covers(other, one) for other in good)
    ]
    return sorted(
        largest, key=lambda piece: -sum(edge in (0, 2, 4) for edge in (*piece[0], *piece[1]))
    )


@lru_cache(maxsize=64)
def initial_bounds(rooms: int, canvas: Canvas) -> Int[np.ndarray, "2 M M"]:
    """Return the bounds of unrelated rooms on a canvas. Read-only.

    Entry (axis, p, q) is the upper bound of mark p minus mark q, in half pixels.
    """
    marks = 3 * rooms + 1
    most = np.full((2, marks, marks), 2 * canvas.side, np.int64)
    first = 3 * np.arange(rooms)
    most[:, first + START, first + MIDDLE] = most[:, first + MIDDLE, first + END] = -canvas.smallest
    most[:, first + START, first + END] = -2 * canvas.smallest
    most[:, -1, :-1] = 0
    most[:, np.arange(marks), np.arange(marks)] = 0
    close_bounds(most[None])
    most.flags.writeable = False
    return most


def close_bounds(most: Int[np.ndarray, "N 2 M M"], rounds: int = 4) -> Bool[np.ndarray, " N"]:
    """Compute shortest paths in place, tightening middles between rounds; False where there is a contradiction.

    After four rounds hardly anything changes.
    """
    for number in range(rounds):
        if number:
            _tighten_middles(most)
        for mark in range(most.shape[-1]):
            np.minimum(most, most[..., mark, None] + most[..., mark, None, :], out=most)
    least: Int[np.ndarray, " N"] = np.diagonal(most, axis1=-2, axis2=-1).min((-1, -2))
    return least >= 0


def _tighten_middles(most: Int[np.ndarray, "*n M M"]) -> None:
    """Use that a middle is half of start plus end, and that starts and ends are at whole pixels."""
    walls = np.arange(most.shape[-1]) % 3 != MIDDLE
    walls[-1] = True
    most[..., walls[:, None] & walls] &= -2
    s, c, e = (most[..., mark:-1:3, :] for mark in (START, MIDDLE, END))
    np.minimum(c, (s + e) >> 1, out=c)
    from_s, from_c, from_e = (most[..., mark:-1:3] for mark in (START, MIDDLE, END))
    np.minimum(from_c, (from_s + from_e) >> 1, out=from_c)
    np.minimum(s, 2 * c + from_e.swapaxes(-1, -2), out=s)
    np.minimum(e, 2 * c + from_s.swapaxes(-1, -2), out=e)
    np.minimum(from_s, 2 * from_c + e.swapaxes(-1, -2), out=from_s)
    np.minimum(from_e, 2 * from_c + s.swapaxes(-1, -2), out=from_e)
