"""Samples as tensors: windows of regions with their columns and conditions.

Letters: B batch, L regions of a window, W columns, P regions, n training regions.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import get_args

import numpy as np
import torch
from jaxtyping import Bool, Float32, Integer

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.protocols import Split
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import FeatureSpace

from .column_groups import MAX_FIT_REGIONS, conditions_of, required_arrays, tss_known
from .columns import Columns, Layout
from .region_matrix import RegionMatrix
from .windows import WindowOptions, Windows, cut_windows

__all__ = ["RegionSamples"]


class RegionSamples:
    """The windows of each split, in each of its cell types.

    Conditions of a batch: `chromosome` (`B`, a label), `centre` (`B L`, in bases, 0 on padding), `tss` (`B L`, 1 where
    transcription starts on either strand; only if known of all cell types), and `cell` (`B`, a label; -1 for held-out
    cell types).

    Args:
        matrix: The regions.
        options: How chromosomes are cut into windows.
        cells: Cell types of each split; a split without any has those of the training split. Empty if nothing depends
            on a cell type.
        layout: Which columns a sample has.
        standardise: Give every column mean 0 and standard deviation 1 over the training regions.
        drop_closed: Drop, for each cell type, the regions that are closed in it.

    Raises:
        Refused: There is no such cell type, or a split has no windows.
    """

    def __init__(
        self,
        matrix: RegionMatrix,
        options: WindowOptions,
        cells: Mapping[Split, Sequence[str]],
        layout: Layout,
        *,
        standardise: bool = False,
        drop_closed: bool = False,
    ) -> None:
        self.matrix, self.options, self.standardised = matrix, options, standardise
        trained = list(cells.get("train", ()))
        _check_known(matrix, cells, required_arrays(layout.accessibility, layout.expression, drop_closed))
        self.cells = list(dict.fromkeys([*trained, *(cell for names in cells.values() for cell in names)]))
        self.columns = Columns(matrix, self.cells, len(trained), layout)
        self.subset = [_open(matrix, cell) for cell in self.cells] if drop_closed else None
        numbers = {
            split: [self.cells.index(cell) for cell in cells.get(split) or trained] or [0] for split in get_args(Split)
        }
        self.windows = {split: self._cut(split, numbers[split]) for split in get_args(Split)}
        self._check_windows()
        self.measured = self.columns.measure(self._covering, standardise)
        names, self._chromosome = np.unique(matrix.chromosome, return_inverse=True)
        self.chromosomes: list[str] = names.tolist()
        self._centre: Integer[np.ndarray, " P"] = (matrix.start + matrix.end) // 2
        self._tss = self._starts()
        held = self.cells[len(trained) :]
        conditions = conditions_of(len(self.chromosomes), self._tss is not None, trained, held)
        self.space = FeatureSpace(options.regions, self.columns.width, self.columns.groups, conditions)

    def size(self, split: Split) -> int:
        """Number of windows of a split."""
        return len(self.windows[split])

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return windows by number."""
        index, real, number = self.windows[split].take(rows, self.options.regions)
        place, cell, valid = torch.from_numpy(index), torch.from_numpy(number), torch.from_numpy(real)
        x0 = self.columns.gather(place, cell, valid)
        cond = {
            "chromosome": torch.from_numpy(self._chromosome[index[:, 0]]),
            "centre": torch.from_numpy(self._centre[index] * real),
        }
        if self._tss is not None:
            cond["tss"] = torch.from_numpy((self._tss[number[:, None], index] & real).astype(np.float32))
        if self.columns.trained:
            cond["cell"] = torch.where(cell < self.columns.trained, cell, -1)
        return Clean(x0, valid, torch.zeros(x0.shape, dtype=torch.bool), cond)

    def cell_of(self, split: Split, rows: Sequence[int]) -> list[str]:
        """Return the cell types of windows; empty if nothing depends on one."""
        return [self.cells[cell] for cell in self.windows[split].cell[list(rows)]] if self.cells else []

    def training(
        self, limit: int = MAX_FIT_REGIONS, cell: int | None = None
    ) -> tuple[Float32[np.ndarray, "n W"], Bool[np.ndarray, " n"]]:
        """Return training regions in order, in the units of the data, and which of them begin a run.

        Each occurs once for each cell type, or for the given one only. Windows are thinned out evenly to at most
        `limit` regions.
        """
        numbers = range(max(self.columns.trained, 1)) if cell is None else [cell]
        runs = [(rows, number) for number in numbers for rows in self._covering(number)]
        every = max(1, -(-sum(len(rows) for rows, _ in runs) // limit))
        thinned = runs[::every]
        lengths = [len(rows) for rows, _ in thinned]
        values = np.empty((sum(lengths), self.columns.width), np.float32)  # a list would take as much again
        for low, (rows, number) in zip(np.cumsum([0, *lengths[:-1]]).tolist(), thinned, strict=True):
            values[low : low + len(rows)] = self.columns.in_data_units(torch.from_numpy(rows), torch.tensor([number]))
        names = self._chromosome[np.concatenate([rows for rows, _ in thinned])]
        cells = np.repeat([number for _, number in thinned], lengths)
        follows = np.zeros(len(names), bool)
        follows[1:] = (names[1:] == names[:-1]) & (cells[1:] == cells[:-1])
        if every > 1:
            follows[np.cumsum([0, *lengths[:-1]])] = False
        return values, ~follows

    def places(
        self, split: Split, rows: Sequence[int]
    ) -> tuple[Integer[np.ndarray, "B L"], Bool[np.ndarray, "B L"], Integer[np.ndarray, " B"]]:
        """Return the regions of windows, which of them are real, and the number of the cell type of each window."""
        return self.windows[split].take(rows, self.options.regions)

    def data_warnings(self) -> Iterator[str]:
        """Yield for each split the number of windows that were dropped because they are too wide."""
        for split, windows in self.windows.items():
            if windows.wide:
                count = f"{windows.wide:,} of {windows.wide + len(windows):,} windows"
                yield f"{count} of {split} are wider than span = {self.options.span:,} bases and were dropped"

    def _cut(self, split: Split, numbers: Sequence[int]) -> Windows:
        subset = None if self.subset is None else [self.subset[number] for number in numbers]
        return cut_windows(self.matrix, split, self.options, numbers, subset, covering=split != "train")

    def _covering(self, cell: int) -> Iterator[Integer[np.ndarray, " n"]]:
        """Yield the training regions of a cell type in windows that do not overlap."""
        subset = None if self.subset is None else [self.subset[cell]]
        options = WindowOptions(self.options.regions, self.options.regions)
        windows = cut_windows(self.matrix, "train", options, [cell], subset, covering=True)
        for first, count in zip(windows.first.tolist(), windows.count.tolist(), strict=True):
            yield windows.rows[first : first + count]

    def _starts(self) -> Bool[np.ndarray, "C P"] | None:
        """Return where transcription starts, by cell type."""
        if self.matrix.tss is None or not tss_known(self.cells, self.matrix.unknown):
            return None
        either = self.matrix.tss[..., 0] | self.matrix.tss[..., 1]
        if not self.cells:
            return np.asarray(either.any(axis=1, keepdims=True)).T
        return np.ascontiguousarray(either[:, [self.matrix.number(cell) for cell in self.cells]].T)

    def _check_windows(self) -> None:
        problems = []
        for split, windows in self.windows.items():
            rows = self.matrix.rows(split)
            if len(windows) or (split == "test" and not rows.any()):
                continue
            if split == "valid" and not rows.any():
                problems.append(Problem("no chromosome is held out for validation", code="no-samples"))
            elif windows.wide:
                message = f"all {windows.wide:,} windows of {split} are wider than span = {self.options.span:,} bases"
                fix = "raise span, or lower regions"
                problems.append(Problem(message, path=("task", "span"), help=fix, code="no-samples"))
            elif len(windows.rows) == 0 and self.subset is None:
                message = "every chromosome is held out, none is left for training"
                problems.append(Problem(message, code="no-samples"))
            elif len(windows.rows) == 0:
                message = f"no region of the {split} split is open in {', '.join(self.cells)}"
                problems.append(Problem(message, path=("task", "drop_closed"), code="no-samples"))
            else:
                problems.append(self._too_long(windows))
        if problems:
            raise Refused(problems)

    def _too_long(self, windows: Windows) -> Problem:
        names, counts = np.unique(self.matrix.chromosome[np.unique(windows.rows)], return_counts=True)
        which = "" if self.subset is None else " that are open in one of the cell types"
        longest = f"{names[counts.argmax()]} has {counts.max()}"
        message = f"no training chromosome has {self.options.regions} regions{which}; {longest}"
        return Problem(message, path=("task", "regions"), help="lower regions", code="no-samples")


def _open(matrix: RegionMatrix, cell: str) -> Bool[np.ndarray, " P"]:
    """Return where a cell type has any accessibility."""
    number = matrix.number(cell)
    if matrix.atpm is None or f"atpm:{cell}" in matrix.unknown:
        return np.asarray(matrix.open[:, number])
    return np.asarray(matrix.atpm[:, number] > 0)


def _check_known(matrix: RegionMatrix, cells: Mapping[Split, Sequence[str]], required: Mapping[str, str]) -> None:
    """Check that no required value of a cell type is unknown and stored as 0."""
    problems = [
        Problem(
            f'the data have no {description} of "{cell}", only of other cell types',
            path=("task", "cell_type" if split == "train" else f"{split}_cells"),
            code="missing-array",
        )
        for split, names in cells.items()
        for cell in dict.fromkeys(names)
        for name, description in required.items()
        if f"{name}:{cell}" in matrix.unknown
    ]
    if problems:
        raise Refused(problems)
