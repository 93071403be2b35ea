"""Columns of samples: motifs, accessibility and expression of regions in cell types.

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
    """Which columns a sample has.

    Attributes:
        accessibility: Values of the accessibility column.
        largest: Divisor of quantitative accessibility: the largest value of its window, or of the training regions.
        expression: Add two columns of expression.
        expressed: Expression is set to 0 where atpm is below this.
    """

    accessibility: Accessibility = "open"
    largest: Largest = "global"
    expression: bool = False
    expressed: float = 0.05

    def groups(self, motifs: int) -> tuple[Group, ...]:
        """Return the groups of columns."""
        return column_groups(motifs, self.accessibility != "none", self.expression)


OPEN = Layout()
"""Motifs, and 1 for open regions."""


class Columns:
    """Columns of regions, computed on access, in the units of the data or standardised.

    Args:
        matrix: The regions.
        cells: Names of the cell types, those of the training split first; empty if columns do not depend on one.
        trained: Number of cell types in the training split.
        layout: Which columns a sample has.

    Raises:
        Refused: The data do not have the columns.
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
        self._open = torch.from_numpy(self._accessibility_column()) if layout.accessibility != "none" else None
        self._expression = torch.from_numpy(self._expression_columns()) if layout.expression else None

    def gather(self, index: Int[Tensor, "B L"], cell: Int[Tensor, " B"], valid: Bool[Tensor, "B L"]) -> Tensor:
        """Return samples `B L W`, standardised if enabled, 0 on padding.

        Args:
            index: Rows of the matrix.
            cell: Number of the cell type.
            valid: Real positions.
        """
        x0 = self.in_data_units(index, cell[:, None])
        if self._standardised:
            x0 = (x0 - torch.from_numpy(self.standard.mean)) / torch.from_numpy(self.standard.std)
        return x0 * valid[..., None]

    def in_data_units(self, index: Int[Tensor, "*B L"], cell: Int[Tensor, "*B 1"]) -> Float32[Tensor, "*B L W"]:
        """Return columns in the units of the data; padding repeats a region of the window."""
        if self._table is not None:
            motifs = self._table[index]
        else:
            motifs = torch.from_numpy(self.matrix.features[index.numpy()])
        return torch.cat([motifs, self._extra_columns(index, cell)], -1) if self.width > self.motifs else motifs

    def measure(self, covering: Callable[[int], Iterator[Integer[np.ndarray, " n"]]], standardise: bool) -> ColumnStats:
        """Return mean and standard deviation of each column over the training regions of each training cell type.

        Args:
            covering: Yields the training regions of a cell type in windows that do not overlap.
            standardise: Standardise samples from now on.
        """
        times, extra = np.zeros(len(self.matrix)), []
        for cell in range(max(self.trained, 1)):
            for rows in covering(cell):
                times[rows] += 1
                extra.append(self._extra_columns(torch.from_numpy(rows), torch.tensor([cell])).numpy())
        blocks = (np.flatnonzero(times[block]) + block.start for block in row_blocks(len(times)))
        measured = ColumnStats.over((self.matrix.features[rows], times[rows]) for rows in blocks if len(rows))
        if self.width > self.motifs:
            rest = ColumnStats.of(np.concatenate(extra))
            mean, std = (np.concatenate(pair) for pair in ((measured.mean, rest.mean), (measured.std, rest.std)))
            measured = ColumnStats(mean, std)
        if standardise:
            self.standard, self._standardised = measured, True
        return measured

    def _extra_columns(self, index: Int[Tensor, "*B L"], cell: Int[Tensor, "*B 1"]) -> Float32[Tensor, "*B L k"]:
        """Return the columns after the motifs."""
        parts = [torch.empty(*index.shape, 0)]
        if self._open is not None:
            column = self._open[cell, index]
            if self.layout.largest == "window" and self.layout.accessibility == "quantitative":
                largest = column.amax(-1, keepdim=True)  # padding repeats the last region
                column = column / torch.where(largest > 0, largest, 1)
            parts.append(column[..., None])
        if self._expression is not None:
            parts.append(self._expression[cell, index])
        return torch.cat(parts, -1)

    def _accessibility_column(self) -> Float32[np.ndarray, "C P"]:
        """Return the accessibility column of each cell type."""
        matrix, layout = self.matrix, self.layout
        if layout.accessibility == "constant":
            return np.ones((max(len(self.numbers), 1), len(matrix)), np.float32)
        if layout.accessibility == "open":
            return np.ascontiguousarray(matrix.open[:, self.numbers].T, np.float32)
        if matrix.atpm is None:
            raise _unknown("accessibility as a number", "accessibility")
        column = np.ascontiguousarray(matrix.atpm[:, self.numbers].T, np.float32)
        if layout.largest == "window":
            return column
        train = column[: self.trained, matrix.rows("train")]
        largest = train.max() if train.size and train.max() > 0 else np.float32(1)
        return np.minimum(column / largest, np.float32(1))

    def _expression_columns(self) -> Float32[np.ndarray, "C P 2"]:
        """Return the expression columns of each cell type."""
        matrix = self.matrix
        if matrix.expression is None:
            raise _unknown("expression", "expression")
        columns = np.array(matrix.expression[:, self.numbers].swapaxes(0, 1), np.float32)
        if matrix.atpm is not None:
            known = np.array([f"atpm:{matrix.cells[n]}" not in matrix.unknown for n in self.numbers], np.bool_)
            closed = np.less(matrix.atpm[:, self.numbers].T, self.layout.expressed) & known[:, None]
            columns[closed] = 0
        return columns


def _unknown(values: str, option: str) -> Refused:
    return Refused(Problem(f"the data have no {values}", path=("task", option), code="missing-array"))
