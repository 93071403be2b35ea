"""What stands in the columns of a sample: motifs, accessibility, expression, of some regions in some cell types.

Letters: B batch, L regions of a window, M motifs, P regions, C cell types, W columns, n regions in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import torch
from jaxtyping import Bool, Float32, Int, Integer
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.spaces import Group

from .column_groups import Accessibility, Largest, column_groups
from .lazy_matrix import LazyMatrix, row_blocks
from .region_matrix import ColumnStats, RegionMatrix

__all__ = ["OPEN", "Columns", "Layout"]


@dataclass(frozen=True)
class Layout:
    """Which columns there are.

    Attributes:
        accessibility: What the accessibility column holds.
        largest: By what quantitative accessibility is divided: the largest value of its window, or of the cell types in
            the training regions.
        expression: Whether two columns of expression stand behind it.
        expressed: Expression counts as 0 where atpm is below this.
    """

    accessibility: Accessibility = "open"
    largest: Largest = "global"
    expression: bool = False
    expressed: float = 0.05

    def groups(self, motifs: int) -> tuple[Group, ...]:
        """Return the groups of columns."""
        return column_groups(motifs, self.accessibility != "none", self.expression)


OPEN = Layout()
"""Motifs, and 1 where a region is open."""


class Columns:
    """Columns of any regions, made when they are asked for, in the units of the data or standardised.

    Args:
        matrix: The regions.
        cells: The cell types that samples are about, by name; those trained on first. None where columns need no cell.
        trained: How many of them are trained on.
        layout: Which columns there are.

    Raises:
        Refused: The data do not know what is asked for.
    """

    def __init__(self, matrix: RegionMatrix, cells: Sequence[str], trained: int, layout: Layout) -> None:
        self.matrix, self.layout, self.trained = matrix, layout, trained
        self.numbers = [matrix.number(cell) for cell in cells]
        self.motifs = len(matrix.motifs)
        self.groups = layout.groups(self.motifs)
        self.width = self.groups[-1].stop
        self.standard, self._standardised = ColumnStats.none(self.width), False
        features = matrix.features
        self._table = None if isinstance(features, LazyMatrix) else torch.from_numpy(features)
        self._open = torch.from_numpy(self._accessibility()) if layout.accessibility != "none" else None
        self._expression = torch.from_numpy(self._expressed()) if layout.expression else None

    def gather(self, index: Int[Tensor, "B L"], cell: Int[Tensor, " B"], valid: Bool[Tensor, "B L"]) -> Tensor:
        """Return samples `B L W`, standardised where that is asked for, 0 on padding.

        Args:
            index: Rows of the matrix.
            cell: Number of the cell type among those of samples.
            valid: Which positions are there.
        """
        x0 = self.plain(index, cell[:, None])
        if self._standardised:
            x0 = (x0 - torch.from_numpy(self.standard.mean)) / torch.from_numpy(self.standard.std)
        return x0 * valid[..., None]

    def plain(self, index: Int[Tensor, "*B L"], cell: Int[Tensor, "*B 1"]) -> Float32[Tensor, "*B L W"]:
        """Return columns in the units of the data; what is on padding is that of a region of the window."""
        if self._table is not None:
            motifs = self._table[index]
        else:
            motifs = torch.from_numpy(self.matrix.features[index.numpy()])
        return torch.cat([motifs, self._behind(index, cell)], -1) if self.width > self.motifs else motifs

    def measure(self, covering: Callable[[int], Iterator[Integer[np.ndarray, " n"]]], standardise: bool) -> ColumnStats:
        """Return mean and deviation of each column over the training regions of each cell type trained on.

        Args:
            covering: Yields, for the number of a cell type, its training regions in windows that do not overlap.
            standardise: Whether samples are to have mean 0 and deviation 1 in each column from now on.
        """
        times, behind = np.zeros(len(self.matrix)), []
        for cell in range(max(self.trained, 1)):
            for rows in covering(cell):
                times[rows] += 1
                behind.append(self._behind(torch.from_numpy(rows), torch.tensor([cell])).numpy())
        blocks = (np.flatnonzero(times[block]) + block.start for block in row_blocks(len(times)))
        measured = ColumnStats.over((self.matrix.features[rows], times[rows]) for rows in blocks if len(rows))
        if self.width > self.motifs:
            rest = ColumnStats.of(np.concatenate(behind))
            mean, std = (np.concatenate(pair) for pair in ((measured.mean, rest.mean), (measured.std, rest.std)))
            measured = ColumnStats(mean, std)
        if standardise:
            self.standard, self._standardised = measured, True
        return measured

    def _behind(self, index: Int[Tensor, "*B L"], cell: Int[Tensor, "*B 1"]) -> Float32[Tensor, "*B L k"]:
        """Return the columns behind the motifs."""
        parts = [torch.empty(*index.shape, 0)]
        if self._open is not None:
            found = self._open[cell, index]
            if self.layout.largest == "window" and self.layout.accessibility == "quantitative":
                largest = found.amax(-1, keepdim=True)  # padding repeats the last region
                found = found / torch.where(largest > 0, largest, 1)
            parts.append(found[..., None])
        if self._expression is not None:
            parts.append(self._expression[cell, index])
        return torch.cat(parts, -1)

    def _accessibility(self) -> Float32[np.ndarray, "C P"]:
        """Return the accessibility column of each cell type."""
        matrix, layout = self.matrix, self.layout
        if layout.accessibility == "constant":
            return np.ones((max(len(self.numbers), 1), len(matrix)), np.float32)
        if layout.accessibility == "open":
            return np.ascontiguousarray(matrix.open[:, self.numbers].T, np.float32)
        if matrix.atpm is None:
            raise _unknown("accessibility as a number", "accessibility")
        found = np.ascontiguousarray(matrix.atpm[:, self.numbers].T, np.float32)
        if layout.largest == "window":
            return found
        seen = found[: self.trained, matrix.rows("train")]
        largest = seen.max() if seen.size and seen.max() > 0 else np.float32(1)
        return np.minimum(found / largest, np.float32(1))

    def _expressed(self) -> Float32[np.ndarray, "C P 2"]:
        """Return the expression columns of each cell type."""
        matrix = self.matrix
        if matrix.expression is None:
            raise _unknown("expression", "expression")
        found = np.array(matrix.expression[:, self.numbers].swapaxes(0, 1), np.float32)
        if matrix.atpm is not None:
            told = np.array([f"atpm:{matrix.cells[number]}" not in matrix.unknown for number in self.numbers], np.bool_)
            closed = np.less(matrix.atpm[:, self.numbers].T, self.layout.expressed) & told[:, None]
            found[closed] = 0
        return found


def _unknown(what: str, option: str) -> Refused:
    return Refused(Problem(f"the data do not know {what}", path=("task", option)))
