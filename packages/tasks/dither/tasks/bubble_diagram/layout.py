"""Room boxes for a diagram of which only types and relations are known.

Every relation is a few linear inequalities on the walls of two rooms, so the boxes come out of a linear program. Each
inequality may be broken at a price, so that there is always an answer, and "above" is above wherever that is possible.
That two rooms are apart along x or else along y is not linear: the program is solved, each pair is told the side on
which it is nearest to being apart, and the program is solved again.

Letters: R rooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Int
from scipy.optimize import linprog
from scipy.sparse import csr_array

from .assignment import LIVING
from .plans import Diagram, encode
from .relations import NEAR, edges_of
from .vocabulary import INSIDE, NO_EDGE, ROOMS, SURROUNDING, pair_index, pairs

__all__ = ["place_rooms"]

_SIDES: Final = dict(zip(ROOMS, (84, 60, 44, 36, 46, 50, 46, 54, 50, 38, 34, 34, 32), strict=True))
"""Side that a room would like to have, in pixels."""

_SMALLEST, _GAP, _ROUNDING = 18, 4, 1
_MUST, _SHOULD, _TOUCH, _LIKES, _COMPACT = 1.0, 0.5, 0.15, 0.02, 0.005
"""Prices per pixel: relations; walls between neighbours; that neighbours touch; sizes; that the whole is small."""
_ROUNDS: Final = 6

_DIRECTION: Final = {0: (-1, -1), 1: (-1, 1), 2: (-1, 0), 3: (0, -1), 6: (0, 1), 7: (1, 0), 8: (1, -1), 9: (1, 1)}
"""Where the centre of the first room lies from the second box along x and y, by relation."""

_SIDE_OF: Final = ((-1, 0), (0, -1), (1, 0), (0, 1))
"""Sides of a room, in the order of its walls: left, above, right, below."""

_Told = dict[tuple[str, int, int], int]
"""The wall of room u that stands before or behind all of room v ("apart"), or not beyond that of v ("within")."""

_Wall = tuple[int, float]
"""Number and factor."""


def place_rooms(diagram: Diagram) -> Int[np.ndarray, "R 4"]:
    """Return boxes in pixels in which as many relations hold as could be made to; the least x and y are 0."""
    rooms = len(diagram.types)
    wanted = encode(diagram, rooms)[rooms:]
    told: _Told = {}
    best, fewest = np.zeros((rooms, 4), np.int64), len(wanted) + 1
    for _ in range(_ROUNDS):
        walls = _program(diagram.types, wanted, told).solve()
        boxes = np.round(walls - np.tile(walls[:, :2].min(0), 2)).astype(np.int64)
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        broken = int((edges_of(boxes) != wanted).sum())
        if broken < fewest:
            best, fewest = boxes, broken
        before, told = told, _tell(walls, wanted, told)
        if told == before:
            break
    return best


class _Program:
    """A linear program over walls; room r has the walls 4r .. 4r+3: x0, y0, x1, y1."""

    def __init__(self, rooms: int) -> None:
        self.walls = 4 * rooms
        self.sums: list[Sequence[_Wall]] = []
        self.bounds: list[float] = []
        self.prices: list[float] = []

    def ask(self, total: Sequence[_Wall], most: float, price: float) -> None:
        """Ask that a sum of walls times factors be at most `most`; each pixel beyond costs `price`."""
        self.sums.append(total)
        self.bounds.append(most)
        self.prices.append(price)

    def order(self, first: int, second: int, gap: float, price: float) -> None:
        """Ask that one wall be at least `gap` before another."""
        self.ask([(first, 1.0), (second, -1.0)], -gap, price)

    def solve(self) -> Float[np.ndarray, "R 4"]:
        """Return the walls at the least price. They are at least 0; what is asked too much is paid for."""
        count = len(self.sums)
        entries = [(row, *wall) for row, total in enumerate(self.sums) for wall in total]
        entries += [(row, self.walls + row, -1.0) for row in range(count)]
        row, column, factor = zip(*entries, strict=True)
        matrix: Any = csr_array((factor, (row, column)), shape=(count, self.walls + count))
        found = linprog([0.0] * self.walls + self.prices, matrix, self.bounds, method="highs-ds")
        assert found.x is not None, found.message
        walls: Float[np.ndarray, "R 4"] = found.x[: self.walls].reshape(-1, 4)
        return walls


def _program(types: Sequence[int], wanted: Int[np.ndarray, " E"], told: _Told) -> _Program:
    program = _Program(len(types))
    for room, kind in enumerate(types):
        side, likes = _SIDES[ROOMS[kind]], _LIKES * (2 if kind == LIVING else 1)
        for low, high in ((4 * room, 4 * room + 2), (4 * room + 1, 4 * room + 3)):
            program.order(low, high, _SMALLEST, 10 * _MUST)
            program.order(low, high, side, likes)
            program.order(high, low, -side, likes)
            program.ask([(high, 1.0)], 0.0, _COMPACT)
    for (u, v), relation in zip(pairs(len(types)), wanted.tolist(), strict=True):
        for axis in (0, 1):
            if relation != NO_EDGE:
                _relate(program, 4 * u + axis, 4 * v + axis, relation, axis)
    for (what, u, v), side in told.items():
        axis, low = side % 2, side < 2
        if what == "within":
            inner, outer = 4 * u + side, 4 * v + side
            program.order(*((outer, inner) if low else (inner, outer)), 0.0, _MUST)
        else:
            near = wanted[pair_index(u, v, len(types))] != NO_EDGE
            gap, price = (_GAP, _SHOULD) if near else (NEAR + 1 + _ROUNDING, _MUST)
            first, second = (u, v) if low else (v, u)
            program.order(4 * first + axis + 2, 4 * second + axis, gap, price)
    return program


def _relate(program: _Program, u: int, v: int, relation: int, axis: int) -> None:
    """Ask for a relation along one axis; `u` and `v` are the walls where the two rooms begin."""
    for low, high in ((u, v + 2), (v, u + 2)):
        program.order(low, high, _ROUNDING - NEAR, _MUST)
        program.order(low, high, -_GAP, _TOUCH)
    if relation == SURROUNDING:
        program.order(u, v, 1 + _ROUNDING, _MUST)
        program.order(v + 2, u + 2, 1 + _ROUNDING, _MUST)
        return
    direction = 0 if relation == INSIDE else _DIRECTION[relation][axis]
    before, behind = [(u, 0.5), (u + 2, 0.5)], [(u, -0.5), (u + 2, -0.5)]  # the centre of u, as a sum of walls
    if direction < 0:
        program.ask([*before, (v, -1.0)], -_ROUNDING, _MUST)
    elif direction > 0:
        program.ask([*behind, (v + 2, 1.0)], -_ROUNDING, _MUST)
    else:
        program.ask([*behind, (v, 1.0)], -_ROUNDING, _MUST)
        program.ask([*before, (v + 2, -1.0)], -_ROUNDING, _MUST)
    if relation == INSIDE:
        program.order(v, u, 0.0, _LIKES)
        program.order(u + 2, v + 2, 0.0, _LIKES)


def _tell(walls: Float[np.ndarray, "R 4"], wanted: Int[np.ndarray, " E"], told: _Told) -> _Told:
    """Choose the nearest side for pairs that have none, and the next for those that are not apart on theirs."""
    told = dict(told)
    for (u, v), relation in zip(pairs(len(walls)), wanted.tolist(), strict=True):
        beyond = (walls[v] - walls[u]) * [1, 1, -1, -1]
        if relation != SURROUNDING and beyond.min() > 0:
            told["within", u, v] = int(np.argmin(beyond))
        if relation in (INSIDE, SURROUNDING):
            continue
        gaps = np.concatenate([walls[v, :2] - walls[u, 2:], walls[u, :2] - walls[v, 2:]])
        key = ("apart", u, v)
        if relation == NO_EDGE:
            if key in told and gaps[told[key]] < NEAR + 1:
                gaps[told.pop(key)] = -np.inf
        else:  # neighbours are apart on the side that their relation names, or on one of the two
            named = [any(a == b != 0 for a, b in zip(side, _DIRECTION[relation], strict=True)) for side in _SIDE_OF]
            gaps = np.where(named, gaps, -np.inf)
        told.setdefault(key, int(np.argmax(gaps)))
    return told
