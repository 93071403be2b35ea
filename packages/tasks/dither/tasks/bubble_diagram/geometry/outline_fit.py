"""Room boxes of a diagram inside a given outline.

Letters: R rooms, P points, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from ..arrays import Boundary, Boxes, Mask
from ..plans import Diagram
from ..relations import GRID
from .boundary import boundary_iou, corners_of, mask_of, pack_boundary
from .floor_plan import floor_plan
from .placement import (
    Placement,
    constraints_of,
    improve_boxes,
    preferred_sides,
    whole_boxes,
)
from .realisability import realises

_ROUNDS = 4
"""Linear programs."""

_FILL = 0.2
"""Penalty per pixel between an outer wall of a room and the outline."""

_WALL = 2
"""Gap between the two."""

_OVERLAP = 4
"""Pixels along a side from which on a room hides another one from the outline."""


def place_in_outline(placement: Placement, boundary: Boundary) -> Placement:
    """Move the walls of placed rooms so that they fill an outline; relations that hold are kept.

    Each round finds the rooms that face the outline, and solves a linear program that pulls their
    walls to it, with every relation as a hard constraint. Boxes that violate relations are scaled
    to the extent of the outline.
    """
    diagram = placement.diagram
    points = np.array(corners_of(boundary))
    low = points.min(0) + _WALL
    high = points.max(0) - _WALL
    extent = np.maximum(placement.boxes[:, 2:].max(0), 1)
    scaled = np.rint(
        np.tile(low, 2) + placement.boxes * np.tile((high - low) / extent, 2)
    )
    boxes = whole_boxes(scaled)
    # Relations survive a shift by whole pixels, and often the scaling.
    candidates = [boxes]
    if placement.exact:
        shift = ((low + high - extent) // 2).clip(0, GRID - extent)
        for start in (boxes, placement.boxes + np.tile(shift, 2)):
            if realises(start, diagram.relations):
                candidates = _filling(diagram, start, mask_of(boundary))
                break

    def overlap(boxes: Boxes) -> float:
        return boundary_iou(floor_plan(diagram.types, boxes).label, boundary)

    return Placement.of(diagram, max(candidates, key=overlap), boundary)


def _filling(
    diagram: Diagram,
    start: Boxes,
    inside: Mask,
) -> list[Boxes]:
    """Return boxes that realise a diagram and fill the outline more and more."""
    constraints = constraints_of(diagram, start)
    sides = preferred_sides(diagram)
    sides = sides * np.sqrt(inside.sum() / sides.prod(1).sum())
    candidates = [start]
    for _ in range(_ROUNDS):
        boxes = candidates[-1]
        pulls = [(wall, place, _FILL) for wall, place in _outer_walls(boxes, inside)]
        moved = improve_boxes(diagram, constraints, boxes, sides, pulls)
        if (moved == boxes).all():
            break
        candidates.append(moved)
    return candidates


def outline_iou(placement: Placement) -> float:
    """Return the intersection over union of a drawn plan and its outline."""
    boundary = np.array(pack_boundary(placement.outline))
    return boundary_iou(
        floor_plan(placement.diagram.types, placement.boxes).label, boundary
    )


def outline_outside(placement: Placement) -> float:
    """Return the share of the floor of a drawn plan that is outside its outline."""
    label = floor_plan(placement.diagram.types, placement.boxes).label
    floor = label[:GRID, :GRID] >= 0
    inside = mask_of(np.array(pack_boundary(placement.outline)))
    return float((floor & ~inside).sum() / floor.sum())


def _outer_walls(boxes: Boxes, inside: Mask) -> Iterator[tuple[int, float]]:
    """Yield each wall (4 room + side) that faces the outline, and the place of the outline there.

    Sides are left, above, right, below.
    """
    for room, box in enumerate(boxes.tolist()):
        for side in range(4):
            if _is_hidden(boxes, room, side):
                continue
            # Pixels of the canvas by line across the side, and by place along the axis.
            axis = side % 2
            along = 1 - axis
            lines = inside.T if axis else inside
            lines = lines[box[along] : box[along + 2]]
            middle = (box[axis] + box[axis + 2]) // 2
            place = _outline_place(lines, middle, before=side < 2)
            if place is not None:
                yield 4 * room + side, float(place)


def _is_hidden(
    boxes: Boxes,
    room: int,
    side: int,
) -> bool:
    """Whether another room is between a side of a room and the outline."""
    along = 1 - side % 2
    sign = 1 if side < 2 else -1
    box = boxes[room]
    shared = np.minimum(boxes[:, along + 2], box[along + 2])
    shared = shared - np.maximum(boxes[:, along], box[along])
    beyond = sign * boxes[:, side] < sign * box[side] - _WALL
    return bool(((shared > _OVERLAP) & beyond).any())


def _outline_place(
    lines: Mask,
    middle: int,
    *,
    before: bool,
) -> int | None:
    """Return the place of the outline before or after the middle of a room; None without one."""
    if not lines.size:
        return None
    middle = min(max(middle, 0), lines.shape[1] - 1)
    beyond = lines[:, middle:]
    if before:
        beyond = lines[:, middle::-1]
    if beyond[:, 0].all():
        # The first line that leaves the outline limits the whole wall.
        lengths = np.where(beyond.all(1), beyond.shape[1], beyond.argmin(1))
        reach = int(lengths.min())
        if before:
            return middle + 1 - reach + _WALL
        return middle + reach - _WALL

    # A room that is partly outside goes towards the middle of the outline.
    places = np.flatnonzero(lines.all(0)).tolist()
    if not places:
        return None
    if before:
        return int(places[0]) + _WALL
    return int(places[-1]) + 1 - _WALL
