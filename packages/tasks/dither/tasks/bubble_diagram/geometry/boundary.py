"""Boundaries: the outline of a flat and its front door, as arrays, from room boxes, and from files.

A boundary is `BOUNDARY_POINTS` points in pixels of the canvas, as in Graph2Plan: the two ends of
the front door, then the corners of the outline. Missing points are -1; a plan without a boundary
has no others.
Letters: N plans, R rooms, P points, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused

from ..arrays import Boundaries, Boundary, BoxBatch, Mask, Numbers, PixelLabels, Types
from ..formats.entries import path_not_found
from ..plans import Plans, PlanSplits, clockwise
from ..relations import corners
from ..vocabulary import BOUNDARY_POINTS, ENTRANCE, GRID, LIVING, METRES, NODE_PAD
from .outline_files import read_outline, shape_problem

_WALL = 2
"""Pixels between a room of a procedural plan and the outline."""

OUTER_WALL = 3
"""Pixels between a room that is laid out and the outline, a wall of 21 cm."""

_DOOR = 12
"""Width of a front door in pixels."""

_CORNERS = BOUNDARY_POINTS - 2
"""Most corners of an outline."""

_SHORTEST = 2 / METRES
"""Shortest side of the extent of an outline in pixels."""

_PARALLEL = np.radians(1.0)
"""Largest angle between sides that count as parallel."""

_EXPECTED = (
    '{"outline": [[x, y], ...], "front_door": [[x, y], [x, y]], "unit": "m"}, '
    "a GeoJSON polygon, or an SVG path"
)

_UNIT = (
    'without "unit" (in SVG data-unit): m, cm or mm, a pixel is 7 cm; GeoJSON is in m'
)

Point = tuple[float, float]


def pack_boundary(
    points: Sequence[Point], door: Sequence[Point] = ()
) -> tuple[tuple[int, int], ...] | None:
    """Return a clockwise boundary of corners rounded to pixels; None if too many or too few."""
    row = np.full((BOUNDARY_POINTS, 2), -1, np.int16)
    if not 3 <= len(points) <= _CORNERS:
        return None
    row[2 : 2 + len(points)] = np.rint(points)
    if len(door) == 2:
        row[:2] = np.rint(door)
    (boundary,) = clockwise(row[None]).tolist()
    return tuple((x, y) for x, y in boundary)


def ends_of_door(
    x0: float,
    y0: float,
    x1: float,
    y1: float,
) -> list[Point]:
    """Return the ends of a door from its bounding box."""
    if x1 - x0 >= y1 - y0:
        y = (y0 + y1) / 2
        return [(x0, y), (x1, y)]
    x = (x0 + x1) / 2
    return [(x, y0), (x, y1)]


def corners_of(boundary: Boundary) -> list[tuple[int, int]]:
    """Return the corners of the outline; empty if it is unknown."""
    return [(x, y) for x, y in boundary[2:].tolist() if x >= 0]


def mask_of(boundary: Boundary) -> Mask:
    """Return the pixels of the canvas inside the outline."""
    from PIL import Image, ImageDraw

    # Corners are on pixel edges: at twice the size, the odd pixels are pixel centres.
    image = Image.new("1", (2 * GRID + 1, 2 * GRID + 1))
    ImageDraw.Draw(image).polygon(
        [(2 * x, 2 * y) for x, y in corners_of(boundary)], fill=1
    )
    return np.asarray(image)[1::2, 1::2]


def boundary_iou(label: PixelLabels, boundary: Boundary) -> float:
    """Return the intersection over union of a drawn plan and an outline.

    `label` is the room at each pixel, -1 outside. Walls around rooms belong to the plan.
    """
    from scipy import ndimage

    padded = np.pad(label[:GRID, :GRID] >= 0, OUTER_WALL)
    walled = ndimage.maximum_filter(padded, 2 * OUTER_WALL + 1)
    drawn = walled[OUTER_WALL:-OUTER_WALL, OUTER_WALL:-OUTER_WALL]
    inside = mask_of(boundary)
    shared = (drawn & inside).sum()
    covered = (drawn | inside).sum()
    return float(shared / max(covered, 1))


def boundaries_of_boxes(types: Types, boxes: BoxBatch) -> Boundaries:
    """Return the boundaries of procedural plans, which fill a rectangle.

    The front door is in the middle of the longest outer wall of the entrance, or else of the living
    room.
    """
    real = (types != NODE_PAD)[..., None]
    low, high = corners(boxes)
    low = np.where(real, low, GRID).min(1)
    high = np.where(real, high, 0).max(1)
    x0, y0 = (low - _WALL).T
    x1, y1 = (high + _WALL).T
    rows = np.full((len(types), BOUNDARY_POINTS, 2), -1, np.int16)
    # Clockwise on the page, as y points down.
    corner_coordinates = [x0, y0, x1, y0, x1, y1, x0, y1]
    rows[:, 2:6] = np.stack(corner_coordinates, 1).reshape(-1, 4, 2)

    is_entrance = types == ENTRANCE
    living = (types == LIVING).argmax(1)
    hosts = np.where(is_entrance.any(1), is_entrance.argmax(1), living)
    longest = np.zeros(len(types), np.int64)
    for side, wall in enumerate((x0, y0, x1, y1)):
        at_wall = np.abs(boxes[..., side] - wall[:, None]) <= _WALL
        outer = at_wall & real[..., 0]
        # The left and right sides of a box are x, and their walls run along y.
        along = 1 - side % 2
        middle, length = _longest_wall(boxes[..., along::2], outer, hosts)
        ends = np.full((len(types), 2, 2), wall[:, None, None])
        ends[:, 0, along] = middle - _DOOR // 2
        ends[:, 1, along] = middle + _DOOR // 2
        # Of equally long walls the first one.
        longer = length > longest
        rows[longer, :2] = ends[longer]
        longest = np.maximum(longest, length)
    return rows


def _longest_wall(
    spans: Int[ndarray, "N R 2"],
    outer: Bool[ndarray, "N R"],
    hosts: Numbers,
) -> tuple[Numbers, Numbers]:
    """Return the middle and the length of the longest part of a wall that no other room covers.

    `spans` is where rooms start and end along one side of the outline, `outer` which have a wall
    on it, and `hosts` the room whose wall it is.
    """
    plans = np.arange(len(spans))
    place = np.arange(GRID)
    start, end = np.moveaxis(spans[..., None], 2, 0)
    covers = (place >= start) & (place < end) & outer[..., None]
    exposed = covers[plans, hosts]
    covers[plans, hosts] = False
    exposed = exposed & ~covers.any(1)

    # The length of the run of exposed pixels that ends at each place.
    count = exposed.cumsum(1)
    runs = count - np.maximum.accumulate(np.where(exposed, 0, count), 1)
    last = runs.argmax(1)
    length = runs[plans, last]
    return last + 1 - length // 2, length


def with_boundaries(plans: PlanSplits, *, rectangular: bool) -> PlanSplits:
    """Return plans with boundaries; those of `rectangular` plans follow from their boxes.

    Raises:
        Refused: No training plan has a boundary (`no-samples`).
    """
    if plans.train.boundaries is None and not rectangular:
        sources = "RPLAN, Graph2Plan, ResPlan and procedural plans have them"
        problem = Problem(
            "no training plan has a boundary",
            ("task", "boundary"),
            help=f"{sources}; prepare other plans again (force)",
            code="no-samples",
        )
        raise Refused(problem)

    def bounded(part: Plans) -> Plans:
        if rectangular:
            return replace(part, boundaries=boundaries_of_boxes(part.types, part.boxes))
        if part.boundaries is not None:
            return part
        return replace(
            part, boundaries=np.full((len(part), BOUNDARY_POINTS, 2), -1, np.int16)
        )

    return plans.map(bounded)


def read_boundary(path: Path, text: str | None = None) -> Boundary:
    """Read an outline and front door: JSON, GeoJSON in metres, or the shapes of an SVG file.

    JSON is {"outline": [[x, y], ...], "front_door": [[x, y], [x, y]], "unit": "m"}; without unit,
    as in SVG without data-unit, pixels of the canvas. GeoJSON has a polygon and possibly a line
    string, the front door; its y axis points up. The outline is turned so that most of its sides are
    level or upright, and centred on the canvas. `text` takes the place of the content of the file.

    Raises:
        Refused: The file cannot be read, has no polygon or several, its outline intersects itself,
            is too small, too large or has too many corners, or its front door is not in a wall.
    """
    points, door = _read_points(path, text)
    # shapely requires three corners and finite numbers; others are reported below.
    problem = None
    if len(points) > 2 and np.isfinite(np.append(points, door)).all():
        problem = shape_problem(points.tolist(), door.tolist())

    turn = _alignment(points)
    points = points @ turn
    door = door @ turn
    problems = list(_outline_problems(path, points, door))
    if not problems and problem is not None:
        problems = [Problem(f"{path}: {problem}", code="unreadable-file")]
    if problems:
        raise Refused(problems)
    # By whole pixels, so that corners at whole pixels stay there.
    shift = np.floor((GRID - points.min(0) - points.max(0)) / 2)
    ends = (door + shift).clip(0, GRID)
    return np.array(pack_boundary((points + shift).tolist(), ends.tolist()), np.int16)


def _read_points(
    path: Path, text: str | None
) -> tuple[Float[ndarray, "P 2"], Float[ndarray, "E 2"]]:
    """Return the corners of an outline, and the ends of its front door; E = 0 without one."""
    if text is None and not path.exists():
        raise path_not_found(path, "file")
    try:
        outline, ends = read_outline(path, text)
        points = np.array(outline, float).reshape(-1, 2)
        return points, np.array(ends, float).reshape(-1, 2)
    except (OSError, ValueError) as error:
        raise _no_outline(path, str(error)) from None
    # Values of another type than the layout has.
    except (KeyError, TypeError, IndexError, AttributeError):
        raise _no_outline(path, "another layout") from None


def _no_outline(path: Path, reason: str) -> Refused:
    message = f"{path}: no outline: {reason}"
    return Refused(message, help=f"expected {_EXPECTED}", code="unreadable-file")


def _alignment(points: Float[ndarray, "P 2"]) -> Float[ndarray, "2 2"]:
    """Return the rotation that makes most of the length of an outline level or upright.

    The identity if that is less than half of it, or if there are no finite points.
    """
    sides = np.roll(points, -1, 0) - points
    lengths = np.hypot(*sides.T)
    whole = lengths.sum()
    if not len(points) or not np.isfinite(whole):
        return np.eye(2)
    # Angles from -45 to 45 degrees, as a quarter turn changes nothing.
    angles = np.arctan2(sides[:, 1], sides[:, 0])
    quarter = np.pi / 2
    angles = (angles + np.pi / 4) % quarter - np.pi / 4
    apart = np.abs(angles[:, None] - angles)
    parallel = np.minimum(apart, quarter - apart) < _PARALLEL
    aligned = np.where(parallel, lengths, 0.0).sum(1)
    best = int(aligned.argmax())
    angle = angles[best]
    if aligned[best] < whole / 2 or abs(angle) < _PARALLEL / 10:
        return np.eye(2)
    cosine = np.cos(angle)
    sine = np.sin(angle)
    return np.array([[cosine, -sine], [sine, cosine]])


def _outline_problems(
    path: Path,
    points: Float[ndarray, "P 2"],
    door: Float[ndarray, "n 2"],
) -> Iterator[Problem]:
    """Yield the mistakes of an outline by its size, its coordinates, and its number of corners."""
    count = len(points)
    width = 0.0
    height = 0.0
    if count:
        width, height = points.max(0) - points.min(0)
    fits = 1 <= width <= GRID and 1 <= height <= GRID
    if not (fits and np.isfinite(np.append(points, door)).all()):
        pixels = f"{width:g} x {height:g} pixels"
        message = f"{path}: outline of {pixels}, expected 1 to {GRID} along both axes"
        yield Problem(message, help=_UNIT, code="out-of-range")
    elif min(width, height) < _SHORTEST:
        metres = f"{width * METRES:.2g} x {height * METRES:.2g} m"
        message = f"{path}: outline of {metres}, expected at least 2 m along both axes"
        yield Problem(message, help=_UNIT, code="out-of-range")
    if not 3 <= count <= _CORNERS:
        message = f"{path}: outline of {count} corners, expected 3 to {_CORNERS}"
        yield Problem(message, code="out-of-range")
