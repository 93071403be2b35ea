"""Realisability: find boxes that show a diagram under Graph2Plan's rule, or prove there are none.

An exact branch-and-bound search over integer boxes: bounds are propagated (`wall_constraints`), a
linear program proposes boxes, and the search branches on a choice that these violate, up to a
maximum number of linear programs.
Letters: R rooms, E pairs, M marks, F bounds, C choices, A alternatives, V variables.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from ..arrays import Boxes, PairRow, RelationRow
from ..relations import edges_of, overlapping, sides_of
from .wall_constraints import (
    END,
    START,
    Canvas,
    WallConstraints,
    mark_values,
    wall_constraints_of,
)

LIMIT = 400
"""Linear programs after which a diagram counts as unknown."""

Verdict = Literal["realisable", "impossible", "unknown"]
"""Boxes exist; none exist (proved); the search gave up."""

_CANVAS = Canvas()

_MARGIN_WEIGHT = 40.0
"""Objective weight of the rounding margin relative to pixels of wall."""

_ROUNDING = 2.0
"""Largest change of a difference of two marks by rounding, in half pixels."""

_INFEASIBLE = 2
"""Status of HiGHS."""

_PairFlags = bool | PairRow
_BoundRows = Int[ndarray, "F 4"]


@dataclass(frozen=True)
class Realisation:
    """Result of a search; `boxes` in pixels, which realise the diagram, or None."""

    verdict: Verdict
    boxes: Boxes | None


def realise(
    edges: RelationRow,
    rooms: int,
    *,
    apart: _PairFlags = True,
    disjoint: _PairFlags = False,
    canvas: Canvas = _CANVAS,
    limit: int = LIMIT,
    pinned: Mapping[int, int] | None = None,
    rectangles: Boxes | None = None,
    near: Boxes | None = None,
    unlabelled: Sequence[tuple[int, int, bool]] = (),
) -> Realisation:
    """Find boxes that realise a diagram, or prove that there are none.

    Args:
        edges: Relation of each pair of rooms i < j, or `NO_EDGE`.
        rooms: Number of rooms.
        apart: Whether unrelated rooms must be more than `NEAR` apart, for all pairs or by pair.
            Without it (level 3) the boxes may have more relations than the diagram.
        disjoint: Whether related rooms must not overlap (level 5), for all pairs or by pair; see
            `relations.exclusive`.
        canvas: Size limits.
        limit: Maximum number of linear programs.
        pinned: Place of each wall (4 room + side) that must not move.
        rectangles: Rectangles of which every room is inside one; see `outline_rectangles`.
        near: Boxes that are proposed where they satisfy the constraints, or else near ones; without
            them the smallest boxes.
        unlabelled: Pairs (i, j, whether near) of rooms of any relation that must not overlap.
    """
    constraints = wall_constraints_of(edges, rooms, apart=apart, disjoint=disjoint)
    constraints = replace(constraints, pinned=pinned or {})
    constraints = constraints.with_unlabelled(unlabelled)
    if rectangles is not None:
        constraints = constraints.inside(rectangles)
    try:
        boxes = _Search(
            constraints=constraints,
            canvas=canvas,
            limit=limit,
            near=near,
        ).run()
    except _UndecidedError:
        return Realisation("unknown", None)
    return Realisation("impossible" if boxes is None else "realisable", boxes)


def realises(
    boxes: Boxes,
    edges: RelationRow,
    constrained: _PairFlags = True,
    canvas: Canvas = _CANVAS,
    *,
    disjoint: _PairFlags = False,
) -> bool:
    """Whether boxes show the constrained relations of a diagram, without forbidden overlap."""
    if (
        boxes.min() < 0
        or boxes.max() > canvas.side
        or sides_of(boxes).min() < canvas.smallest
    ):
        return False
    shown = (edges_of(boxes) == edges) | ~np.asarray(constrained)
    return bool(shown.all() and not (overlapping(boxes) & constrained & disjoint).any())


class _UndecidedError(Exception):
    """The solver, or the search, gave up."""


@dataclass
class _Node:
    """Node of the search tree.

    Attributes:
        most: Difference bound matrix.
        bounds: The bounds imposed so far.
        alive: Alternatives that are not refuted.
        decided: Choices of which one alternative has been imposed.
    """

    most: Int[ndarray, "2 M M"]
    bounds: _BoundRows
    alive: Bool[ndarray, "C A"]
    decided: Bool[ndarray, " C"]

    def copy(self) -> _Node:
        # Bounds are replaced, never changed in place, so that they need no copy.
        return replace(
            self,
            most=self.most.copy(),
            alive=self.alive.copy(),
            decided=self.decided.copy(),
        )


class _Search:
    """Depth-first search."""

    def __init__(
        self,
        constraints: WallConstraints,
        canvas: Canvas,
        limit: int,
        near: Boxes | None,
    ) -> None:
        self.constraints = constraints
        self.canvas = canvas
        self.limit = limit
        self.near = near
        self.programs = 0
        self.axis, self.first, self.second, self.bound = np.moveaxis(
            constraints.choices, -1, 0
        )

    def run(self) -> Boxes | None:
        """Return realising boxes, or None if there are none."""
        available = self.constraints.available
        most = self.constraints.closed_bounds(self.canvas)
        if most is None:
            return None
        undecided = np.zeros(len(available), bool)
        stack = [
            _Node(
                most=most,
                bounds=self.constraints.fixed,
                alive=available.copy(),
                decided=undecided,
            )
        ]
        while stack:
            node = stack.pop()
            boxes = self.proposal(node)
            if boxes is None:
                continue

            solution: Boxes | None = boxes
            if not self.proved(boxes):
                solution = self.dive(node, boxes)

            if solution is not None:
                return solution
            stack += self.branch(node, boxes)
        return None

    def proposal(self, node: _Node) -> Boxes | None:
        """Return boxes for a node after propagation; None if it has no solution."""
        if not self.propagate(node):
            return None
        boxes = self.boxes(node)
        if boxes is None or self.proved(boxes) or self.violated(node, boxes).any():
            return boxes
        # All choices hold, so rounding violated a bound.
        return self.boxes(node, whole=True)

    def dive(self, node: _Node, boxes: Boxes) -> Boxes | None:
        """Primal heuristic: decide all violated choices at once, each by its nearest alternative.

        Repeated until none is violated. Often finds a solution; a failure proves nothing.
        """
        while (violated := self.violated(node, boxes)).any():
            node = node.copy()
            excess = self.excess(boxes)
            for choice in np.flatnonzero(violated).tolist():
                # Propagation may have decided it since.
                if node.decided[choice]:
                    continue
                distance = np.where(
                    node.alive[choice], excess[choice], np.iinfo(np.int64).max
                )
                if not (
                    self.take(node, choice, int(distance.argmin()))
                    and self.propagate(node)
                ):
                    return None
            proposal = self.boxes(node)
            if proposal is None or self.proved(proposal):
                return proposal
            boxes = proposal
        return None

    def branch(self, node: _Node, boxes: Boxes) -> list[_Node]:
        """Return a child per alternative of a violated choice with fewest; the nearest is last."""
        excess = self.excess(boxes)
        left = node.alive.sum(1)
        violated = np.flatnonzero(self.violated(node, boxes))
        choice = int(violated[left[violated].argmin()])
        # The stack is taken from its end, so that the nearest alternative is searched first.
        nodes = []
        for option in np.argsort(-excess[choice], kind="stable").tolist():
            child = node.copy()
            if node.alive[choice, option] and self.take(child, choice, option):
                nodes.append(child)
        return nodes

    def propagate(self, node: _Node) -> bool:
        """Drop refuted alternatives and impose single remaining ones; False if none is left."""
        while True:
            # p - q <= bound is refuted if q - p is at most less than -bound.
            backward = node.most[self.axis, self.second, self.first]
            refuted = self.bound + backward < 0
            node.alive &= ~refuted.any(-1)
            left = node.alive.sum(1)
            if not left.all():
                return False
            single = (left == 1) & ~node.decided
            if not single.any():
                return True
            node.decided |= single
            forced = self.constraints.choices[node.alive & single[:, None]]
            if not self.impose(node, forced.reshape(-1, 4)):
                return False

    def take(
        self,
        node: _Node,
        choice: int,
        option: int,
    ) -> bool:
        """Impose one alternative of a choice; return False on a contradiction."""
        node.decided[choice] = True
        node.alive[choice] = np.arange(node.alive.shape[1]) == option
        return self.impose(node, self.constraints.choices[choice, option])

    def impose(self, node: _Node, bounds: Int[ndarray, "n 4"]) -> bool:
        """Add the bounds that are not implied yet, and update all paths; False if contradictory."""
        axis, first, second, most = bounds.T
        new = bounds[node.most[axis, first, second] > most]
        node.bounds = np.concatenate([node.bounds, new])
        for axis, p, q, bound in new.tolist():
            plane = node.most[axis]
            if bound < plane[p, q]:
                # Of the two bounds between p and q, the sum is the length of a cycle.
                if plane[q, p] + bound < 0:
                    return False
                # A shortest path uses the new edge at most once, so one pass updates all.
                np.minimum(plane, plane[:, p, None] + (bound + plane[q]), out=plane)
        return True

    def boxes(self, node: _Node, *, whole: bool = False) -> Boxes | None:
        """Return boxes that satisfy the bounds of a node up to rounding, or `whole` exactly.

        Maximises a margin that protects the bounds from rounding, and minimises room sizes, or the
        distances to the boxes `near`. None if there are no such boxes.
        """
        # 0.3 s, which runs without a search save
        from scipy.optimize import Bounds, LinearConstraint, milp

        if self.programs >= self.limit:
            raise _UndecidedError
        self.programs += 1
        rooms = self.constraints.rooms
        matrix, most = wall_rows(node.bounds, rooms, self.canvas)
        objective = np.array([-1.0, -1.0, 1.0, 1.0] * rooms + [-_MARGIN_WEIGHT * rooms])
        low = np.zeros(4 * rooms + 1)
        high = np.append(np.full(4 * rooms, float(self.canvas.side)), 1.0)
        for wall, place in self.constraints.pinned.items():
            low[wall] = place
            high[wall] = place
        if self.near is not None:
            matrix, most = _with_distances(matrix, most, self.near)
            distances = 4 * rooms
            objective[:-1] = 0.0
            objective = np.append(objective, np.ones(distances))
            low = np.append(low, np.zeros(distances))
            high = np.append(high, np.full(distances, np.inf))
        integrality = np.zeros(len(objective))
        integrality[: 4 * rooms] = int(whole)
        result = milp(
            objective,
            integrality=integrality,
            bounds=Bounds(low, high),
            constraints=LinearConstraint(matrix, -np.inf, most),
            # Presolve costs more than it saves on programs this small.
            options={"presolve": whole},
        )
        if result.status == _INFEASIBLE:
            return None
        if result.x is None:
            raise _UndecidedError
        walls = result.x[: 4 * rooms]
        return np.round(walls).astype(np.int64).reshape(rooms, 4)

    def excess(self, boxes: Boxes) -> Int[ndarray, "C A"]:
        """Return the violation of each alternative in half pixels; 0 if satisfied."""
        marks = mark_values(boxes)
        gap = marks[self.axis, self.first] - marks[self.axis, self.second]
        return np.maximum(gap - self.bound, 0).sum(-1)

    def violated(self, node: _Node, boxes: Boxes) -> Bool[ndarray, " C"]:
        """True for undecided choices of which the boxes satisfy no alternative."""
        satisfied = (self.excess(boxes) == 0) & self.constraints.available
        return ~node.decided & ~satisfied.any(1)

    def proved(self, boxes: Boxes) -> bool:
        constraints = self.constraints
        walls = boxes.ravel()
        if any(walls[wall] != place for wall, place in constraints.pinned.items()):
            return False
        if not (constraints.contains(boxes) and constraints.separates(boxes)):
            return False
        return realises(
            boxes,
            constraints.edges,
            constraints.constrained,
            self.canvas,
            disjoint=constraints.disjoint,
        )


def _with_distances(
    matrix: Any,
    most: Float[ndarray, " F"],
    near: Boxes,
) -> tuple[Any, Float[ndarray, " F"]]:
    """Add a variable for the distance of each wall to its place, behind the others."""
    from scipy.sparse import csc_array, eye_array, hstack, vstack

    places = near.ravel().astype(float)
    count = len(places)
    identity = eye_array(count)
    margin = csc_array((count, 1))
    rows = [
        hstack([matrix, csc_array((matrix.shape[0], count))]),
        hstack([identity, margin, -identity]),
        hstack([-identity, margin, -identity]),
    ]
    return vstack(rows).tocsc(), np.concatenate([most, places, -places])


def wall_rows(
    bounds: _BoundRows,
    rooms: int,
    canvas: Canvas,
) -> tuple[Any, Float[ndarray, " F"]]:
    """Return bounds, and the smallest sides, as rows of a linear program on walls.

    The result is the matrix and the right-hand side. The last variable is the share of the rounding
    error that all rows tolerate.
    """
    from scipy.sparse import csc_array

    first = 3 * np.arange(rooms)
    smallest = np.full(rooms, -2 * canvas.smallest)
    sides = []
    for axis in (0, 1):
        columns_of = [np.full(rooms, axis), first + START, first + END, smallest]
        sides.append(np.stack(columns_of, 1))
    axis, p, q, most = np.concatenate([bounds, *sides]).T
    origin = 3 * rooms
    # 2 start, start + end or 2 end: each row has two walls for each of its two marks.
    columns = []
    factors = []
    # A mark is a mean of the two walls of its room, in half pixels.
    for mark, sign in ((p, 1), (q, -1)):
        room, part = np.divmod(mark, 3)
        # The origin is the constant 0, not a variable.
        sign_of = np.where(mark == origin, 0, sign)
        wall = 4 * np.minimum(room, rooms - 1) + axis
        columns += [wall, wall + 2]
        factors += [sign_of * (2 - part), sign_of * part]
    columns.append(np.full(len(axis), 4 * rooms))
    # Rounding a wall keeps it before or after a whole pixel.
    fixed = (p == origin) | (q == origin)
    factors.append(np.where(fixed, 0.0, _ROUNDING))
    count = len(most)
    rows = np.tile(np.arange(count), len(columns))
    places = (rows, np.concatenate(columns))
    values = np.concatenate(factors).astype(float)
    matrix = csc_array((values, places), shape=(count, 4 * rooms + 1))
    return matrix, most.astype(float)
