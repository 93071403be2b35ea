"""Samples as tensors: windows of regions with their columns and conditions.

Letters: B batch, L regions of a window, M motifs, W columns, P regions, C cell types, n training
regions in a row.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from itertools import chain
from typing import Any, get_args

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, Integer, Shaped
from numpy import ndarray
from torch import Tensor

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import Split
from dither.registry.contracts.records import Clean

from .column_groups import (
    MAX_FIT_REGIONS,
    Accessibility,
    Transform,
    column_groups,
    unknown_values,
)
from .region_matrix import ColumnStats, RegionMatrix, row_blocks
from .units import ColumnUnits
from .windows import WindowOptions, Windows, cut_windows

__all__ = ["RegionSamples"]

QUANTILES = 257
"""Quantiles of each motif that the transform "quantile" interpolates."""


class Columns:
    """Columns of regions, computed on access, in the units of the data or standardised.

    The first `trained` cell types are those of the training split; there are none if columns do not
    depend on one. `spec` has the options of `GetRegion`.
    """

    def __init__(
        self,
        matrix: RegionMatrix,
        cells: Sequence[str],
        trained: int,
        spec: Any,
    ) -> None:
        self.matrix = matrix
        self.spec = spec
        self.trained = trained
        self.accessibility: Accessibility = spec.column()
        self.by_window = (
            spec.largest == "window" and self.accessibility == "quantitative"
        )
        self.numbers = [matrix.number(cell) for cell in cells]
        self.motifs = len(matrix.motifs)
        groups = column_groups(
            self.motifs, self.accessibility != "none", spec.expression
        )
        self.width = groups[-1].stop
        self.divisor = np.ones(self.width, np.float32)
        if matrix.divisor is not None:
            self.divisor[: self.motifs] = matrix.divisor
        self._open: Shaped[ndarray, "C P"] | None = None
        if self.accessibility != "none":
            self._open = self._accessibility_column()
        self._expression: Tensor | None = None
        if spec.expression:
            self._expression = torch.from_numpy(self._expression_columns())

    def in_data_units(
        self, index: Int[Tensor, "*B L"], cell: Int[Tensor, "*B 1"]
    ) -> Float32[Tensor, "*B L W"]:
        """Return scaled columns; padding repeats a region of the window."""
        motifs = torch.from_numpy(self.matrix.scaled(index.numpy()))
        if self.width == self.motifs:
            return motifs
        return torch.cat([motifs, self._extra_columns(index, cell)], -1)

    def in_source_units(
        self, index: Int[ndarray, "*B L"], cell: Int[ndarray, "*B 1"]
    ) -> Float32[ndarray, "*B L W"]:
        """Return columns as the source has them."""
        scaled = self.in_data_units(torch.from_numpy(index), torch.from_numpy(cell))
        values = scaled.numpy() * self.divisor
        # Scaled values were cut at 1.
        values[..., : self.motifs] = self.matrix.scores(index)
        if self.matrix.atpm is not None and self.accessibility == "quantitative":
            number = np.array(self.numbers)[cell]
            values[..., self.motifs] = self.matrix.atpm[index, number]
        return values

    def measure(
        self,
        covering: Callable[[int], Iterator[Integer[ndarray, " n"]]],
        units: ColumnUnits | None = None,
    ) -> ColumnStats:
        """Return mean and standard deviation of each column over the training regions.

        A region counts once for each training cell type. `covering` yields the training regions of
        a cell type in windows that do not overlap; `units` transforms motifs.
        """
        times = np.zeros(len(self.matrix))
        extra = []
        for cell in range(max(self.trained, 1)):
            for rows in covering(cell):
                # Rows of a window differ: += would count a repeated one once.
                times[rows] += 1
                index = torch.from_numpy(rows)
                columns = self._extra_columns(index, torch.tensor([cell]))
                extra.append(columns.numpy())

        # Motifs are the same in all cell types: read once, weighted by their number.
        of_motifs = ColumnStats.over(self._weighted_motifs(times, units))
        if self.width == self.motifs:
            return of_motifs
        rest = ColumnStats.of(np.concatenate(extra))
        return ColumnStats(
            mean=np.concatenate([of_motifs.mean, rest.mean]),
            std=np.concatenate([of_motifs.std, rest.std]),
        )

    def _weighted_motifs(
        self, times: Float[ndarray, " P"], units: ColumnUnits | None
    ) -> Iterator[tuple[Float32[ndarray, "n M"], Float[ndarray, " n"]]]:
        """Yield blocks of motifs of the regions that occur, and the number of times."""
        for block in row_blocks(len(times)):
            rows = np.flatnonzero(times[block]) + block.start
            if not len(rows):
                continue
            motifs = self.matrix.scaled(rows)
            if units is not None:
                motifs = units.transformed(motifs)
            yield motifs, times[rows]

    def _extra_columns(
        self, index: Int[Tensor, "*B L"], cell: Int[Tensor, "*B 1"]
    ) -> Float32[Tensor, "*B L k"]:
        parts = [torch.empty(*index.shape, 0)]
        if self._open is not None:
            values = self._open[cell.numpy(), index.numpy()]
            column = torch.from_numpy(values.astype(np.float32, copy=False))
            if self.by_window:
                # Padding repeats the last region, so it does not change the largest value.
                largest = column.amax(-1, keepdim=True)
                column = column / torch.where(largest > 0, largest, 1)
            parts.append(column[..., None])
        if self._expression is not None:
            parts.append(self._expression[cell, index])
        return torch.cat(parts, -1)

    def _accessibility_column(self) -> Shaped[ndarray, "C P"]:
        matrix = self.matrix
        if self.accessibility == "constant":
            # A view of one number, of no size in memory.
            cells = max(len(self.numbers), 1)
            return np.broadcast_to(np.float32(1), (cells, len(matrix)))
        if self.accessibility == "open":
            return np.stack([matrix.open[:, number] for number in self.numbers])

        assert matrix.atpm is not None
        column = np.ascontiguousarray(matrix.atpm[:, self.numbers].T, np.float32)
        if self.by_window:
            return column
        # Of training cell types on training chromosomes alone, so nothing held out is known.
        train = column[: self.trained, matrix.rows("train")]
        largest = train.max(initial=0) or np.float32(1)
        self.divisor[self.motifs] = largest
        return np.minimum(column / largest, np.float32(1))

    def _expression_columns(self) -> Float32[ndarray, "C P 2"]:
        matrix = self.matrix
        assert matrix.expression is not None
        columns = np.array(
            matrix.expression[:, self.numbers].swapaxes(0, 1), np.float32
        )
        if matrix.atpm is None:
            return columns
        # Genes are not expressed where the chromatin is closed, if accessibility is known.
        for column, number in zip(columns, self.numbers, strict=True):
            if f"atpm:{matrix.cells[number]}" not in matrix.unknown:
                column[matrix.atpm[:, number] < self.spec.expressed] = 0
        return columns


class RegionSamples:
    """The windows of each split, in each of its cell types.

    Conditions of a batch: `chromosome` (`B`, a label), `centre` (`B L`, in bases, 0 on padding),
    `tss` (`B L`, 1 where transcription starts on either strand; only if known of all cell types),
    and `cell` (`B`, a label; -1 for held-out cell types). `spec` has the options of `GetRegion`.
    Refused for an unknown cell type, or a split without windows.
    """

    def __init__(self, matrix: RegionMatrix, spec: Any) -> None:
        self.matrix = matrix
        self.spec = spec
        facts = matrix.facts()
        self.space = spec.space_of(facts)
        self.options = WindowOptions(
            regions=spec.regions,
            stride=spec.step(),
            jitter=spec.jitter,
            span=spec.span,
        )
        self.chromosomes: list[str] = matrix.chromosomes.tolist()
        cells: Mapping[Split, Sequence[str]] = spec.cells()
        if unknown := unknown_values(
            cells=cells,
            accessibility=spec.column(),
            expression=spec.expression,
            drop_closed=spec.drop_closed,
            facts=facts,
        ):
            raise Refused(unknown)

        # Training cell types come first, so that their numbers are labels.
        trained = list(cells.get("train", ()))
        names = chain(trained, *cells.values())
        self.cells = list(dict.fromkeys(names))
        self.columns = Columns(
            matrix=matrix,
            cells=self.cells,
            trained=len(trained),
            spec=spec,
        )
        self.subset = _subset(matrix, self.columns.numbers, spec.drop_closed)

        self.windows: dict[Split, Windows] = {}
        numbers: dict[Split, list[int]] = {}
        for split in get_args(Split):
            of_split = cells.get(split) or trained
            # Without cell types, the columns are those of one.
            numbers[split] = [self.cells.index(cell) for cell in of_split] or [0]
            self.windows[split] = self._cut(split, numbers[split])
        self._check_windows()
        # Held-out cell types on training chromosomes come after these windows.
        self.strict = {split: len(windows) for split, windows in self.windows.items()}
        self.trained_chromosomes = np.zeros(0, np.int64)
        if spec.trained_chromosomes:
            train = matrix.chromosome_number[matrix.rows("train")]
            self.trained_chromosomes = np.unique(train).astype(np.int64)
            held_out: tuple[Split, ...] = ("valid", "test")
            for split in held_out:
                if cells.get(split):
                    windows = self._cut("train", numbers[split], covering=True)
                    self.windows[split] += windows

        self.units = self._fit_units(spec.transform)
        self._tss = self._transcription_starts()

    def _transcription_starts(self) -> Bool[ndarray, "C P"] | None:
        names = [condition.name for condition in self.space.conditions]
        if self.matrix.tss is None or "tss" not in names:
            return None
        either = self.matrix.tss[..., 0] | self.matrix.tss[..., 1]
        # Without cell types, transcription in any of them counts.
        numbers = self.columns.numbers
        of_cells = either[:, numbers] if numbers else either.any(1, keepdims=True)
        return np.ascontiguousarray(of_cells.T)

    @cached_property
    def measured(self) -> ColumnStats:
        """Statistics of the columns over the training regions, all of which are read."""
        return self.columns.measure(self._covering)

    def size(self, split: Split) -> int:
        return len(self.windows[split])

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        index, real, number = self.windows[split].take(rows, self.options.regions)
        regions = torch.from_numpy(index)
        cell = torch.from_numpy(number)
        valid = torch.from_numpy(real)
        x0 = self.columns.in_data_units(regions, cell[:, None])
        # Otherwise a copy of the batch that changes nothing.
        if self.spec.standardise or self.units.transform != "none":
            x0 = torch.from_numpy(self.units.forward(x0.numpy()))
        x0 = x0 * valid[..., None]

        matrix = self.matrix
        chromosome = matrix.chromosome_number[index[:, 0]].astype(np.int64)
        centre = (matrix.start[index] + matrix.end[index]) // 2
        cond = {
            "chromosome": torch.from_numpy(chromosome),
            "centre": torch.from_numpy(np.where(real, centre, 0)),
        }
        if self._tss is not None:
            starts = self._tss[number[:, None], index] & real
            cond["tss"] = torch.from_numpy(starts.astype(np.float32))
        trained = self.columns.trained
        if trained:
            # Held-out cell types have no label.
            cond["cell"] = torch.where(cell < trained, cell, -1)
        known = torch.zeros(x0.shape, dtype=torch.bool)
        return Clean(x0, valid, known, cond)

    def training(
        self, limit: int = MAX_FIT_REGIONS, cell: int | None = None
    ) -> tuple[Float32[ndarray, "n W"], Bool[ndarray, " n"]]:
        """Return training regions in order, in the units of the data, and which begin a window.

        Each occurs once for each cell type, or for the given one only. Windows are cut as those of
        an evaluation, and thinned out evenly to at most `limit` regions.
        """
        # One run where columns depend on no cell type.
        numbers = [*range(max(self.columns.trained, 1))]
        if cell is not None:
            numbers = [cell]
        windows = []
        for number in numbers:
            windows += [(rows, number) for rows in self._covering(number)]
        # All windows are listed first, to know how many to leave out.
        total = sum(len(rows) for rows, _ in windows)
        every = max(1, -(-total // limit))
        windows = windows[::every]

        # Filled in place: a list of the parts would take as much memory again.
        lengths = [len(rows) for rows, _ in windows]
        values = np.empty((sum(lengths), self.columns.width), np.float32)
        low = 0
        for rows, number in windows:
            index = torch.from_numpy(rows)
            columns = self.columns.in_data_units(index, torch.tensor([number]))
            values[low : low + len(rows)] = columns
            low += len(rows)

        starts = np.zeros(len(values), bool)
        starts[np.cumsum([0, *lengths[:-1]])] = True
        return values, starts

    def data_warnings(self) -> Iterator[str]:
        """Yield notes on the data, and the number of windows that are too wide, by split."""
        yield from self.matrix.notes
        for split, windows in self.windows.items():
            if windows.wide:
                count = f"{windows.wide:,} of {windows.wide + len(windows):,} windows of {split}"
                yield f"{count} are wider than span = {self.options.span:,} bases and were dropped"

    def _fit_units(self, transform: Transform) -> ColumnUnits:
        """Return the units of columns, with statistics of the training regions."""
        columns = self.columns
        quantiles = None
        if transform == "quantile":
            values, _ = self.training()
            levels = np.linspace(0, 1, QUANTILES)
            quantiles = np.quantile(values[:, : columns.motifs], levels, axis=0)
            quantiles = quantiles.astype(np.float32)
        plain = ColumnStats.none(columns.width)
        units = ColumnUnits(
            divisor=columns.divisor,
            standard=plain,
            transform=transform,
            motifs=columns.motifs,
            quantiles=quantiles,
        )
        if not self.spec.standardise:
            return units
        # Statistics without a transform are those of the metrics, too: read once.
        measured = self.measured
        if transform != "none":
            measured = columns.measure(self._covering, units)
        return replace(units, standard=measured)

    def _cut(
        self,
        split: Split,
        numbers: Sequence[int],
        options: WindowOptions | None = None,
        *,
        covering: bool = False,
    ) -> Windows:
        subset = None
        if self.subset is not None:
            subset = [self.subset[number] for number in numbers]
        return cut_windows(
            matrix=self.matrix,
            split=split,
            options=options or self.options,
            cells=numbers,
            subset=subset,
            # Held-out windows never overlap, so that each region counts once.
            covering=covering or split != "train",
        )

    def _covering(self, cell: int) -> Iterator[Integer[ndarray, " n"]]:
        """Yield the training regions of a cell type in windows that do not overlap."""
        # Of any width.
        options = WindowOptions(self.options.regions, self.options.regions)
        windows = self._cut("train", [cell], options, covering=True)
        spans = zip(windows.first.tolist(), windows.count.tolist(), strict=True)
        for first, count in spans:
            yield windows.rows[first : first + count].astype(np.int64)

    def _check_windows(self) -> None:
        problems = []
        for split, windows in self.windows.items():
            # A source need not have test chromosomes.
            has_rows = bool(self.matrix.rows(split).any())
            if not len(windows) and (has_rows or split != "test"):
                problems.append(self._no_window(split, windows, has_rows=has_rows))
        if problems:
            raise Refused(problems)

    def _no_window(self, split: Split, windows: Windows, *, has_rows: bool) -> Problem:
        """Return why a split has no window."""
        message = f"the {split} split has no window of {self.options.regions} regions"
        option = "data"
        fix = None
        if windows.wide:
            span = f"span = {self.options.span:,} bases"
            message = f"all {windows.wide:,} windows of {split} are wider than {span}"
            option = "span"
            fix = "raise span, or lower regions"
        elif len(windows.rows):
            rows = np.unique(windows.rows)
            names, counts = np.unique(self.matrix.chromosome[rows], return_counts=True)
            message += (
                f": {names[counts.argmax()]} has {counts.max()}, no chromosome has more"
            )
            option = "regions"
            fix = "lower regions"
        elif self.spec.drop_closed and has_rows:
            message = (
                f"no region of the {split} split is open in {', '.join(self.cells)}"
            )
            option = "drop_closed"
        return Problem(message, path=("task", option), help=fix, code="no-samples")


def _subset(
    matrix: RegionMatrix, cells: Sequence[int], drop_closed: bool
) -> list[Bool[ndarray, " P"]] | None:
    """Return the regions of which windows of each cell type are cut; None for all."""
    if not cells or (matrix.measured is None and not drop_closed):
        return None
    subset = []
    for cell in cells:
        used = np.ones(len(matrix), bool)
        if matrix.measured is not None:
            used &= matrix.measured[:, cell]
        if drop_closed:
            used &= _open(matrix, cell)
        subset.append(used)
    return subset


def _open(matrix: RegionMatrix, cell: int) -> Bool[ndarray, " P"]:
    """Return where a cell type has any accessibility."""
    if matrix.atpm is None or f"atpm:{matrix.cells[cell]}" in matrix.unknown:
        return np.asarray(matrix.open[:, cell])
    return np.asarray(matrix.atpm[:, cell] > 0)
