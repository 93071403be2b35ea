"""Room boxes of a diagram inside a given outline.

Letters: R rooms, P points, H x W pixels.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from math import hypot

import numpy as np

from ..arrays import Boundary, Boxes, Mask, PixelLabels
from ..plans import Diagram
from ..relations import corners
from ..vocabulary import GRID, METRES, NO_EDGE
from .boundary import OUTER_WALL, boundary_iou, mask_of, pack_boundary
from .dwelling_fit import DwellingFit, fit_dwelling
from .floor_plan import floor_plan, regions_of
from .outline_rectangles import floor_within, rectangles_within
from .placement import (
    Placement,
    area_bounds,
    area_errors,
    constraints_of,
    improve_boxes,
    keep_areas,
    preferred_sides,
    whole_boxes,
)
from .realisability import realise
from .wall_constraints import SMALLEST, wall_constraints_of
from .wall_program import Pull

_ROUNDS = 4
"""Linear programs."""

_AREA_ROUNDS = 10
"""The same for rooms of given areas, which an outline leaves little choice."""

_FILL = 0.2
"""Penalty per pixel between an outer wall of a room and the outline."""

_OVERLAP = 4
"""Pixels along a side from which on a room hides another one from the outline."""

_SEARCH = 120
"""Linear programs of the search for boxes inside an outline, for each start."""

_MISPLACED = 1 / METRES
"""Smallest distance in pixels at which a front door is not at its place in the outline."""

NOT_INSIDE = "no boxes inside the outline with these relations were found"


def place_in_outline(placement: Placement, boundary: Boundary) -> Placement:
    """Place the rooms of a placed diagram inside an outline, and let them fill it.

    No room is outside. Boxes that realise the diagram are searched near those of the placement,
    scaled to the outline, then elsewhere inside. Each round then finds the rooms that face the
    outline, and solves a linear program that pulls their walls to it, with every relation as a hard
    constraint. Diagrams without such boxes violate relations instead.
    """
    diagram = placement.diagram
    rectangles = rectangles_within(boundary)
    if not len(rectangles):
        # No room fits: see `boundary.read_boundary`, which refuses such outlines.
        return Placement.of(diagram, placement.boxes, boundary, (NOT_INSIDE,))

    unmet = list(_excess_areas(diagram, boundary))
    starts = _starts(placement, rectangles)
    candidates: list[Boxes] = []
    if placement.exact:
        for start in starts:
            found = _realise_inside(diagram, placement.boxes, rectangles, start)
            if found is not None:
                candidates += _filling(
                    diagram=diagram,
                    start=found,
                    inside=mask_of(boundary),
                    rectangles=rectangles,
                )
    if candidates:
        boxes = _best_inside(diagram, candidates, boundary, rectangles)
    else:
        boxes = _squeezed(
            diagram=diagram,
            start=starts[0],
            inside=mask_of(boundary),
            rectangles=rectangles,
        )
        if placement.exact:
            unmet.append(NOT_INSIDE)
    placed = Placement.of(diagram, boxes, boundary, tuple(unmet))
    return replace(placed, unmet=(*placed.unmet, *_front_door_errors(placed)))


def _best_inside(
    diagram: Diagram,
    candidates: list[Boxes],
    boundary: Boundary,
    rectangles: Boxes,
) -> Boxes:
    """Return the best of some boxes inside an outline, as a dwelling if possible."""

    def error_of(boxes: Boxes) -> float:
        return float(area_errors(diagram, boxes).sum())

    def quality_of(label: PixelLabels) -> float:
        return boundary_iou(label, boundary)

    def rank(boxes: Boxes) -> tuple[float, float]:
        return -error_of(boxes), quality_of(regions_of(diagram.types, boxes))

    front = None
    if boundary[0, 0] >= 0:
        x, y = boundary[:2].mean(0).tolist()
        front = (x, y)
    filled = max(candidates, key=rank)
    fit = DwellingFit(
        diagram=diagram,
        constraints=constraints_of(diagram, filled).inside(rectangles),
        error_of=error_of,
        quality_of=quality_of,
        pulls_of=lambda boxes: _pulls(boxes, mask_of(boundary)),
        front=front,
    )
    return fit_dwelling(fit, [filled])


def _front_door_errors(placement: Placement) -> Iterator[str]:
    """Yield that no front door is drawn where the outline has it, unless stated doors are inner ones only."""
    front = placement.front_door
    diagram = placement.diagram
    only_inner = diagram.doors is not None and all(
        j is not None for _, j in diagram.doors
    )
    if front is None or only_inner:
        return
    plan = floor_plan(diagram.types, placement.boxes, front, diagram.doors)
    nearest = min(
        hypot(door.x - front[0], door.y - front[1])
        for door in plan.doors
        if door.j is None
    )
    if nearest >= _MISPLACED:
        metres = nearest * METRES
        yield f"the front door is {metres:.1f} m from its place in the outline"


def _excess_areas(diagram: Diagram, boundary: Boundary) -> Iterator[str]:
    """Yield that the areas of a diagram are larger than the floor inside an outline."""
    if diagram.areas is None:
        return
    least = float(area_bounds(diagram)[0].sum()) * METRES**2
    floor = float(floor_within(boundary).sum()) * METRES**2
    if least > floor:
        yield f"areas of at least {least:g} m2 for {floor:.1f} m2 inside the outline"


def _starts(placement: Placement, rectangles: Boxes) -> list[Boxes]:
    """Return boxes scaled to the extent of the outline, then as they are in its middle."""
    low = rectangles[:, :2].min(0)
    high = rectangles[:, 2:].max(0)
    extent = np.maximum(placement.boxes[:, 2:].max(0), 1)
    scaled = np.tile(low, 2) + placement.boxes * np.tile((high - low) / extent, 2)
    shift = ((low + high - extent) // 2).clip(0, GRID - extent)
    return [whole_boxes(np.rint(scaled)), placement.boxes + np.tile(shift, 2)]


def _realise_inside(
    diagram: Diagram,
    realisation: Boxes,
    rectangles: Boxes,
    start: Boxes,
) -> Boxes | None:
    """Return boxes near a start that realise a diagram, each inside one of the rectangles."""
    return realise(
        diagram.relations,
        len(diagram.types),
        disjoint=constraints_of(diagram, realisation).disjoint,
        limit=_SEARCH,
        rectangles=rectangles,
        near=start,
    ).boxes


def _filling(
    diagram: Diagram,
    start: Boxes,
    inside: Mask,
    rectangles: Boxes,
) -> list[Boxes]:
    """Return boxes that realise a diagram and fill the outline more and more."""
    constraints = constraints_of(diagram, start).inside(rectangles)
    sides = preferred_sides(diagram)
    rounds = _AREA_ROUNDS
    if diagram.areas is None:
        rounds = _ROUNDS
        # Sizes that together fill the outline.
        sides = sides * np.sqrt(inside.sum() / sides.prod(1).sum())
    candidates = [start]
    for _ in range(rounds):
        boxes = candidates[-1]
        moved = improve_boxes(
            diagram=diagram,
            constraints=constraints,
            boxes=boxes,
            sides=sides,
            pulls=_pulls(boxes, inside),
        )
        if (moved == boxes).all():
            break
        candidates.append(moved)
    return candidates


def _squeezed(
    diagram: Diagram,
    start: Boxes,
    inside: Mask,
    rectangles: Boxes,
) -> Boxes:
    """Return boxes inside the rectangles that show many relations, as none that show all are known."""
    clamped = _clamped(start, rectangles)
    # Only the outline constrains these boxes: they may break any relation.
    nothing = wall_constraints_of(np.full(len(diagram.relations), NO_EDGE), len(start))
    free = replace(
        nothing,
        constrained=np.zeros_like(nothing.constrained),
        fixed=nothing.fixed[:0],
        choices=nothing.choices[:0],
        available=nothing.available[:0],
    ).inside(rectangles)
    return keep_areas(
        diagram=diagram,
        boxes=clamped,
        inside=free,
        pulls_of=lambda boxes: _pulls(boxes, inside),
    )


def _clamped(boxes: Boxes, rectangles: Boxes) -> Boxes:
    """Return each box moved and cut into the rectangle of which it covers most."""
    inner, outer = corners(rectangles)
    low, high = corners(boxes[:, None])
    # Extents of what a box and a rectangle share, negative across a gap: R K 2
    shared = np.minimum(high, outer) - np.maximum(low, inner)
    area = shared.prod(-1)
    gaps = shared.clip(max=0).sum(-1)
    overlap = (shared > 0).all(-1)

    # Without any overlap, the rectangle with the smallest gaps is the nearest one.
    chosen = np.where(overlap, area, gaps).argmax(1)
    least = inner[chosen]
    most = outer[chosen]
    first = boxes[:, :2].clip(least, most - SMALLEST)
    last = boxes[:, 2:].clip(first + SMALLEST, most)
    return np.concatenate([first, last], 1)


def outline_iou(placement: Placement) -> float:
    """Return the intersection over union of a drawn plan and its outline."""
    label = regions_of(placement.diagram.types, placement.boxes)
    return boundary_iou(label, np.array(pack_boundary(placement.outline)))


def outline_outside(placement: Placement) -> float:
    """Return the share of the floor of a drawn plan that is outside its outline."""
    label = regions_of(placement.diagram.types, placement.boxes)
    floor = label[:GRID, :GRID] >= 0
    inside = mask_of(np.array(pack_boundary(placement.outline)))
    return float((floor & ~inside).sum() / floor.sum())


def _pulls(boxes: Boxes, inside: Mask) -> Iterator[Pull]:
    """Yield each wall that faces the outline, the place of the outline there, and the penalty per pixel.

    The boxes are inside the outline.
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
            ahead = lines[:, middle:]
            if side < 2:
                ahead = lines[:, middle::-1]
            # The first line that leaves the outline limits the whole wall.
            lengths = np.where(ahead.all(1), ahead.shape[1], ahead.argmin(1))
            reach = int(lengths.min()) - OUTER_WALL
            place = middle + reach
            if side < 2:
                place = middle + 1 - reach
            yield 4 * room + side, float(place), _FILL


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
    beyond = sign * boxes[:, side] < sign * box[side] - OUTER_WALL
    return bool(((shared > _OVERLAP) & beyond).any())
