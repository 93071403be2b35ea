"""Room boxes of a diagram inside a given outline.

Letters: R rooms, P points, H x W pixels.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from jaxtyping import Bool, Int

from ..plans import encode
from ..relations import GRID
from .boundary import boundary_iou, corners_of, mask_of, pack_boundary
from .floor_plan import floor_plan
from .placement import Placement, constraints_of, improve_boxes, preferred_sides
from .realisability import realises

__all__ = ["outline_iou", "place_in_outline"]

_ROUNDS = 4
_FILL = 0.2
_WALL = 2
"""Linear programs; penalty per pixel between an outer wall of a room and the outline; gap between
the two."""

_OVERLAP: Final = 4
"""Pixels along a side from which on a room hides another one from the outline."""


def place_in_outline(placement: Placement, boundary: Int[np.ndarray, "P 2"]) -> Placement:
    """Move the walls of placed rooms so that they fill an outline, and show it; relations that hold are kept.

    Each round finds the rooms that face the outline, and solves a linear program that pulls their
    walls to it, with every relation as a hard constraint. Boxes that violate relations are scaled
    to the extent of the outline.
    """
    diagram = placement.diagram
    corners = np.array(corners_of(boundary))
    inside = mask_of(boundary)
    low = corners.min(0) + _WALL
    high = corners.max(0) - _WALL
    extent = np.maximum(placement.boxes[:, 2:].max(0), 1)
    scaled = np.rint(np.tile(low, 2) + placement.boxes * np.tile((high - low) / extent, 2)).astype(
        np.int64
    )
    scaled[:, 2:] = np.maximum(scaled[:, 2:], scaled[:, :2] + 1)
    candidates = [scaled]
    if placement.exact:
        start = placement.boxes + np.tile(((low + high - extent) // 2).clip(0, GRID - extent), 2)
        target = encode(diagram, len(diagram.types))[len(diagram.types) :]
        boxes = next((exact for exact in (scaled, start) if realises(exact, target)), None)
        if boxes is not None:
            constraints = constraints_of(diagram, boxes)
            preferred = preferred_sides(diagram)
            sides = preferred * np.sqrt(inside.sum() / preferred.prod(1).sum())
            candidates = [boxes]
            for _ in range(_ROUNDS):
                pulls = [
                    (4 * room + side, place, _FILL)
                    for room, side, place in _outer_walls(boxes, inside)
                ]
                boxes = improve_boxes(diagram, constraints, boxes, sides, pulls)
                if (boxes == candidates[-1]).all():
                    break
                candidates.append(boxes)
    best = max(
        candidates, key=lambda boxes: boundary_iou(floor_plan(diagram.types, boxes).label, boundary)
    )
    return Placement.of(diagram, best, boundary)


def outline_iou(placement: Placement) -> float:
    """Return the intersection over union of a drawn plan and its outline."""
    boundary = np.array(pack_boundary(placement.outline))
    return boundary_iou(floor_plan(placement.diagram.types, placement.boxes).label, boundary)


def _outer_walls(
    boxes: Int[np.ndarray, "R 4"], inside: Bool[np.ndarray, "H W"]
) -> list[tuple[int, int, float]]:
    """Return room, side (left, above, right, below) and place of the outline for each wall that faces it."""
    walls = []
    for room, box in enumerate(boxes.tolist()):
        for side in range(4):
            axis = side % 2
            along = 1 - side % 2
            sign = 1 if side < 2 else -1
            shared = np.minimum(boxes[:, along + 2], box[along + 2]) - np.maximum(
                boxes[:, along], box[along]
            )
            hidden = (shared > _OVERLAP) & (sign * boxes[:, side] < sign * box[side] - _WALL)
            if hidden.any():
                continue
            lines = inside if axis == 0 else inside.T
            lines = lines[box[along] : box[along + 2]]
            middle = min(max((box[axis] + box[axis + 2]) // 2, 0), lines.shape[1] - 1)
            beyond = lines[:, middle::-1] if side < 2 else lines[:, middle:]
            if (
                not beyond.size or not beyond[:, 0].all()
            ):  # partly outside: towards the middle of the outline
                places = np.flatnonzero(lines.all(0)) if lines.size else np.zeros(0, int)
                if len(places):
                    walls.append(
                        (
                            room,
                            side,
                            float(places[0] + _WALL if side < 2 else places[-1] + 1 - _WALL),
                        )
                    )
                continue
            reach = int(np.where(beyond.all(1), beyond.shape[1], beyond.argmin(1)).min())
            place = middle + 1 - reach + _WALL if side < 2 else middle + reach - _WALL
            walls.append((room, side, float(place)))
    return walls
