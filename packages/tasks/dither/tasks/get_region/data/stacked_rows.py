"""Rows of several matrices as one. Letters: P rows, M columns."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from jaxtyping import Float32
from numpy import ndarray

__all__ = ["StackedRows"]


class StackedRows:
    """The rows of matrices one after the other, read where each is stored."""

    def __init__(self, parts: Sequence[Any]) -> None:
        self.parts = parts
        self.starts = np.cumsum([0, *map(len, parts)])
        self.shape = (int(self.starts[-1]), parts[0].shape[1])

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: Any) -> Float32[ndarray, "... M"]:
        # Turns a slice, mask or array of any shape into row numbers.
        numbers = np.arange(len(self))[rows]
        values = np.empty((*numbers.shape, self.shape[1]), np.float32)
        part_of = np.searchsorted(self.starts, numbers, "right") - 1
        for number, part in enumerate(self.parts):
            mask = part_of == number
            if mask.any():
                values[mask] = part[numbers[mask] - self.starts[number]]
        return values
