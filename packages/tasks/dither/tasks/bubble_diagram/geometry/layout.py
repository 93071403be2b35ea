"""Layout of room boxes for a diagram of which only types and relations are known.

Every relation is a few linear inequalities on the walls of two rooms, so boxes are found by a linear program. All
inequalities are soft, so there is always a solution, in which as many relations as possible hold. "Separated along x or
along y" is not linear: the program is solved, each pair is assigned the side on which it is closest to being separated,
and the program is solved again.

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

__all__ = ["choose_separations", "place_rooms", "preferred_sides", "soft_constraints"]

_SIDES: Final = dict(zip(ROOMS, (84, 60, 44, 36, 46, 50, 46, 54, 50, 38, 34, 34, 32), strict=True))
"""Preferred side by room type, in pixels."""

_SMALLEST, _GAP, _ROUNDING_PIXELS = 18, 4, 1
_MUST, _SHOULD, _TOUCH, _SIZE, _COMPACT = 1.0, 0.5, 0.15, 0.02, 0.005
"""Penalties per pixel: relations, gaps between neighbours, contact of neighbours, sizes, total extent."""
_TIGHT, _CRAMPED = 0.7, 0.1
"""Share of the preferred side below which a further penalty per pixel applies, and that penalty."""

_ROUNDS: Final = 6

_DIRECTION: Final = {0: (-1, -1), 1: (-1, 1), 2: (-1, 0), 3: (0, -1), 6: (0, 1), 7: (1, 0), 8: (1, -1), 9: (1, 1)}
"""Direction of the first room's centre from the second box along x and y, by relation."""

_SIDE_OF: Final = ((-1, 0), (0, -1), (1, 0), (0, 1))
"""Directions of the sides of a room, in the order of its walls: left, above, right, below."""

Separations = dict[tuple[str, int, int], int]
"""Wall of room u that separates it from room v ("apart"), or that must not protrude beyond v's ("within")."""


def place_rooms(diagram: Diagram) -> Int[np.ndarray, "R 4"]:
    """Return boxes in pixels that satisfy as many relations as the heuristic finds; the smallest x and y are 0."""
    rooms = len(diagram.types)
    target = encode(diagram, rooms)[rooms:]
    separations: Separations = {}
    best, fewest = np.zeros((rooms, 4), np.int64), len(target) + 1
    for _ in range(_ROUNDS):
        walls = soft_constraints(diagram.types, target, separations, preferred_sides(diagram.types)).solve()
        assert walls is not None, "soft constraints are always feasible"
        boxes = np.round(walls - np.tile(walls[:, :2].min(0), 2)).astype(np.int64)
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        broken = int((edges_of(boxes) != target).sum())
        if broken < fewest:
            best, fewest = boxes, broken
        previous, separations = separations, choose_separations(walls, target, separations)
        if separations == previous:
            break
    return best


def preferred_sides(types: Sequence[int]) -> Float[np.ndarray, "R 2"]:
    """Return the preferred width and height of rooms in pixels."""
    return np.array([[_SIDES[ROOMS[kind]]] * 2 for kind in types], float)


def soft_constraints(
    types: Sequence[int],
    target: Int[np.ndarray, " E"],
    separations: Separations,
    sides: Float[np.ndarray, "R 2"],
    canvas: float | None = None,
) -> WallLinearProgram:
    """Return a linear program with soft constraints only.

    Args:
        types: Room types.
        target: Relation of each pair of rooms.
        separations: Sides on which rooms are separated.
        sides: Preferred width and height of each room.
        canvas: Side of the square that bounds the rooms; None if unbounded.
    """
    program = WallLinearProgram(len(types), canvas)
    for room, kind in enumerate(types):
        size = _SIZE * (2 if kind == LIVING else 1)
        for axis, side in enumerate(sides[room].tolist()):
            low, high = 4 * room + axis, 4 * room + axis + 2
            program.add_order(low, high, _SMALLEST, 10 * _MUST)
            program.add_order(low, high, side, size)
            program.add_order(low, high, _TIGHT * side, _CRAMPED)
            program.add_order(high, low, -side, size)
            program.add_soft([(high, 1.0)], 0.0, _COMPACT)
    for (u, v), relation in zip(pairs(len(types)), target.tolist(), strict=True):
        for axis in (0, 1):
            if relation != NO_EDGE:
                _relate(program, 4 * u + axis, 4 * v + axis, relation, axis)
    for (what, u, v), side in separations.items():
        axis, low = side % 2, side < 2
        if what == "within":
            inner, outer = 4 * u + side, 4 * v + side
            program.add_order(*((outer, inner) if low else (inner, outer)), 0.0, _MUST)
        else:
            near = target[pair_index(u, v, len(types))] != NO_EDGE
            gap, penalty = (_GAP, _SHOULD) if near else (NEAR + 1 + _ROUNDING_PIXELS, _MUST)
            first, second = (u, v) if low else (v, u)
            program.add_order(4 * first + axis + 2, 4 * second + axis, gap, penalty)
    return program


def _relate(program: WallLinearProgram, u: int, v: int, relation: int, axis: int) -> None:
    """Add a relation along one axis; `u` and `v` are the first walls of the two rooms."""
    for low, high in ((u, v + 2), (v, u + 2)):
        program.add_order(low, high, _ROUNDING_PIXELS - NEAR, _MUST)
        program.add_order(low, high, -_GAP, _TOUCH)
    if relation == SURROUNDING:
        program.add_order(u, v, 1 + _ROUNDING_PIXELS, _MUST)
        program.add_order(v + 2, u + 2, 1 + _ROUNDING_PIXELS, _MUST)
        return
    direction = 0 if relation == INSIDE else _DIRECTION[relation][axis]
    centre, negated = [(u, 0.5), (u + 2, 0.5)], [(u, -0.5), (u + 2, -0.5)]
    if direction < 0:
        program.add_soft([*centre, (v, -1.0)], -_ROUNDING_PIXELS, _MUST)
    elif direction > 0:
        program.add_soft([*negated, (v + 2, 1.0)], -_ROUNDING_PIXELS, _MUST)
    else:
        program.add_soft([*negated, (v, 1.0)], -_ROUNDING_PIXELS, _MUST)
        program.add_soft([*centre, (v + 2, -1.0)], -_ROUNDING_PIXELS, _MUST)
    if relation == INSIDE:
        program.add_order(v, u, 0.0, _SIZE)
        program.add_order(u + 2, v + 2, 0.0, _SIZE)


def choose_separations(
    walls: Float[np.ndarray, "R 4"] | Int[np.ndarray, "R 4"], target: Int[np.ndarray, " E"], separations: Separations
) -> Separations:
    """Assign the nearest side to pairs without one, and the next nearest to pairs not separated on theirs."""
    separations = dict(separations)
    for (u, v), relation in zip(pairs(len(walls)), target.tolist(), strict=True):
        beyond = (walls[v] - walls[u]) * [1, 1, -1, -1]
        if relation != SURROUNDING and beyond.min() > 0:
            separations["within", u, v] = int(np.argmin(beyond))
        if relation in (INSIDE, SURROUNDING):
            continue
        gaps = np.concatenate([walls[v, :2] - walls[u, 2:], walls[u, :2] - walls[v, 2:]])
        key = ("apart", u, v)
        if relation == NO_EDGE:
            if key in separations and gaps[separations[key]] < NEAR + 1:
                gaps[separations.pop(key)] = -np.inf
        else:  # neighbours are separated on a side that their relation names
            named = [any(a == b != 0 for a, b in zip(side, _DIRECTION[relation], strict=True)) for side in _SIDE_OF]
            gaps = np.where(named, gaps, -np.inf)
        separations.setdefault(key, int(np.argmax(gaps)))
    return separations


Wall = tuple[int, float]
"""Index of a wall, and its coefficient."""


class WallLinearProgram:
    """Linear program on the walls of rooms with soft and hard constraints.

    Args:
        rooms: Number of rooms.
        side: Side of the square that bounds the rooms; None if unbounded.
    """

    def __init__(self, rooms: int, side: float | None = None) -> None:
        self.walls, self.side = 4 * rooms, side
        self.sums: list[Sequence[Wall]] = []
        self.bounds: list[float] = []
        self.penalties: list[float] = []

    def add_soft(self, total: Sequence[Wall], most: float, penalty: float) -> None:
        """Require a linear combination of walls to be at most `most`, with a penalty per pixel of violation."""
        self.sums.append(total)
        self.bounds.append(most)
        self.penalties.append(penalty)

    def add_order(self, first: int, second: int, gap: float, penalty: float) -> None:
        """Require one wall to be at least `gap` before another."""
        self.add_soft([(first, 1.0), (second, -1.0)], -gap, penalty)

    def add_hard(self, bounds: Int[np.ndarray, "B 4"], margin: float) -> None:
        """Add bounds on marks (see `wall_constraints.Bound`) with a margin in half pixels."""
        for axis, first, second, most in bounds.tolist():
            total: dict[int, float] = {}
            for mark, sign in ((first, 1.0), (second, -1.0)):
                room, part = divmod(mark, 3)
                for wall, share in ((4 * room + axis, 2 - part), (4 * room + axis + 2, part)):
                    total[wall] = total.get(wall, 0.0) + sign * share
            self.add_soft(list(total.items()), most - margin, np.inf)

    def solve(self) -> Float[np.ndarray, "R 4"] | None:
        """Return the walls with the smallest total penalty; None if the hard constraints are infeasible."""
        penalties = np.array(self.penalties)
        soft = np.flatnonzero(penalties < np.inf)
        entries = [(row, *wall) for row, total in enumerate(self.sums) for wall in total]
        entries += [(row, self.walls + slack, -1.0) for slack, row in enumerate(soft.tolist())]
        row, column, factor = zip(*entries, strict=True)
        variables = self.walls + len(soft)
        matrix: Any = csr_array((factor, (row, column)), shape=(len(penalties), variables))
        objective = np.concatenate([np.zeros(self.walls), penalties[soft]])
        most = np.full(variables, np.inf)
        most[: self.walls] = np.inf if self.side is None else self.side
        limits: Any = np.stack([np.zeros(variables), most], 1)
        result = linprog(objective, matrix, self.bounds, bounds=limits, method="highs-ds")
        if result.x is None:
            return None
        walls: Float[np.ndarray, "R 4"] = result.x[: self.walls].reshape(-1, 4)
        return walls
