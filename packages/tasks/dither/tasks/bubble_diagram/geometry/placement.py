"""Room boxes for pictures and export: a realisation of the diagram wherever one is known.

Boxes from the realisability search are as small as allowed. `spread_boxes` keeps their relations and moves the walls
towards the preferred size of each room type. A diagram without known realisation gets the boxes of `layout`, which
satisfy as many relations as possible.

Letters: R rooms, B bounds, E pairs of rooms.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Float, Int

from ..plans import Diagram, encode
from ..relations import edges_of
from ..vocabulary import RELATIONS, SHORT, pairs
from .layout import choose_separations, place_rooms, preferred_sides, soft_constraints
from .realisability import realise, realises
from .wall_constraints import Canvas, WallConstraints, mark_values, wall_constraints_of

__all__ = ["Placement", "place_diagram", "room_names", "spread_boxes"]

_CANVAS: Final = Canvas()
_ROUNDS: Final = 3
_MARGINS: Final = (2.0, 1.0, 0.0)
"""Margins in half pixels that protect bounds from rounding, tried in this order."""

_SLIMMEST: Final = 1.6
"""Largest factor by which the preferred sides of a room are stretched."""


@dataclass(frozen=True)
class Placement:
    """A diagram and its room boxes.

    Attributes:
        diagram: The diagram.
        boxes: Room boxes in pixels; the smallest x and y are 0.
        holds: Whether the boxes show each edge.
        extra: Pairs of rooms that are related in the boxes only.
    """

    diagram: Diagram
    boxes: Int[np.ndarray, "R 4"]
    holds: tuple[bool, ...]
    extra: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, diagram: Diagram, boxes: Int[np.ndarray, "R 4"]) -> Placement:
        """Compare boxes with the diagram, and move them to the origin."""
        boxes = boxes.astype(np.int64)
        edges = {(i, j): relation for i, j, relation in diagram.edges}
        shown = dict(zip(pairs(len(boxes)), edges_of(boxes).tolist(), strict=True))
        holds = tuple(shown[pair] == relation for pair, relation in edges.items())
        extra = tuple(pair for pair, relation in shown.items() if pair not in edges and relation < len(RELATIONS))
        return cls(diagram, boxes - np.tile(boxes[:, :2].min(0), 2), holds, extra)

    @property
    def exact(self) -> bool:
        """Whether the boxes realise the diagram."""
        return all(self.holds) and not self.extra

    @property
    def broken(self) -> int:
        """Number of edges that the boxes violate."""
        return self.holds.count(False)

    def sentences(self) -> list[str]:
        """Return each edge in words."""
        names = room_names(self.diagram)
        return [f"{names[i]} {RELATIONS[r].replace('-', ' ')} {names[j]}" for i, j, r in self.diagram.edges]

    def extra_names(self) -> list[str]:
        """Return the pairs of rooms that are related in the boxes only, in words."""
        names = room_names(self.diagram)
        return [f"{names[i]} and {names[j]}" for i, j in self.extra]


def room_names(diagram: Diagram) -> list[str]:
    """Return a short name for each room; rooms of the same type are numbered."""
    types = diagram.types
    return [
        f"{SHORT[kind]} {types[: room + 1].count(kind)}" if types.count(kind) > 1 else SHORT[kind]
        for room, kind in enumerate(types)
    ]


def place_diagram(
    diagram: Diagram, realisation: Int[np.ndarray, "R 4"] | None = None, *, search: bool = True
) -> Placement:
    """Find boxes for the rooms of a diagram.

    Args:
        diagram: The diagram; its own boxes are used if it has any.
        realisation: Boxes that realise it, if known.
        search: Whether to search for a realisation if none is given. Without search a realisable diagram may be placed
            with violated relations.
    """
    if diagram.boxes is not None:
        return Placement.of(diagram, np.array(diagram.boxes, np.int64))
    rooms = len(diagram.types)
    target = encode(diagram, rooms)[rooms:]
    boxes = place_rooms(diagram)
    if realises(boxes, wall_constraints_of(target, rooms), _CANVAS):
        realisation = boxes
    elif realisation is None and search:
        realisation = realise(target, rooms).boxes
    return Placement.of(diagram, boxes if realisation is None else spread_boxes(diagram, realisation))


def spread_boxes(diagram: Diagram, realisation: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "R 4"]:
    """Return boxes of about the preferred sizes that realise the diagram, too.

    Repeatedly fixes every choice, such as the side on which two rooms are separated, as in the current boxes, and
    solves a linear program with all of that as hard constraints.

    Raises:
        ValueError: The given boxes do not realise the diagram.
    """
    rooms = len(diagram.types)
    target = encode(diagram, rooms)[rooms:]
    constraints = wall_constraints_of(target, rooms)
    if not realises(realisation, constraints, _CANVAS):
        raise ValueError(f"boxes do not realise the diagram: {realisation.tolist()}")
    boxes, sides = realisation.astype(np.int64), preferred_sides(diagram.types)
    for _ in range(_ROUNDS):
        spread = _solve(diagram, target, constraints, boxes, sides)
        if spread is None or (spread == boxes).all():
            break
        boxes, sides = spread, _adapted(spread, preferred_sides(diagram.types))
    return boxes


def _solve(
    diagram: Diagram,
    target: Int[np.ndarray, " E"],
    constraints: WallConstraints,
    boxes: Int[np.ndarray, "R 4"],
    sides: Float[np.ndarray, "R 2"],
) -> Int[np.ndarray, "R 4"] | None:
    """Return better boxes that realise the diagram, or None if rounding breaks all of them."""
    separations = choose_separations(boxes, target, {})
    for margin in _MARGINS:
        program = soft_constraints(diagram.types, target, separations, sides, _CANVAS.side)
        program.add_hard(_active_bounds(constraints, boxes), margin)
        walls = program.solve()
        if walls is None:
            continue
        rounded = np.round(walls).astype(np.int64)
        if realises(rounded, constraints, _CANVAS):
            return rounded
    return None


def _active_bounds(constraints: WallConstraints, boxes: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "B 4"]:
    """Return the fixed bounds, and for each choice those of the alternative that the boxes satisfy best."""
    if not len(constraints.choices):
        return constraints.fixed
    marks = mark_values(boxes)
    axis, first, second, most = np.moveaxis(constraints.choices, -1, 0)
    real = constraints.choices.any(-1)
    left = np.where(real, most - (marks[axis, first] - marks[axis, second]), np.iinfo(np.int64).max).min(-1)
    best = np.where(constraints.available, left, np.iinfo(np.int64).min).argmax(1)
    chosen = constraints.choices[np.arange(len(best)), best].reshape(-1, 4)
    return np.concatenate([constraints.fixed, chosen[chosen.any(-1)]])


def _adapted(boxes: Int[np.ndarray, "R 4"], preferred: Float[np.ndarray, "R 2"]) -> Float[np.ndarray, "R 2"]:
    """Return the preferred sides, stretched so that rooms which must be slim still get their area."""
    sides = (boxes[:, 2:] - boxes[:, :2]).astype(float)
    other = preferred.prod(1, keepdims=True) / sides[:, ::-1]
    adapted: Float[np.ndarray, "R 2"] = np.clip(other, preferred / _SLIMMEST, preferred * _SLIMMEST)
    return adapted
