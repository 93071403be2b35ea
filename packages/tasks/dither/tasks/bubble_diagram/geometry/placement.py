"""Where the rooms of a diagram stand in a picture: boxes that prove it wherever there are any.

Boxes that show exactly the diagram are a certificate (see `realisability`). A witness from the search is tight: rooms
are as small as they may be. `spread_rooms` keeps what makes it a witness and moves its walls to where rooms of their
types would like them. Where a diagram cannot be built, or nobody knows, its rooms stand where most relations hold.

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
from .realisability import is_witness, realise
from .wall_constraints import Canvas, WallConstraints, mark_values, wall_constraints_of

__all__ = ["Placement", "place_diagram", "room_names", "spread_boxes"]

_CANVAS: Final = Canvas()
_ROUNDS: Final = 3
_SPARE: Final = (2.0, 1.0, 0.0)
"""Half pixels that bounds are kept with, so that rounding does not break them: as much as can be."""

_SLIMMEST: Final = 1.6
"""How many times longer than its side of equal area a room may like to be."""


@dataclass(frozen=True)
class Placement:
    """A diagram and where its rooms stand.

    Attributes:
        diagram: What is shown.
        boxes: Of its rooms in pixels, the least x and y 0.
        holds: Whether the boxes show each of its edges.
        extra: Pairs of rooms that the boxes relate, and the diagram does not.
    """

    diagram: Diagram
    boxes: Int[np.ndarray, "R 4"]
    holds: tuple[bool, ...]
    extra: tuple[tuple[int, int], ...]

    @classmethod
    def of(cls, diagram: Diagram, boxes: Int[np.ndarray, "R 4"]) -> Placement:
        """Compare boxes with the diagram, and move them to the corner."""
        boxes = boxes.astype(np.int64)
        told = {(i, j): relation for i, j, relation in diagram.edges}
        drawn = dict(zip(pairs(len(boxes)), edges_of(boxes).tolist(), strict=True))
        holds = tuple(drawn[pair] == relation for pair, relation in told.items())
        extra = tuple(pair for pair, relation in drawn.items() if pair not in told and relation < len(RELATIONS))
        return cls(diagram, boxes - np.tile(boxes[:, :2].min(0), 2), holds, extra)

    @property
    def exact(self) -> bool:
        """Whether the boxes show the diagram and nothing else: the proof that it can be built."""
        return all(self.holds) and not self.extra

    @property
    def broken(self) -> int:
        """Number of edges that the boxes do not show."""
        return self.holds.count(False)

    def sentences(self) -> list[str]:
        """Return each edge in words."""
        names = room_names(self.diagram)
        return [f"{names[i]}  {RELATIONS[r].replace('-', ' ')}  {names[j]}" for i, j, r in self.diagram.edges]

    def extra_names(self) -> list[str]:
        """Return each pair of rooms that only the boxes relate, in words."""
        names = room_names(self.diagram)
        return [f"{names[i]} and {names[j]}" for i, j in self.extra]


def room_names(diagram: Diagram) -> list[str]:
    """Return a short name for each room; rooms of one type are numbered."""
    types = diagram.types
    return [
        f"{SHORT[kind]} {types[: place + 1].count(kind)}" if types.count(kind) > 1 else SHORT[kind]
        for place, kind in enumerate(types)
    ]


def place_diagram(diagram: Diagram, witness: Int[np.ndarray, "R 4"] | None = None, *, search: bool = True) -> Placement:
    """Find places for the rooms of a diagram.

    Args:
        diagram: What is to be shown; where it has boxes, they are taken as they are.
        witness: Boxes that prove it, where some are known.
        search: Whether to look for a witness where none is given; without it, and without one, a diagram may be
            shown with relations broken although it can be built.
    """
    if diagram.boxes is not None:
        return Placement.of(diagram, np.array(diagram.boxes, np.int64))
    rooms = len(diagram.types)
    wanted = encode(diagram, rooms)[rooms:]
    boxes = place_rooms(diagram)
    if is_witness(boxes, wall_constraints_of(wanted, rooms), _CANVAS):
        witness = boxes
    elif witness is None and search:
        witness = realise(wanted, rooms).boxes
    return Placement.of(diagram, boxes if witness is None else spread_boxes(diagram, witness))


def spread_boxes(diagram: Diagram, witness: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "R 4"]:
    """Return boxes near what the rooms would like, which prove the diagram as the witness does.

    Every choice that the diagram leaves, such as on which side two rooms are apart, is settled as in the boxes so far;
    then a linear programme with all of that as demands moves the walls, and so again.
    """
    rooms = len(diagram.types)
    wanted = encode(diagram, rooms)[rooms:]
    demands = wall_constraints_of(wanted, rooms)
    if not is_witness(witness, demands, _CANVAS):
        raise ValueError(f"these boxes are no witness of the diagram: {witness.tolist()}")
    boxes, sides = witness.astype(np.int64), preferred_sides(diagram.types)
    for _ in range(_ROUNDS):
        found = _solve(diagram, wanted, demands, boxes, sides)
        if found is None or (found == boxes).all():
            break
        boxes, sides = found, _adapted(found, preferred_sides(diagram.types))
    return boxes


def _solve(
    diagram: Diagram,
    wanted: Int[np.ndarray, " E"],
    demands: WallConstraints,
    boxes: Int[np.ndarray, "R 4"],
    sides: Float[np.ndarray, "R 2"],
) -> Int[np.ndarray, "R 4"] | None:
    """Return better boxes that prove the diagram, or None where rounding spoils them all."""
    told = choose_separations(boxes, wanted, {})
    for spare in _SPARE:
        program = soft_constraints(diagram.types, wanted, told, sides, _CANVAS.side)
        program.demand(_kept(demands, boxes), spare)
        walls = program.solve()
        if walls is None:
            continue
        found = np.round(walls).astype(np.int64)
        if is_witness(found, demands, _CANVAS):
            return found
    return None


def _kept(demands: WallConstraints, boxes: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "B 4"]:
    """Return all bounds that hold, and those of the alternative of each choice that boxes keep best."""
    if not len(demands.choices):
        return demands.fixed
    marks = mark_values(boxes)
    axis, first, second, most = np.moveaxis(demands.choices, -1, 0)
    real = demands.choices.any(-1)
    left = np.where(real, most - (marks[axis, first] - marks[axis, second]), np.iinfo(np.int64).max).min(-1)
    best = np.where(demands.offered, left, np.iinfo(np.int64).min).argmax(1)
    chosen = demands.choices[np.arange(len(best)), best].reshape(-1, 4)
    return np.concatenate([demands.fixed, chosen[chosen.any(-1)]])


def _adapted(boxes: Int[np.ndarray, "R 4"], liked: Float[np.ndarray, "R 2"]) -> Float[np.ndarray, "R 2"]:
    """Return the liked sides, longer or shorter so that rooms which must be slim still get their area."""
    sides = (boxes[:, 2:] - boxes[:, :2]).astype(float)
    other = liked.prod(1, keepdims=True) / sides[:, ::-1]
    adapted: Float[np.ndarray, "R 2"] = np.clip(other, liked / _SLIMMEST, liked * _SLIMMEST)
    return adapted
