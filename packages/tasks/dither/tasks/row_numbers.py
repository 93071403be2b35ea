"""Row numbers of samples as an array. Imports numpy only."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Int64
from numpy import ndarray

__all__ = ["row_numbers"]


def row_numbers(rows: Sequence[int] | Any, size: int) -> Int64[ndarray, " B"]:
    """Return row numbers as an array.

    Raises:
        IndexError: A number is not in 0 .. size - 1; numpy would count negative ones from the end.
    """
    numbers = np.asarray(rows, np.int64)
    if ((numbers < 0) | (numbers >= size)).any():
        raise IndexError(f"rows are numbered 0..{size - 1}, got {numbers.tolist()}")
    return numbers
