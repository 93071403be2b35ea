"""RPLAN as distributed: one picture of 256 x 256 pixels per plan, `floorplan_dataset/{id}.png`.

Four 8-bit channels: boundary, category (0..12 room types, then walls and doors), instance (1, 2,
... for each room, 0 elsewhere), inside. A room is an instance; its type is the most frequent
category in it and its box the bounding box.
Source: Wu et al., RPLAN, SIGGRAPH Asia 2019.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import numpy as np
from jaxtyping import UInt8
from numpy import ndarray

from ..geometry.boundary import ends_of_door, pack_boundary
from ..geometry.floor_plan import trace_outline
from ..plans import Diagram
from ..vocabulary import GRID, ROOMS
from .entries import Fault, ReadOptions, RejectedPlan, diagram_of_boxes, single_plan

_FRONT_DOOR = 255
"""Value of the front door in the first channel."""

_Pixels = UInt8[ndarray, "256 256 4"]

CATEGORIES = 18
"""Ids of the second channel: room types, then outside, outer wall, front door, inner wall, inner
door."""


@single_plan
def read_rplan_picture(file: Path, options: ReadOptions) -> Diagram:
    """Yield the plan of a picture."""
    from scipy.ndimage import find_objects

    pixels = _pixels(file)
    category = pixels[..., 1].astype(np.int64)
    instance = pixels[..., 2].astype(np.int64)
    # Pixels by instance and category, counted in one pass.
    both = (instance * 256 + category).ravel()
    counts = np.bincount(both, minlength=256 * 256).reshape(256, 256)
    types = []
    boxes = []
    for number, slices in enumerate(find_objects(instance), 1):
        if slices is None:
            continue
        kind = int(counts[number].argmax())
        if kind >= CATEGORIES:
            message = f"unknown category {kind}, expected 0..{CATEGORIES - 1}"
            raise RejectedPlan(Fault("types", f"room {number}: {message}"))
        # Walls and doors are instances, too.
        if kind < len(ROOMS):
            rows, columns = slices
            types.append(kind)
            boxes.append((columns.start, rows.start, columns.stop, rows.stop))
    diagram = diagram_of_boxes(
        types=types,
        boxes=np.array(boxes).reshape(-1, 4),
        name=file.stem,
        most=options.most,
    )
    return replace(diagram, boundary=_boundary(pixels))


def _boundary(pixels: _Pixels) -> tuple[tuple[int, int], ...] | None:
    """Return the outline of the pixels inside, and the front door; None if it is not simple."""
    from scipy.ndimage import binary_fill_holes, label

    parts, count = label(pixels[..., 3] > 0)
    if not count:
        return None
    # Without number 0, the pixels of no part.
    largest = 1 + np.bincount(parts.ravel())[1:].argmax()
    inside = binary_fill_holes(parts == largest)
    rows, columns = np.nonzero(pixels[..., 0] == _FRONT_DOOR)
    ends = []
    if len(rows):
        ends = ends_of_door(
            columns.min(), rows.min(), columns.max() + 1, rows.max() + 1
        )
    return pack_boundary(trace_outline(inside, 0, 0), ends)


def _pixels(file: Path) -> _Pixels:
    from PIL import Image

    try:
        # Pillow's other decoders are never run on foreign files.
        with Image.open(file, formats=("PNG",)) as picture:
            width, height = picture.size
            mode = picture.mode
            # Before anything of another size is decompressed.
            fits = (width, height, mode) == (GRID, GRID, "RGBA")
            pixels = np.asarray(picture) if fits else None
    except Exception as error:  # a damaged file may raise anything
        message = f"unreadable PNG: {type(error).__name__}: {error}"
        raise RejectedPlan(Fault("file", message)) from None
    if pixels is None:
        actual = f"{width} x {height} pixels, mode {mode}"
        raise RejectedPlan(
            Fault("file", f"{actual}; RPLAN has {GRID} x {GRID}, mode RGBA")
        )
    return pixels
