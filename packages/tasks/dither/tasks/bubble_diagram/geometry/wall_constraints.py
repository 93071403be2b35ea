"""Difference constraints on the walls of rooms that follow from the relations of a diagram.

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

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import lru_cache
from itertools import combinations_with_replacement, product
from typing import NamedTuple

import numpy as np
from jaxtyping import Bool, Int
from numpy import ndarray

from ..arrays import Boxes, PairRow, RelationRow, Rows
from ..relations import NEAR, RULE, corners
from ..vocabulary import (
    ABOVE,
    BELOW,
    GRID,
    INSIDE,
    LEFT,
    NO_EDGE,
    RIGHT,
    SURROUNDING,
    pairs,
)

START = 0
MIDDLE = 1
END = 2
"""Room r has marks 3 r + START, 3 r + MIDDLE and 3 r + END; the last mark is the canvas origin,
0."""

Bound = tuple[int, int, int, int]
"""(axis, first, second, most): along the axis, mark `first` minus mark `second` is at most `most`
half pixels."""

_Cells = tuple[tuple[int, int], tuple[int, int]]
"""First and last row, and first and last column, of a rectangle of cells of `RULE`."""

Choice = Sequence[Sequence[Bound]]
"""Alternatives; all bounds of at least one of them hold."""

OPEN = NO_EDGE + 1
"""Relation of an undecided pair, which has no constraints."""

DISJOINT = OPEN + 1
"""Added to the relation of a pair whose boxes must not overlap; without effect on inside and
surrounding."""

_FIXED = 8
"""Most fixed bounds of a relation."""

_CHOICES = 2
"""Most choices of a relation."""

_ALTERNATIVES = 4
"""Most alternatives of a choice."""

_BOUNDS = 4
"""Most bounds of an alternative."""

_WALL = 4
"""Pixels between rooms of any relation."""

_Matrices = Int[ndarray, "*n M M"]


SMALLEST = 12
"""Minimum side of a room in pixels, about 0.8 m."""


@dataclass(frozen=True)
class Canvas:
    """Side of the square canvas, and minimum side of a room in pixels."""

    side: int = GRID
    smallest: int = SMALLEST


@dataclass(frozen=True)
class WallConstraints:
    """Difference constraints of a diagram.

    Attributes:
        constrained: True for the pairs of rooms that contribute constraints.
        disjoint: True for those of them whose boxes must not overlap.
        fixed: Bounds that hold, one per row.
        choices: Bounds of each alternative of each choice, padded with trivial bounds.
        available: True for alternatives that are not padding.
        pinned: Place of each wall (4 room + side) that must not move.
        rectangles: Each room is inside one of them; None if rooms may be anywhere.
        unlabelled: Pairs of rooms of any relation that do not overlap, and whether they are near.
    """

    rooms: int
    edges: RelationRow
    constrained: PairRow
    disjoint: PairRow
    fixed: Int[ndarray, "F 4"]
    choices: Int[ndarray, "C A B 4"]
    available: Bool[ndarray, "C A"]
    pinned: Mapping[int, int] = field(default_factory=dict)
    rectangles: Boxes | None = None
    unlabelled: tuple[tuple[int, int, bool], ...] = ()

    def with_unlabelled(
        self, unlabelled: Sequence[tuple[int, int, bool]]
    ) -> WallConstraints:
        """Return the constraints with pairs (i, j, near) of rooms that must not overlap."""
        fixed = list(self.fixed.tolist())
        choices = np.zeros((len(unlabelled), 4, 1, 4), np.int64)
        for number, (i, j, near) in enumerate(unlabelled):
            for side, (axis, u, v) in enumerate(_ways(i, j)):
                choices[number, side] = _before(axis, u, v, -2 * _WALL)
                if near:
                    start = 3 * u + START
                    end = 3 * v + END
                    fixed.append((axis, start, end, 2 * NEAR))
        shown = replace(
            self,
            fixed=np.array(fixed, np.int64).reshape(-1, 4),
            unlabelled=tuple(unlabelled),
        )
        return shown._with_choices(choices) if unlabelled else shown

    def _with_choices(self, choices: Int[ndarray, "C A B 4"]) -> WallConstraints:
        """Return the constraints with choices of which every alternative exists."""
        exist = np.ones(choices.shape[:2], bool)
        parts = ((self.choices, self.available), (choices, exist))
        # Choices have as many alternatives, and these as many bounds, as the largest one.
        most = max(part.shape[1] for part, _ in parts)
        bounds = max(part.shape[2] for part, _ in parts)
        padded = []
        available = []
        for part, is_available in parts:
            missing = most - part.shape[1]
            fewer = bounds - part.shape[2]
            widths = [(0, 0), (0, missing), (0, fewer), (0, 0)]
            padded.append(np.pad(part, widths))
            available.append(np.pad(is_available, widths[:2]))
        return replace(
            self, choices=np.concatenate(padded), available=np.concatenate(available)
        )

    def separates(self, boxes: Boxes) -> bool:
        """Whether pairs of any relation do not overlap, and those that must be near are."""
        for i, j, near in self.unlabelled:
            after = boxes[j, :2] - boxes[i, 2:]
            before = boxes[i, :2] - boxes[j, 2:]
            gap = max(after.max(), before.max())
            if gap < 0 or (near and gap > NEAR):
                return False
        return True

    def inside(self, rectangles: Boxes) -> WallConstraints:
        """Return the constraints with every room inside one of some rectangles."""
        origin = 3 * self.rooms
        bounds = np.zeros((self.rooms, len(rectangles), 4, 4), np.int64)
        for room in range(self.rooms):
            for side in range(4):
                axis = side % 2
                row = bounds[room, :, side]
                row[:, 0] = axis
                # A rectangle bounds the start of a room from below, and its end from above.
                if side < 2:
                    row[:, 1:3] = [origin, 3 * room + START]
                    row[:, 3] = -2 * rectangles[:, side]
                else:
                    row[:, 1:3] = [3 * room + END, origin]
                    row[:, 3] = 2 * rectangles[:, side]
        if len(rectangles) == 1:
            fixed = np.concatenate([self.fixed, bounds.reshape(-1, 4)])
            return replace(self, fixed=fixed, rectangles=rectangles)

        return replace(self, rectangles=rectangles)._with_choices(bounds)

    def contains(self, boxes: Boxes) -> bool:
        """Whether each box is inside one of the rectangles."""
        if self.rectangles is None:
            return True
        low, high = corners(boxes[:, None])
        inner, outer = corners(self.rectangles)
        inside: PairRow = np.logical_and(
            (low >= inner).all(-1), (high <= outer).all(-1)
        )
        return bool(inside.any(axis=1).all())

    def closed_bounds(self, canvas: Canvas) -> Int[ndarray, "2 M M"] | None:
        """Return the fixed bounds on a canvas, closed; None if they contradict each other."""
        most = initial_bounds(self.rooms, canvas).copy()
        # Several constraints may bound one pair of marks: the tightest counts.
        axis, first, second, bound = self.fixed.T
        np.minimum.at(most, (axis, first, second), bound)
        for wall, place in self.pinned.items():
            room, side = divmod(wall, 4)
            end = START if side < 2 else END
            mark = 3 * room + end
            # Distances from the origin, the last mark, and to it.
            along_axis = most[side % 2]
            along_axis[mark, -1] = min(along_axis[mark, -1], 2 * place)
            along_axis[-1, mark] = min(along_axis[-1, mark], -2 * place)

        consistent = close_bounds(most[None]).all()
        return most if consistent else None


class Table(NamedTuple):
    """Constraints of each relation, then of each with `DISJOINT`, of each pair of rooms.

    Padded with trivial bounds. `available` is True for alternatives; each choice has at least one,
    which may be trivial.
    """

    fixed: Int[ndarray, "E 24 F 4"]
    choices: Int[ndarray, "E 24 C A B 4"]
    available: Bool[ndarray, "E 24 C A"]


@lru_cache(maxsize=64)
def constraint_table(rooms: int) -> Table:
    """Return the constraints of all relations of rooms i < j."""
    shape = (len(pairs(rooms)), 2 * DISJOINT)
    fixed = np.zeros((*shape, _FIXED, 4), np.int16)
    choices = np.zeros((*shape, _CHOICES, _ALTERNATIVES, _BOUNDS, 4), np.int16)
    available = np.zeros((*shape, _CHOICES, _ALTERNATIVES), bool)
    # A trivial alternative, so that padding is never refuted.
    available[..., 0] = True
    for pair, (i, j) in enumerate(pairs(rooms)):
        for relation, disjoint in product(range(OPEN), (False, True)):
            column = relation
            if disjoint:
                column += DISJOINT
            bounds, alternatives_of = _constraints_of(i, j, relation, disjoint=disjoint)
            place = (pair, column)
            fixed[place][: len(bounds)] = np.array(bounds).reshape(-1, 4)
            for number, choice in enumerate(alternatives_of):
                available[place][number, : len(choice)] = True
                for index, alternative in enumerate(choice):
                    cell = choices[place][number, index]
                    cell[: len(alternative)] = alternative
    return Table(fixed, choices, available)


def wall_constraints_of(
    edges: RelationRow,
    rooms: int,
    *,
    apart: bool | PairRow = True,
    disjoint: bool | PairRow = False,
) -> WallConstraints:
    """Return the constraints of a diagram.

    `apart`: whether unrelated rooms must be separated, `disjoint`: whether others must not overlap;
    for all or by pair.
    """
    constrained = np.broadcast_to(apart, edges.shape) | (edges != NO_EDGE)
    disjoint = np.asarray(constrained & disjoint)
    relations = edges + np.where(disjoint, DISJOINT, 0)
    relations = np.where(constrained, relations, OPEN)
    table = constraint_table(rooms)
    numbers = np.arange(len(edges))
    fixed = table.fixed[numbers, relations].reshape(-1, 4).astype(np.int64)
    choices = table.choices[numbers, relations].astype(np.int64)
    choices = choices.reshape(-1, _ALTERNATIVES, _BOUNDS, 4)
    available = table.available[numbers, relations].reshape(-1, _ALTERNATIVES)

    # Padding is zeros throughout, which no bound of a relation is.
    real = choices.any((1, 2, 3))
    return WallConstraints(
        rooms=rooms,
        edges=edges,
        constrained=constrained,
        disjoint=disjoint,
        fixed=fixed[fixed.any(1)],
        choices=choices[real],
        available=available[real],
    )


def mark_values(walls: Boxes) -> Int[ndarray, "2 M"]:
    """Return the marks of rooms in half pixels, by axis."""
    low, high = corners(walls)
    marks = np.stack([2 * low, low + high, 2 * high], 1)
    marks = marks.reshape(-1, 2).T
    # The last mark is the origin of the canvas.
    return np.concatenate([marks, np.zeros((2, 1), marks.dtype)], 1)


def _constraints_of(
    i: int,
    j: int,
    relation: int,
    *,
    disjoint: bool,
) -> tuple[list[Bound], list[Choice]]:
    """Return the fixed bounds and the choices of the relation of room i to room j, or `NO_EDGE`."""
    # Room u ends at most `gap` half pixels after room v starts.
    gap = 2 * NEAR
    if relation == NO_EDGE:
        # A choice of the side on which the rooms are more than `NEAR` apart.
        apart = [[_before(axis, u, v, -gap - 2)] for axis, u, v in _ways(i, j)]
        return [], [apart]

    beyond: list[Bound] = []
    for axis in (0, 1):
        beyond.append((axis, 3 * i + START, 3 * j + START, -2))
        beyond.append((axis, 3 * j + END, 3 * i + END, -2))
    if relation == SURROUNDING:
        return beyond, []

    # Not surrounding: the negation of one of these bounds, at whole pixels.
    within: Choice = [
        [(axis, second, first, -most - 2)] for axis, first, second, most in beyond
    ]
    hull = list(_cell_bounds(i, j, *_hull(relation)))
    if relation == INSIDE:
        return hull, [within]

    fixed: list[Bound] = []
    for axis, u, v in _ways(i, j):
        fixed.append((axis, 3 * u + START, 3 * v + END, gap))
    fixed += hull

    choices: list[Choice] = []
    pieces = [
        list(_cell_bounds(i, j, rows, columns)) for rows, columns in _pieces(relation)
    ]
    if len(pieces) > 1:
        choices.append(pieces)
    if not disjoint:
        return fixed, [within, *choices]

    # The centre of room i lies on one or two sides of room j, and disjoint boxes are separated on
    # one of them.
    directions = zip(_ways(i, j), (LEFT, RIGHT, ABOVE, BELOW), strict=True)
    sides: Choice = [
        [_before(axis, u, v, 0)]
        for (axis, u, v), where in directions
        if relation in where
    ]
    if len(sides) > 1:
        return fixed, [sides, *choices]
    return [*fixed, *sides[0]], choices


def _ways(i: int, j: int) -> list[tuple[int, int, int]]:
    """Return (axis, u, v) for each way in which one of two rooms, u, is before the other."""
    return [(0, i, j), (0, j, i), (1, i, j), (1, j, i)]


def _before(
    axis: int,
    u: int,
    v: int,
    most: int,
) -> Bound:
    """Return the bound that room u ends at most `most` half pixels after the start of room v."""
    return axis, 3 * u + END, 3 * v + START, most


def _cell_bounds(
    i: int,
    j: int,
    rows: tuple[int, int],
    columns: tuple[int, int],
) -> Iterator[Bound]:
    """Bounds that put the middle of room i into a range of cells of `RULE` relative to room j."""
    middle = 3 * i + MIDDLE
    for axis, (least, most) in ((0, columns), (1, rows)):
        # Odd cells are on a wall of room j, even ones between walls.
        if least > 0:
            wall = START if least < 3 else END
            yield axis, 3 * j + wall, middle, least % 2 - 1
        if most < 4:
            wall = START if most < 2 else END
            yield axis, middle, 3 * j + wall, most % 2 - 1


@lru_cache(maxsize=16)
def _hull(relation: int) -> _Cells:
    """First and last row, and first and last column, of the cells of a relation."""
    rows, columns = np.nonzero(np.equal(RULE, relation))
    height = (int(rows.min()), int(rows.max()))
    width = (int(columns.min()), int(columns.max()))
    return height, width


@lru_cache(maxsize=16)
def _pieces(relation: int) -> list[_Cells]:
    """Maximal rectangles of cells of one relation only, those with most open sides first."""
    ranges = list(combinations_with_replacement(range(5), 2))
    good = []
    for rows, columns in product(ranges, ranges):
        top, bottom = rows
        left, right = columns
        cells = RULE[top : bottom + 1, left : right + 1]
        if (cells == relation).all():
            good.append((rows, columns))

    def contained(piece: _Cells) -> bool:
        (top, bottom), (left, right) = piece
        for other in good:
            (above, below), (before, after) = other
            rows = above <= top and bottom <= below
            if other != piece and rows and before <= left and right <= after:
                return True
        return False

    largest = [piece for piece in good if not contained(piece)]

    # Even cells are between walls, so a side there leaves room for whole pixels.
    def closed_sides(piece: _Cells) -> int:
        rows, columns = piece
        return sum(end % 2 for end in (*rows, *columns))

    return sorted(largest, key=closed_sides)


@lru_cache(maxsize=64)
def initial_bounds(rooms: int, canvas: Canvas) -> Int[ndarray, "2 M M"]:
    """Return the bounds of unrelated rooms on a canvas. Read-only.

    Entry (axis, p, q) is the upper bound of mark p minus mark q, in half pixels.
    """
    marks = 3 * rooms + 1
    most = np.full((2, marks, marks), 2 * canvas.side, np.int64)
    first = 3 * np.arange(rooms)
    # In half pixels: the middle is half a side after the start, and the end another half.
    most[:, first + START, first + MIDDLE] = -canvas.smallest
    most[:, first + MIDDLE, first + END] = -canvas.smallest
    most[:, first + START, first + END] = -2 * canvas.smallest
    # No mark is before the origin.
    most[:, -1, :-1] = 0
    most[:, np.arange(marks), np.arange(marks)] = 0
    close_bounds(most[None])
    most.flags.writeable = False
    return most


def close_bounds(most: Int[ndarray, "N 2 M M"], rounds: int = 4) -> Rows:
    """Compute shortest paths in place (Floyd-Warshall); False where there is a contradiction.

    Middles are tightened between rounds; after four rounds hardly anything changes.
    """
    for number in range(rounds):
        if number:
            _tighten_middles(most)
        for mark in range(most.shape[-1]):
            # The shortest way from the first mark to this one, and on to the second.
            detour = most[..., mark, None] + most[..., mark, None, :]
            np.minimum(most, detour, out=most)
    # A mark before itself is a cycle of negative length.
    least = np.diagonal(most, axis1=-2, axis2=-1).min((-1, -2))
    return least >= 0


def _tighten_middles(most: _Matrices) -> None:
    """Use that a middle is half of start plus end, and that starts and ends are at whole pixels."""
    # A difference of two walls is whole pixels: an odd number of half pixels is rounded down.
    walls = np.arange(most.shape[-1]) % 3 != MIDDLE
    walls[-1] = True
    most[..., walls[:, None] & walls] &= -2

    # Views of the bounds on the marks of each room: `start` - q and q - `start` for any mark q.
    start = most[..., START:-1:3, :]
    middle = most[..., MIDDLE:-1:3, :]
    end = most[..., END:-1:3, :]
    from_start = most[..., START:-1:3]
    from_middle = most[..., MIDDLE:-1:3]
    from_end = most[..., END:-1:3]

    # 2 middle = start + end, and half of their bound, rounded down, bounds the integer middle.
    np.minimum(middle, (start + end) >> 1, out=middle)
    np.minimum(from_middle, (from_start + from_end) >> 1, out=from_middle)

    # start = 2 middle - end, and end = 2 middle - start.
    before_end = from_end.swapaxes(-1, -2)
    np.minimum(start, 2 * middle + before_end, out=start)
    before_start = from_start.swapaxes(-1, -2)
    np.minimum(end, 2 * middle + before_start, out=end)
    after_end = end.swapaxes(-1, -2)
    np.minimum(from_start, 2 * from_middle + after_end, out=from_start)
    after_start = start.swapaxes(-1, -2)
    np.minimum(from_end, 2 * from_middle + after_start, out=from_end)
