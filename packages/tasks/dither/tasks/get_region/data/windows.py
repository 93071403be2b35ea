"""Samples: windows of consecutive regions of one chromosome, in one cell type.

Letters: B batch, L regions of a window, P regions, R used regions, W windows.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Int, Integer
from numpy import ndarray

from ...row_numbers import row_numbers

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

    from .region_matrix import RegionMatrix

__all__ = ["WindowOptions", "Windows", "cut_windows"]

_PerWindow = Integer[ndarray, " W"]


@dataclass(frozen=True)
class WindowOptions:
    """How chromosomes are cut into windows.

    `stride` is the number of regions from one training window to the next; `jitter` the largest
    shift of one to either side, within its chromosome, where each is a sample of its own. Windows
    of more than `span` bases are dropped.
    """

    regions: int
    stride: int
    jitter: int = 0
    span: int | None = None


@dataclass(frozen=True)
class Windows:
    """The samples of a split: window `w` holds `rows[first[w]]` to `rows[first[w] + count[w] - 1]`.

    `rows` are the remaining regions in order, in one run per cell type, or one for all; `cell` is
    the number of a cell type, `wide` the number of windows that were dropped because they span too
    many bases.
    """

    rows: Integer[ndarray, " R"]
    first: _PerWindow
    count: _PerWindow
    cell: _PerWindow
    wide: int

    def __len__(self) -> int:
        return len(self.first)

    def __add__(self, other: Windows) -> Windows:
        shifted = other.first.astype(np.int64) + len(self.rows)
        return Windows(
            rows=np.concatenate([self.rows, other.rows]),
            first=np.concatenate([self.first, shifted]),
            count=np.concatenate([self.count, other.count]),
            cell=np.concatenate([self.cell, other.cell]),
            wide=self.wide + other.wide,
        )

    def take(
        self, numbers: Sequence[int], length: int
    ) -> tuple[Int[ndarray, "B L"], Bool[ndarray, "B L"], Int[ndarray, " B"]]:
        """Return regions of windows, padded with the last one, a mask of real ones, and cells."""
        chosen = row_numbers(numbers, len(self))
        # The stored types are unsigned and short: differences of them would wrap around.
        first = self.first[chosen, None].astype(np.int64)
        count = self.count[chosen, None].astype(np.int64)
        step = np.arange(length)
        places = first + np.minimum(step, count - 1)
        index = self.rows[places].astype(np.int64)
        return index, step < count, self.cell[chosen].astype(np.int64)


def cut_windows(
    matrix: RegionMatrix,
    split: Split,
    options: WindowOptions,
    cells: Sequence[int],
    subset: Sequence[Bool[ndarray, " P"]] | None = None,
    *,
    covering: bool = False,
) -> Windows:
    """Cut the chromosomes of a split into windows, for each cell type.

    `subset` has the regions to use of each cell type, among which windows are consecutive; None for
    all. If `covering`, windows do not overlap and cover every region (unless they are too wide);
    the last one of a chromosome may be shorter. Otherwise all are full, and one starts every
    `stride` regions.
    """
    inside = matrix.rows(split)

    masks = [inside]
    if subset is not None:
        masks = [inside & used for used in subset]

    runs = [_shortest(np.flatnonzero(mask)) for mask in masks]
    windows = [_cut_rows(matrix, rows, options, covering=covering) for rows in runs]
    offsets = np.cumsum([0, *map(len, runs)]).tolist()
    if subset is None:
        # All cell types have the same windows.
        windows = windows * len(cells)
        offsets = [0] * len(cells)

    # A split may be empty, and numpy concatenates at least one array.
    firsts = [np.zeros(0, np.int64)]
    counts = [np.zeros(0, np.int64)]
    labels = [np.zeros(0, np.int64)]
    wide = 0
    # Not strict: `offsets` has the end of the last run, too.
    for cell, offset, (first, count, dropped) in zip(
        cells, offsets, windows, strict=False
    ):
        firsts.append(first + offset)
        counts.append(count)
        labels.append(np.full(len(first), cell))
        wide += dropped
    return Windows(
        rows=np.concatenate(runs),
        first=_shortest(np.concatenate(firsts)),
        count=_shortest(np.concatenate(counts)),
        cell=_shortest(np.concatenate(labels)),
        wide=wide,
    )


def _shortest(numbers: Integer[ndarray, " n"]) -> Integer[ndarray, " n"]:
    """Return numbers in the smallest type that holds them."""
    return numbers.astype(np.min_scalar_type(numbers.max(initial=0)), copy=False)


def _cut_rows(
    matrix: RegionMatrix,
    rows: Integer[ndarray, " R"],
    options: WindowOptions,
    *,
    covering: bool,
) -> tuple[_PerWindow, _PerWindow, int]:
    """Return first index and size of each window, and the number of those that were too wide."""
    stretch = matrix.stretch[rows]
    length = options.regions
    changes = np.flatnonzero(np.diff(stretch)) + 1
    edges = [0, *changes.tolist(), len(rows)]
    firsts = [np.zeros(0, np.int64)]
    counts = [np.zeros(0, np.int64)]
    for low, high in pairwise(edges):
        if covering:
            first = np.arange(low, high, length)
        else:
            shifts = np.arange(-options.jitter, options.jitter + 1)
            regular = np.arange(low, high - length + 1, options.stride)
            first = (regular[:, None] + shifts).ravel()
            # Shifted windows stay on the chromosome.
            inside = (first >= low) & (first <= high - length)
            first = first[inside]
        firsts.append(first)
        counts.append(np.minimum(length, high - first))
    first = np.concatenate(firsts)
    count = np.concatenate(counts)
    if options.span is None or not len(first):
        return first, count, 0
    last = rows[first + count - 1]
    bases = matrix.end[last] - matrix.start[rows[first]]
    fits = bases <= options.span
    return first[fits], count[fits], int((~fits).sum())
