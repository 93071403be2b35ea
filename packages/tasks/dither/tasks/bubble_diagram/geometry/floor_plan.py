"""Floor plans from room boxes: disjoint room outlines, doors, and the front door, on pixels.

A box is the bounding box of a room. Where boxes overlap, the living room gives way, then larger
rooms, and what remains of a room is its region without slivers. Doors join all rooms to each other,
preferably through the living room.
Letters: R rooms, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import ClassVar

import numpy as np

from ..arrays import Boxes, Mask, Numbers, PixelLabels
from ..relations import NEAR, areas_of
from ..vocabulary import BEDROOM_IDS, ENTRANCE, GRID, LIVING, pairs, type_ids

DOOR_WIDTH = 12
"""Width of a door in pixels, about 0.85 m; walls of at least this length can have one."""

_SLIVER = 9
"""Parts of a room narrower than this, in pixels, are walls."""

_WALL = 4
"""Thickness of the walls of rooms cut out of another."""

_THINNEST = np.ones((2, 2), bool)
"""Pixels that every part of a room covers."""

DEAD_ENDS = type_ids("Bathroom", "Balcony", "Wall-in", "Storage")
"""Types of rooms that others are not reached through."""

_DARK = type_ids("Entrance", "Storage", "Wall-in", "Balcony")
"""Types without a window."""

_WINDOW = 24
"""Largest length of a window in pixels."""

_JAMB = 2
"""Pixels of wall between a front door and a window."""

_SHORT = 100
"""Cost of a door between rooms that share no wall long enough for it."""

_THROUGH = dict.fromkeys(BEDROOM_IDS, 30) | dict.fromkeys(DEAD_ENDS, 60)
"""Cost of a door to a room that is reached through another one, by the type of that."""

Corner = tuple[int, int]
Point = tuple[float, float]


@dataclass(frozen=True)
class Door:
    """A door from room `i`, left of the wall or above it, to room `j`; None is the outside.

    Attributes:
        x: Centre in pixels, as `y`.
        upright: Whether the wall is vertical.
        depth: Thickness of the wall in pixels; negative if no wall is as long as a door.
    """

    i: int
    j: int | None
    x: float
    y: float
    upright: bool
    depth: float
    length: ClassVar[float] = DOOR_WIDTH


@dataclass(frozen=True)
class Window:
    """A window of a room: centre and length in pixels, and whether the wall is vertical."""

    room: int
    x: float
    y: float
    upright: bool
    length: float


SharedWalls = dict[tuple[int, int], tuple[int, Door]]


@dataclass(frozen=True)
class FloorPlan:
    """Rooms without overlap, and doors.

    Attributes:
        outlines: Corners of each room in pixels, clockwise as seen on the page.
        doors: Doors between rooms, and last front doors. Unless they are given, one joins each room
            to the others.
        windows: At most one for each room with an outer wall.
        label: Room at each pixel, -1 outside.
        facade: Rooms with an outer wall as long as a door.
        walls: Length, and the door, of the longest wall between each two rooms that face.
    """

    outlines: tuple[tuple[Corner, ...], ...]
    doors: tuple[Door, ...]
    windows: tuple[Window, ...]
    label: PixelLabels
    facade: frozenset[int]
    walls: SharedWalls

    def shared_walls(self, length: float, thickness: float) -> set[tuple[int, int]]:
        """Return the rooms i < j that share a wall at least as long, and at most as thick, in pixels."""
        return {
            ends
            for ends, (longest, door) in self.walls.items()
            if longest >= length and door.depth <= thickness
        }

    def room_areas(self) -> Numbers:
        """Return the area of each room as it is drawn, in square pixels."""
        drawn = self.label[self.label >= 0]
        return np.bincount(drawn, minlength=len(self.outlines))


def floor_plan(
    types: Sequence[int],
    boxes: Boxes,
    front: Point | None = None,
    doors: Sequence[tuple[int, int | None]] | None = None,
) -> FloorPlan:
    """Return outlines and doors of rooms at boxes on the canvas.

    Args:
        types: Room types.
        boxes: Room boxes.
        front: Point near the front door, if known; it is in the nearest outer wall of a room with a
            front door in `doors`, or of any room.
        doors: Rooms i < j that a door joins, and (i, None) for front doors. By default rooms are
            joined at least cost, and the entrance or the living room has a front door. A door
            between rooms that do not face each other across a wall is at their closest points.
    """
    boxes = np.asarray(boxes, np.int64)
    label = regions_of(types, boxes)
    outlines = []
    for room, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
        region = label[y0:y1, x0:x1] == room
        outlines.append(trace_outline(region, x0, y0))

    # Without the empty pixels at the right and below, which takes half the time.
    extent = min(int(boxes.max()) + 1, len(label))
    cropped = label[:extent, :extent]
    shared = longest_walls(cropped)
    outer = sorted(_outer_walls(cropped), key=lambda wall: -wall.length)
    if doors is None:
        joined = None
        hosts = [front_host(types)]
    else:
        joined = [(i, j) for i, j in doors if j is not None]
        hosts = [i for i, j in doors if j is None]
    walls = []
    for room in hosts:
        # A known place of the front door outweighs the usual host.
        any_room = doors is None and front is not None
        candidates = [wall for wall in outer if any_room or wall.room == room]
        walls.append(_front_wall(label, room, candidates, front))

    places = [_door_at(wall, front) for wall in walls]
    fronts = [
        Door(
            i=place.room,
            j=None,
            x=place.x,
            y=place.y,
            upright=place.upright,
            depth=0.0 if place.length >= DOOR_WIDTH else -1.0,
        )
        for place in places
    ]
    facade = frozenset(wall.room for wall in outer if wall.length >= DOOR_WIDTH)
    for wall, place in zip(walls, places, strict=True):
        if wall in outer:
            outer.remove(wall)
            outer += _beside_door(wall, place)
    outer.sort(key=lambda wall: -wall.length)
    return FloorPlan(
        outlines=tuple(outlines),
        doors=(*_doors_in(types, boxes, shared, joined), *fronts),
        windows=tuple(_windows(types, outer)),
        label=label,
        facade=facade,
        walls=shared,
    )


def _beside_door(wall: Window, door: Window) -> Iterator[Window]:
    """Yield the parts of a wall on both sides of a door in it."""
    # Along the wall, as both are the same across it.
    place = door.x - wall.x + door.y - wall.y
    for sign in (-1, 1):
        # From the jamb of the door to the end of the wall.
        length = wall.length / 2 - sign * place - DOOR_WIDTH / 2 - _JAMB
        if length > 0:
            part = replace(wall, length=length)
            yield _moved(part, sign * (wall.length - length) / 2)


def _moved(wall: Window, distance: float) -> Window:
    """Return a wall moved along itself."""
    if wall.upright:
        return replace(wall, y=wall.y + distance)
    return replace(wall, x=wall.x + distance)


def front_host(types: Sequence[int]) -> int:
    """Return the room with the front door: the entrance, the living room, or the first one."""
    for kind in (ENTRANCE, LIVING):
        if kind in types:
            return types.index(kind)
    return 0


def _front_wall(
    label: PixelLabels,
    room: int,
    walls: Sequence[Window],
    front: Point | None,
) -> Window:
    """Return the wall nearest to a point, the first one without it; a pixel if there are none."""
    if not walls:
        y, x = np.argwhere(label == room)[0].tolist()
        return Window(
            room=room,
            x=float(x),
            y=float(y),
            upright=False,
            length=0.0,
        )
    if front is None:
        return walls[0]

    def distance(wall: Window) -> float:
        place = _door_at(wall, front)
        far = hypot(place.x - front[0], place.y - front[1])
        # Any wall that is long enough comes before those that are too short.
        if wall.length >= DOOR_WIDTH:
            return far
        return far + GRID

    return min(walls, key=distance)


def _windows(types: Sequence[int], walls: Sequence[Window]) -> Iterator[Window]:
    """Yield a window in the longest outer wall of each room, given walls from the longest."""
    longest = {
        wall.room: wall for wall in reversed(walls) if types[wall.room] not in _DARK
    }
    for wall in longest.values():
        if wall.length > DOOR_WIDTH:
            yield replace(wall, length=min(0.6 * wall.length, _WINDOW))


def segment(
    opening: Door | Window,
    length: float,
    shift: float = 0.0,
) -> tuple[Point, Point]:
    """Return the ends of a line along the wall of an opening, moved across the wall."""
    half = length / 2
    x = opening.x
    y = opening.y
    if opening.upright:
        return (x + shift, y - half), (x + shift, y + half)
    return (x - half, y + shift), (x + half, y + shift)


def _door_at(wall: Window, point: Point | None) -> Window:
    """Return the wall with the place of a door as its middle: nearest to a point, if given."""
    if point is None:
        beside = (wall.length - DOOR_WIDTH) / 2 - _JAMB
        if beside > DOOR_WIDTH or wall.length < DOOR_WIDTH + 2 * _JAMB:
            return wall
        # At the end of a short wall, so that the rest has room for a window.
        return _moved(wall, beside)
    reach = max(wall.length - DOOR_WIDTH, 0) / 2
    distance = point[0] - wall.x
    if wall.upright:
        distance = point[1] - wall.y
    return _moved(wall, min(max(distance, -reach), reach))


def regions_of(types: Sequence[int], boxes: Boxes) -> PixelLabels:
    """Return the room at each pixel, -1 outside; every room is connected and has no hole."""
    areas = areas_of(boxes)
    order = np.argsort(-areas, kind="stable").tolist()
    label = _paint(boxes, sorted(order, key=lambda room: types[room] != LIVING))
    # Later rooms cover earlier ones: the living room, then larger rooms give way.
    visible = np.bincount(label[label >= 0], minlength=len(boxes))
    if (visible < 0.2 * areas).any():
        # The living room is inside another one.
        label = _paint(boxes, order)
    for room, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
        region = label[y0:y1, x0:x1] == room
        if _is_thin(region) and not region.all():
            # Hidden: a quarter of its box.
            middle_y = (y0 + y1 + 1) // 2
            middle_x = (x0 + x1 + 1) // 2
            label[y0:middle_y, x0:middle_x] = room

    for room in order:
        x0, y0, x1, y1 = boxes[room]
        within = label[y0:y1, x0:x1]
        region = within == room
        if not region.any():
            # Hidden by a hidden room, as where an outline leaves several rooms one place.
            height, width = region.shape
            row, column = divmod(room, max(width // 2, 1))
            top = min(2 * row, max(height - 2, 0))
            left = 2 * column
            within[top : top + 2, left : left + 2] = room
        elif not region.all():
            within[region] = -1
            within[_simple_region(region)] = room
    return label


def room_areas(types: Sequence[int], boxes: Boxes) -> Numbers:
    """Return the area of each room as it is drawn, in square pixels."""
    label = regions_of(types, boxes)
    return np.bincount(label[label >= 0], minlength=len(boxes))


def _paint(boxes: Boxes, order: Sequence[int]) -> PixelLabels:
    side = max(GRID, int(boxes.max()))
    label = np.full((side, side), -1, np.int8)
    for room in order:
        x0, y0, x1, y1 = boxes[room]
        label[y0:y1, x0:x1] = room
    return label


def _simple_region(region: Mask) -> Mask:
    """Return the largest connected part of a region without walls, slivers and holes."""
    from scipy import ndimage

    # Walls are the pixels near other rooms; opening removes parts narrower than a sliver.
    inner = region & ~ndimage.maximum_filter(~region, 2 * _WALL + 1, mode="constant")
    opened = ndimage.minimum_filter(inner, _SLIVER, mode="constant")
    wide = inner & ndimage.maximum_filter(opened, _SLIVER)
    for narrower in (wide, inner):
        if not _is_thin(narrower):
            region = narrower
            break

    while True:
        # Without parts of one pixel, whose two walls coincide, unless nothing else is left.
        if not _is_thin(region):
            region = ndimage.binary_opening(region, _THINNEST)
        parts, _ = ndimage.label(region)
        region = parts == 1 + np.argmax(np.bincount(parts.ravel())[1:])
        holes = ndimage.binary_fill_holes(region) & ~region
        if not holes.any():
            return region
        # Each hole is connected to the outside by a slit of one pixel.
        row, column = np.argwhere(holes)[0]
        start = np.flatnonzero(~region[row, :column]).max(initial=-1) + 1
        region[row, start:column] = False


def _is_thin(region: Mask) -> bool:
    """Whether no part of a region is two pixels wide."""
    from scipy import ndimage

    return not ndimage.binary_erosion(region, _THINNEST).any()


_TURNS = (
    ((-1, 0), (0, 0), (1, 0)),
    ((0, 1), (1, 0), (1, 1)),
    ((1, 0), (1, 1), (0, 1)),
    ((0, -1), (0, 1), (0, 0)),
)
"""For each side of a pixel: the neighbour beyond it (row, column), and its ends (x, y),
clockwise."""


def trace_outline(
    region: Mask,
    left: int,
    top: int,
) -> tuple[Corner, ...]:
    """Return the corners of a connected region without holes, clockwise from the top left."""
    # Each side of a pixel without a neighbour in the region is one step of the outline.
    padded = np.pad(region, 1)
    steps: dict[Corner, list[Corner]] = {}
    for (dy, dx), (x0, y0), (x1, y1) in _TURNS:
        shifted = np.roll(padded, (-dy, -dx), (0, 1))
        beyond = shifted[1:-1, 1:-1]
        for y, x in np.argwhere(region & ~beyond).tolist():
            start = (x + x0, y + y0)
            steps.setdefault(start, []).append((x + x1, y + y1))

    x, y = min(steps, key=lambda corner: corner[::-1])
    start = (x, y)
    path = [start]
    heading = (1, 0)
    while True:
        # Where two parts touch at a corner, stay on the same one.
        right = (x - heading[1], y + heading[0])
        options = steps[x, y]
        following = right if right in options else options[0]
        options.remove(following)
        step = (following[0] - x, following[1] - y)
        if step != heading:
            path.append((x, y))
        heading = step
        x, y = following
        if following == start and not steps[start]:
            return tuple((x + left, y + top) for x, y in path)


def _runs(
    label: PixelLabels,
    beyond: PixelLabels,
    gap: PixelLabels,
    where: Mask,
) -> Iterator[tuple[int, int, float, int, int, int]]:
    """Yield room, room beyond, column, first row, last row + 1, and gap of each straight wall.

    Walls are at the pixels `where`.
    """
    rows, columns = np.nonzero(where)
    if not len(rows):
        return
    keys = np.stack([label[where], beyond[where], columns, gap[where], rows], 1)
    keys = keys[np.lexsort(keys.T[::-1])]
    # A run has equal keys but for the row, which increases by one from pixel to pixel.
    breaks = (np.diff(keys, axis=0) != [0, 0, 0, 0, 1]).any(1)
    for part in np.split(keys, np.flatnonzero(breaks) + 1):
        i, j, column, across, row = part[0].tolist()
        middle = column + (across + 1) / 2
        yield i, j, middle, row, row + len(part), across


def _doors_in(
    types: Sequence[int],
    boxes: Boxes,
    longest: SharedWalls,
    joined: Sequence[tuple[int, int]] | None,
) -> Iterator[Door]:
    """Yield doors between pairs of rooms, by default those of `access_tree`."""
    weights: dict[tuple[int, int], float] = {}
    doors: dict[tuple[int, int], Door] = {}
    for i, j in pairs(len(types)):
        # Of a rectangle that both boxes share; reversed along an axis of a gap.
        low = np.maximum(boxes[i, :2], boxes[j, :2])
        high = np.minimum(boxes[i, 2:], boxes[j, 2:])
        if (i, j) in longest:
            length, door = longest[i, j]
        else:
            # At the closest points of the two boxes.
            x, y = ((low + high) / 2).tolist()
            width, height = (high - low).tolist()
            length = 0
            door = Door(
                i,
                j,
                x,
                y,
                upright=width < height,
                depth=-1.0,
            )
        weight: float = door_cost(types[i], types[j])
        if length < DOOR_WIDTH:
            weight += _SHORT + float((low - high).clip(0).sum())
        # Among equal doors the one in the longest wall, which never outweighs a preference.
        weights[i, j] = weight - length / (10 * GRID)
        doors[i, j] = door

    if joined is None:
        joined = access_tree(types, weights)
    for pair in joined:
        yield doors[pair]


def access_tree(
    types: Sequence[int], weights: Mapping[tuple[int, int], float]
) -> list[tuple[int, int]]:
    """Return pairs i < j through which all rooms are reached from the front door.

    Grown by the cheapest pair: its weight, and more if the room that is reached already is a
    bedroom or a room that others are not reached through. Rooms without a pair stay unreached.
    """
    reached = {front_host(types)}
    tree: list[tuple[int, int]] = []
    while len(reached) < len(types):
        options = []
        for pair, weight in weights.items():
            inner = reached.intersection(pair)
            if len(inner) == 1:
                (room,) = inner
                options.append((weight + _THROUGH.get(types[room], 0), pair))
        if not options:
            break
        _, pair = min(options)
        reached.update(pair)
        tree.append(pair)
    return tree


def longest_walls(label: PixelLabels) -> SharedWalls:
    """Return the length, and the door, of the longest wall between each two rooms that face."""
    longest: SharedWalls = {}
    for door, length in _walls_between(label):
        assert door.j is not None
        ends = (min(door.i, door.j), max(door.i, door.j))
        if ends not in longest or length > longest[ends][0]:
            longest[ends] = (length, door)
    return longest


def thin_walls(label: PixelLabels, widest: int = 0) -> Iterator[tuple[Point, Point]]:
    """Yield the middle lines of walls of at most `widest` pixels; by default where rooms touch."""
    for door, length in _walls_between(label):
        if door.depth <= widest:
            yield segment(door, length)


def _walls_between(label: PixelLabels) -> Iterator[tuple[Door, int]]:
    """Yield a door in the middle of each straight wall between two rooms, and the length of the wall."""
    # Walls across columns of the transposed image are the level ones.
    for upright, image in ((True, label), (False, label.T)):
        beyond, gap = _next_rooms(image)
        facing = (image >= 0) & (beyond >= 0) & (image != beyond)
        for i, j, across, low, high, width in _runs(image, beyond, gap, facing):
            x = across
            y = (low + high) / 2
            if not upright:
                x, y = y, x
            # A gap of one is the step to the next pixel.
            door = Door(
                i=i,
                j=j,
                x=x,
                y=y,
                upright=upright,
                depth=width - 1.0,
            )
            yield door, high - low


def _next_rooms(image: PixelLabels) -> tuple[PixelLabels, PixelLabels]:
    """Return the next room to the right of each pixel, -1 if none is close, and how far it is."""
    beyond = np.full_like(image, -1)
    gap = np.zeros_like(image)
    for step in range(1, NEAR + 2):
        ahead = np.full_like(image, -1)
        ahead[:, :-step] = image[:, step:]
        nearest = (beyond < 0) & (ahead >= 0)
        beyond[nearest] = ahead[nearest]
        gap[nearest] = step
    return beyond, gap


def door_cost(one: int, other: int) -> int:
    """Preference for a door between two types."""
    if LIVING in (one, other):
        return 1
    alone = (one in DEAD_ENDS) + (other in DEAD_ENDS)
    if alone == 2:
        return 9
    # A bath or balcony of a bedroom.
    if alone and (one in BEDROOM_IDS) != (other in BEDROOM_IDS):
        return 3
    return 5


def _outer_walls(label: PixelLabels) -> Iterator[Window]:
    """Yield each straight wall with no room ahead, as a window of its full length."""
    for upright, image in ((True, label), (False, label.T)):
        for backwards in (False, True):
            seen = image
            if backwards:
                seen = image[:, ::-1]
            # A room ahead is one in a later column of the same row.
            ahead = np.zeros(seen.shape, bool)
            later = np.logical_or.accumulate(seen[:, :0:-1] >= 0, 1)
            ahead[:, :-1] = later[:, ::-1]
            outer = (seen >= 0) & ~ahead

            nothing = np.zeros_like(seen)
            for room, _, column, low, high, _ in _runs(seen, nothing, nothing, outer):
                across = column + 0.5
                if backwards:
                    across = label.shape[0] - across
                place = (across, (low + high) / 2)
                if not upright:
                    place = place[::-1]
                yield Window(room, *place, upright, high - low)
