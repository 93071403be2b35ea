"""Made-up floor plans: synthetic, RPLAN-like, not RPLAN, whose terms forbid to pass on any part of it.

An outline is cut into pieces, some pieces join to a living room from which most others are reached, and the rest are
given the types that suit them. A plan that breaks a rule is drawn anew with the same number of rooms, so that their
histogram is the one asked for.

Letters: P plans, K pieces, R room slots.
"""

from __future__ import annotations

from functools import lru_cache
from typing import Final

import numpy as np
from jaxtyping import Bool, Int

from .assignment import LIVING, give_types
from .dissection import cut_outlines, grow_living_rooms, shared_walls, well_shaped
from .plans import Plans
from .programme import LARGER_COUNTS, draw_counts, draw_programmes
from .relations import GRID
from .vocabulary import NODE_PAD, ROOM_COUNTS

__all__ = ["BLOCK", "make_plans"]

BLOCK: Final = 512
"""Plans that are drawn together; one plan costs as much as its block, about a tenth of a second."""

_EXTRA_PIECES: Final = (0.22, 0.46, 0.32)
"""Share of the plans whose living room is made of 1, 2 or 3 pieces."""

_REACH: Final = 3
"""One more piece of living room for so many rooms beyond RPLAN's largest plans, or not all could be reached from it."""

_WALL: Final = 2
"""Half the thickness of a wall in pixels."""

_SHIFT: Final = 15
"""Farthest that a plan lies from the middle of the canvas, in pixels along an axis, if there is room."""


def make_plans(seed: int, start: int, stop: int, most: int = 8) -> Plans:
    """Return the plans number `start` to `stop` (exclusive) of an endless row.

    A plan follows from `seed`, `most` and its number alone, whichever others are asked for.

    Args:
        seed: Which row of plans, at least 0.
        start: Number of the first.
        stop: Number behind the last.
        most: Rooms of the largest plans, 4..14, and the number of room slots.
    """
    least, largest = min(ROOM_COUNTS), max(LARGER_COUNTS)
    if not least <= most <= largest:
        raise ValueError(f"plans have {least} to {largest} rooms, so most cannot be {most}")
    if not 0 <= start <= stop:
        raise ValueError(f"plans are numbered from 0, {start} to {stop} is no range of them")
    first = start // BLOCK
    made = [_make_block(seed, block, most) for block in range(first, -(-stop // BLOCK))]
    some = slice(start - first * BLOCK, stop - first * BLOCK)
    types = np.concatenate([np.zeros((0, most), np.int8), *(types for types, _ in made)])[some]
    boxes = np.concatenate([np.zeros((0, most, 4), np.int16), *(boxes for _, boxes in made)])[some]
    return Plans.from_boxes(types, boxes)


@lru_cache(maxsize=64)  # an experiment may build its data more than once
def _make_block(seed: int, block: int, most: int) -> tuple[Int[np.ndarray, "P R"], Int[np.ndarray, "P R 4"]]:
    random = np.random.default_rng((seed, most, block))
    rooms = draw_counts(BLOCK, most, random)
    types = np.full((BLOCK, most), NODE_PAD, np.int8)
    boxes = np.zeros((BLOCK, most, 4), np.int16)
    left = np.arange(BLOCK)
    while len(left):
        drawn_types, drawn_boxes, good = _draw(rooms[left], most, random)
        types[left[good]], boxes[left[good]] = drawn_types[good], drawn_boxes[good]
        left = left[~good]
    return types, boxes


def _draw(
    rooms: Int[np.ndarray, " P"], most: int, random: np.random.Generator
) -> tuple[Int[np.ndarray, "P R"], Int[np.ndarray, "P R 4"], Bool[np.ndarray, " P"]]:
    """Draw one plan for each number of rooms, and say which came out well."""
    extra = np.searchsorted(np.cumsum(_EXTRA_PIECES)[:-1], random.random(len(rooms)), side="right")
    extra += np.maximum(rooms - max(ROOM_COUNTS), 0) // _REACH
    pieces = cut_outlines(rooms + extra, random)
    touching = shared_walls(pieces)
    living = grow_living_rooms(pieces, touching, extra, random)
    kinds, good = give_types(pieces, touching, living, draw_programmes(rooms, random), random)
    good &= well_shaped(pieces).all(1) & (living.sum(1) == 1 + extra)
    types, boxes = _join(pieces, kinds, most)
    boxes = _place(boxes, types != NODE_PAD, pieces.max(1)[:, 2:], random)
    order = np.argsort(np.where(types != NODE_PAD, random.random(types.shape), 2.0), 1, kind="stable")
    return np.take_along_axis(types, order, 1), np.take_along_axis(boxes, order[..., None], 1), good


def _join(
    pieces: Int[np.ndarray, "P K 4"], kinds: Int[np.ndarray, "P K"], most: int
) -> tuple[Int[np.ndarray, "P R"], Int[np.ndarray, "P R 4"]]:
    """Return the living room first, as the box around its pieces, then the others; walls are taken off all."""
    inner = pieces + np.array([_WALL, _WALL, -_WALL, -_WALL])
    living = (kinds == LIVING)[..., None]
    low, high = np.where(living, inner[..., :2], GRID).min(1), np.where(living, inner[..., 2:], 0).max(1)
    other = (kinds >= 0) & (kinds != LIVING)
    order = np.argsort(~other, 1, kind="stable")[:, : most - 1]
    types = np.take_along_axis(np.where(other, kinds, NODE_PAD), order, 1)
    boxes = np.take_along_axis(np.where(other[..., None], inner, 0), order[..., None], 1)
    room = ((0, 0), (1, most - 1 - types.shape[1]))  # in front for the living room, behind up to the last slot
    types, boxes = np.pad(types, room, constant_values=NODE_PAD), np.pad(boxes, (*room, (0, 0)))
    types[:, 0], boxes[:, 0] = LIVING, np.concatenate([low, high], 1)
    return types.astype(np.int8), boxes


def _place(
    boxes: Int[np.ndarray, "P R 4"],
    real: Bool[np.ndarray, "P R"],
    outline: Int[np.ndarray, "P 2"],
    random: np.random.Generator,
) -> Int[np.ndarray, "P R 4"]:
    """Put plans somewhere about the middle of the canvas, and turn each by a random number of quarters."""
    plans = len(boxes)
    spare = (GRID - outline) / 2
    shift = (spare + np.minimum(_SHIFT, spare) * (2 * random.random((plans, 2)) - 1)).astype(np.int64)
    boxes = boxes + np.tile(shift, 2)[:, None]
    turns = (4 * random.random(plans)).astype(np.int64)
    for turn in (1, 2, 3):
        x0, y0, x1, y1 = np.moveaxis(boxes[turns >= turn], -1, 0)
        boxes[turns >= turn] = np.stack([GRID - y1, x0, GRID - y0, x1], -1)
    return np.where(real[..., None], boxes, 0).astype(np.int16)
