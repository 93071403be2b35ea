"""Boxes of rooms as tokens: the bins of 4 pixels in which their walls are.

Letters: N diagrams, R room slots, L tokens: the left wall of each slot, then its top, right and
bottom wall.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

import numpy as np

from .arrays import BoxBatch, Boxes, Rows, Tokens
from .plans import Plans, require_known
from .relations import corners
from .vocabulary import BIN, BOX_MASK, BOX_PAD, GRID, NODE_PAD, SIDES

__all__ = ["box_problems", "decode_boxes", "encode_boxes", "legal_boxes", "snap"]


def snap(plans: Plans) -> Plans:
    """Return plans at the upper left of the canvas with walls in the middle of their bins.

    Walls move by at most 2 pixels relative to each other, and gaps of whole bins stay. Relations
    are those of the new boxes, so that both agree.

    Raises:
        Refused: The boxes of some plans are unknown (`misfit`).
    """
    hint = "use a source of plans with boxes"
    require_known(~plans.has_boxes, "boxes", option="boxes", hint=hint)
    real = (plans.types != NODE_PAD)[..., None]
    boxes = plans.boxes.astype(np.int64)
    # Where a plan is on the canvas says nothing about it.
    origin = np.where(real, corners(boxes)[0], GRID).min(1)
    bins = ((boxes - np.tile(origin, 2)[:, None]) // BIN).clip(0, BOX_MASK - 1)
    snapped = np.where(real, BIN * bins + BIN // 2, 0).astype(np.int16)
    shown = Plans.from_boxes(plans.types, snapped)
    return replace(plans, boxes=snapped, edges=shown.edges)


def encode_boxes(plans: Plans, rooms: int) -> Tokens:
    """Return the boxes of plans as tokens for `rooms` room slots."""
    slots = plans.types.shape[1]
    tokens = np.full((len(plans), len(SIDES), rooms), BOX_PAD, np.int8)
    real = (plans.types != NODE_PAD)[:, None]
    tokens[:, :, :slots] = np.where(real, plans.boxes.swapaxes(1, 2) // BIN, BOX_PAD)
    return tokens.reshape(len(plans), len(SIDES) * rooms)


def decode_boxes(tokens: Tokens) -> BoxBatch:
    """Return boxes in pixels, zeros where all walls are PAD; see `box_problems` for others."""
    slots = tokens.shape[1] // len(SIDES)
    walls = tokens.reshape(len(tokens), len(SIDES), slots)
    walls = walls.swapaxes(1, 2).astype(np.int64)
    pad = walls == BOX_PAD
    # Outside of the canvas, as the middle of the bin of MASK is.
    boxes = np.where(pad, -1, BIN * walls + BIN // 2)
    return np.where(pad.all(-1, keepdims=True), 0, boxes)


def box_problems(boxes: Boxes, rooms: int) -> Iterator[str]:
    """Yield why decoded boxes are none of `rooms` rooms."""
    for room, box in enumerate(boxes.tolist()):
        if room >= rooms:
            if any(box):
                yield f"room {room}: a wall although there is no room"
            continue
        for side, place in zip(SIDES, box, strict=True):
            if not 0 <= place <= GRID:
                yield f"room {room}: {side} is MASK or PAD"
        for low, high in ((0, 2), (1, 3)):
            if 0 <= box[high] <= box[low] <= GRID:
                ends = f"{SIDES[low]} at {box[low]}, {SIDES[high]} at {box[high]}"
                yield f"room {room}: {ends} pixels"


def legal_boxes(boxes: BoxBatch, types: Tokens) -> Rows:
    """Return for which diagrams decoded boxes are boxes of their rooms."""
    legal = np.ones(len(boxes), bool)
    counts = (types != NODE_PAD).sum(1).tolist()
    for row, count in enumerate(counts):
        legal[row] = not any(box_problems(boxes[row], count))
    return legal
