"""Cutting the outline of a made-up flat into rooms, and choosing which of the pieces are the living room.

Letters: P plans, K pieces. A piece is a box (x0, y0, x1, y1) of whole pixels; pieces of a plan fill its outline.
"""

from __future__ import annotations

from typing import Final

import numpy as np
from jaxtyping import Bool, Int

__all__ = ["SHARED", "cut_outlines", "grow_living_rooms", "shared_walls", "well_shaped"]

SHARED: Final = 13
"""Pixels of wall, about 0.9 m, that two pieces must share for a door to fit in."""

_NARROWEST: Final = 17
_LONGEST: Final = 3.6
_USUAL: Final = 10


def cut_outlines(pieces: Int[np.ndarray, " P"], random: np.random.Generator) -> Int[np.ndarray, "P K 4"]:
    """Draw outlines of 110..180 x 100..175 pixels and cut each into so many pieces, one straight cut after the other.

    Outlines for more than `_USUAL` pieces are larger, so that a piece is as large as elsewhere. A large piece is the
    likeliest to be cut next, mostly across its longer side. Zeros behind the last piece.
    """
    plans, most = len(pieces), int(pieces.max())
    sides = np.stack([110 + 71 * random.random(plans), 100 + 76 * random.random(plans)], 1)
    sides = (sides * np.sqrt(np.maximum(pieces / _USUAL, 1.0))[:, None]).astype(np.int64)
    boxes = np.zeros((plans, most, 4), np.int64)
    boxes[:, 0, 2:] = sides
    every = np.arange(plans)
    for done in range(1, most):
        going = done < pieces
        width, height = boxes[..., 2] - boxes[..., 0], boxes[..., 3] - boxes[..., 1]
        piece = np.argmax(width * height * (0.45 + random.random((plans, most))), 1)
        wide, high = width[every, piece], height[every, piece]
        axis = np.where(wide * (0.7 + 0.6 * random.random(plans)) > high, 0, 1)
        share = 0.28 + 0.44 * random.random(plans)
        start = boxes[every, piece, axis]
        cut = start + np.round(share * (boxes[every, piece, axis + 2] - start)).astype(np.int64)
        rest = boxes[every, piece]
        rest[every, axis] = cut
        boxes[:, done] = np.where(going[:, None], rest, 0)
        boxes[every[going], piece[going], axis[going] + 2] = cut[going]
    return boxes


def well_shaped(boxes: Int[np.ndarray, "P K 4"]) -> Bool[np.ndarray, "P K"]:
    """False where a piece is a sliver: too narrow, or too long for its width. Missing pieces pass."""
    sides = boxes[..., 2:] - boxes[..., :2]
    short, long = sides.min(-1), sides.max(-1)
    shaped: Bool[np.ndarray, "P K"] = (long == 0) | ((short >= _NARROWEST) & (long <= _LONGEST * short))
    return shaped


def shared_walls(boxes: Int[np.ndarray, "P K 4"]) -> Bool[np.ndarray, "P K K"]:
    """True where two pieces share at least `SHARED` pixels of wall."""
    u, v = boxes[:, :, None], boxes[:, None, :]
    overlap = np.minimum(u[..., 2:], v[..., 2:]) - np.maximum(u[..., :2], v[..., :2])
    touching: Bool[np.ndarray, "P K K"] = (overlap.min(-1) == 0) & (overlap.max(-1) >= SHARED)
    return touching


def grow_living_rooms(
    boxes: Int[np.ndarray, "P K 4"],
    touching: Bool[np.ndarray, "P K K"],
    extra: Int[np.ndarray, " P"],
    random: np.random.Generator,
) -> Bool[np.ndarray, "P K"]:
    """Choose the pieces of the living room: one, and `extra` more that join it to an L, T or Z.

    Each is the piece through which the living room touches most others; the first one also by its area.
    """
    plans, most = boxes.shape[:2]
    every = np.arange(plans)
    area = (boxes[..., 2:] - boxes[..., :2]).prod(-1)
    real = area > 0
    share = area / area.sum(1, keepdims=True)
    score = touching.sum(2) + 8 * share + 1.5 * random.random((plans, most))
    living = np.zeros((plans, most), bool)
    living[every, np.argmax(np.where(real, score, -1), 1)] = True
    for step in range(int(extra.max(initial=0))):
        reached = (touching & living[:, :, None]).any(1)
        gain = (touching & ~(reached | living)[:, None, :]).sum(2) + random.random((plans, most))
        piece = np.argmax(np.where(reached & ~living, gain, -1), 1)
        joins = step < extra
        living[every[joins], piece[joins]] = True
    return living
