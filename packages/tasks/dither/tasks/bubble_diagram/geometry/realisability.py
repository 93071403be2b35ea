"""Realisability: find boxes whose relations under Graph2Plan's rule are those of a diagram, or prove there are none.

An exact branch-and-bound search over integer boxes: bounds are propagated (`wall_constraints`), a
linear program proposes boxes, and the search branches on a choice that these violate, up to a
maximum number of linear programs.
Letters: R rooms, E pairs, M marks, F bounds, C choices, A alternatives, V variables.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final, Literal

import numpy as np
from jaxtyping import Bool, Float, Int

from ..relations import edges_of, overlapping
from .wall_constraints import END, START, Canvas, WallConstraints, mark_values, wall_constraints_of

__all__ = ["LIMIT", "Realisation", "Verdict", "realise", "realises", "wall_rows"]

LIMIT: Final = 400
"""Linear programs after which a diagram counts as unknown."""

Verdict = Literal["realisable", "impossible", "unknown"]
"""Boxes exist; none exist (proved); the search gave up."""

_CANVAS: Final = Canvas()

_MARGIN_WEIGHT = 40.0
_ROUNDING = 2.0
"""Objective weight of the rounding margin relative to pixels of wall; largest change of a
difference of two marks by rounding, in half pixels."""


@dataclass(frozen=True)
class Realisation:
    """Result of a search; `boxes` in pixels realise the diagram, and are None unless it is realisable."""

    verdict: Verdict
    boxes: Int[np.ndarray, "R 4"] | None


def realise(
    edges: Int[np.ndarray, " E"],
    rooms: int,
    *,
    apart: bool | Bool[np.ndarray, " E"] = True,
    disjoint: bool | Bool[np.ndarray, " E"] = False,
    canvas: Canvas = _CANVAS,
    limit: int = LIMIT,
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
    """
    search = _Search(
        wall_constraints_of(edges, rooms, apart=apart, disjoint=disjoint), canvas, limit
    )
    try:
        boxes = search.run()
    except _UndecidedError:
        return Realisation("unknown", None)
    return Realisation("impossible" if boxes is None else "realisable", boxes)


def realises(
    boxes: Int[np.ndarray, "R 4"],
    edges: Int[np.ndarray, " E"],
    constrained: bool | Bool[np.ndarray, " E"] = True,
    canvas: Canvas = _CANVAS,
    *,
    disjoint: bool | Bool[np.ndarray, " E"] = False,
) -> bool:
    """Whether the constrained relations of boxes under the rule are those of the diagram, without forbidden overlap."""
    sides = boxes[:, 2:] - boxes[:, :2]
    fits = boxes.min() >= 0 and boxes.max() <= canvas.side and sides.min() >= canvas.smallest
    shown = fits and ((edges_of(boxes) == edges) | ~np.asarray(constrained)).all()
    return bool(shown and not (overlapping(boxes) & constrained & disjoint).any())


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

    most: Int[np.ndarray, "2 M M"]
    bounds: Int[np.ndarray, "F 4"]
    alive: Bool[np.ndarray, "C A"]
    decided: Bool[np.ndarray, " C"]

    def copy(self) -> _Node:
        return _Node(self.most.copy(), self.bounds, self.alive.copy(), self.decided.copy())


class _Search:
    """Depth-first search."""

    def __init__(self, constraints: WallConstraints, canvas: Canvas, limit: int) -> None:
        self.constraints = constraints
        self.canvas = canvas
        self.limit = limit
        self.programs = 0
        self.axis, self.first, self.second, self.bound = np.moveaxis(constraints.choices, -1, 0)

    def run(self) -> Int[np.ndarray, "R 4"] | None:
        """Return realising boxes, or None if there are none."""
        available = self.constraints.available
        most = self.constraints.closed_bounds(self.canvas)
        if most is None:
            return None
        stack = [
            _Node(most, self.constraints.fixed, available.copy(), np.zeros(len(available), bool))
        ]
        while stack:
            node = stack.pop()
            boxes = self.boxes(node) if self.propagate(node) else None
            if (
                boxes is not None
                and not self.proved(boxes)
                and not self.violated(node, boxes).any()
            ):
                boxes = self.boxes(node, whole=True)  # rounding violated a bound
            if boxes is None:
                continue
            solution = boxes if self.proved(boxes) else self.dive(node, boxes)
            if solution is not None:
                return solution
            stack += self.branch(node, boxes)
        return None

    def dive(self, node: _Node, boxes: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "R 4"] | None:
        """Primal heuristic: decide all violated choices at once, each by its nearest alternative, and repeat.

        Often finds a solution; a failure proves nothing.
        """
        while (violated := self.violated(node, boxes)).any():
            node = node.copy()
            excess = self.excess(boxes)
            for choice in np.flatnonzero(violated).tolist():
                option = int(
                    np.where(node.alive[choice], excess[choice], np.iinfo(np.int64).max).argmin()
                )
                if not node.decided[choice] and not (
                    self.take(node, choice, option) and self.propagate(node)
                ):
                    return None
            proposal = self.boxes(node)
            if proposal is None or self.proved(proposal):
                return proposal
            boxes = proposal
        return None

    def branch(self, node: _Node, boxes: Int[np.ndarray, "R 4"]) -> list[_Node]:
        """Return one child per alternative of the violated choice with fewest alternatives; the nearest comes last."""
        excess = self.excess(boxes)
        left = node.alive.sum(1)
        choice = min(np.flatnonzero(self.violated(node, boxes)).tolist(), key=left.__getitem__)
        nodes = []
        for option in np.argsort(-excess[choice], kind="stable").tolist():
            child = node.copy()
            if node.alive[choice, option] and self.take(child, choice, option):
                nodes.append(child)
        return nodes

    def propagate(self, node: _Node) -> bool:
        """Drop refuted alternatives and impose single remaining ones; return False if a choice has none left."""
        while True:
            node.alive &= ~(self.bound + node.most[self.axis, self.second, self.first] < 0).any(-1)
            left = node.alive.sum(1)
            if not left.all():
                return False
            single = (left == 1) & ~node.decided
            if not single.any():
                return True
            node.decided |= single
            if not self.impose(
                node, self.constraints.choices[node.alive & single[:, None]].reshape(-1, 4)
            ):
                return False

    def take(self, node: _Node, choice: int, option: int) -> bool:
        """Impose one alternative of a choice; return False on a contradiction."""
        node.decided[choice] = True
        node.alive[choice] = np.arange(node.alive.shape[1]) == option
        return self.impose(node, self.constraints.choices[choice, option])

    def impose(self, node: _Node, bounds: Int[np.ndarray, "n 4"]) -> bool:
        """Add the bounds that are not implied yet, and update all paths; return False on a contradiction."""
        axis, first, second, most = bounds.T
        new = bounds[node.most[axis, first, second] > most]
        node.bounds = np.concatenate([node.bounds, new])
        for axis, p, q, bound in new.tolist():
            plane = node.most[axis]
            if bound < plane[p, q]:
                if plane[q, p] + bound < 0:
                    return False
                np.minimum(plane, plane[:, p, None] + (bound + plane[q]), out=plane)
        return True

    def boxes(self, node: _Node, *, whole: bool = False) -> Int[np.ndarray, "R 4"] | None:
        """Return boxes that satisfy the bounds of a node up to rounding, or `whole` exactly; None if there are none.

        Maximises a margin that protects the bounds from rounding, and minimises room sizes.
        """
        from scipy.optimize import Bounds, LinearConstraint, milp  # it takes .3 s

        if self.programs >= self.limit:
            raise _UndecidedError
        self.programs += 1
        rooms = self.constraints.rooms
        matrix, most = wall_rows(node.bounds, rooms, self.canvas)
        result = milp(
            np.array([-1.0, -1.0, 1.0, 1.0] * rooms + [-_MARGIN_WEIGHT * rooms]),
            integrality=[*[int(whole)] * 4 * rooms, 0],
            bounds=Bounds(0, [*[self.canvas.side] * 4 * rooms, 1]),
            constraints=LinearConstraint(matrix, -np.inf, most),
            options={"presolve": whole},  # presolve costs more than it saves on programs this small
        )
        if result.status == 2:
            return None
        if result.x is None:
            raise _UndecidedError
        return np.asarray(np.round(result.x[:-1]).astype(np.int64).reshape(rooms, 4))

    def excess(self, boxes: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "C A"]:
        """Return the violation of each alternative in half pixels; 0 if satisfied."""
        marks = mark_values(boxes)
        over = marks[self.axis, self.first] - marks[self.axis, self.second] - self.bound
        return np.asarray(np.maximum(over, 0).sum(-1))

    def violated(self, node: _Node, boxes: Int[np.ndarray, "R 4"]) -> Bool[np.ndarray, " C"]:
        """True for undecided choices of which the boxes satisfy no alternative."""
        satisfied = (self.excess(boxes) == 0) & self.constraints.available
        return np.asarray(~node.decided & ~satisfied.any(1))

    def proved(self, boxes: Int[np.ndarray, "R 4"]) -> bool:
        own = self.constraints
        return realises(boxes, own.edges, own.constrained, self.canvas, disjoint=own.disjoint)


def wall_rows(
    bounds: Int[np.ndarray, "F 4"], rooms: int, canvas: Canvas
) -> tuple[Any, Float[np.ndarray, " F"]]:
    """Return bounds, and the smallest sides, as rows of a linear program on walls: matrix and right-hand side.

    The last variable is the share of the rounding error that all rows tolerate.
    """
    from scipy.sparse import csc_array

    first = 3 * np.arange(rooms)
    zero = np.zeros(rooms, np.int64)
    sides = [
        np.stack([zero + axis, first + START, first + END, zero - 2 * canvas.smallest], 1)
        for axis in (0, 1)
    ]
    axis, p, q, most = np.concatenate([bounds, *sides]).T
    columns = []
    values = []
    for mark, sign in (
        (p, 1),
        (q, -1),
    ):  # a mark is a mean of the two walls of its room, in half pixels
        room, part = np.divmod(mark, 3)
        columns += [4 * room + axis, 4 * room + axis + 2]
        values += [sign * (2 - part), sign * part]
    columns.append(np.full(len(axis), 4 * rooms))
    values.append(np.full(len(axis), _ROUNDING))
    entries = (
        np.concatenate(values).astype(float),
        (np.tile(np.arange(len(axis)), 5), np.concatenate(columns)),
    )
    return csc_array(entries, shape=(len(axis), 4 * rooms + 1)), most.astype(float)
