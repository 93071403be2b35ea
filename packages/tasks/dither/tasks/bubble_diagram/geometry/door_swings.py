"""How the doors of a floor plan open: leaves with a hinge, as pictures and drawings show them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import product

from ..arrays import PixelLabels
from ..relations import NEAR
from ..vocabulary import BALCONY, LIVING
from .floor_plan import DOOR_WIDTH, Door, FloorPlan, Window, segment

OUTER = NEAR / 2
"""Thickness of outer walls in drawings, in pixels, so that gaps between neighbours are filled."""

Square = tuple[float, float, float, float]


@dataclass(frozen=True)
class Swing:
    """A leaf of a door: its hinge, its end if open and if closed, and the square it sweeps."""

    hinge: tuple[float, float]
    opened: tuple[float, float]
    closed: tuple[float, float]
    clockwise: bool
    square: Square

    def crosses(self, squares: Iterable[Square]) -> bool:
        x0, y0, x1, y1 = self.square
        return any(
            x0 < right and left < x1 and y0 < bottom and top < y1
            for left, top, right, bottom in squares
        )


def door_swings(types: Sequence[int], plan: FloorPlan) -> list[Swing | None]:
    """Return the leaf of each door, if possible in squares that do not cross.

    None for sliding doors to balconies, and for doors without a wall.
    """
    swept: list[Square] = []
    swings: list[Swing | None] = []
    for door in plan.doors:
        # Glazed ones between a room and a balcony slide.
        sliding = door.j is not None and BALCONY in (types[door.i], types[door.j])
        if door.depth < 0 or sliding:
            swings.append(None)
            continue
        swing = _free_swing(types, door, plan.label, swept)
        swept.append(swing.square)
        swings.append(swing)
    return swings


def _free_swing(
    types: Sequence[int],
    door: Door,
    label: PixelLabels,
    swept: Sequence[Square],
) -> Swing:
    shift = 0.0
    sides = [1, -1]
    if door.j is None:
        outward = outward_side(door, label)
        shift = outward * OUTER / 2
        sides = [-outward]
    elif types[door.j] == LIVING:
        # Rather not into the living room.
        sides = [-1, 1]
    swings = [
        _swing(door, side, hinge, shift) for side, hinge in product(sides, (0, 1))
    ]
    # The first one that is free, or else the first of all.
    return min(swings, key=lambda option: option.crosses(swept))


def outward_side(opening: Door | Window, label: PixelLabels) -> int:
    """Return 1 if the outside of an outer wall is to the right or below, else -1."""
    # Two pixels before the wall are in a room if the wall is to the right of it, or below.
    row = int(opening.y)
    column = int(opening.x)
    if opening.upright:
        column -= 2
    else:
        row -= 2
    within = 0 <= row < len(label) and 0 <= column < len(label)

    if within and label[row, column] >= 0:
        return 1
    return -1


def _swing(
    door: Door,
    side: int,
    hinge: int,
    shift: float,
) -> Swing:
    """Return the leaf of a door that opens to a side, with its hinge at one of its two ends."""
    ends = segment(door, DOOR_WIDTH, shift)
    opened = segment(door, DOOR_WIDTH, shift + side * DOOR_WIDTH)
    x0, x1 = sorted((ends[0][0], opened[1][0]))
    y0, y1 = sorted((ends[0][1], opened[1][1]))
    return Swing(
        hinge=ends[hinge],
        opened=opened[hinge],
        closed=ends[1 - hinge],
        clockwise=((side > 0) == door.upright) != bool(hinge),
        square=(x0, y0, x1, y1),
    )
