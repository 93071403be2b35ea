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

from ..plans import Diagram, encode
from ..relations import NEAR, edges_of
from ..vocabulary import INSIDE, LIVING, NO_EDGE, ROOMS, SURROUNDING, pair_index, pairs

__all__ = [
    "Separations",
    "Wall",
    "WallLinearProgram",
    "choose_separations",
    "place_rooms",
    "preferred_sides",
    "soft_constraints",
]

_SIDES: Final = dict(zip(ROOMS, (84, 60, 44, 36, 46, 50, 46, 54, 50, 38, 34, 34, 32), strict=True))
"""Side that a room would like to have, in pixels."""

_SMALLEST, _GAP, _ROUNDING_PIXELS = 18, 4, 1
_MUST, _SHOULD, _TOUCH, _LIKES, _COMPACT = 1.0, 0.5, 0.15, 0.02, 0.005
"""Prices per pixel: relations; walls between neighbours; that neighbours touch; sizes; that the whole is small."""
_TIGHT, _CRAMPED = 0.7, 0.1
"""Share of the side that it would like to have below which a room is cramped, and the price of that per pixel."""

_ROUNDS: Final = 6

_DIRECTION: Final = {0: (-1, -1), 1: (-1, 1), 2: (-1, 0), 3: (0, -1), 6: (0, 1), 7: (1, 0), 8: (1, -1), 9: (1, 1)}
"""Where the centre of the first room lies from the second box along x and y, by relation."""

_SIDE_OF: Final = ((-1, 0), (0, -1), (1, 0), (0, 1))
"""Sides of a room, in the order of its walls: left, above, right, below."""

Separations = dict[tuple[str, int, int], int]
"""The wall of room u that stands before or behind all of room v ("apart"), or not beyond that of v ("within")."""


def place_rooms(diagram: Diagram) -> Int[np.ndarray, "R 4"]:
    """Return boxes in pixels in which as many relations hold as could be made to; the least x and y are 0."""
    rooms = len(diagram.types)
    wanted = encode(diagram, rooms)[rooms:]
    told: Separations = {}
    best, fewest = np.zeros((rooms, 4), np.int64), len(wanted) + 1
    for _ in range(_ROUNDS):
        walls = soft_constraints(diagram.types, wanted, told, preferred_sides(diagram.types)).solve()
        assert walls is not None, "wishes never contradict each other"
        boxes = np.round(walls - np.tile(walls[:, :2].min(0), 2)).astype(np.int64)
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        broken = int((edges_of(boxes) != wanted).sum())
        if broken < fewest:
            best, fewest = boxes, broken
        before, told = told, choose_separations(walls, wanted, told)
        if told == before:
            break
    return best


def preferred_sides(types: Sequence[int]) -> Float[np.ndarray, "R 2"]:
    """Return the width and the height, in pixels, that rooms would like to have."""
    return np.array([[_SIDES[ROOMS[kind]]] * 2 for kind in types], float)


def soft_constraints(
    types: Sequence[int],
    wanted: Int[np.ndarray, " E"],
    told: Separations,
    sides: Float[np.ndarray, "R 2"],
    canvas: float | None = None,
) -> WallLinearProgram:
    """Return what rooms of these types would like, as a programme without demands.

    Args:
        types: Of the rooms.
        wanted: Their relations.
        told: On which side rooms are to be apart.
        sides: Width and height that the rooms would like to have.
        canvas: Side of the square that they must stay on; None where there is none.
    """
    program = WallLinearProgram(len(types), canvas)
    for room, kind in enumerate(types):
        likes = _LIKES * (2 if kind == LIVING else 1)
        for axis, side in enumerate(sides[room].tolist()):
            low, high = 4 * room + axis, 4 * room + axis + 2
            program.order(low, high, _SMALLEST, 10 * _MUST)
            program.order(low, high, side, likes)
            program.order(low, high, _TIGHT * side, _CRAMPED)
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
            gap, price = (_GAP, _SHOULD) if near else (NEAR + 1 + _ROUNDING_PIXELS, _MUST)
            first, second = (u, v) if low else (v, u)
            program.order(4 * first + axis + 2, 4 * second + axis, gap, price)
    return program


def _relate(program: WallLinearProgram, u: int, v: int, relation: int, axis: int) -> None:
    """Ask for a relation along one axis; `u` and `v` are the walls where the two rooms begin."""
    for low, high in ((u, v + 2), (v, u + 2)):
        program.order(low, high, _ROUNDING_PIXELS - NEAR, _MUST)
        program.order(low, high, -_GAP, _TOUCH)
    if relation == SURROUNDING:
        program.order(u, v, 1 + _ROUNDING_PIXELS, _MUST)
        program.order(v + 2, u + 2, 1 + _ROUNDING_PIXELS, _MUST)
        return
    direction = 0 if relation == INSIDE else _DIRECTION[relation][axis]
    before, behind = [(u, 0.5), (u + 2, 0.5)], [(u, -0.5), (u + 2, -0.5)]  # the centre of u, as a sum of walls
    if direction < 0:
        program.ask([*before, (v, -1.0)], -_ROUNDING_PIXELS, _MUST)
    elif direction > 0:
        program.ask([*behind, (v + 2, 1.0)], -_ROUNDING_PIXELS, _MUST)
    else:
        program.ask([*behind, (v, 1.0)], -_ROUNDING_PIXELS, _MUST)
        program.ask([*before, (v + 2, -1.0)], -_ROUNDING_PIXELS, _MUST)
    if relation == INSIDE:
        program.order(v, u, 0.0, _LIKES)
        program.order(u + 2, v + 2, 0.0, _LIKES)


def choose_separations(
    walls: Float[np.ndarray, "R 4"] | Int[np.ndarray, "R 4"], wanted: Int[np.ndarray, " E"], told: Separations
) -> Separations:
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


Wall = tuple[int, float]
"""Number and factor."""


class WallLinearProgram:
    """Wishes and demands; `solve` keeps all demands, and the wishes as far as they are worth it.

    Args:
        rooms: Number of rooms.
        side: Of the canvas that they must stay on; None where they may stand anywhere.
    """

    def __init__(self, rooms: int, side: float | None = None) -> None:
        self.walls, self.side = 4 * rooms, side
        self.sums: list[Sequence[Wall]] = []
        self.bounds: list[float] = []
        self.prices: list[float] = []

    def ask(self, total: Sequence[Wall], most: float, price: float) -> None:
        """Ask that a sum of walls times factors be at most `most`; each pixel beyond costs `price`."""
        self.sums.append(total)
        self.bounds.append(most)
        self.prices.append(price)

    def order(self, first: int, second: int, gap: float, price: float) -> None:
        """Ask that one wall be at least `gap` before another."""
        self.ask([(first, 1.0), (second, -1.0)], -gap, price)

    def demand(self, bounds: Int[np.ndarray, "B 4"], spare: float) -> None:
        """Demand bounds on marks (see `demands.Bound`), kept with `spare` half pixels left."""
        for axis, first, second, most in bounds.tolist():
            total: dict[int, float] = {}
            for mark, sign in ((first, 1.0), (second, -1.0)):
                room, place = divmod(mark, 3)
                for wall, share in ((4 * room + axis, 2 - place), (4 * room + axis + 2, place)):
                    total[wall] = total.get(wall, 0.0) + sign * share
            self.ask(list(total.items()), most - spare, np.inf)

    def solve(self) -> Float[np.ndarray, "R 4"] | None:
        """Return the walls at the least price; None if the demands contradict each other."""
        prices = np.array(self.prices)
        paid = np.flatnonzero(prices < np.inf)
        entries = [(row, *wall) for row, total in enumerate(self.sums) for wall in total]
        entries += [(row, self.walls + place, -1.0) for place, row in enumerate(paid.tolist())]
        row, column, factor = zip(*entries, strict=True)
        unknowns = self.walls + len(paid)
        matrix: Any = csr_array((factor, (row, column)), shape=(len(prices), unknowns))
        price = np.concatenate([np.zeros(self.walls), prices[paid]])
        most = np.full(unknowns, np.inf)
        most[: self.walls] = np.inf if self.side is None else self.side
        limits: Any = np.stack([np.zeros(unknowns), most], 1)
        found = linprog(price, matrix, self.bounds, bounds=limits, method="highs-ds")
        if found.x is None:
            return None
        walls: Float[np.ndarray, "R 4"] = found.x[: self.walls].reshape(-1, 4)
        return walls
