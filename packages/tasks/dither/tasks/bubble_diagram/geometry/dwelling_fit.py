"""Compact dwellings: boxes that realise a diagram are moved until there are no slits and gaps.

Each round reads off the boxes which walls face each other or the outside, through which walls every
room is reached, and which rooms have no window. A linear program with every relation as a hard
constraint then closes the gaps, makes room for doors and windows, and keeps sizes usual; its
solution is the start of the next round. A change that a program could not make costs more in later
rounds, so that they try another one.
Letters: R rooms.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace

import numpy as np
from jaxtyping import Int
from numpy import ndarray

from ..arrays import Boxes, PixelLabels
from ..plans import Diagram
from ..relations import sides_of
from ..vocabulary import BALCONY, LIVING, METRES, ROOM_IDS
from .compactness import label_compactness
from .dwelling import (
    AREAS_OF,
    LIT,
    LONGISH,
    THICKEST,
    lit_rooms,
    plan_problems,
)
from .floor_plan import (
    FloorPlan,
    access_tree,
    door_cost,
    floor_plan,
)
from .realisability import realises
from .wall_constraints import END, START, WallConstraints
from .wall_program import (
    MARGINS,
    PREFERRED_SIDES,
    Pull,
    WallProgram,
    active_bounds,
    demand_areas,
)

_ROUNDS = 8
"""Linear programs from each start."""

_GAP = 4
"""Thickness of a wall between rooms in pixels."""

_SHARED = 15
"""Pixels of wall that rooms with a door share, 1.05 m; `dwelling` requires 0.9 m."""

_WINDOW = 16
"""Pixels of an outer wall with a window."""

_FRONT_DOOR = 16
"""Pixels of an outer wall with the front door."""

_LIVING_PART = 17
"""Pixels between others from which on a part of the living room is drawn."""

_FACING = 6
"""Pixels along which walls face each other from which on the gap between them is closed."""

_FAILED = 20.0
"""Cost of a change that a program could not make, in pixels."""

# Penalties per pixel: doors and windows, smallest and longest sides, gaps, the extent of the plan,
# and preferred sizes.
_OPENING = 5.0
_SIZE = 3.0
_CLOSE = 0.3
_EXTENT = 0.05
_PREFERRED = 0.02

_HABITABLE = 31
"""Smallest side of a habitable room in pixels, 2.18 m (see `dwelling`)."""

_NARROWEST = {
    ROOM_IDS["Kitchen"]: 24,
    ROOM_IDS["Bathroom"]: 21,
    ROOM_IDS["Balcony"]: 18,
    ROOM_IDS["Entrance"]: 18,
    ROOM_IDS["Storage"]: 14,
    ROOM_IDS["Wall-in"]: 14,
}
"""Smallest sides of others, from 1 to 1.7 m."""

_PROPORTION = 2.7
"""Largest ratio of the sides of others; `dwelling` allows 3."""

_STRETCH = 1.5
"""Largest factor by which a preferred side is stretched."""

_SAFETY = (1.06, 0.95)
"""Factors of the smallest and the largest usual area, as rounding changes areas."""

_SHARP = 0.025
"""Share of the bounding rectangle that one corner of the outline is worth."""

_DOOR_CHANGE = 0
_WINDOW_CHANGE = 1
_LIVING_CHANGE = 2

_PROGRESS = 0.01
"""Smallest improvement of the compactness of a dwelling for which rounds go on."""

_Wish = tuple[int, int, float]
"""A wall (4 room + side), another one, and the pixels by which it is at least before that one."""


@dataclass(frozen=True)
class _Change:
    """Wishes that give two rooms a door, or a room a window.

    Attributes:
        key: What they are for, and how.
        cost: Pixels by which walls have to move.
    """

    key: tuple[int, ...]
    cost: float
    wishes: tuple[_Wish, ...]


@dataclass(frozen=True)
class _Layout:
    """Boxes with the floor plan that is drawn from them."""

    boxes: Boxes
    plan: FloorPlan
    score: tuple[float, int, float]
    """Error, number of problems, and negative quality: the smallest one is the best."""


def _compactness(label: PixelLabels) -> float:
    fill, corners = label_compactness(label)
    return fill - _SHARP * corners


@dataclass
class DwellingFit:
    """What boxes are fitted to.

    Attributes:
        constraints: Those of the diagram.
        error_of: Error of boxes that comes before everything else.
        quality_of: Quality of the room at each pixel, by default how compact they are.
        pulls_of: Walls that face an outline, and the place of it; without it, plans are fitted to
            their bounding rectangle.
        front: Point near the front door, if known.
        failed: How often a change was tried in vain from a start, by its key.
    """

    diagram: Diagram
    constraints: WallConstraints
    error_of: Callable[[Boxes], float]
    quality_of: Callable[[PixelLabels], float] = _compactness
    pulls_of: Callable[[Boxes], Iterable[Pull]] | None = None
    front: tuple[float, float] | None = None
    failed: Counter[tuple[int, ...]] = field(default_factory=Counter)


def fit_dwelling(fit: DwellingFit, starts: Iterable[Boxes]) -> Boxes:
    """Return the best boxes of all rounds from each start, the first of which has no problems.

    Best are boxes with the smallest error (areas and doors of the diagram), then with the fewest
    problems of a dwelling, then compact ones. The starts realise the diagram.
    """
    layouts: list[_Layout] = []
    for start in starts:
        layouts += _rounds(fit, start)
        if not min(layout.score for layout in layouts)[1]:
            break
    return min(layouts, key=lambda layout: layout.score).boxes


def _rounds(fit: DwellingFit, start: Boxes) -> Iterator[_Layout]:
    """Yield the layout of a start and of each linear program after it."""
    fit.failed.clear()
    boxes = start
    best = None
    for number in range(_ROUNDS + 1):
        layout = _judged(fit, boxes)
        yield layout
        error, problems, _ = layout.score
        better = best is None or layout.score[2] < best - _PROGRESS
        if number == _ROUNDS or not (error or problems or better):
            return
        if not (error or problems):
            best = layout.score[2]
        changes = list(_changes(fit, layout))
        moved = _moved(fit, layout, changes)
        # Without a move, changes that failed get more expensive, and others are tried.
        if moved is None or (moved == boxes).all():
            if not changes:
                return
        else:
            boxes = moved
        for change in changes:
            if not _is_granted(boxes, change):
                fit.failed[change.key] += 1


def _judged(fit: DwellingFit, boxes: Boxes) -> _Layout:
    diagram = fit.diagram
    plan = floor_plan(diagram.types, boxes, fit.front, diagram.doors)
    problems = len(list(plan_problems(diagram, boxes, plan)))
    score = (fit.error_of(boxes), problems, -fit.quality_of(plan.label))
    return _Layout(boxes, plan, score)


def _is_granted(boxes: Boxes, change: _Change) -> bool:
    walls = boxes.ravel()
    return all(
        walls[first] + gap <= walls[second] for first, second, gap in change.wishes
    )


def _changes(fit: DwellingFit, layout: _Layout) -> Iterator[_Change]:
    """Yield the changes that give every room a door and, if it must have one, a window."""
    diagram = fit.diagram
    types = diagram.types
    shared = layout.plan.shared_walls(_SHARED - 1, THICKEST)
    best: dict[tuple[int, int], _Change] = {}
    weights: dict[tuple[int, int], float] = {}
    for i, j, _ in diagram.edges:
        change = _door_change(fit, layout.boxes, i, j, is_shared=(i, j) in shared)
        best[i, j] = change
        preference = door_cost(types[i], types[j])
        weights[i, j] = _cost(fit, change) + preference
    joined: Iterable[tuple[int, int | None]] = access_tree(types, weights)
    if diagram.doors is not None:
        joined = diagram.doors
    for first, second in joined:
        if second is not None and (first, second) in best:
            yield best[first, second]

    fronts = {door.i: door.depth >= 0 for door in layout.plan.doors if door.j is None}
    lit = lit_rooms(diagram, layout.plan, shared)
    for room, kind in enumerate(types):
        inner_balcony = kind == BALCONY and room not in layout.plan.facade
        dark = inner_balcony or (kind in LIT and room not in lit)
        length = _missing_facade(dark=dark, has_front_door=fronts.get(room))
        if not length:
            continue
        options = _window_changes(
            layout.boxes, room, living=kind == LIVING, length=length
        )
        yield min(options, key=lambda option: _cost(fit, option))


def _missing_facade(*, dark: bool, has_front_door: bool | None) -> int:
    """Return the pixels of outer wall that a room lacks for a window and a front door.

    `has_front_door` is None if the room needs none.
    """
    length = _WINDOW if dark else 0
    # The window must not take the wall of a front door that is placed already.
    if has_front_door is False or (dark and has_front_door):
        length += _FRONT_DOOR
    return length


def _door_change(
    fit: DwellingFit, boxes: Boxes, i: int, j: int, *, is_shared: bool
) -> _Change:
    """Return the cheapest change that gives rooms i and j a wall for a door."""
    options = _door_changes(boxes, i, j)
    change = min(options, key=lambda option: _cost(fit, option))
    if is_shared and change.cost:
        # A part of the living room shares a wall that its box does not.
        return replace(change, cost=0.0, wishes=())
    types = (fit.diagram.types[i], fit.diagram.types[j])
    if not is_shared and not change.cost and LIVING in types:
        # Another room takes that part of the living room.
        options = _living_changes(fit.diagram, boxes, i, j, change.key[-1])
        change = min(options, key=lambda option: _cost(fit, option))
    return change


def _cost(fit: DwellingFit, change: _Change) -> float:
    return change.cost + _FAILED * fit.failed[change.key]


def _door_changes(boxes: Boxes, i: int, j: int) -> Iterator[_Change]:
    """Yield how rooms i and j are side by side, along enough of a wall, by the side of j on which i is."""
    for side in range(4):
        axis = side % 2
        along = 1 - axis
        first, second = j, i
        if side < 2:
            first, second = i, j
        end = 4 * first + axis + 2
        start = 4 * second + axis
        # A gap of exactly a wall
        wishes: list[_Wish] = [(end, start, _GAP), (start, end, -_GAP)]
        for room, other in ((i, j), (j, i)):
            room_start = 4 * room + along
            other_end = 4 * other + along + 2
            wishes.append((room_start, other_end, _SHARED))
        yield _change((_DOOR_CHANGE, i, j, side), boxes, wishes)


def _living_changes(
    diagram: Diagram, boxes: Boxes, i: int, j: int, side: int
) -> Iterator[_Change]:
    """Yield how a part of the living room reaches a room at a side of its box."""
    living = i
    partner = j
    # The side of the living room; `side` is that of room j.
    facing = (side + 2) % 4
    if diagram.types[i] != LIVING:
        living, partner, facing = j, i, side
    key = (_LIVING_CHANGE, i, j, facing)
    yield from _openings(
        boxes, living, facing, partner, key, living=True, length=_SHARED
    )


def _change(key: tuple[int, ...], boxes: Boxes, wishes: list[_Wish]) -> _Change:
    walls = boxes.ravel()
    cost = sum(
        max(walls[first] + gap - walls[second], 0) for first, second, gap in wishes
    )
    return _Change(key, float(cost), tuple(wishes))


def _window_changes(
    boxes: Boxes, room: int, *, living: bool, length: int
) -> Iterator[_Change]:
    """Yield how a room gets an outer wall: beyond its neighbours on a side, or between two of them."""
    for side in range(4):
        key = (_WINDOW_CHANGE, room, side)
        yield from _openings(
            boxes,
            room,
            side,
            room,
            key,
            living=living,
            length=length,
        )


def _openings(
    boxes: Boxes,
    room: int,
    side: int,
    partner: int,
    key: tuple[int, ...],
    *,
    living: bool,
    length: int,
) -> Iterator[_Change]:
    """Yield how a part of a side of a room is opened: beyond others at it, or between two of them.

    The part is as long as `length`, and along `partner`, too.
    """
    axis = side % 2
    along = 1 - axis
    sign = 1 if side < 2 else -1
    # Rooms at the side of the living room hide it, too.
    depth = _LIVING_PART + _GAP if living else 0
    beyond = sign * boxes[:, side] < sign * boxes[room, side] + depth
    shared = np.minimum(boxes[:, along + 2], boxes[room, along + 2])
    shared = shared - np.maximum(boxes[:, along], boxes[room, along])
    hiding = np.flatnonzero(beyond & (shared > 0))
    hiding = hiding[(hiding != room) & (hiding != partner)]

    wall = 4 * room + side
    wishes: list[_Wish] = []
    for other in hiding.tolist():
        behind = 4 * other + side

        ends = (behind, wall)
        if side < 2:
            ends = (wall, behind)

        wishes.append((*ends, depth))
    yield _change((*key, -1), boxes, wishes)

    middles = boxes[hiding, along] + boxes[hiding, along + 2]
    order = hiding[np.argsort(middles, kind="stable")].tolist()
    start = 4 * partner + along
    for split in range(len(order) + 1):
        # The walls before and after the part.
        ends_before = [4 * other + along + 2 for other in order[:split]]
        starts_after = [4 * other + along for other in order[split:]]
        wishes = [(start, start + 2, length)]
        for end in ends_before:
            wishes.append((end, start + 2, length + _GAP))
            wishes += [(end, first, length + 2 * _GAP) for first in starts_after]
        wishes += [(start, first, length + _GAP) for first in starts_after]
        yield _change((*key, split), boxes, wishes)


def _moved(
    fit: DwellingFit, layout: _Layout, changes: Sequence[_Change]
) -> Boxes | None:
    """Return the boxes of a linear program with changes; None if no margin gives exact ones."""
    constraints = fit.constraints
    program = _program(fit, layout, changes)
    sides = {change.key[1:] for change in changes if change.key[0] == _DOOR_CHANGE}
    # Doors decide on which side two rooms are apart, unless that contradicts the relations.
    for preferred in (sides, set[tuple[int, ...]]()):
        bounds = active_bounds(constraints, layout.boxes, _side_bounds(preferred))
        hard = _with_rectangle(bounds, constraints.rooms)
        for margin in MARGINS:
            walls = program.solve(hard, margin)
            if walls is None:
                continue
            moved: Boxes = np.rint(walls[: constraints.rooms]).astype(np.int64)
            exact = realises(moved, constraints.edges, disjoint=constraints.disjoint)
            if exact and constraints.contains(moved):
                return moved
    return None


def _program(
    fit: DwellingFit, layout: _Layout, changes: Sequence[_Change]
) -> WallProgram:
    """Return the linear program of a round, on the walls of the rooms and of their bounding rectangle."""
    diagram = fit.diagram
    rooms = len(layout.boxes)
    program = WallProgram(rooms + 1)
    _keep_usual_sizes(program, diagram, layout)
    outer = fit.pulls_of is None
    wishes = [(wish, _CLOSE) for wish in _gaps(diagram, layout.boxes, outer=outer)]
    for change in changes:
        wishes += [(wish, _OPENING) for wish in change.wishes]
    for (first, second, gap), penalty in wishes:
        program.add_order(first, second, gap, penalty)
    if fit.pulls_of is not None:
        program.pull(fit.pulls_of(layout.boxes))
    for axis in (0, 1):
        low = 4 * rooms + axis
        program.add_order(low + 2, low, 0.0, _EXTENT)
    if diagram.edit is not None:
        program.pinned = diagram.edit.pinned
    return program


def _side_bounds(sides: set[tuple[int, ...]]) -> set[tuple[int, ...]]:
    """Return the axis and the marks of the bounds that separate pairs of rooms on a side."""
    bounds = set[tuple[int, ...]]()
    for i, j, side in sides:
        first, second = (i, j) if side < 2 else (j, i)
        bounds.add((side % 2, 3 * first + END, 3 * second + START))
    return bounds


def _with_rectangle(bounds: Int[ndarray, "B 4"], rooms: int) -> Int[ndarray, "B 4"]:
    """Return bounds on rooms and one more, which contains the others."""
    bounds = bounds.copy()
    marks = bounds[:, 1:3]
    # The origin comes after the marks of the last room.
    marks[marks == 3 * rooms] += 3
    rows = []
    for room in range(rooms):
        for axis in (0, 1):
            rows.append((axis, 3 * rooms + START, 3 * room + START, 0))
            rows.append((axis, 3 * room + END, 3 * rooms + END, 0))
    return np.concatenate([bounds, np.array(rows)])


def _keep_usual_sizes(program: WallProgram, diagram: Diagram, layout: _Layout) -> None:
    """Add smallest and preferred sides, largest proportions, and ranges of areas."""
    boxes = layout.boxes
    sides = sides_of(boxes).astype(float)
    ranges = []
    for room, kind in enumerate(diagram.types):
        low, high = AREAS_OF[kind]
        low *= _SAFETY[0]
        high *= _SAFETY[1]
        if diagram.areas is not None:
            # Of the areas of the diagram those that are usual, if there are some.
            least, most = diagram.areas[room]
            low, high = max(low, least), min(high, most)
            if low >= high:
                low, high = least, most
        ranges.append((low, high))

        root = PREFERRED_SIDES[kind]
        if diagram.areas is not None:
            root = np.sqrt(np.sqrt(low * high)) / METRES
        # The sides that, with the other one as it is, give the preferred area.
        preferred = np.clip(
            root**2 / sides[room, ::-1], root / _STRETCH, root * _STRETCH
        )
        for axis in (0, 1):
            first = 4 * room + axis
            last = first + 2
            program.add_order(first, last, _NARROWEST.get(kind, _HABITABLE), _SIZE)
            program.add_order(first, last, preferred[axis], _PREFERRED)
            program.add_order(last, first, -preferred[axis], _PREFERRED)
            if kind not in LONGISH:
                other = 4 * room + 1 - axis
                ratio = {
                    last: 1.0,
                    first: -1.0,
                    other + 2: -_PROPORTION,
                    other: _PROPORTION,
                }
                program.add_soft(ratio, 0.0, _SIZE)
    drawn = layout.plan.room_areas()
    bounds = np.array(ranges).T / METRES**2
    demand_areas(program, bounds, boxes, sides.prod(1) - drawn)


def _gaps(diagram: Diagram, boxes: Boxes, *, outer: bool) -> Iterator[_Wish]:
    """Yield gaps to close: between walls that face each other, and to the bounding rectangle."""
    rooms = len(boxes)
    related = {(i, j) for i, j, _ in diagram.edges}

    living = -1
    if LIVING in diagram.types:
        living = diagram.types.index(LIVING)

    for room in range(rooms):
        for side in range(4):
            facing = []
            ahead, is_outer = _ahead(boxes, room, side, living)
            for other, inside in ahead:
                if inside:
                    # A thin part of the living room remains beyond the wall.
                    facing.append((4 * other + side, 0.0))
                elif (min(room, other), max(room, other)) in related:
                    facing.append((4 * other + (side + 2) % 4, -_GAP))
            if outer and is_outer:
                facing.append((4 * rooms + side, 0.0))

            wall = 4 * room + side
            for beyond, gap in facing:
                first, second = (wall, beyond) if side < 2 else (beyond, wall)
                yield first, second, gap


def _ahead(
    boxes: Boxes, room: int, side: int, living: int
) -> tuple[list[tuple[int, bool]], bool]:
    """Return the rooms that a side of a room faces, and whether it also faces the outside.

    A room is True if it is the living room, of which a thin part is beyond the side.
    """
    axis = side % 2
    along = 1 - axis
    # Distances along the axis, ahead of the side.
    sign = -1 if side < 2 else 1
    wall = boxes[room, side]
    opposite = (side + 2) % 4
    near = sign * (boxes[:, opposite] - wall)
    far = sign * (boxes[:, side] - wall)
    start = boxes[room, along]
    free = np.ones(boxes[room, along + 2] - start, bool)
    ahead: list[tuple[int, bool]] = []
    for other in np.argsort(near, kind="stable").tolist():
        low, high = np.clip(
            [boxes[other, along] - start, boxes[other, along + 2] - start], 0, len(free)
        )
        if other == room or high <= low or far[other] <= _GAP:
            continue
        # A view of `free`: assigning to it hides what is behind this room.
        part = free[low:high]
        if near[other] >= -_GAP:
            if part.sum() > _FACING:
                ahead.append((other, False))
            part[:] = False
        elif other == living:
            if far[other] > _LIVING_PART + _GAP:
                # Ahead is the living room.
                part[:] = False
            else:
                ahead.append((other, True))
    return ahead, bool(free.sum() > _FACING)
