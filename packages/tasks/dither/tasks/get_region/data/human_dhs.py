"""The human matrix: as included in the package, and as built by `prepare`."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Literal

import numpy as np

from dither.registry.files.cache import cache_folder

from ...prepared.arrays import read_archive
from .region_matrix import LazyMatrix, RegionMatrix

__all__ = ["BUILT", "HELD_OUT", "built_path", "read_human"]

BUILT = "human-dhs/matrix-1.npz"
"""Path of the exact matrix in the cache folder; the number increases when the recipe changes."""

HELD_OUT = (("chr2",), ("chr1",))
"""Chromosomes for validation and for testing, as the authors of the regions split them."""

PACKAGED = Path(__file__).parent
BUILD = "run: dither prepare dhs"


def built_path() -> Path:
    """Return the path of the exact matrix."""
    return cache_folder() / BUILT


def read_human(subset: Literal["whole", "chr21-22", "built"]) -> RegionMatrix:
    """Read a table and split it.

    Raises:
        Refused: The file is missing or damaged.
    """
    if subset == "built":
        return RegionMatrix.of(read_archive(built_path(), BUILD), *HELD_OUT)
    arrays: dict[str, Any] = read_archive(PACKAGED / f"{subset}.npz", "install dither-tasks again")
    arrays["features"] = LazyMatrix(np.ascontiguousarray(arrays["features"]), step=np.float32(1 / 255))
    return RegionMatrix.of(arrays, *((("chr21",), ()) if subset == "chr21-22" else HELD_OUT))
