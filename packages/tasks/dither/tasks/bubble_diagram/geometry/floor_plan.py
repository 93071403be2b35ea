"""Floor plans from room boxes: disjoint room outlines, doors, and the front door, on the pixels of the canvas.

A box is the bounding box of a room. Where boxes overlap, the living room gives way, then larger
rooms, and what remains of a room is its region without slivers. Doors join all rooms to each other,
preferably through the living room.
Letters: R rooms, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace
from math import hypot
from typing import Final

import numpy as np
import scipy  # imports its parts on first use
from jaxtyping import Bool, Int

from ..relations import GRID, NEAR
from ..vocabulary import BEDROOMS, ENTRANCE, LIVING, ROOM_IDS, pairs

__all__ = [
    "DOOR_WIDTH",
    "Door",
    "FloorPlan",
    "Window",
    "doors_between",
    "floor_plan",
    "regions_of",
    "segment",
    "trace_outline",
]

DOOR_WIDTH: Final = 12
"""Width of a door in pixels, about 0.85 m; walls of at least this length can have one."""

_SLIVER = 9
_WALL = 4
"""Parts of a room narrower than this, in pixels, are walls; thickness of the walls of rooms cut out
of another."""

_BEDROOMS: Final = frozenset(ROOM_IDS[name] for name in BEDROOMS)
_ALONE: Final = frozenset(ROOM_IDS[name] for name in ("Bathroom", "Balcony", "Wall-in", "Storage"))
"""Types of rooms that others are not reached through."""

_DARK: Final = frozenset(ROOM_IDS[name] for name in ("Entrance", "Storage", "Wall-in", "Balcony"))
"""Types without a window."""

_WINDOW: Final = 24
"""Largest length of a window in pixels."""

Corner = tuple[int, int]


@dataclass(frozen=True)
class Door:
    """A door from room `i`, left of the wall or above it, to room `j`, or to the outside if `j` is None.

    Attributes:
        x: Centre in pixels, as `y`.
        upright: Whether the wall is vertical.
        depth: Thickness of the wall in pixels; negative if the rooms do not face each other.
    """

    i: int
    j: int | None
    x: float
    y: float
    upright: bool
    depth: float


@dataclass(frozen=True)
class Window:
    """A window of a room: centre and length in pixels, and whether the wall is vertical."""

    room: int
    x: float
    y: float
    upright: bool
    length: float


@dataclass(frozen=True)
class FloorPlan:
    """Rooms without overlap, and doors.

    Attributes:
        outlines: Corners of each room in pixels, clockwise as seen on the page.
        doors: Doors between rooms, and last front doors. Unless they are given, one joins each room
            to the others.
        windows: At most one for each room with an outer wall.
        label: Room at each pixel, -1 outside.
    """

    outlines: tuple[tuple[Corner, ...], ...]
    doors: tuple[Door, ...]
    windows: tuple[Window, ...]
    label: Int[np.ndarray, "H W"]


def floor_plan(
    types: Sequence[int],
    boxes: Int[np.ndarray, "R 4"],
    front: tuple[float, float] | None = None,
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
    outlines = tuple(
        trace_outline(label[y0:y1, x0:x1] == room, x0, y0)
        for room, (x0, y0, x1, y1) in enumerate(boxes.tolist())
    )
    outer = sorted(_outer_walls(label), key=lambda wall: -wall.length)
    host = next((types.index(kind) for kind in (ENTRANCE, LIVING) if kind in types), 0)

    def distance(wall: Window) -> float:  # walls too short for a door are far
        place = _door_at(wall, front)
        return (
            hypot(place.x - front[0], place.y - front[1]) + GRID * (wall.length < DOOR_WIDTH)
            if front
            else 0.0
        )

    walls = []
    for room in [host] if doors is None else [i for i, j in doors if j is None]:
        y, x = np.argwhere(label == room)[0].tolist()
        own = [wall for wall in outer if wall.room == room or (doors is None and front is not None)]
        enclosed = Window(room, float(x), float(y), False, 0.0)
        walls.append(min(own, key=distance, default=enclosed))
    places = [_door_at(wall, front) for wall in walls]
    fronts = [Door(place.room, None, place.x, place.y, place.upright, 0.0) for place in places]
    lit = {room for room, kind in enumerate(types) if kind not in _DARK}
    longest = {one.room: one for one in reversed(outer) if one not in walls and one.room in lit}
    windows = (
        replace(one, length=min(0.6 * one.length, _WINDOW))
        for one in longest.values()
        if one.length > DOOR_WIDTH
    )
    joined = None if doors is None else [(i, j) for i, j in doors if j is not None]
    return FloorPlan(
        outlines, (*doors_between(types, boxes, label, joined), *fronts), tuple(windows), label
    )


def segment(
    one: Door | Window, length: float, shift: float = 0.0
) -> tuple[tuple[float, float], tuple[float, float]]:
    """Return the ends of a line along the wall of a door or window, with the same centre, moved across the wall."""
    half = length / 2
    if one.upright:
        return (one.x + shift, one.y - half), (one.x + shift, one.y + half)
    return (one.x - half, one.y + shift), (one.x + half, one.y + shift)


def _door_at(wall: Window, point: tuple[float, float] | None) -> Window:
    """Return the wall with the place of a door in it nearest to a point, if there is one, as its middle."""
    if point is None:
        return wall
    reach = max(wall.length - DOOR_WIDTH, 0) / 2
    if wall.upright:
        return replace(wall, y=min(max(point[1], wall.y - reach), wall.y + reach))
    return replace(wall, x=min(max(point[0], wall.x - reach), wall.x + reach))


def regions_of(types: Sequence[int], boxes: Int[np.ndarray, "R 4"]) -> Int[np.ndarray, "H W"]:
    """Return the room at each pixel, -1 outside; every room is connected and has no hole."""
    areas = (boxes[:, 2:] - boxes[:, :2]).prod(1)
    order = np.argsort(-areas, kind="stable").tolist()
    first = sorted(order, key=lambda room: types[room] != LIVING)
    label = _paint(boxes, first)
    if any(
        (label == room).sum() < 0.2 * areas[room] for room in order
    ):  # the living room is inside another one
        label = _paint(boxes, order)
    for room, (x0, y0, x1, y1) in enumerate(boxes.tolist()):
        if not (label == room).any():  # hidden: a quarter of its box
            label[y0 : (y0 + y1 + 1) // 2, x0 : (x0 + x1 + 1) // 2] = room
    for room in order:
        x0, y0, x1, y1 = boxes[room]
        within = label[y0:y1, x0:x1]
        region = within == room
        if region.all():
            continue
        within[region] = -1
        inner = region & ~scipy.ndimage.maximum_filter(~region, 2 * _WALL + 1, mode="constant")
        wide = inner & scipy.ndimage.maximum_filter(
            scipy.ndimage.minimum_filter(inner, _SLIVER, mode="constant"), _SLIVER
        )
        region = next((some for some in (wide, inner) if some.any()), region)
        parts, _ = scipy.ndimage.label(region)
        region = parts == 1 + np.argmax(np.bincount(parts.ravel())[1:])
        within[_without_holes(region)] = room
    return label


def _paint(boxes: Int[np.ndarray, "R 4"], order: Sequence[int]) -> Int[np.ndarray, "H W"]:
    side = max(GRID, int(boxes.max()))
    label = np.full((side, side), -1, np.int8)
    for room in order:
        x0, y0, x1, y1 = boxes[room]
        label[y0:y1, x0:x1] = room
    return label


def _without_holes(region: Bool[np.ndarray, "H W"]) -> Bool[np.ndarray, "H W"]:
    """Connect each hole to the outside by a slit of one pixel."""
    region = region.copy()
    while (holes := scipy.ndimage.binary_fill_holes(region) & ~region).any():
        row, column = np.argwhere(holes)[0]
        left = np.flatnonzero(~region[row, :column])
        region[row, (left[-1] + 1 if len(left) else 0) : column] = False
    return region


def trace_outline(region: Bool[np.ndarray, "H W"], left: int, top: int) -> tuple[Corner, ...]:
    """Return the corners of a connected region without holes, clockwise from the topmost, leftmost."""
    padded = np.pad(region, 1)
    steps: dict[Corner, list[Corner]] = {}
    for dy, dx, start, end in (
        (-1, 0, (0, 0), (1, 0)),
        (0, 1, (1, 0), (1, 1)),
        (1, 0, (1, 1), (0, 1)),
        (0, -1, (0, 1), (0, 0)),
    ):
        beyond = np.roll(padded, (-dy, -dx), (0, 1))[1:-1, 1:-1]
        for y, x in np.argwhere(region & ~beyond).tolist():
            steps.setdefault((x + start[0], y + start[1]), []).append((x + end[0], y + end[1]))
    at = min(steps, key=lambda corner: corner[::-1])
    path = [at]
    heading = (1, 0)
    while True:
        right = (
            at[0] - heading[1],
            at[1] + heading[0],
        )  # where two parts touch at a corner, stay on the same one
        following = right if right in steps[at] else steps[at][0]
        steps[at].remove(following)
        step = (following[0] - at[0], following[1] - at[1])
        if step != heading:
            path.append(at)
        at = following
        heading = step
        if at == path[0] and not steps[at]:
            return tuple((x + left, y + top) for x, y in path)


def _runs(
    label: Int[np.ndarray, "H W"],
    beyond: Int[np.ndarray, "H W"],
    gap: Int[np.ndarray, "H W"],
    where: Bool[np.ndarray, "H W"],
) -> Iterator[tuple[int, int, float, int, int, int]]:
    """Yield room, room beyond, column, first row, last row + 1, and gap of each straight wall at the pixels `where`."""
    rows, columns = np.nonzero(where)
    keys = np.stack([label[where], beyond[where], columns, gap[where], rows], 1)
    keys = keys[np.lexsort(keys.T[::-1])]
    ends = (
        np.flatnonzero((np.diff(keys[:, :4], axis=0) != 0).any(1) | (np.diff(keys[:, 4]) != 1)) + 1
    )
    for part in np.split(keys, ends) if len(keys) else ():
        i, j, column, across, row = part[0].tolist()
        yield i, j, column + (across + 1) / 2, row, row + len(part), across


def doors_between(
    types: Sequence[int],
    boxes: Int[np.ndarray, "R 4"],
    label: Int[np.ndarray, "H W"],
    joined: Sequence[tuple[int, int]] | None,
) -> Iterator[Door]:
    """Yield doors between pairs of rooms, by default those of a minimum spanning tree over rooms facing each other."""
    longest: dict[tuple[int, int], tuple[int, Door]] = {}
    for upright, image in ((True, label), (False, label.T)):
        beyond = np.full_like(image, -1)
        gap = np.zeros_like(image)
        for step in range(1, NEAR + 2):
            ahead = np.full_like(image, -1)
            ahead[:, :-step] = image[:, step:]
            new = (beyond < 0) & (ahead >= 0)
            beyond[new] = ahead[new]
            gap[new] = step
        for i, j, across, low, high, width in _runs(
            image, beyond, gap, (image >= 0) & (beyond >= 0) & (image != beyond)
        ):
            middle = (low + high) / 2
            x, y = (across, middle) if upright else (middle, across)
            door = Door(i, j, x, y, upright, width - 1.0)
            key = (min(i, j), max(i, j))
            longest[key] = max(
                longest.get(key, (0, door)), (high - low, door), key=lambda entry: entry[0]
            )
    import networkx  # it takes .1 s

    graph = networkx.Graph()
    for i, j in pairs(len(types)):
        low = np.maximum(boxes[i, :2], boxes[j, :2])
        high = np.minimum(boxes[i, 2:], boxes[j, 2:])
        x, y = ((low + high) / 2).tolist()
        nearest = 0, Door(i, j, x, y, bool(high[0] - low[0] < high[1] - low[1]), -1.0)
        length, door = longest.get((i, j), nearest)
        far = 0 if length >= DOOR_WIDTH else 100 + float((low - high).clip(0).sum())
        graph.add_edge(
            i, j, weight=_cost(types[i], types[j]) + far - length / (10 * GRID), door=door
        )
    edges = (
        [(i, j) for i, j, _ in networkx.minimum_spanning_edges(graph)] if joined is None else joined
    )
    for edge in edges:
        yield graph.edges[edge]["door"]


def _cost(one: int, other: int) -> int:
    """Preference for a door between two types: the living room, then a bath or balcony of a bedroom, then others."""
    if LIVING in (one, other):
        return 1
    if one in _ALONE and other in _ALONE:
        return 9
    return (
        3
        if (one in _BEDROOMS) != (other in _BEDROOMS) and (one in _ALONE or other in _ALONE)
        else 5
    )


def _outer_walls(label: Int[np.ndarray, "H W"]) -> Iterator[Window]:
    """Yield each straight wall with no room ahead, as a window of its full length."""
    for upright, image in ((True, label), (False, label.T)):
        for backwards in (False, True):
            seen = image[:, ::-1] if backwards else image
            ahead = np.zeros(seen.shape, bool)  # whether there is a room ahead
            ahead[:, :-1] = np.logical_or.accumulate(seen[:, :0:-1] >= 0, 1)[:, ::-1]
            nothing = np.zeros_like(seen)
            for room, _, column, low, high, _ in _runs(
                seen, nothing, nothing, (seen >= 0) & ~ahead
            ):
                across = label.shape[0] - column - 0.5 if backwards else column + 0.5
                x, y = (across, (low + high) / 2) if upright else ((low + high) / 2, across)
                yield Window(room, x, y, upright, high - low)
