"""Linear programs on the walls of rooms, and areas as linear constraints.

Letters: R rooms, B bounds.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable
from itertools import pairwise
from typing import Any

import numpy as np
from jaxtyping import Float, Int
from numpy import ndarray

from ..arrays import Boxes, Walls
from ..relations import sides_of
from .realisability import wall_rows
from .wall_constraints import Canvas, WallConstraints, mark_values

_CANVAS = Canvas()

MARGINS = (2.0, 1.0, 0.0)
"""Margins in half pixels that protect bounds from rounding, tried in this order."""

PREFERRED_SIDES = np.array([84, 60, 44, 36, 46, 50, 46, 54, 50, 38, 34, 34, 32], float)
"""Preferred side by room type, in pixels."""

AREA_PENALTY = 5.0
"""Penalty per pixel of an area outside its bounds, above all others of rooms that may have it."""

_SLIMMEST_AREA = 6.0
"""Largest ratio of the sides of a room whose area is bounded."""

_CHORDS = _SLIMMEST_AREA ** np.linspace(-0.5, 0.5, 11)
"""Widths of rooms of area 1, between which areas are bounded by a chord; 0.8 % too large at most."""

_HALF_PIXEL = 0.5

Pull = tuple[int, float, float]
"""A wall (4 room + side), its preferred place, and the penalty per pixel."""


class WallProgram:
    """Linear program on the walls of rooms: soft constraints, and hard ones on request."""

    def __init__(self, rooms: int) -> None:
        self.rooms = rooms
        self.rows: list[tuple[dict[int, float], float, float]] = []
        self.pinned: dict[int, int] = {}
        """Place of each wall that must not move."""

    def add_soft(
        self,
        factors: dict[int, float],
        most: float,
        penalty: float,
    ) -> None:
        """Require a linear combination of walls to be at most `most`; the penalty is per pixel."""
        self.rows.append((factors, most, penalty))

    def add_order(
        self,
        first: int,
        second: int,
        gap: float,
        penalty: float,
    ) -> None:
        """Require one wall to be at least `gap` before another."""
        self.add_soft({first: 1.0, second: -1.0}, -gap, penalty)

    def pull(self, pulls: Iterable[Pull]) -> None:
        """Add the distance of walls from their places to the penalty."""
        for wall, place, penalty in pulls:
            self.add_soft({wall: 1.0}, place, penalty)
            self.add_soft({wall: -1.0}, -place, penalty)

    def solve(
        self, hard: Int[ndarray, "B 4"] | None = None, margin: float = 0.0
    ) -> Walls | None:
        """Return the walls with the smallest penalty; None if the hard constraints are infeasible.

        With `hard` bounds on marks (see `wall_constraints.Bound`) and their margin, rooms are on
        the canvas.
        """
        from scipy.optimize import linprog
        from scipy.sparse import csr_array, eye_array, hstack, vstack

        soft = len(self.rows)
        walls = 4 * self.rooms
        entries = []
        for row, (factors, _, _) in enumerate(self.rows):
            entries += [(row, wall, factor) for wall, factor in factors.items()]
        rows, columns, values = zip(*entries, strict=True)

        # Each soft constraint may be violated by its own variable, which has a penalty.
        relaxed = csr_array((values, (rows, columns)), shape=(soft, walls))
        matrix = hstack([relaxed, -eye_array(soft)])
        most = np.array([most for _, most, _ in self.rows])
        upper = np.full(walls + soft, np.inf)
        if hard is not None:
            upper[:walls] = _CANVAS.side
            bounded, limits = wall_rows(hard, self.rooms, _CANVAS)
            # Its last column, the rounding margin, is replaced by a fixed one.
            strict = hstack([bounded[:, :walls], csr_array((len(limits), soft))])
            matrix = vstack([matrix, strict])
            rounding = bounded[:, [walls]].toarray().ravel() > 0
            most = np.concatenate([most, limits - np.where(rounding, margin, 0.0)])
        penalties = [penalty for _, _, penalty in self.rows]
        objective = np.concatenate([np.zeros(walls), penalties])
        lower = np.zeros(walls + soft)
        for wall, place in self.pinned.items():
            lower[wall] = place
            upper[wall] = place
        bounds: Any = np.stack([lower, upper], 1)
        result = linprog(
            objective, matrix.tocsr(), most, bounds=bounds, method="highs-ds"
        )

        if result.x is None:
            return None
        return result.x[:walls].reshape(-1, 4)


def active_bounds(
    constraints: WallConstraints,
    boxes: Boxes,
    preferred: Collection[tuple[int, ...]] = (),
) -> Int[ndarray, "B 4"]:
    """Return the fixed bounds, and of each choice those that the boxes satisfy best.

    Alternatives with a bound on the axis and marks of a `preferred` one come before others.
    """
    choices = constraints.choices
    if not len(choices):
        return constraints.fixed
    marks = mark_values(boxes)
    axis, first, second, most = np.moveaxis(choices, -1, 0)
    differences = marks[axis, first] - marks[axis, second]
    slack = most - differences

    # Padding is neither the tightest bound of an alternative nor the best alternative.
    limits = np.iinfo(np.int64)
    slack = np.where(choices.any(-1), slack, limits.max).min(-1)
    for along, start, end in preferred:
        same = (axis == along) & (first == start) & (second == end) & choices.any(-1)
        slack = np.where(same.any(-1), limits.max, slack)
    best = np.where(constraints.available, slack, limits.min).argmax(1)
    chosen = choices[np.arange(len(best)), best].reshape(-1, 4)
    return np.concatenate([constraints.fixed, chosen[chosen.any(-1)]])


def demand_areas(
    program: WallProgram,
    bounds: Float[ndarray, "2 R"],
    boxes: Boxes,
    lost: Float[ndarray, " R"],
) -> None:
    """Add bounds of the areas of rooms, linear at their current shape.

    Width times height is at least `low` above the chords of a hyperbola, whose points all have that
    area, and at most `high` below a tangent of another one, so that neither bound is relaxed. The
    area that a room loses to others and to walls is that of the given boxes.
    """
    sides = sides_of(boxes).astype(float)
    # The area that is drawn is that of the box without what others cover.
    low, high = bounds + lost
    demanded = bounds[0] > 0
    for room, (width, height) in enumerate(sides.tolist()):
        limits = []
        if demanded[room]:
            widths = np.sqrt(low[room]) * _CHORDS
            points = np.stack([widths, low[room] / widths], 1)
            # Whole pixels may round both sides down.
            points += _HALF_PIXEL
            for (w0, h0), (w1, h1) in pairwise(points.tolist()):
                normal = np.array([h0 - h1, w1 - w0])
                normal /= np.hypot(*normal)
                limits.append((-normal, -float(normal @ [w0, h0])))
            narrowest, lowest = points.min(0).tolist()
            limits.append((np.array([-1.0, 0.0]), -narrowest))
            limits.append((np.array([0.0, -1.0]), -lowest))
        if np.isfinite(high[room]):
            aspect = min(max(width / height, 1 / _SLIMMEST_AREA), _SLIMMEST_AREA)
            w0 = np.sqrt(high[room] * aspect) - _HALF_PIXEL
            h0 = np.sqrt(high[room] / aspect) - _HALF_PIXEL
            normal = np.array([h0, w0]) / np.hypot(w0, h0)
            limits.append((normal, float(normal @ [w0, h0])))

        # Combinations of width and height, and what they are at most.
        for normal, most in limits:
            factors: dict[int, float] = {}
            for axis, factor in enumerate(normal.tolist()):
                factors[4 * room + axis] = -factor
                factors[4 * room + axis + 2] = factor
            program.add_soft(factors, most, AREA_PENALTY)
