"""Whether a diagram can be built: boxes that give exactly its relations by Graph2Plan's rule, or a proof of none.

`realise` is exact over boxes of whole pixels. Choices between bounds are decided one after the other: what follows from
the bounds so far is worked out (`closure`), then a linear program finds boxes (`witness`), and the first choice these
break is decided next, each way in turn. Boxes that break none are the answer, and prove themselves; when every way is
closed, there are none. Beyond a number of programs it gives up, and says so.

Letters: N diagrams, R rooms, L tokens.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from typing import Any, Final, Literal

import numpy as np
from jaxtyping import Bool, Float, Int
from scipy.optimize import Bounds, LinearConstraint, milp
from scipy.sparse import csc_array

from ..relations import edges_of
from . import difference_bounds as closure
from .wall_constraints import END, START, Canvas, WallConstraints, mark_values, wall_constraints_of

__all__ = ["LIMIT", "Realisation", "UndecidedError", "Verdict", "is_witness", "realise", "solve_walls"]

LIMIT: Final = 400
"""Linear programs after which a diagram counts as unknown."""

Verdict = Literal["realisable", "impossible", "unknown"]
"""There are boxes; there are none, which is proved; the search was given up."""

_CANVAS: Final = Canvas()


@dataclass(frozen=True)
class Realisation:
    """What was found.

    Attributes:
        verdict: "realisable", "impossible" (proved), or "unknown" (given up).
        boxes: The witness: boxes in pixels that give the diagram; None unless realisable.
        programs: Linear programs that it took.
    """

    verdict: Verdict
    boxes: Int[np.ndarray, "R 4"] | None
    programs: int


def realise(
    edges: Int[np.ndarray, " E"],
    rooms: int,
    *,
    apart: bool | Bool[np.ndarray, " E"] = True,
    canvas: Canvas = _CANVAS,
    limit: int = LIMIT,
) -> Realisation:
    """Find boxes for a diagram, or prove that there are none.

    Args:
        edges: Relation of each pair of rooms i < j, or `NO_EDGE`.
        rooms: Number of rooms.
        apart: Whether rooms without a relation must be farther apart than `NEAR`, all or by pair. Without it (level
            3) the boxes show the relations that are there, and perhaps more.
        canvas: Where the rooms may stand, and how small they may be.
        limit: Most linear programs before it gives up.
    """
    search = _Search(wall_constraints_of(edges, rooms, apart=apart), canvas, limit)
    try:
        boxes = search.run()
    except UndecidedError:
        return Realisation("unknown", None, search.programs)
    return Realisation("impossible" if boxes is None else "realisable", boxes, search.programs)


@dataclass
class _Node:
    """Where a search stands.

    Attributes:
        most: What follows from the bounds so far, see `closure`.
        bounds: The bounds.
        alive: Alternatives that are not refuted.
        decided: Choices one alternative of which is among the bounds.
    """

    most: Int[np.ndarray, "2 M M"]
    bounds: Int[np.ndarray, "F 4"]
    alive: Bool[np.ndarray, "C A"]
    decided: Bool[np.ndarray, " C"]

    def copy(self) -> _Node:
        """Return a node of its own."""
        return _Node(self.most.copy(), self.bounds, self.alive.copy(), self.decided.copy())


class _Search:
    """One search, depth first."""

    def __init__(self, demands: WallConstraints, canvas: Canvas, limit: int) -> None:
        self.demands, self.canvas, self.limit, self.programs = demands, canvas, limit, 0
        self.axis, self.first, self.second, self.bound = np.moveaxis(demands.choices, -1, 0)

    def run(self) -> Int[np.ndarray, "R 4"] | None:
        """Return a witness, or None if there is none."""
        root = self.root()
        stack = [] if root is None else [root]
        while stack:
            node = stack.pop()
            boxes = self.boxes(node) if self.propagate(node) else None
            if boxes is not None and not self.proved(boxes) and not self.open(node, boxes).any():
                boxes = self.boxes(node, whole=True)  # rounding broke a bound
            if boxes is None:
                continue
            found = boxes if self.proved(boxes) else self.dive(node, boxes)
            if found is not None:
                return found
            stack += self.branch(node, boxes)
        return None

    def dive(self, node: _Node, boxes: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "R 4"] | None:
        """Decide all choices that boxes break at once, each the nearest way, and again for the boxes that come of it.

        A guess: it often finds a witness, and proves nothing when it does not.
        """
        while (broken := self.open(node, boxes)).any():
            node = node.copy()
            far = self.slack(boxes)
            for choice in np.flatnonzero(broken).tolist():
                way = int(np.where(node.alive[choice], far[choice], np.iinfo(np.int64).max).argmin())
                if not node.decided[choice] and not (self.take(node, choice, way) and self.propagate(node)):
                    return None
            again = self.boxes(node)
            if again is None or self.proved(again):
                return again
            boxes = again
        return None

    def root(self) -> _Node | None:
        """Where the search begins; None if the fixed bounds contradict each other."""
        demands = self.demands
        most = closure.start(demands.rooms, self.canvas).copy()
        axis, first, second, bound = demands.fixed.T
        np.minimum.at(most, (axis, first, second), bound)
        if not closure.close(most):
            return None
        return _Node(most, demands.fixed, demands.offered.copy(), np.zeros(len(demands.offered), bool))

    def propagate(self, node: _Node) -> bool:
        """Strike out alternatives that are refuted, and take those that are left alone; False if a choice has none."""
        while True:
            node.alive &= ~(self.bound + node.most[self.axis, self.second, self.first] < 0).any(-1)
            left = node.alive.sum(1)
            if not left.all():
                return False
            single = np.flatnonzero((left == 1) & ~node.decided)
            if not len(single):
                return True
            bounds = self.demands.choices[node.alive & ((left == 1) & ~node.decided)[:, None]].reshape(-1, 4)
            node.decided[single] = True
            if not self.impose(node, bounds):
                return False

    def impose(self, node: _Node, bounds: Int[np.ndarray, "n 4"]) -> bool:
        """Add bounds that are new to a node; False if they contradict it."""
        axis, first, second, most = bounds.T
        new = bounds[node.most[axis, first, second] > most]
        node.bounds = np.concatenate([node.bounds, new])
        return closure.impose(node.most, new)

    def boxes(self, node: _Node, *, whole: bool = False) -> Int[np.ndarray, "R 4"] | None:
        """Return boxes that keep the bounds of a node, but for rounding; None if there are none."""
        if self.programs >= self.limit:
            raise UndecidedError(f"{self.limit} programs did not do")
        self.programs += 1
        walls = solve_walls(node.bounds, self.demands.rooms, self.canvas, whole=whole)
        return None if walls is None else np.round(walls).astype(np.int64)

    def slack(self, boxes: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "C A"]:
        """How far boxes are from each alternative, in half pixels; 0 if they keep it."""
        marks = mark_values(boxes)
        over = marks[self.axis, self.first] - marks[self.axis, self.second] - self.bound
        far: Int[np.ndarray, "C A"] = np.maximum(over, 0).sum(-1)
        return far

    def open(self, node: _Node, boxes: Int[np.ndarray, "R 4"]) -> Bool[np.ndarray, " C"]:
        """True for choices that are not decided, and none of whose alternatives boxes keep."""
        kept = (self.slack(boxes) == 0) & self.demands.offered
        still: Bool[np.ndarray, " C"] = ~node.decided & ~kept.any(1)
        return still

    def proved(self, boxes: Int[np.ndarray, "R 4"]) -> bool:
        """Whether boxes are a witness."""
        return is_witness(boxes, self.demands, self.canvas)

    def branch(self, node: _Node, boxes: Int[np.ndarray, "R 4"]) -> list[_Node]:
        """Decide one choice that boxes break, with the fewest ways left, each way in turn; the nearest comes last."""
        far, left = self.slack(boxes), node.alive.sum(1)
        choice = min(np.flatnonzero(self.open(node, boxes)).tolist(), key=left.__getitem__)
        nodes = []
        for way in np.argsort(-far[choice], kind="stable").tolist():
            child = node.copy()
            if node.alive[choice, way] and self.take(child, choice, way):
                nodes.append(child)
        return nodes

    def take(self, node: _Node, choice: int, way: int) -> bool:
        """Decide a choice; False if that contradicts what is known."""
        node.decided[choice] = True
        node.alive[choice] = np.arange(node.alive.shape[1]) == way
        return self.impose(node, self.demands.choices[choice, way])


_ROOM = 40.0
"""What it is worth that rounding keeps every bound, against pixels of wall."""

_ROUNDING = 2.0
"""Farthest, in half pixels, that rounding moves the difference of two marks."""


class UndecidedError(Exception):
    """The solver gave up."""


def is_witness(boxes: Int[np.ndarray, "R 4"], demands: WallConstraints, canvas: Canvas) -> bool:
    """Whether boxes prove that a diagram can be built: drawn again by the rule they give its relations."""
    sides = boxes[:, 2:] - boxes[:, :2]
    fits = boxes.min() >= 0 and boxes.max() <= canvas.side and sides.min() >= canvas.smallest
    asked = demands.asked
    return bool(fits and (edges_of(boxes)[asked] == demands.edges[asked]).all())


def solve_walls(
    bounds: Int[np.ndarray, "F 4"], rooms: int, canvas: Canvas, *, whole: bool = False
) -> Float[np.ndarray, "R 4"] | None:
    """Return walls in pixels that keep the bounds, or None if there are none.

    If they can be, the bounds are kept with so much to spare that rounding does not break them; rooms are small.

    Args:
        bounds: See `demands.Bound`.
        rooms: Number of rooms.
        canvas: Where they may stand.
        whole: Ask for whole pixels; slower.

    Raises:
        UndecidedError: The solver gave up.
    """
    matrix, most = _program(bounds, rooms, canvas.smallest)
    found = milp(
        _price(rooms),
        integrality=_whole(rooms) if whole else None,
        bounds=_unknowns(rooms, canvas.side),
        constraints=LinearConstraint(matrix, -np.inf, most),
        options={"presolve": whole},  # the programs are too small for it to pay
    )
    if found.status == 2:
        return None
    if found.x is None:
        raise UndecidedError(found.message)
    walls: Float[np.ndarray, "R 4"] = found.x[:-1].reshape(rooms, 4)
    return walls


@lru_cache(maxsize=64)
def _price(rooms: int) -> Float[np.ndarray, " V"]:
    return np.array([-1.0, -1.0, 1.0, 1.0] * rooms + [-_ROOM * rooms])


@lru_cache(maxsize=64)
def _whole(rooms: int) -> Int[np.ndarray, " V"]:
    return np.array([1] * 4 * rooms + [0])


@lru_cache(maxsize=64)
def _unknowns(rooms: int, side: int) -> Bounds:
    return Bounds(np.zeros(4 * rooms + 1), np.array([float(side)] * 4 * rooms + [1.0]))


def _program(bounds: Int[np.ndarray, "F 4"], rooms: int, smallest: int) -> tuple[Any, Float[np.ndarray, " F"]]:
    """Return the rows of the program and their limits. The last unknown is the share of rounding that all rows bear."""
    first = 3 * np.arange(rooms)
    sides = [np.stack([first * 0 + axis, first + START, first + END, first * 0 - 2 * smallest], 1) for axis in (0, 1)]
    axis, p, q, most = np.concatenate([bounds, *sides]).T
    (low_p, high_p, start_p, end_p), (low_q, high_q, start_q, end_q) = _halves(axis, p), _halves(axis, q)
    rows = np.tile(np.arange(len(axis)), 5)
    columns = np.concatenate([low_p, high_p, low_q, high_q, np.full(len(axis), 4 * rooms)])
    values = np.concatenate([start_p, end_p, -start_q, -end_q, np.full(len(axis), _ROUNDING)])
    matrix = csc_array((values, (rows, columns)), shape=(len(axis), 4 * rooms + 1))
    return matrix, most.astype(float)


def _halves(axis: Int[np.ndarray, " F"], mark: Int[np.ndarray, " F"]) -> tuple[Any, Any, Any, Any]:
    """The two walls of the room of a mark, and how often each counts."""
    room, place = np.divmod(mark, 3)
    return 4 * room + axis, 4 * room + axis + 2, (2 - place).astype(float), place.astype(float)
