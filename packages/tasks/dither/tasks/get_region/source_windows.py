"""Regions of any source as windows that a trained model reads: the input of predict and attribute.

Letters: N windows, L regions of a window, R regions of a source, W columns, k columns after the
motifs, P regions of the windows.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Int, Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused, did_you_mean, printable
from dither.registry.contracts.protocols import Split
from dither.registry.contracts.records import Clean

from .data.column_groups import Splits, extra_columns
from .data.region_matrix import RegionMatrix
from .data.windows import WindowOptions, Windows, cut_windows
from .formats.sources import ReadOptions, open_regions

__all__ = [
    "DataRequest",
    "RegionWindows",
    "SourceWindows",
    "cell_labels",
    "known_motifs",
]

RegionWindows = Any
"""The task of `task.py`, which imports this module."""
BATCH = 8
"""Windows of one call of the model."""
LARGEST = "the largest value of the training regions counts as that"
MAX_NAMED = 5
"""Motifs that a message names."""


@dataclass(frozen=True)
class DataRequest:
    """Regions to apply a model to, and the files to write.

    Attributes:
        folder: Existing, empty folder for the files.
        data: Files or folders of the user; none for the data of the run.
        split: Split of the data, or all of them.
        cell: Cell type; None for all that the model was trained on.
        formats: File formats.
        chrom_sizes: File with name and length of each chromosome, for bigWig.
        figures: Formats in which plots are written in addition to PNG.
        color: Name of the values that colour the UMAP of embeddings.
        notes: Filled with remarks on the data and the files.
    """

    folder: Path
    data: Sequence[Path] = ()
    split: Split | Literal["all"] = "valid"
    cell: str | None = None
    formats: Sequence[str] = ()
    chrom_sizes: Path | None = None
    figures: Sequence[str] = ()
    color: str | None = None
    notes: list[str] = field(default_factory=list)

    def note(self, text: str) -> None:
        """Add a remark, once."""
        # Names of motifs and cell types come from the data.
        text = printable(text)
        if text not in self.notes:
            self.notes.append(text)


@dataclass(frozen=True)
class SourceWindows:
    """Windows that cover each region of a split once, and the labels of cell types to predict."""

    task: RegionWindows
    matrix: RegionMatrix
    windows: Windows
    cells: dict[str, int]
    note: Callable[[str], None]

    @classmethod
    def of(cls, task: RegionWindows, request: DataRequest) -> SourceWindows:
        """Open the source that a request names; raise Refused if it does not fit the task."""
        cells = cell_labels(task, request.cell)

        matrix = task.matrix
        if request.data:
            matrix = _read(task, request)

        options = WindowOptions(task.regions, task.regions)
        split = request.split
        divided = matrix
        if split == "all":
            # Without held-out chromosomes all regions are of the training split.
            divided = replace(matrix, valid=(), test=())
            split = "train"
        # Windows are the same in every cell type: one run of them, with any number.
        windows = cut_windows(divided, split, options, [0], covering=True)
        if not len(windows):
            names = ", ".join(matrix.chromosomes.tolist()[:30])
            message = (
                f'no region is in the split "{request.split}"; chromosomes: {names}'
            )
            raise Refused(message, help="use --split all", code="no-samples")
        return cls(task, matrix, windows, cells, request.note)

    @property
    def columns(self) -> list[int]:
        """Columns that the model predicts."""
        extra = range(self.task.motifs, self.task.space.width)
        return [column for column in extra if not self.task.given[column]]

    def column_names(self) -> list[str]:
        """Return the names of the predicted columns; raise Refused if there are none."""
        if not self.columns:
            message = "the model predicts motifs only, and no column after them"
            raise Refused(message, code="usage")
        names = extra_columns(self.task.space.groups, self.task.spec.column())
        return [names[column - self.task.motifs] for column in self.columns]

    def colours(self, name: str) -> Shaped[ndarray, " P"]:
        """Return values of the regions by name, in the order of the windows.

        That of the chromosome, a motif, a column ("open"), which is the mean over cell types, or a
        column of one ("K562 open"). Values are NaN if unknown.
        """
        rows = self.windows.rows
        if name == "chromosome":
            return self.matrix.chromosome[rows]
        motifs = list(self.matrix.motifs)
        if name in motifs:
            return self.matrix.scores(rows)[:, motifs.index(name)]
        columns = extra_columns(self.task.space.groups, self.task.spec.column())
        sources = {}
        for number, column in enumerate(columns):
            sources[column] = (number, [*self.cells])
            for cell in self.cells:
                sources[f"{cell} {column}"] = (number, [cell])
        if name in sources:
            number, cells = sources[name]
            return np.mean([self.truth(cell)[rows, number] for cell in cells], 0)
        known = ["cell", "chromosome", *columns]
        hint = f"{', '.join(known)}, a column of a cell type, or a motif"
        problem = Problem(
            f'--color: no "{name}"',
            help=did_you_mean(name, [*known, *sources, *motifs], hint),
            code="unknown-value",
        )
        raise Refused(problem)

    def places(self) -> dict[str, Any]:
        """Return chromosome, start and end of the regions, in the order of the windows."""
        rows = self.windows.rows
        matrix = self.matrix
        return {
            "chromosome": matrix.chromosome[rows],
            "start": matrix.start[rows],
            "end": matrix.end[rows],
        }

    def truth(self, cell: str) -> Float32[ndarray, "R k"]:
        """Return the columns after the motifs in the units of the source; NaN if unknown."""
        size = len(self.matrix)
        kind = self.task.spec.column()
        parts: list[Any] = [np.zeros((size, 0))]
        if kind == "constant":
            parts.append(np.ones((size, 1)))
        elif kind != "none":
            name = "atpm" if kind == "quantitative" else kind
            parts.append(self._values(name, cell).reshape(size, 1))
        if self.task.spec.expression:
            parts.append(np.broadcast_to(self._values("expression", cell), (size, 2)))
        return np.concatenate(parts, 1, dtype=np.float32)

    def _values(self, name: str, cell: str) -> Any:
        """Return known values of a cell type, or NaN."""
        matrix = self.matrix
        arrays = {
            "open": matrix.open,
            "atpm": matrix.atpm,
            "expression": matrix.expression,
        }
        array = arrays[name]
        is_known = cell in matrix.cells and f"{name}:{cell}" not in matrix.unknown
        if array is None or not is_known:
            # One column, broadcast to both strands of expression.
            return np.full((len(matrix), 1), np.nan)
        number = matrix.cells.index(cell)
        if matrix.measured is None:
            return array[:, number]
        # Stores without the cell type have zeros in place of its values.
        where = matrix.measured[:, number].reshape(-1, *[1] * (array.ndim - 2))
        return np.where(where, array[:, number], np.nan)

    def batches(
        self, cell: str, every: int = 1
    ) -> Iterator[tuple[Clean, Int[ndarray, "N L"]]]:
        """Yield windows and their regions; everything that the model predicts is masked."""
        task = self.task
        given = task.given.numpy()[task.motifs :]
        divisor = task.units.divisor[task.motifs :]
        truth = self.truth(cell)
        if np.isnan(truth[:, given]).any():
            message = f'the model is given accessibility, which is unknown of "{cell}"'
            raise Refused(message, code="missing-array")

        numbers = range(0, len(self.windows), every)
        for low in range(0, len(numbers), BATCH):
            rows = numbers[low : low + BATCH]
            index, real, _ = self.windows.take(rows, task.regions)
            # Columns that the model predicts are 0, so that the truth cannot leak.
            extra = np.where(given, np.nan_to_num(truth[index]) / divisor, 0)
            if (extra > 1).any():
                self.note(f"accessibility of {cell} above {LARGEST}")
            extra = np.minimum(extra, 1)
            scaled = np.concatenate([self.matrix.scaled(index), extra], -1)
            clean = known_motifs(task, scaled, real, self.cells[cell])
            cond = clean.cond | self._conditions(cell, index, real)
            yield replace(clean, cond=cond), index

    def _conditions(
        self, cell: str, index: Int[ndarray, "N L"], real: Bool[ndarray, "N L"]
    ) -> dict[str, torch.Tensor]:
        """Return chromosome, centre and transcription starts of windows."""
        matrix = self.matrix
        # Chromosomes that the model has not seen are read as the first.
        known = self.task.samples.chromosomes
        number_of = {name: number for number, name in enumerate(known)}
        first = matrix.chromosome_number[index[:, 0]]
        names = matrix.chromosomes[first].tolist()
        numbers = [number_of.get(name, 0) for name in names]
        centre = (matrix.start[index] + matrix.end[index]) // 2
        cond = {
            "chromosome": torch.tensor(numbers),
            "centre": torch.from_numpy(np.where(real, centre, 0)),
        }
        reads_tss = any(
            condition.name == "tss" for condition in self.task.space.conditions
        )
        is_known = cell in matrix.cells and f"tss:{cell}" not in matrix.unknown
        if reads_tss and is_known and matrix.tss is not None:
            sites = matrix.tss[index, matrix.cells.index(cell)].any(-1) & real
            cond["tss"] = torch.from_numpy(sites.astype(np.float32))
        return cond


def known_motifs(
    task: RegionWindows,
    scaled: Float[ndarray, "N L W"],
    real: Bool[ndarray, "N L"],
    label: int,
) -> Clean:
    """Return windows whose motifs, and groups that are always given, are known."""
    valid = torch.from_numpy(real)
    values = task.units.forward(scaled.astype(np.float32))
    x0 = torch.from_numpy(values) * valid[..., None]
    known = task.given.clone()
    known[: task.motifs] = True
    cond = {
        "chromosome": torch.zeros(len(real), dtype=torch.long),
        "centre": torch.zeros(real.shape, dtype=torch.long),
    }
    if task.samples.columns.trained:
        cond["cell"] = torch.full((len(real),), label)
    return Clean(x0.float(), valid, known & valid[..., None], cond)


def cell_labels(task: RegionWindows, name: str | None) -> dict[str, int]:
    """Return the label of each cell type to predict; -1 for one that was not trained on."""
    trained = task.samples.cells[: task.samples.columns.trained]
    labels = {cell: number for number, cell in enumerate(trained)} or {"": -1}
    if name is None:
        return labels
    may_be_new = any(
        condition.name == "cell" and condition.partial
        for condition in task.space.conditions
    )
    if name not in labels and not may_be_new:
        hint = "a model with valid_cells or test_cells may predict others"
        known = ", ".join(trained) or "none"
        message = (
            f'the model was not trained on the cell type "{name}"; it knows {known}'
        )
        problem = Problem(
            message, help=did_you_mean(name, labels, hint), code="unknown-value"
        )
        raise Refused(problem)
    return {name: labels.get(name, -1)}


def _read(task: RegionWindows, request: DataRequest) -> RegionMatrix:
    """Read regions with the motifs of the task, in its order and divided by its divisors."""
    paths = request.data
    # Overlapping regions are as good as others for a prediction.
    whole = Splits((), (), scale=False)
    matrix = open_regions(paths, whole, ReadOptions(overlaps=True))
    place = {name: number for number, name in enumerate(matrix.motifs)}
    own = task.matrix
    missing = [name for name in own.motifs if name not in place]
    if missing:
        names = ", ".join(missing[:MAX_NAMED])
        count = f"{len(missing)} of {task.motifs} motifs of the model"
        message = f"{paths[0]}: {count} are missing: {names}"
        raise Refused(message, help="motifs are matched by name", code="missing-array")
    unknown = [name for name in place if name not in set(own.motifs)]
    if unknown:
        names = ", ".join(unknown[:MAX_NAMED])
        request.note(f"{len(unknown)} motifs that the model lacks are ignored: {names}")

    order = [place[name] for name in own.motifs]
    features = matrix.scores(slice(None))[:, order]
    if own.divisor is not None:
        # The divisors may be rounded.
        above = (features > own.divisor * (1 + 1e-5)).sum(0)
        if above.any():
            named = [own.motifs[column] for column in np.argsort(-above)[:MAX_NAMED]]
            names = ", ".join(name for name in named if above[own.motifs.index(name)])
            share = 100 * above.sum() / features.size
            request.note(f"{share:.2g} % of the motif scores above {LARGEST}: {names}")
    return replace(
        matrix,
        features=features,
        divisor=own.divisor,
        motifs=own.motifs,
        valid=own.valid,
        test=own.test,
    )
