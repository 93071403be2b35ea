"""Boundaries: the outline of a flat and its front door, as arrays, from room boxes, and from files.

A boundary is `BOUNDARY_POINTS` points in pixels of the canvas, as in Graph2Plan: the two ends of
the front door, then the corners of the outline. Missing points are -1; a plan without a boundary
has no others.
Letters: N plans, R rooms, P points, H x W pixels.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Int

from dither.registry.config.errors import Problem, Refused

from ..formats.entries import path_not_found
from ..plans import Plans, PlanSplits, clockwise
from ..relations import GRID, METRES
from ..vocabulary import BOUNDARY_POINTS, ENTRANCE, LIVING, NODE_PAD

__all__ = [
    "boundaries_of_boxes",
    "boundary_iou",
    "corners_of",
    "ends_of_door",
    "mask_of",
    "pack_boundary",
    "read_boundary",
    "with_boundaries",
]

_WALL = 2
_DOOR = 12
"""Pixels between a room of a procedural plan and the outline; width of a front door."""

Point = tuple[float, float]


def pack_boundary(
    corners: Sequence[Point], door: Sequence[Point] = ()
) -> tuple[tuple[int, int], ...] | None:
    """Return a clockwise boundary with points rounded to pixels; None if there are too many or too few corners."""
    row = np.full((BOUNDARY_POINTS, 2), -1, np.int16)
    if not 3 <= len(corners) <= BOUNDARY_POINTS - 2:
        return None
    row[2 : 2 + len(corners)] = np.rint(corners)
    if len(door) == 2:
        row[:2] = np.rint(door)
    return tuple((x, y) for x, y in clockwise(row[None])[0].tolist())


def ends_of_door(
    x0: float,
    y0: float,
    x1: float,
    y1: float,
) -> list[Point]:
    """Return the ends of a door from its bounding box."""
    x = (x0 + x1) / 2
    y = (y0 + y1) / 2
    return [(x0, y), (x1, y)] if x1 - x0 >= y1 - y0 else [(x, y0), (x, y1)]


def corners_of(boundary: Int[np.ndarray, "P 2"]) -> list[tuple[int, int]]:
    """Return the corners of the outline; empty if it is unknown."""
    return [(x, y) for x, y in boundary[2:].tolist() if x >= 0]


def mask_of(boundary: Int[np.ndarray, "P 2"]) -> Bool[np.ndarray, "H W"]:
    """Return the pixels of the canvas inside the outline."""
    from PIL import Image, ImageDraw

    # Corners are on pixel edges: at twice the size, the odd pixels are pixel centres.
    image = Image.new("1", (2 * GRID + 1, 2 * GRID + 1))
    ImageDraw.Draw(image).polygon([(2 * x, 2 * y) for x, y in corners_of(boundary)], fill=1)
    return np.asarray(image)[1::2, 1::2]


def boundary_iou(label: Int[np.ndarray, "H W"], boundary: Int[np.ndarray, "P 2"]) -> float:
    """Return the intersection over union of a drawn plan (room at each pixel, -1 outside) and an outline.

    Walls between rooms belong to the plan: gaps of up to twice the thickness of a wall are closed.
    """
    from scipy import ndimage

    size = 4 * _WALL + 1
    padded = np.pad(label[:GRID, :GRID] >= 0, size)
    closed = ndimage.minimum_filter(ndimage.maximum_filter(padded, size), size - 2 * _WALL)
    drawn = closed[size:-size, size:-size]
    inside = mask_of(boundary)
    return float((drawn & inside).sum() / max((drawn | inside).sum(), 1))


def boundaries_of_boxes(
    types: Int[np.ndarray, "N R"], boxes: Int[np.ndarray, "N R 4"]
) -> Int[np.ndarray, "N P 2"]:
    """Return the boundaries of procedural plans, which fill a rectangle.

    The front door is in the middle of the longest outer wall of the entrance, or else of the living
    room.
    """
    real = types != NODE_PAD
    low = np.where(real[..., None], boxes[..., :2], GRID).min(1) - _WALL
    high = np.where(real[..., None], boxes[..., 2:], 0).max(1) + _WALL
    rows = np.full((len(types), BOUNDARY_POINTS, 2), -1, np.int16)
    (x0, y0), (x1, y1) = low.T, high.T
    rows[:, 2:6] = np.stack([np.stack(c, -1) for c in ((x0, y0), (x1, y0), (x1, y1), (x0, y1))], 1)
    hosts = np.where(
        (types == ENTRANCE).any(1), (types == ENTRANCE).argmax(1), (types == LIVING).argmax(1)
    )
    longest = np.zeros(len(types), np.int64)
    every = np.arange(len(types))
    for side, wall in enumerate((x0, y0, x1, y1)):  # left, above, right, below
        along = 1 - side % 2
        outer = (np.abs(boxes[..., side] - wall[:, None]) <= _WALL) & real
        host = boxes[every, hosts]
        place = np.arange(GRID)
        exposed = (
            (place >= host[:, along, None])
            & (place < host[:, along + 2, None])
            & outer[every, hosts][:, None]
        )
        for room in range(types.shape[1]):
            within = (place >= boxes[:, room, along, None]) & (
                place < boxes[:, room, along + 2, None]
            )
            exposed &= ~(within & (outer[:, room] & (hosts != room))[:, None])
        count = exposed.cumsum(1)
        runs = count - np.maximum.accumulate(np.where(exposed, 0, count), 1)
        last = runs.argmax(1)
        length = runs[every, last]
        best = length > longest
        middle = last + 1 - length // 2
        ends = np.full((len(types), 2, 2), wall[:, None, None])
        ends[:, 0, along] = middle - _DOOR // 2
        ends[:, 1, along] = middle + _DOOR // 2
        rows[best, :2] = ends[best]
        longest = np.maximum(longest, length)
    return rows


def with_boundaries(plans: PlanSplits, *, rectangular: bool) -> PlanSplits:
    """Return plans with boundaries; those of `rectangular` plans, which have none, follow from their boxes.

    Raises:
        Refused: No training plan has a boundary (`no-samples`).
    """
    if plans.train[:0].boundaries is None and not rectangular:
        hint = "RPLAN, Graph2Plan, ResPlan and procedural plans have them; prepare older plans again (force)"
        raise Refused(
            Problem(
                "no training plan has a boundary",
                ("task", "boundary"),
                help=hint,
                code="no-samples",
            )
        )

    def bounded(part: Plans) -> Plans:
        boundaries = boundaries_of_boxes(part.types, part.boxes) if rectangular else part.boundaries
        unknown = np.full((len(part), BOUNDARY_POINTS, 2), -1, np.int16)
        return replace(part, boundaries=unknown if boundaries is None else boundaries)

    return plans.map(bounded)


def read_boundary(path: Path) -> Int[np.ndarray, "P 2"]:
    """Read an outline and front door: JSON, GeoJSON in metres, or the first path of an SVG file.

    JSON is {"outline": [[x, y], ...], "front_door": [[x, y], [x, y]]} in pixels of the canvas, as
    is SVG. GeoJSON has a polygon and possibly a line string, the front door; its y axis points up.
    The outline is centred on the canvas.

    Raises:
        Refused: The file cannot be read, has no polygon, or its outline is too large or has too
            many corners.
    """
    if not path.exists():
        raise path_not_found(path, "file")
    try:
        text = path.read_text(encoding="utf-8")
        outline, door = (
            _parse_svg(text) if path.suffix.lower() == ".svg" else _parse_json(json.loads(text))
        )
        corners = np.array([*outline, *door], float).reshape(-1, 2)
        if len(door) not in (0, 2):
            raise ValueError(f"a front door of {len(door)} points, expected 2")
    except (OSError, ValueError, KeyError, TypeError, IndexError, AttributeError) as error:
        shape = '{"outline": [[x, y], ...], "front_door": [[x, y], [x, y]]}, a GeoJSON polygon, or an SVG path'
        raise Refused(
            Problem(
                f"{path}: no outline: {error}", help=f"expected {shape}", code="unreadable-file"
            )
        ) from None
    points = corners[: len(outline)]
    if len(points) > 1 and (points[0] == points[-1]).all():
        points = points[:-1]
    low, high = (points.min(0), points.max(0)) if len(points) else (np.zeros(2), np.zeros(2))
    problems = []
    if not np.isfinite(corners).all() or (high - low > GRID).any() or (high - low < 1).any():
        width, height = high - low
        message = f"{path}: outline of {width:g} x {height:g} pixels, expected 1 to {GRID} along both axes"
        problems.append(Problem(message, help="a pixel is 7 cm", code="out-of-range"))
    if not 3 <= len(points) <= BOUNDARY_POINTS - 2:
        message = f"{path}: outline of {len(points)} corners, expected 3 to {BOUNDARY_POINTS - 2}"
        problems.append(Problem(message, code="out-of-range"))
    if problems:
        raise Refused(problems)
    shift = np.floor((GRID - low - high) / 2)
    ends = corners[len(outline) :]
    return np.array(
        pack_boundary((points + shift).tolist(), (ends + shift).clip(0, GRID).tolist()), np.int16
    )


def _parse_json(content: Any) -> tuple[list[Point], list[Point]]:
    """Return outline and front door of JSON or GeoJSON."""
    if "outline" in content:
        return content["outline"], content.get("front_door", [])
    features = content.get("features", [content])
    shapes = [feature.get("geometry", feature) for feature in features]
    found = {shape["type"]: shape["coordinates"] for shape in reversed(shapes)}

    def pixels(points: Any) -> list[Point]:
        return [(x / METRES, -y / METRES) for x, y, *_ in points]

    return pixels(found["Polygon"][0]), pixels(found.get("LineString", []))


_SVG_PATH: Final = re.compile(r"<path\b[^>]*\sd\s*=\s*[\"']([^\"']*)")


def _parse_svg(text: str) -> tuple[list[Point], list[Point]]:
    """Return the corners of the first path of straight lines; a second path is the front door."""
    from fontTools.pens.recordingPen import RecordingPen
    from fontTools.svgLib.path import parse_path

    paths: list[list[Point]] = []
    for data in _SVG_PATH.findall(text)[:2]:
        pen = RecordingPen()
        parse_path(data, pen)
        if curves := {command for command, _ in pen.value} - {
            "moveTo",
            "lineTo",
            "closePath",
            "endPath",
        }:
            raise ValueError(f"{curves.pop()} of a path is not a straight line")
        closed = [
            index
            for index, (command, _) in enumerate(pen.value)
            if command in ("closePath", "endPath")
        ]
        paths.append([points[0] for _, points in pen.value[: closed[0] if closed else 0]])
    if not paths:
        raise ValueError("no <path>")
    return paths[0], paths[1] if len(paths) > 1 else []
