"""RPLAN as it is handed out: one picture of 256 x 256 pixels a plan, `floorplan_dataset/{id}.png`.

Four channels of 8 bits: boundary, category (0..12 the types of room, above that walls and doors), instance (1, 2, ...
for each room, 0 elsewhere), inside. A room is an instance; its type is the commonest category in it and its box the
smallest around it. Source: Wu et al., RPLAN, SIGGRAPH Asia 2019.
"""

from __future__ import annotations

import struct
import warnings
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import UInt8
from PIL import Image
from scipy.ndimage import find_objects

from ..plans import Diagram
from ..relations import GRID
from ..vocabulary import ROOMS
from .common import Entry, Fault, ReadOptions, RejectedPlan, diagram_of_boxes, entry_of

__all__ = ["CATEGORIES", "read_rplan_picture"]

CATEGORIES: Final = 18
"""Ids of the second channel: types of room, then outside, outer wall, front door, inner wall, inner door."""

_DAMAGED: Final = (OSError, SyntaxError, ValueError, EOFError, struct.error, zlib.error, Image.DecompressionBombError)
"""What Pillow raises on files that are cut or changed."""


def read_rplan_picture(file: Path, choices: ReadOptions) -> Iterator[Entry]:
    """Yield the plan of a picture."""
    yield entry_of(file, "", _read, file, choices)


def _read(file: Path, choices: ReadOptions) -> Diagram:
    pixels = _pixels(file)
    category, instance = pixels[..., 1].astype(np.int64), pixels[..., 2].astype(np.int64)
    counts = np.bincount((instance * 256 + category).ravel(), minlength=256 * 256).reshape(256, 256)
    types, boxes = [], []
    for number, slices in enumerate(find_objects(instance), 1):
        if slices is None:
            continue
        kind = int(counts[number].argmax())
        if kind >= CATEGORIES:
            raise RejectedPlan(Fault("types", f"room {number} is of category {kind}, they are 0..{CATEGORIES - 1}"))
        if kind < len(ROOMS):
            rows, columns = slices
            types.append(kind)
            boxes.append((columns.start, rows.start, columns.stop, rows.stop))
    return diagram_of_boxes(types, np.array(boxes).reshape(-1, 4), file.stem, choices)


def _pixels(file: Path) -> UInt8[np.ndarray, "256 256 4"]:
    try:
        with warnings.catch_warnings():
            warnings.simplefilter("ignore", Image.DecompressionBombWarning)  # sizes are looked at below
            with Image.open(file, formats=("PNG",)) as picture:
                if picture.size != (GRID, GRID) or picture.mode != "RGBA":
                    width, height = picture.size
                    given = f"{width} x {height} pixels of {picture.mode}"
                    raise RejectedPlan(
                        Fault("file", f"is {given}; a picture of RPLAN is {GRID} x {GRID} of RGBA, 8 bits")
                    )
                return np.asarray(picture)
    except RejectedPlan:
        raise
    except _DAMAGED as error:
        raise RejectedPlan(Fault("file", f"is no PNG that can be read: {_said(error, file)}")) from None


def _said(error: BaseException, file: Path) -> str:
    """The reason without the path, which stands before it anyway."""
    if isinstance(error, OSError) and error.strerror:
        return error.strerror
    text = str(error).split("\n")[0]
    return "not the start of a picture" if str(file) in text else text
