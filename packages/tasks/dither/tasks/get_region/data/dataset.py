"""Samples as tensors: windows of regions with their columns, and what is told beside them.

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

    A batch tells `chromosome` (`B`, a label), `centre` (`B L`, in bases, 0 on padding), `tss` (`B L`, 1 where
    transcription starts on either strand; only where the data know it of all cell types), and `cell` (`B`, a label;
    not of cell types that are held out, which have none).

    Args:
        matrix: The regions.
        cut: How chromosomes are cut into windows.
        cells: The cell types of each split; where a split has none, those that are trained on; none at all where
            nothing depends on a cell type.
        layout: Which columns there are.
        standardise: Give every column mean 0 and standard deviation 1 over the training regions.
        drop_closed: Leave out, for each cell type, the regions that are closed in it.

    Raises:
        Refused: There is no such cell type, or a split is left without windows.
    """

    def __init__(
        self,
        matrix: RegionMatrix,
        cut: WindowOptions,
        cells: Mapping[Split, Sequence[str]],
        layout: Layout,
        *,
        standardise: bool = False,
        drop_closed: bool = False,
    ) -> None:
        self.matrix, self.cut = matrix, cut
        trained = list(cells.get("train", ()))
        _must_be_known(matrix, cells, required_arrays(layout.accessibility, layout.expression, drop_closed))
        self.cells = list(dict.fromkeys([*trained, *(cell for names in cells.values() for cell in names)]))
        self.columns = Columns(matrix, self.cells, len(trained), layout)
        self.kept = [_open(matrix, cell) for cell in self.cells] if drop_closed else None
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
        self.space = FeatureSpace(cut.regions, self.columns.width, self.columns.groups, conditions)

    def size(self, split: Split) -> int:
        """Number of windows of a split."""
        return len(self.windows[split])

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        """Return windows by number."""
        index, there, number = self.windows[split].take(rows, self.cut.regions)
        place, cell, valid = torch.from_numpy(index), torch.from_numpy(number), torch.from_numpy(there)
        x0 = self.columns.gather(place, cell, valid)
        cond = {
            "chromosome": torch.from_numpy(self._chromosome[index[:, 0]]),
            "centre": torch.from_numpy(self._centre[index] * there),
        }
        if self._tss is not None:
            cond["tss"] = torch.from_numpy((self._tss[number[:, None], index] & there).astype(np.float32))
        if self.columns.trained:  # one that was held out has no label
            cond["cell"] = torch.where(cell < self.columns.trained, cell, -1)
        return Clean(x0, valid, torch.zeros(x0.shape, dtype=torch.bool), cond)

    def cell_of(self, split: Split, rows: Sequence[int]) -> list[str]:
        """Return the cell types of windows; none where nothing depends on one."""
        return [self.cells[cell] for cell in self.windows[split].cell[list(rows)]] if self.cells else []

    def training(
        self, most: int = MAX_FIT_REGIONS, cell: int | None = None
    ) -> tuple[Float32[np.ndarray, "n W"], Bool[np.ndarray, " n"]]:
        """Return training regions in order, in the units of the data, and which of them follow no other.

        Each stands there once for each cell type, or only for the one that is given. Of more than `most` some are
        left out, evenly and in windows.
        """
        chosen = range(max(self.columns.trained, 1)) if cell is None else [cell]
        runs = [(rows, number) for number in chosen for rows in self._covering(number)]
        every = max(1, -(-sum(len(rows) for rows, _ in runs) // most))
        taken = runs[::every]
        lengths = [len(rows) for rows, _ in taken]
        values = np.empty((sum(lengths), self.columns.width), np.float32)  # filled in: a list would take as much again
        for low, (rows, number) in zip(np.cumsum([0, *lengths[:-1]]).tolist(), taken, strict=True):
            values[low : low + len(rows)] = self.columns.plain(torch.from_numpy(rows), torch.tensor([number]))
        names = self._chromosome[np.concatenate([rows for rows, _ in taken])]
        cells = np.repeat([number for _, number in taken], lengths)
        follows = np.zeros(len(names), bool)
        follows[1:] = (names[1:] == names[:-1]) & (cells[1:] == cells[:-1])
        if every > 1:
            follows[np.cumsum([0, *lengths[:-1]])] = False
        return values, ~follows

    def places(
        self, split: Split, rows: Sequence[int]
    ) -> tuple[Integer[np.ndarray, "B L"], Bool[np.ndarray, "B L"], Integer[np.ndarray, " B"]]:
        """Return which regions windows hold, which of these are there, and the cell type of each by its number."""
        return self.windows[split].take(rows, self.cut.regions)

    def left_out(self) -> Iterator[str]:
        """Yield of each split how many windows were left out because they are too wide."""
        for split, windows in self.windows.items():
            if windows.wide:
                what = f"{windows.wide:,} of {windows.wide + len(windows):,} windows of {split} are wider than "
                yield f"{what}span = {self.cut.span:,} bases and left out"

    def _cut(self, split: Split, numbers: Sequence[int]) -> Windows:
        kept = None if self.kept is None else [self.kept[number] for number in numbers]
        return cut_windows(self.matrix, split, self.cut, numbers, kept, covering=split != "train")

    def _covering(self, cell: int) -> Iterator[Integer[np.ndarray, " n"]]:
        """Yield the training regions of a cell type in windows that do not overlap."""
        kept = None if self.kept is None else [self.kept[cell]]
        cut = WindowOptions(self.cut.regions, self.cut.regions)
        windows = cut_windows(self.matrix, "train", cut, [cell], kept, covering=True)
        for first, count in zip(windows.first.tolist(), windows.count.tolist(), strict=True):
            yield windows.rows[first : first + count]

    def _starts(self) -> Bool[np.ndarray, "C P"] | None:
        """Return for each cell type where transcription starts."""
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
                problems.append(Problem("no chromosome is held out for validation"))
            elif windows.wide:
                what = (
                    f"each of the {windows.wide:,} windows of the {split} split is wider than span = {self.cut.span:,}"
                )
                problems.append(Problem(f"{what} bases", path=("task", "span"), help="raise span, or lower regions"))
            elif len(windows.rows) == 0 and self.kept is None:
                problems.append(Problem("every chromosome is held out, none is left to train on"))
            elif len(windows.rows) == 0:
                what = f"no region of the {split} split is open in {', '.join(self.cells)}"
                problems.append(Problem(what, path=("task", "drop_closed")))
            else:
                problems.append(self._too_long(windows))
        if problems:
            raise Refused(problems)

    def _too_long(self, windows: Windows) -> Problem:
        names, counts = np.unique(self.matrix.chromosome[np.unique(windows.rows)], return_counts=True)
        kept = "" if self.kept is None else " that are open in one of the cell types"
        what = f"no chromosome of the training split holds {self.cut.regions} regions{kept}: "
        longest = f"{names[counts.argmax()]} has {counts.max()}"
        return Problem(what + longest, path=("task", "regions"), help="lower regions")


def _open(matrix: RegionMatrix, cell: str) -> Bool[np.ndarray, " P"]:
    """Return where a cell type has any accessibility at all."""
    number = matrix.number(cell)
    if matrix.atpm is None or f"atpm:{cell}" in matrix.unknown:
        return np.asarray(matrix.open[:, number])
    return np.asarray(matrix.atpm[:, number] > 0)


def _must_be_known(matrix: RegionMatrix, cells: Mapping[Split, Sequence[str]], asked: Mapping[str, str]) -> None:
    """Refuse cell types of which only others know what is asked for; 0 stands there, which nobody said."""
    gone = [
        Problem(
            f'the data do not know {what} of "{cell}", only of other cell types',
            path=("task", "cell_type" if split == "train" else f"{split}_cells"),
        )
        for split, names in cells.items()
        for cell in dict.fromkeys(names)
        for name, what in asked.items()
        if f"{name}:{cell}" in matrix.unknown
    ]
    if gone:
        raise Refused(gone)
