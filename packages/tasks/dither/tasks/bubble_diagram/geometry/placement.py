"""Room boxes for pictures and export: a realisation of the diagram, if one is known.

Realising boxes are as small as allowed; `spread_boxes` moves their walls towards the preferred
sizes. Other diagrams get the boxes of `place_rooms`, which satisfy as many relations as possible.
Letters: R rooms, B bounds, E pairs of rooms.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from itertools import chain, product

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from ..arrays import Boundary, Boxes, RelationRow, Walls
from ..plans import Box, Diagram, room_names
from ..relations import NEAR, areas_of, edges_of, exclusive, overlapping, sides_of
from ..vocabulary import (
    ABOVE,
    AREAS,
    BELOW,
    INSIDE,
    LEFT,
    LIVING,
    METRES,
    NO_EDGE,
    RELATIONS,
    RIGHT,
    SURROUNDING,
    area_text,
    pair_index,
    pairs,
)
from .boundary import corners_of, pack_boundary
from .dwelling import LIMITS, DwellingLimits, plan_problems
from .dwelling_fit import DwellingFit, fit_dwelling
from .floor_plan import (
    DOOR_WIDTH,
    floor_plan,
    longest_walls,
    regions_of,
    room_areas,
)
from .realisability import realise, realises
from .wall_constraints import WallConstraints, wall_constraints_of
from .wall_program import (
    AREA_PENALTY,
    MARGINS,
    PREFERRED_SIDES,
    Pull,
    WallProgram,
    active_bounds,
    demand_areas,
)

_LAYOUT_ROUNDS = 6
_SPREAD_ROUNDS = 3
_AREA_ROUNDS = 5
_LIVING_SCALES = (1.0, 0.6, 1.6)
"""Factors of the preferred sides of the living room, in order."""

_LARGE_LIVING = 2.5
"""Such a factor of the last start of a dwelling: a large living room touches more rooms, which have
their doors to it."""

_SOFT_ROUNDS = (0, 3)
"""Rounds in which areas are preferred only, before those in which they are demanded, in order."""

_NO_WALL = 0.5
"""Penalty of a door without a wall."""

_SLIMMEST = 1.6
"""Largest factor by which it is stretched."""

_AREA_SLIMMEST = 2.5
"""The same factor for rooms of given area."""

_AREA_SIZE = 40.0
"""Factor of the penalty of the size of such rooms."""

_SMALLEST = 18
"""Smallest side in pixels."""

_GAP = 4
"""Pixels between the walls of neighbours."""

_ROUNDING_PIXELS = 1

# Penalties per pixel: relations, gaps between neighbours, contact of neighbours, sizes, extent.
_MUST = 1.0
_SHOULD = 0.5
_TOUCH = 0.15
_SIZE = 0.02
_COMPACT = 0.005

_TIGHT = 0.7
"""Share of the preferred side below which a further penalty applies."""

_CRAMPED = 0.1
"""That penalty per pixel."""

_SIDES = (LEFT, ABOVE, RIGHT, BELOW)
"""Relations whose first room is on a side of the second one, in the order of its walls."""

_Sides = Float[ndarray, "R 2"]
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
        unmet: Why the boxes do not show the diagram as required.
    """

    diagram: Diagram
    boxes: Boxes
    holds: tuple[bool, ...]
    extra: tuple[tuple[int, int], ...]
    outline: tuple[tuple[int, int], ...] = ()
    front_door: tuple[float, float] | None = None
    unmet: tuple[str, ...] = ()

    @classmethod
    def of(
        cls,
        diagram: Diagram,
        boxes: Boxes,
        boundary: Boundary | None = None,
        unmet: tuple[str, ...] = (),
    ) -> Placement:
        """Compare boxes with the diagram, and move them so that the smallest x and y are 0."""
        boxes = boxes.astype(np.int64)
        edges = {(i, j): relation for i, j, relation in diagram.edges}
        shown = dict(zip(pairs(len(boxes)), edges_of(boxes).tolist(), strict=True))
        related = [pair for pair, relation in shown.items() if relation != NO_EDGE]
        outline = [] if boundary is None else corners_of(boundary)
        # The outline may begin before the first room.
        corner_points = np.array([*boxes[:, :2], *outline])
        left, top = corner_points.min(0).tolist()
        front_door = None
        if boundary is not None and boundary[0, 0] >= 0:
            x, y = boundary[:2].mean(0).tolist()
            front_door = (x - left, y - top)
        return cls(
            diagram=diagram,
            boxes=boxes - [left, top, left, top],
            holds=tuple(shown[pair] == relation for pair, relation in edges.items()),
            extra=tuple(pair for pair in related if pair not in edges),
            outline=tuple((x - left, y - top) for x, y in outline),
            front_door=front_door,
            unmet=unmet,
        )

    def boundary_at(self, first: Box) -> tuple[tuple[int, int], ...] | None:
        """Return the boundary if the first box is moved; None without an outline."""
        x, y = np.subtract(first[:2], self.boxes[0, :2]).tolist()
        door = []
        if self.front_door is not None:
            # Only the middle of the door is known: both ends are there.
            door_x, door_y = self.front_door
            door = [(door_x + x, door_y + y)] * 2
        outline = [(left + x, top + y) for left, top in self.outline]
        return pack_boundary(outline, door)

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
        sentences = []
        for i, j, relation in self.diagram.edges:
            words = RELATIONS[relation].replace("-", " ")
            sentences.append(f"{names[i]} {words} {names[j]}")
        return sentences

    def extra_names(self) -> list[str]:
        """Return the pairs of rooms that are related in the boxes only, in words."""
        names = room_names(self.diagram)
        return [f"{names[i]} and {names[j]}" for i, j in self.extra]


def place_diagram(
    diagram: Diagram,
    realisation: Boxes | None = None,
    *,
    search: bool = True,
) -> Placement:
    """Find boxes for the rooms of a diagram, without forbidden overlap if there are such boxes.

    Args:
        diagram: The diagram; its own boxes are used if it has any.
        realisation: Boxes that realise it, if known.
        search: Whether to search for a realisation if none is given. Without search a realisable
            diagram may be placed with violated relations.
    """
    if diagram.boxes is not None:
        boundary = None
        if diagram.boundary is not None:
            boundary = np.array(diagram.boundary)

        return Placement.of(diagram, np.array(diagram.boxes, np.int64), boundary)

    target = diagram.relations
    rooms = len(diagram.types)
    disjoint = exclusive(diagram.types)
    boxes = place_rooms(diagram)
    starts: list[Boxes] = []
    if realises(boxes, target, disjoint=disjoint):
        starts.append(boxes)
    if realisation is not None:
        starts.append(realisation)
    elif search and not starts:
        # Without forbidden overlap first: such boxes make a better picture.
        found = realise(target, rooms, disjoint=disjoint).boxes
        if found is None:
            found = realise(target, rooms).boxes
        starts += [] if found is None else [found]
    if starts:
        spread = _best_spread(diagram, starts)
        boxes = _compact(diagram, spread, _further_starts(diagram, starts))
    elif diagram.areas is not None:
        boxes = keep_areas(diagram, boxes)
    return Placement.of(diagram, boxes)


def _best_spread(diagram: Diagram, starts: Sequence[Boxes]) -> Boxes:
    """Return the boxes with the smallest `layout_error`, from the first start that has none."""
    layouts: list[tuple[float, Boxes]] = []
    for start in starts:
        boxes = spread_boxes(diagram, start)
        error = layout_error(diagram, boxes)
        layouts.append((error, boxes))
        if not error:
            break
    return min(layouts, key=lambda layout: layout[0])[1]


def dwelling_problems(
    placement: Placement, limits: DwellingLimits = LIMITS
) -> Iterator[str]:
    """Yield why a layout is not a dwelling; nothing if it is one."""
    diagram = placement.diagram
    boxes = placement.boxes
    plan = floor_plan(diagram.types, boxes, placement.front_door, diagram.doors)
    yield from plan_problems(diagram, boxes, plan, limits)


def _compact(diagram: Diagram, start: Boxes, further: Iterable[Boxes] = ()) -> Boxes:
    """Return boxes without gaps that realise a diagram, as a dwelling if possible; see `dwelling_fit`."""
    constraints = constraints_of(diagram, start)
    error_of = partial(layout_error, diagram)
    fit = DwellingFit(diagram, constraints, error_of)
    return fit_dwelling(fit, chain([start], further))


def _further_starts(diagram: Diagram, starts: Sequence[Boxes]) -> Iterator[Boxes]:
    """Yield starts of a dwelling for diagrams whose spread boxes lead to none."""
    yield from starts
    sides = _with_living_room(diagram, _LARGE_LIVING)
    constraints = constraints_of(diagram, starts[-1])
    yield improve_boxes(diagram, constraints, starts[-1], sides)


def place_edited(diagram: Diagram) -> Placement | None:
    """Return a sample of an edited plan with the boxes of its kept rooms; None if none are found.

    The sample is turned back, and its kept rooms come first.
    """
    assert diagram.edit is not None
    pinned = diagram.edit.pinned
    rooms = len(diagram.types)
    # Without overlap if possible.
    for disjoint in (exclusive(diagram.types), False):
        search = realise(diagram.relations, rooms, disjoint=disjoint, pinned=pinned)
        if search.boxes is not None:
            boxes = _compact(diagram, spread_boxes(diagram, search.boxes))
            restored = diagram.restored(boxes)
            return Placement.of(restored, np.array(restored.boxes))
    return None


def place_rooms(diagram: Diagram) -> Boxes:
    """Return boxes in pixels that satisfy many relations; the smallest x and y are 0.

    "Separated along x or along y" is not linear: a linear program with soft constraints is solved,
    each pair is assigned the side on which it is closest to being separated, and the program is
    solved again.
    """
    target = diagram.relations
    separations: _Separations = {}
    best = np.zeros((len(diagram.types), 4), np.int64)
    fewest = len(target) + 1
    for _ in range(_LAYOUT_ROUNDS):
        program = soft_program(diagram, target, separations, preferred_sides(diagram))
        walls = program.solve()
        assert walls is not None, "soft constraints are always feasible"
        origin = np.tile(walls[:, :2].min(0), 2)
        boxes = whole_boxes(walls - origin)
        broken = int((edges_of(boxes) != target).sum())
        if broken < fewest:
            best = boxes
            fewest = broken
        previous = separations
        # The side on which each pair is now closest to being separated.
        separations = choose_separations(walls, target, separations)
        if separations == previous:
            break
    return best


def whole_boxes(walls: Walls) -> Boxes:
    """Round walls to pixels; every side is at least one pixel."""
    boxes: Boxes = np.rint(walls).astype(np.int64)
    low = boxes[:, :2]
    high = boxes[:, 2:]
    np.maximum(high, low + 1, out=high)
    return boxes


def spread_boxes(diagram: Diagram, realisation: Boxes) -> Boxes:
    """Return boxes of about the preferred sizes that realise the diagram, too.

    They overlap only if the given ones do. The areas of a diagram, if known, take the place of
    preferred sizes, and rooms with a door share a wall for it. Repeatedly fixes every choice, such
    as the side on which two rooms are separated, as in the current boxes, and solves a linear
    program with all of that as hard constraints; with other sizes of the living room while the
    smallest `layout_error`, that of the returned boxes, is not 0.

    Raises:
        ValueError: The given boxes do not realise the diagram.
    """
    constraints = constraints_of(diagram, realisation)
    if not realises(realisation, constraints.edges):
        raise ValueError(f"boxes do not realise the diagram: {realisation.tolist()}")
    layouts: list[tuple[float, Boxes]] = []
    for soft, scale in product(_SOFT_ROUNDS, _LIVING_SCALES):
        sides = _with_living_room(diagram, scale)
        rounds = _spread_rounds(
            diagram=diagram,
            constraints=constraints,
            start=realisation,
            preferred=sides,
            soft=soft,
        )
        layouts += [(layout_error(diagram, boxes), boxes) for boxes in reversed(rounds)]
        error, best = min(layouts, key=lambda layout: layout[0])
        if not error:
            break
    return best


def _spread_rounds(
    diagram: Diagram,
    constraints: WallConstraints,
    start: Boxes,
    preferred: _Sides,
    soft: int,
) -> list[Boxes]:
    """Return the boxes of each round, from the given ones on; areas are preferred in `soft` ones."""
    rounds = _SPREAD_ROUNDS
    slimmest = _SLIMMEST
    if diagram.areas is not None:
        rounds = _AREA_ROUNDS + soft
        slimmest = _AREA_SLIMMEST

    found = [start.astype(np.int64)]
    sides = preferred
    for number in range(rounds):
        demand = number >= soft
        boxes = improve_boxes(
            diagram, constraints, found[-1], sides, demand_areas=demand
        )
        if (boxes == found[-1]).all() and demand:
            break
        found.append(boxes)
        actual = sides_of(boxes).astype(float)
        areas = preferred.prod(1)
        if diagram.areas is not None:
            # The part of a room that others cover does not count.
            areas = areas + actual.prod(1) - room_areas(diagram.types, boxes)
        # Rooms that must be slim still get their area.
        root = np.sqrt(areas)[:, None]
        # Each side that, with the other one as it is, gives the area.
        wanted = areas[:, None] / actual[:, ::-1]
        sides = np.clip(wanted, root / slimmest, root * slimmest)
    return found


def constraints_of(diagram: Diagram, boxes: Boxes) -> WallConstraints:
    """Return the constraints of a diagram, without overlap unless the boxes have some."""
    disjoint = exclusive(diagram.types)
    if (overlapping(boxes) & disjoint).any():
        disjoint = np.zeros_like(disjoint)
    return wall_constraints_of(diagram.relations, len(diagram.types), disjoint=disjoint)


def improve_boxes(
    diagram: Diagram,
    constraints: WallConstraints,
    boxes: Boxes,
    sides: _Sides,
    pulls: Iterable[Pull] = (),
    *,
    demand_areas: bool = True,
) -> Boxes:
    """Solve a linear program with the constraints as in the boxes.

    Returns the boxes if rounding violates them. `sides` are preferred; `pulls` are walls (4 room +
    side), their preferred place, and the penalty per pixel.
    """
    target = constraints.edges
    separations = choose_separations(boxes, target, {})
    # Relations are hard here, so that doors and areas outweigh everything else.
    program = soft_program(
        diagram, target, separations, sides, door_penalty=AREA_PENALTY
    )
    program.pull(pulls)
    if demand_areas:
        demand_own_areas(program, diagram, boxes)
    if diagram.edit is not None:
        program.pinned = diagram.edit.pinned
    hard = active_bounds(constraints, boxes)
    for margin in MARGINS:
        walls = program.solve(hard, margin)
        if walls is not None:
            rounded: Boxes = np.rint(walls).astype(np.int64)
            exact = realises(rounded, target, disjoint=constraints.disjoint)
            if exact and constraints.contains(rounded):
                return rounded
    return boxes


def keep_areas(
    diagram: Diagram,
    boxes: Boxes,
    inside: WallConstraints | None = None,
    pulls_of: Callable[[Boxes], Iterable[Pull]] | None = None,
) -> Boxes:
    """Return boxes with the areas of a diagram, if it has any, and with as many relations as possible.

    For diagrams without realisation, whose relations cannot all be kept. The boxes are `inside` the
    rectangles in which the given ones are, and `pulls_of` boxes move their walls; see
    `improve_boxes`. Of equal boxes those with the largest floor are returned.
    """
    target = diagram.relations
    candidates = [boxes]
    for _ in range(_AREA_ROUNDS):
        boxes = candidates[-1]
        separations = choose_separations(boxes, target, {})
        sides = preferred_sides(diagram)
        program = soft_program(diagram, target, separations, sides)
        demand_own_areas(program, diagram, boxes)
        if pulls_of is not None:
            program.pull(pulls_of(boxes))

        hard = None
        if inside is not None:
            hard = active_bounds(inside, boxes)

        walls = program.solve(hard)
        if walls is None:
            break
        if inside is None:
            walls = walls - np.tile(walls[:, :2].min(0), 2)
        candidates.append(whole_boxes(walls))

    def violations(boxes: Boxes) -> tuple[float, int, int]:
        error = float(area_errors(diagram, boxes).sum())
        floor = int(room_areas(diagram.types, boxes).sum())
        return error, int((edges_of(boxes) != target).sum()), -floor

    return min(candidates, key=violations)


def layout_error(diagram: Diagram, boxes: Boxes) -> float:
    """Return the sum of relative errors of areas, and `_NO_WALL` for each door without a wall."""
    error = float(area_errors(diagram, boxes).sum())
    inner = [(i, j) for i, j in diagram.doors or () if j is not None]
    if inner:
        # Rooms with a door that do not face each other share no wall of any length.
        facing = longest_walls(regions_of(diagram.types, boxes))
        missing = sum(ends not in facing for ends in inner)
        error = _NO_WALL * missing + error
    return error


def area_errors(diagram: Diagram, boxes: Boxes) -> Float[ndarray, " R"]:
    """Return how far the drawn area of each room is outside its bounds, relative to the nearest one.

    Zeros if the diagram has no areas.
    """
    if diagram.areas is None:
        return np.zeros(len(diagram.types))
    low, high = area_bounds(diagram)
    areas = room_areas(diagram.types, boxes)
    # Never read where `low` is 0.
    too_small = 1 - areas / np.maximum(low, 1e-9)
    too_large = np.maximum(areas / high - 1, 0.0)
    return np.where(areas < low, too_small, too_large)


def area_problems(placement: Placement) -> Iterator[str]:
    """Yield the rooms whose drawn areas are outside their bounds, in words."""
    diagram = placement.diagram
    if diagram.areas is None:
        return
    missed = area_errors(diagram, placement.boxes) > 0
    areas = room_areas(diagram.types, placement.boxes) * METRES**2
    names = room_names(diagram)
    for room in np.flatnonzero(missed).tolist():
        bounds = area_text(diagram.areas[room])
        yield f"{names[room]} has {areas[room]:.1f} m2, not {bounds}"


def area_bounds(diagram: Diagram) -> Float[ndarray, "2 R"]:
    """Return the smallest and the largest area of each room in square pixels."""
    low, high = np.array(diagram.areas, float).T
    # The first and the last bin also hold smaller and larger rooms.
    low = np.where(low <= AREAS[0], 0.0, low)
    high = np.where(high >= AREAS[-1], np.inf, high)
    return np.stack([low, high]) / METRES**2


def demand_own_areas(program: WallProgram, diagram: Diagram, boxes: Boxes) -> None:
    """Add bounds of the areas of a diagram, if it has any; see `demand_areas`."""
    if diagram.areas is not None:
        lost = areas_of(boxes) - room_areas(diagram.types, boxes)
        demand_areas(program, area_bounds(diagram), boxes, lost)


def preferred_sides(diagram: Diagram) -> _Sides:
    """Return the preferred width and height of each room: a square of its area, or of its type."""
    if diagram.areas is None:
        return np.tile(PREFERRED_SIDES[[*diagram.types], None], 2)
    # The geometric mean of the bounds, as bins grow with the area; bounds of 0 have none.
    middle = np.sqrt(np.array(diagram.areas).clip(AREAS[0]).prod(1))
    return np.tile(np.sqrt(middle)[:, None] / METRES, 2)


def _with_living_room(diagram: Diagram, scale: float) -> _Sides:
    """Return the preferred sides, those of the living room times a factor."""
    living = (np.array(diagram.types) == LIVING)[:, None]
    return preferred_sides(diagram) * np.where(living, scale, 1.0)


def soft_program(
    diagram: Diagram,
    target: RelationRow,
    separations: _Separations,
    sides: _Sides,
    door_penalty: float = _MUST,
) -> WallProgram:
    """Return a linear program with soft constraints.

    These are relations, separations, doors, and preferred width and height.
    """
    types = diagram.types
    program = WallProgram(len(types))
    usual = _SIZE
    if diagram.areas is not None:
        usual *= _AREA_SIZE
    for room, kind in enumerate(types):
        size = 2 * usual if kind == LIVING else usual
        for axis, side in enumerate(sides[room].tolist()):
            low = 4 * room + axis
            high = low + 2
            program.add_order(low, high, _SMALLEST, 10 * _MUST)
            program.add_order(low, high, side, size)
            program.add_order(low, high, _TIGHT * side, _CRAMPED)
            program.add_order(high, low, -side, size)
            program.add_soft({high: 1.0}, 0.0, _COMPACT)

    for (u, v), relation in zip(pairs(len(types)), target.tolist(), strict=True):
        if relation != NO_EDGE:
            for axis in (0, 1):
                _relate(program, u, v, relation, axis)
    for (what, u, v), side in separations.items():
        if what == "within":
            # A left or upper wall of the inner room is after the outer one, others are before.
            first, second = (v, u) if side < 2 else (u, v)
            program.add_order(4 * first + side, 4 * second + side, 0.0, _MUST)
        else:
            near = target[pair_index(u, v, len(types))] != NO_EDGE
            _separate(program, u, v, side, near=near)
            if (u, v) in (diagram.doors or ()):
                _share_wall(program, u, v, 1 - side % 2, door_penalty)
    return program


def _relate(
    program: WallProgram,
    u: int,
    v: int,
    relation: int,
    axis: int,
) -> None:
    """Add a relation of room u to room v along one axis."""
    # From here on their first walls along it.
    u = 4 * u + axis
    v = 4 * v + axis
    for low, high in ((u, v + 2), (v, u + 2)):
        program.add_order(low, high, _ROUNDING_PIXELS - NEAR, _MUST)
        program.add_order(low, high, -_GAP, _TOUCH)
    if relation == SURROUNDING:
        program.add_order(u, v, 1 + _ROUNDING_PIXELS, _MUST)
        program.add_order(v + 2, u + 2, 1 + _ROUNDING_PIXELS, _MUST)
        return

    # The centre of u is before the first wall of v, behind the second, or between the two.
    walls = [(-1, v), (1, v + 2)]
    if relation in _SIDES[axis]:
        walls = [(1, v)]
    elif relation in _SIDES[axis + 2]:
        walls = [(-1, v + 2)]
    for sign, wall in walls:
        centre = {u: 0.5 * sign, u + 2: 0.5 * sign, wall: -float(sign)}
        program.add_soft(centre, -_ROUNDING_PIXELS, _MUST)
    if relation == INSIDE:
        program.add_order(v, u, 0.0, _SIZE)
        program.add_order(u + 2, v + 2, 0.0, _SIZE)


def _separate(
    program: WallProgram,
    u: int,
    v: int,
    side: int,
    *,
    near: bool,
) -> None:
    """Keep room u apart from room v on one of its sides."""
    axis = side % 2
    first, second = (u, v) if side < 2 else (v, u)
    # A gap of `NEAR` still counts as near.
    gap = NEAR + 1 + _ROUNDING_PIXELS
    penalty = _MUST
    if near:
        gap = _GAP
        penalty = _SHOULD
    program.add_order(4 * first + axis + 2, 4 * second + axis, gap, penalty)


def _share_wall(
    program: WallProgram,
    u: int,
    v: int,
    along: int,
    penalty: float,
) -> None:
    """Require that rooms u and v share an axis for the length of a door."""
    for room, other in ((u, v), (v, u)):
        start = 4 * room + along
        end = 4 * other + along + 2
        program.add_order(start, end, DOOR_WIDTH + _ROUNDING_PIXELS, penalty)


def choose_separations(
    walls: Walls | Boxes,
    target: RelationRow,
    separations: _Separations,
) -> _Separations:
    """Assign the nearest side to pairs without one, another to pairs not separated on theirs."""
    separations = dict(separations)
    for (u, v), relation in zip(pairs(len(walls)), target.tolist(), strict=True):
        # Positive where u protrudes on a side of v: if on all, the wall that does so least.
        beyond = (walls[v] - walls[u]) * [1, 1, -1, -1]
        if relation != SURROUNDING and beyond.min() > 0:
            separations["within", u, v] = int(np.argmin(beyond))
        if relation in (INSIDE, SURROUNDING):
            continue

        # How far u is apart from v with u left of it, above, right of it, and below.
        before = walls[v, :2] - walls[u, 2:]
        after = walls[u, :2] - walls[v, 2:]
        gaps = np.concatenate([before, after])
        key = ("apart", u, v)
        if relation != NO_EDGE:
            # The sides of v on which the relation may separate the two.
            named = [relation in side for side in _SIDES]
            gaps = np.where(named, gaps, -np.inf)
        elif key in separations and gaps[separations[key]] < NEAR + 1:
            gaps[separations.pop(key)] = -np.inf
        separations.setdefault(key, int(np.argmax(gaps)))
    return separations
