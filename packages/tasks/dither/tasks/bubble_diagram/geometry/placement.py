"""Room boxes for pictures and export: a realisation of the diagram wherever one is known.

Realising boxes are as small as allowed; `spread_boxes` moves their walls towards the preferred
sizes. Other diagrams get the boxes of `place_rooms`, which satisfy as many relations as possible.
Letters: R rooms, B bounds, E pairs of rooms.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Int

from ..plans import Box, Diagram, encode
from ..relations import METRES, NEAR, edges_of, exclusive, net_areas, overlapping
from ..vocabulary import (
    AREAS,
    INSIDE,
    LIVING,
    NO_EDGE,
    RELATIONS,
    SHORT,
    SURROUNDING,
    pair_index,
    pairs,
)
from .boundary import corners_of, pack_boundary
from .floor_plan import DOOR_WIDTH, doors_between, regions_of
from .realisability import realise, realises, wall_rows
from .wall_constraints import Canvas, WallConstraints, mark_values, wall_constraints_of

__all__ = [
    "Placement",
    "area_errors",
    "constraints_of",
    "improve_boxes",
    "place_diagram",
    "place_rooms",
    "preferred_sides",
    "room_names",
    "spread_boxes",
]

_CANVAS: Final = Canvas()
_LAYOUT_ROUNDS = 6
_SPREAD_ROUNDS = 3
_AREA_ROUNDS = 5
_LIVING_SCALES = (1.0, 0.6, 1.6)
_NO_WALL = 0.5
"""Factors of the preferred sides of the living room, in order; penalty of a door without a wall."""
_MARGINS: Final = (2.0, 1.0, 0.0)
"""Margins in half pixels that protect bounds from rounding, tried in this order."""

PREFERRED_SIDES: Final = np.array([84, 60, 44, 36, 46, 50, 46, 54, 50, 38, 34, 34, 32], float)
_SLIMMEST: Final = 1.6
"""Preferred side by room type, in pixels, and the largest factor by which it is stretched."""

_AREA_SLIMMEST = 2.5
_AREA_SIZE = 40.0
"""The same factor for rooms of given area, and the factor of the penalty of their size."""

_SMALLEST = 18
_GAP = 4
_ROUNDING_PIXELS = 1
_MUST = 1.0
_SHOULD = 0.5
_TOUCH = 0.15
_SIZE = 0.02
_COMPACT = 0.005
"""Penalties per pixel: relations, gaps between neighbours, contact of neighbours, sizes, total
extent."""
_TIGHT = 0.7
_CRAMPED = 0.1
"""Share of the preferred side below which a further penalty per pixel applies, and that penalty."""

_DIRECTION: Final = {
    0: (-1, -1),
    1: (-1, 1),
    2: (-1, 0),
    3: (0, -1),
    6: (0, 1),
    7: (1, 0),
    8: (1, -1),
    9: (1, 1),
}
"""Direction of the first room's centre from the second box along x and y, by relation."""

_SIDE_OF: Final = ((-1, 0), (0, -1), (1, 0), (0, 1))
"""Directions of the sides of a room, in the order of its walls: left, above, right, below."""

_Separations = dict[tuple[str, int, int], int]
"""Wall of room u that separates it from room v ("apart"), or that must not protrude beyond v's
("within")."""


@dataclass(frozen=True)
class Placement:
    """A diagram and its room boxes.

    Attributes:
        boxes: Room boxes in pixels; the smallest x and y are 0.
        holds: Whether the boxes show each edge.
        extra: Pairs of rooms that are related in the boxes only.
        outline: Corners of the outline that the rooms are to fill; empty if there is none.
        front_door: Middle of its front door, if known.
    """

    diagram: Diagram
    boxes: Int[np.ndarray, "R 4"]
    holds: tuple[bool, ...]
    extra: tuple[tuple[int, int], ...]
    outline: tuple[tuple[int, int], ...] = ()
    front_door: tuple[float, float] | None = None

    @classmethod
    def of(
        cls,
        diagram: Diagram,
        boxes: Int[np.ndarray, "R 4"],
        boundary: Int[np.ndarray, "P 2"] | None = None,
    ) -> Placement:
        """Compare boxes with the diagram, and move them and the boundary so that the smallest x and y are 0."""
        boxes = boxes.astype(np.int64)
        edges = {(i, j): relation for i, j, relation in diagram.edges}
        shown = dict(zip(pairs(len(boxes)), edges_of(boxes).tolist(), strict=True))
        holds = tuple(shown[pair] == relation for pair, relation in edges.items())
        extra = tuple(
            pair
            for pair, relation in shown.items()
            if pair not in edges and relation < len(RELATIONS)
        )
        outline = () if boundary is None else corners_of(boundary)
        left, top = np.array([*boxes[:, :2], *outline]).min(0).tolist()
        door = (
            None if boundary is None or boundary[0, 0] < 0 else boundary[:2].mean(0) - [left, top]
        )
        return cls(
            diagram,
            boxes - [left, top, left, top],
            holds,
            extra,
            tuple((x - left, y - top) for x, y in outline),
            None if door is None else (float(door[0]), float(door[1])),
        )

    def boundary_at(self, first: Box) -> tuple[tuple[int, int], ...] | None:
        """Return the boundary if the first box is moved to another place; None without an outline."""
        x, y = (first[axis] - int(self.boxes[0, axis]) for axis in (0, 1))
        door = (
            []
            if self.front_door is None
            else [(self.front_door[0] + x, self.front_door[1] + y)] * 2
        )
        return pack_boundary([(left + x, top + y) for left, top in self.outline], door)

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
        return [
            f"{names[i]} {RELATIONS[r].replace('-', ' ')} {names[j]}"
            for i, j, r in self.diagram.edges
        ]

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
    """Find boxes for the rooms of a diagram, without forbidden overlap if there are such boxes.

    Args:
        diagram: The diagram; its own boxes are used if it has any.
        realisation: Boxes that realise it, if known.
        search: Whether to search for a realisation if none is given. Without search a realisable
            diagram may be placed with violated relations.
    """
    if diagram.boxes is not None:
        boundary = None if diagram.boundary is None else np.array(diagram.boundary)
        return Placement.of(diagram, np.array(diagram.boxes, np.int64), boundary)
    rooms = len(diagram.types)
    target = encode(diagram, rooms)[rooms:]
    disjoint = exclusive(np.array(diagram.types))
    boxes = place_rooms(diagram)
    if realises(boxes, target, disjoint=disjoint):
        realisation = boxes
    elif realisation is None and search:
        realisation = realise(target, rooms, disjoint=disjoint).boxes
        realisation = realise(target, rooms).boxes if realisation is None else realisation
    return Placement.of(
        diagram, boxes if realisation is None else spread_boxes(diagram, realisation)
    )


def place_rooms(diagram: Diagram) -> Int[np.ndarray, "R 4"]:
    """Return boxes in pixels that satisfy as many relations as the heuristic finds; the smallest x and y are 0.

    "Separated along x or along y" is not linear: a linear program with soft constraints is solved,
    each pair is assigned the side on which it is closest to being separated, and the program is
    solved again.
    """
    rooms = len(diagram.types)
    target = encode(diagram, rooms)[rooms:]
    separations: _Separations = {}
    best = np.zeros((rooms, 4), np.int64)
    fewest = len(target) + 1
    for _ in range(_LAYOUT_ROUNDS):
        walls = soft_program(diagram, target, separations, preferred_sides(diagram)).solve()
        assert walls is not None, "soft constraints are always feasible"
        boxes = np.round(walls - np.tile(walls[:, :2].min(0), 2)).astype(np.int64)
        boxes[:, 2:] = np.maximum(boxes[:, 2:], boxes[:, :2] + 1)
        broken = int((edges_of(boxes) != target).sum())
        if broken < fewest:
            best = boxes
            fewest = broken
        previous = separations
        separations = choose_separations(walls, target, separations)
        if separations == previous:
            break
    return best


def spread_boxes(diagram: Diagram, realisation: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "R 4"]:
    """Return boxes of about the preferred sizes that realise the diagram, too, and overlap only if the given ones do.

    The areas of a diagram, if known, take the place of preferred sizes, and rooms with a door share
    a wall for it. Repeatedly fixes every choice, such as the side on which two rooms are separated,
    as in the current boxes, and solves a linear program with all of that as hard constraints; with
    other sizes of the living room while the smallest `layout_error`, that of the returned boxes, is
    `_NO_WALL` or more.

    Raises:
        ValueError: The given boxes do not realise the diagram.
    """
    constraints = constraints_of(diagram, realisation)
    types = np.array(diagram.types)
    if not realises(realisation, constraints.edges):
        raise ValueError(f"boxes do not realise the diagram: {realisation.tolist()}")
    layouts: list[tuple[float, Int[np.ndarray, "R 4"]]] = []
    for scale in _LIVING_SCALES:
        preferred = sides = (
            preferred_sides(diagram) * np.where(types == LIVING, scale, 1.0)[:, None]
        )
        rounds = [realisation.astype(np.int64)]
        for _ in range(_SPREAD_ROUNDS if diagram.areas is None else _AREA_ROUNDS):
            spread = improve_boxes(diagram, constraints, rounds[0], sides)
            if (spread == rounds[0]).all():
                break
            rounds.insert(0, spread)
            actual = (spread[:, 2:] - spread[:, :2]).astype(float)
            wanted = preferred.prod(1)
            if diagram.areas is not None:  # the part of a room that others cover does not count
                wanted = wanted + actual.prod(1) - net_areas(types, spread)
            # Rooms that must be slim still get their area.
            root = np.sqrt(wanted)[:, None]
            slimmest = _SLIMMEST if diagram.areas is None else _AREA_SLIMMEST
            sides = np.clip(wanted[:, None] / actual[:, ::-1], root / slimmest, root * slimmest)
        layouts += [(layout_error(diagram, boxes), boxes) for boxes in rounds]
        error, best = min(layouts, key=lambda layout: layout[0])
        if error < _NO_WALL:
            break
    return best


def constraints_of(diagram: Diagram, boxes: Int[np.ndarray, "R 4"]) -> WallConstraints:
    """Return the constraints of a diagram; without forbidden overlap, unless the boxes have some."""
    rooms = len(diagram.types)
    disjoint = exclusive(np.array(diagram.types))
    disjoint &= not (overlapping(boxes) & disjoint).any()
    return wall_constraints_of(encode(diagram, rooms)[rooms:], rooms, disjoint=disjoint)


def improve_boxes(
    diagram: Diagram,
    constraints: WallConstraints,
    boxes: Int[np.ndarray, "R 4"],
    sides: Float[np.ndarray, "R 2"],
    pulls: Iterable[tuple[int, float, float]] = (),
) -> Int[np.ndarray, "R 4"]:
    """Solve a linear program with the constraints as in the boxes; return the boxes if rounding violates them.

    `sides` are preferred; `pulls` are walls (4 room + side), their preferred place, and the penalty
    per pixel.
    """
    target = constraints.edges
    program = soft_program(diagram, target, choose_separations(boxes, target, {}), sides)
    for wall, place, penalty in pulls:
        program.add_soft({wall: 1.0}, place, penalty)
        program.add_soft({wall: -1.0}, -place, penalty)
    hard = active_bounds(constraints, boxes)
    for margin in _MARGINS:
        walls = program.solve(hard, margin)
        if walls is not None:
            rounded: Int[np.ndarray, "R 4"] = np.rint(walls).astype(np.int64)
            if realises(rounded, target, disjoint=constraints.disjoint):
                return rounded
    return boxes


def layout_error(diagram: Diagram, boxes: Int[np.ndarray, "R 4"]) -> float:
    """Return the sum of the relative errors of areas, and `_NO_WALL` for each door of rooms that share no wall."""
    inner = [(i, j) for i, j in diagram.doors or () if j is not None]
    doors = (
        doors_between(diagram.types, boxes, regions_of(diagram.types, boxes), inner)
        if inner
        else ()
    )
    areas = 0.0 if diagram.areas is None else float(area_errors(diagram, boxes).sum())
    return _NO_WALL * sum(door.depth < 0 for door in doors) + areas


def area_errors(diagram: Diagram, boxes: Int[np.ndarray, "R 4"]) -> Float[np.ndarray, " R"]:
    """Return by how much the area of each box is outside the area of its room, relative to the nearest bound."""
    low, high = np.array(diagram.areas).T
    areas = net_areas(np.array(diagram.types), boxes) * METRES**2
    # The first and the last bin also hold smaller and larger rooms.
    low = np.where(low <= AREAS[0], 0.0, low)
    high = np.where(high >= AREAS[-1], np.inf, high)
    return np.asarray(
        np.where(areas < low, 1 - areas / np.maximum(low, 1e-9), np.maximum(areas / high - 1, 0.0))
    )


def preferred_sides(diagram: Diagram) -> Float[np.ndarray, "R 2"]:
    """Return the preferred width and height of each room in pixels: those of a square of its area, or of its type."""
    if diagram.areas is None:
        return np.tile(PREFERRED_SIDES[[*diagram.types], None], 2)
    middle = np.sqrt(np.array(diagram.areas).clip(AREAS[0]).prod(1))
    return np.tile(np.sqrt(middle)[:, None] / METRES, 2)


def active_bounds(
    constraints: WallConstraints, boxes: Int[np.ndarray, "R 4"]
) -> Int[np.ndarray, "B 4"]:
    """Return the fixed bounds, and for each choice those of the alternative that the boxes satisfy best."""
    if not len(constraints.choices):
        return constraints.fixed
    marks = mark_values(boxes)
    axis, first, second, most = np.moveaxis(constraints.choices, -1, 0)
    real = constraints.choices.any(-1)
    left = np.where(
        real, most - (marks[axis, first] - marks[axis, second]), np.iinfo(np.int64).max
    ).min(-1)
    best = np.where(constraints.available, left, np.iinfo(np.int64).min).argmax(1)
    chosen = constraints.choices[np.arange(len(best)), best].reshape(-1, 4)
    return np.concatenate([constraints.fixed, chosen[chosen.any(-1)]])


def soft_program(
    diagram: Diagram,
    target: Int[np.ndarray, " E"],
    separations: _Separations,
    sides: Float[np.ndarray, "R 2"],
) -> _WallProgram:
    """Return a linear program with soft constraints: relations, separations, doors, and preferred width and height."""
    types = diagram.types
    program = _WallProgram(len(diagram.types))
    for room, kind in enumerate(types):
        size = _SIZE * (2 if kind == LIVING else 1) * (1 if diagram.areas is None else _AREA_SIZE)
        for axis, side in enumerate(sides[room].tolist()):
            low = 4 * room + axis
            high = 4 * room + axis + 2
            program.add_order(low, high, _SMALLEST, 10 * _MUST)
            program.add_order(low, high, side, size)
            program.add_order(low, high, _TIGHT * side, _CRAMPED)
            program.add_order(high, low, -side, size)
            program.add_soft({high: 1.0}, 0.0, _COMPACT)
    for (u, v), relation in zip(pairs(len(types)), target.tolist(), strict=True):
        for axis in (0, 1) if relation != NO_EDGE else ():
            _relate(program, 4 * u + axis, 4 * v + axis, relation, axis)
    for (what, u, v), side in separations.items():
        axis = side % 2
        low = side < 2
        if what == "within":
            inner = 4 * u + side
            outer = 4 * v + side
            program.add_order(*((outer, inner) if low else (inner, outer)), 0.0, _MUST)
        else:
            near = target[pair_index(u, v, len(types))] != NO_EDGE
            gap, penalty = (_GAP, _SHOULD) if near else (NEAR + 1 + _ROUNDING_PIXELS, _MUST)
            first, second = (u, v) if low else (v, u)
            program.add_order(4 * first + axis + 2, 4 * second + axis, gap, penalty)
            if (u, v) in (diagram.doors or ()):  # along the wall, both rooms are as long as a door
                along = 1 - axis
                for one, other in ((u, v), (v, u)):
                    program.add_order(
                        4 * one + along, 4 * other + along + 2, DOOR_WIDTH + _ROUNDING_PIXELS, _MUST
                    )
    return program


def _relate(
    program: _WallProgram,
    u: int,
    v: int,
    relation: int,
    axis: int,
) -> None:
    """Add a relation along one axis; `u` and `v` are the first walls of the two rooms."""
    for low, high in ((u, v + 2), (v, u + 2)):
        program.add_order(low, high, _ROUNDING_PIXELS - NEAR, _MUST)
        program.add_order(low, high, -_GAP, _TOUCH)
    if relation == SURROUNDING:
        program.add_order(u, v, 1 + _ROUNDING_PIXELS, _MUST)
        program.add_order(v + 2, u + 2, 1 + _ROUNDING_PIXELS, _MUST)
        return
    direction = 0 if relation == INSIDE else _DIRECTION[relation][axis]
    for sign, wall in {-1: [(1, v)], 1: [(-1, v + 2)], 0: [(-1, v), (1, v + 2)]}[direction]:
        program.add_soft(
            {u: 0.5 * sign, u + 2: 0.5 * sign, wall: -float(sign)}, -_ROUNDING_PIXELS, _MUST
        )
    if relation == INSIDE:
        program.add_order(v, u, 0.0, _SIZE)
        program.add_order(u + 2, v + 2, 0.0, _SIZE)


def choose_separations(
    walls: Float[np.ndarray, "R 4"] | Int[np.ndarray, "R 4"],
    target: Int[np.ndarray, " E"],
    separations: _Separations,
) -> _Separations:
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
            named = [
                any(a == b != 0 for a, b in zip(side, _DIRECTION[relation], strict=True))
                for side in _SIDE_OF
            ]
            gaps = np.where(named, gaps, -np.inf)
        separations.setdefault(key, int(np.argmax(gaps)))
    return separations


class _WallProgram:
    """Linear program on the walls of rooms with soft constraints, and hard ones if it is solved with bounds."""

    def __init__(self, rooms: int) -> None:
        self.rooms = rooms
        self.rows: list[tuple[dict[int, float], float, float]] = []

    def add_soft(self, total: dict[int, float], most: float, penalty: float) -> None:
        """Require a linear combination of walls to be at most `most`; the penalty is per pixel of violation."""
        self.rows.append((total, most, penalty))

    def add_order(
        self,
        first: int,
        second: int,
        gap: float,
        penalty: float,
    ) -> None:
        """Require one wall to be at least `gap` before another."""
        self.add_soft({first: 1.0, second: -1.0}, -gap, penalty)

    def solve(
        self, hard: Int[np.ndarray, "B 4"] | None = None, margin: float = 0.0
    ) -> Float[np.ndarray, "R 4"] | None:
        """Return the walls with the smallest total penalty; None if the hard constraints are infeasible.

        With `hard` bounds on marks (see `wall_constraints.Bound`) and their margin, rooms are on
        the canvas.
        """
        from scipy.optimize import linprog  # it takes .3 s
        from scipy.sparse import csr_array, eye_array, hstack, vstack

        soft = len(self.rows)
        walls = 4 * self.rooms
        entries = [
            (row, *term) for row, (total, _, _) in enumerate(self.rows) for term in total.items()
        ]
        row, column, factor = zip(*entries, strict=True)
        matrix = hstack([csr_array((factor, (row, column)), shape=(soft, walls)), -eye_array(soft)])
        most = np.array([most for _, most, _ in self.rows])
        upper = np.full(walls + soft, np.inf)
        if hard is not None:
            upper[:walls] = _CANVAS.side
            rows, limits = wall_rows(hard, self.rooms, _CANVAS)
            matrix = vstack([matrix, hstack([rows[:, :walls], csr_array((len(limits), soft))])])
            most = np.concatenate([most, limits - margin])
        objective = np.concatenate([np.zeros(walls), [penalty for _, _, penalty in self.rows]])
        variables: Any = np.stack([np.zeros(walls + soft), upper], 1)
        result = linprog(objective, matrix.tocsr(), most, bounds=variables, method="highs-ds")
        return None if result.x is None else result.x[:walls].reshape(-1, 4)
