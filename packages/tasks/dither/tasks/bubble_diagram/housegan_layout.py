"""A diagram as HouseGAN++ and HouseDiffusion read it; the layout is that of `formats.housegan`.

Every related pair of rooms is written as joined by a door, with a door node between the two, because that is the only
relation which the layout has: programs that read it take the graph from there, and so does our own reader with
`adjacency = "door"`. Types come back as far as the layout tells them apart (one sort of bedroom, closets as unknown).

Letters: R rooms.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, Final

import numpy as np

from .formats.housegan import DOOR, TO_HOUSEGAN
from .layout import place_rooms
from .plans import Box, Diagram
from .relations import GRID
from .vocabulary import ROOMS

__all__ = ["housegan_plan"]

_WIDE, _THICK = 12, 2
"""Sides of a door in pixels."""

_Wall = tuple[int, int, int, int]

_SIDES: Final = ((-1, 0), (0, 1), (1, 0), (0, -1))
"""Where the four sides of a box lie, in the order in which its walls are written."""


def housegan_plan(diagram: Diagram) -> dict[str, Any]:
    """Return the plan as a table for JSON.

    Rooms without places are given some (`place_rooms`), in which not every relation need hold: give a diagram with
    boxes where that matters.
    """
    boxes = diagram.boxes or _placed(diagram)
    kinds = [TO_HOUSEGAN[ROOMS[kind]] for kind in diagram.types]
    doors = [(i, j, _door(boxes[i], boxes[j])) for i, j, _ in diagram.edges]
    edges: list[list[int]] = []
    ends: list[list[int]] = []
    for room, box in enumerate(boxes):
        beside = [j if i == room else i for i, j, _ in diagram.edges if room in (i, j)]
        for wall, other in _walls(box, [(other, boxes[other]) for other in beside]):
            edges.append([*wall, kinds[room], kinds[other] if other is not None else 0])
            ends.append([room] if other is None else [room, other])
    for node, (i, j, box) in enumerate(doors, len(boxes)):
        for side, beyond in zip(_around(box), (i, None, j, None), strict=True):
            edges.append([*side, DOOR, 0 if beyond is None else kinds[beyond]])
            ends.append([node] if beyond is None else [node, beyond])
    every = [*boxes, *(box for _, _, box in doors)]
    return {
        "room_type": kinds + [DOOR] * len(doors),
        "boxes": [[x0, y0, x1 - 1, y1 - 1] for x0, y0, x1, y1 in every],
        "edges": edges,
        "ed_rm": ends,
    }


def _placed(diagram: Diagram) -> tuple[Box, ...]:
    """Boxes of rooms that have none, in the middle of the grid, made smaller if they do not fit."""
    walls = place_rooms(diagram).astype(float)
    walls *= min(1.0, GRID / walls.max())
    whole = np.rint(walls + np.tile((GRID - walls[:, 2:].max(0)) / 2, 2)).astype(int)
    whole[:, 2:] = np.maximum(whole[:, 2:], whole[:, :2] + 1)
    return tuple((x0, y0, x1, y1) for x0, y0, x1, y1 in np.clip(whole, 0, GRID).tolist())


def _around(box: Box) -> tuple[_Wall, ...]:
    """The four walls of a box, each from where the one before ends; on the last pixel, as this layout has it."""
    x0, y0, x1, y1 = box[0], box[1], box[2] - 1, box[3] - 1
    return (x0, y0, x0, y1), (x0, y1, x1, y1), (x1, y1, x1, y0), (x1, y0, x0, y0)


def _walls(box: Box, beside: Sequence[tuple[int, Box]]) -> list[tuple[_Wall, int | None]]:
    """The walls of a room, cut so that there is one for each room beside it; and which room that is."""
    at: list[list[int]] = [[], [], [], []]
    for other, place in beside:
        way = [place[0] + place[2] - box[0] - box[2], place[1] + place[3] - box[1] - box[3]]
        at[max(range(4), key=lambda side: _SIDES[side][0] * way[0] + _SIDES[side][1] * way[1])].append(other)
    walls: list[tuple[_Wall, int | None]] = []
    for side, others in zip(_around(box), at, strict=True):
        x0, y0, x1, y1 = side
        parts = max(len(others), 1)
        corners = [(x0 + (x1 - x0) * k // parts, y0 + (y1 - y0) * k // parts) for k in range(parts + 1)]
        for k, (start, end) in enumerate(pairwise(corners)):
            walls.append(((*start, *end), others[k] if others else None))
    return walls


def _door(one: Box, other: Box) -> Box:
    """A door where two rooms come nearest to each other, across their wall."""
    low = np.maximum(one[:2], other[:2])
    high = np.minimum(one[2:], other[2:])
    across = 0 if high[0] - low[0] < high[1] - low[1] else 1
    middle = (low + high) // 2
    half = np.array([_WIDE, _WIDE]) // 2
    half[across] = _THICK // 2
    x, y = np.clip(middle, half, GRID - half).tolist()
    return x - int(half[0]), y - int(half[1]), x + int(half[0]), y + int(half[1])
