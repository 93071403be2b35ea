"""Samples: windows of consecutive regions of one chromosome, in one cell type.

Letters: B batch, L regions of a window, P regions, R kept regions, W windows.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING, Final

import numpy as np
from jaxtyping import Bool, Int, Integer

from dither.registry.config.errors import Problem, Refused

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

    from .region_matrix import RegionMatrix

__all__ = ["WindowOptions", "Windows", "cut_windows"]

MOST: Final = 1 << 26
"""Windows that a split may have; what is known of each takes 24 bytes."""


@dataclass(frozen=True)
class WindowOptions:
    """How chromosomes are cut into windows.

    Attributes:
        regions: Regions of a window.
        stride: Regions from one training window to the next.
        jitter: A training window is shifted by up to this many regions, to either side, as far as its chromosome goes.
            Each window with each shift is a sample with a number of its own, so that every shift of a window is as
            likely, and a function of the number alone: the order of samples, which a resumed run repeats, is all the
            randomness there is.
        span: Bases that a window may reach over; wider ones are left out.
    """

    regions: int
    stride: int
    jitter: int = 0
    span: int | None = None


@dataclass(frozen=True)
class Windows:
    """The samples of a split: window `w` holds `rows[first[w]]` to `rows[first[w] + count[w] - 1]`.

    Attributes:
        rows: Regions that are kept, in order; one run for each cell type, or one for all. `R`.
        first: `W`.
        count: `W`.
        cell: Number of the cell type. `W`.
        wide: Windows that were left out because they reach over too many bases.
    """

    rows: Integer[np.ndarray, " R"]
    first: Integer[np.ndarray, " W"]
    count: Integer[np.ndarray, " W"]
    cell: Integer[np.ndarray, " W"]
    wide: int

    def __len__(self) -> int:
        return len(self.first)

    def take(
        self, numbers: Sequence[int], length: int
    ) -> tuple[Int[np.ndarray, "B L"], Bool[np.ndarray, "B L"], Int[np.ndarray, " B"]]:
        """Return of some windows the regions, which of them are there (behind them the last one is repeated), the cell.

        Raises:
            IndexError: A number is not that of a window.
        """
        chosen = np.array(numbers, np.int64)
        if ((chosen < 0) | (chosen >= len(self))).any():
            raise IndexError(f"windows are numbered 0..{len(self) - 1}, asked for {list(numbers)}")
        first, count = (each[chosen, None].astype(np.int64) for each in (self.first, self.count))
        step = np.arange(length)
        index = self.rows[first + np.minimum(step, count - 1)].astype(np.int64)
        return index, step < count, self.cell[chosen].astype(np.int64)


def cut_windows(
    matrix: RegionMatrix,
    split: Split,
    cut: WindowOptions,
    cells: Sequence[int],
    kept: Sequence[Bool[np.ndarray, " P"]] | None = None,
    *,
    covering: bool = False,
) -> Windows:
    """Cut the chromosomes of a split into windows, for each cell type.

    Args:
        matrix: The regions.
        split: Which of them.
        cut: How.
        cells: Numbers of the cell types.
        kept: For each cell type the regions that take part; None where all do. Neighbours of a window are neighbours
            among those.
        covering: Windows do not overlap and leave no region out (unless they are too wide), so that each counts once;
            the last one of a chromosome may be short. Otherwise all are full, and one starts every `stride` regions.

    Raises:
        Refused: There would be more windows than memory has room for.
    """
    inside = matrix.rows(split)
    runs = [np.flatnonzero(inside & keep) for keep in kept] if kept is not None else [np.flatnonzero(inside)]
    many = sum(map(len, runs)) // cut.stride * (2 * cut.jitter + 1) * (len(cells) if kept is None else 1)
    if many > MOST and not covering:
        what = f"about {many:,} windows, each with each shift in each cell type; there may be {MOST:,}"
        raise Refused(Problem(what, path=("task", "jitter"), help="raise stride, or lower jitter"))
    found = [_cut_rows(matrix, rows, cut, covering=covering) for rows in runs]
    offsets = np.cumsum([0, *map(len, runs)]).tolist()
    if kept is None:
        found, offsets = found * len(cells), [0] * len(cells)
    first, count, label = (
        np.concatenate([np.zeros(0, np.int64), *each])
        for each in (
            [first + offset for (first, _, _), offset in zip(found, offsets, strict=False)],
            [count for _, count, _ in found],
            [np.full(len(first), cell) for (first, _, _), cell in zip(found, cells, strict=True)],
        )
    )
    return Windows(np.concatenate(runs), first, count, label, sum(wide for _, _, wide in found))


def _cut_rows(
    matrix: RegionMatrix, rows: Integer[np.ndarray, " R"], cut: WindowOptions, *, covering: bool
) -> tuple[Integer[np.ndarray, " W"], Integer[np.ndarray, " W"], int]:
    """Return where windows begin among `rows`, how many regions they hold, and how many were too wide."""
    found = list(_starts(matrix, rows, cut, covering=covering)) if len(rows) else []
    first = np.concatenate([start for start, _ in found]) if found else np.zeros(0, np.int64)
    count = np.concatenate([count for _, count in found]) if found else np.zeros(0, np.int64)
    if cut.span is not None and len(first):
        reach = matrix.end[rows[first + count - 1]] - matrix.start[rows[first]]
        fits = reach <= cut.span
        first, count, before = first[fits], count[fits], len(first)
        return first, count, before - len(first)
    return first, count, 0


def _starts(
    matrix: RegionMatrix, rows: Integer[np.ndarray, " R"], cut: WindowOptions, *, covering: bool
) -> Iterator[tuple[Integer[np.ndarray, " W"], Integer[np.ndarray, " W"]]]:
    """Yield the windows of one chromosome after the other."""
    names = matrix.chromosome[rows]
    edges = [0, *(np.flatnonzero(names[1:] != names[:-1]) + 1).tolist(), len(rows)]
    for low, high in pairwise(edges):
        if covering:
            first = np.arange(low, high, cut.regions)
            yield first, np.minimum(cut.regions, high - first)
            continue
        first = np.arange(low, high - cut.regions + 1, cut.stride)
        if cut.jitter:
            shifted = first[:, None] + np.arange(-cut.jitter, cut.jitter + 1)
            first = shifted[(shifted >= low) & (shifted <= high - cut.regions)]
        yield first, np.full(len(first), cut.regions)
