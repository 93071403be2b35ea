"""A matrix of motifs on disk or in bytes, whose rows are scaled and converted to float32 on access.

Letters: P regions, M motifs.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Float, Float32, Shaped

__all__ = ["BLOCK", "LazyMatrix", "column_divisors", "row_blocks"]

BLOCK: Final = 8192
"""Rows per block when all are read."""


class LazyMatrix:
    """A matrix that is converted to float32 when rows are indexed.

    Args:
        stored: Memory-mapped array of any numeric type, or bytes in memory. `P M`.
        divisor: Divisor of each column, which is then clipped at 1; None for no scaling. `M`.
        step: Value of one step if bytes are stored, such as 1/255.
    """

    def __init__(
        self,
        stored: Shaped[np.ndarray, "P M"],
        divisor: Float32[np.ndarray, " M"] | None = None,
        step: np.float32 | None = None,
    ) -> None:
        self.stored, self.divisor, self.step = stored, divisor, step
        self.shape, self.dtype, self.ndim = stored.shape, np.dtype(np.float32), 2

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: Any) -> Float32[np.ndarray, "... M"]:
        read = np.asarray(self.stored[rows], np.float32)
        if self.step is not None:
            read = read * self.step
        if self.divisor is None:
            return read
        divisor = self.divisor[rows[1:]] if isinstance(rows, tuple) else self.divisor
        scaled: Float32[np.ndarray, "... M"] = np.minimum(read / divisor, np.float32(1))
        return scaled

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float[np.ndarray, "P M"]:
        if copy is False:
            raise ValueError("conversion to float32 requires a copy")
        return self[:].astype(dtype or np.float32, copy=False)


def row_blocks(rows: int) -> Iterator[slice]:
    """Yield slices of `BLOCK` rows that cover all rows."""
    for start in range(0, rows, BLOCK):
        yield slice(start, min(start + BLOCK, rows))


def column_divisors(stored: Float[np.ndarray, "P M"], train: Bool[np.ndarray, " P"]) -> Float32[np.ndarray, " M"]:
    """Return the divisor of each motif: its largest value in the training regions, 1 if that is 0. `M`."""
    largest = np.zeros(stored.shape[1], np.float32)
    for block in row_blocks(len(stored)):
        if train[block].any():
            largest = np.maximum(largest, np.asarray(stored[block], np.float32)[train[block]].max(0))
    return np.where(largest > 0, largest, 1).astype(np.float32)
