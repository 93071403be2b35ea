"""Regions in genome order: places, motifs, accessibility and expression. Motifs may stay on disk.

Letters: P regions, M motifs, C cell types, N chromosomes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Integer, Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused, did_you_mean

from .column_groups import RegionFacts, Splits
from .stacked_rows import StackedRows

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

__all__ = [
    "ColumnStats",
    "RegionMatrix",
    "RowsOf",
    "all_rows",
    "assemble",
    "column_divisors",
    "divide",
    "row_blocks",
]

_PerMotif = Float32[ndarray, " M"]
_Numbers = Integer[ndarray, " P"]
_Motifs = Float32[ndarray, "... M"]

BLOCK = 8192
"""Rows per block when all are read."""
RowsOf = Callable[[int], slice]
"""Returns the rows whose features are read, given the number of regions."""
OPTIONAL = ("atpm", "expression", "tss", "gene", "gene_region")


@dataclass(frozen=True)
class RegionMatrix:
    """Regions sorted by chromosome and start.

    `features` are scores of motifs in the units of the source, perhaps memory-mapped; `scaled`
    divides them by `divisor` if there is one. `chromosome_number` refers to the sorted names
    `chromosomes`; `start` is from 0, as in a BED file, and `end` one past the last base.
    Chromosomes besides those of `valid` and `test` are for training. `atpm` is accessibility as a
    number, at least 0, `expression` log10(TPM + 1) on the plus and the minus strand, `tss` where
    transcription starts, `gene` (perhaps repeated) the transcript of `gene_region`; each is None
    if unknown. `unknown` values ("atpm:CELL" and so on) are stored as 0; `notes` are on data that
    are valid, but may be a mistake. Regions of several stores are in one order for each `store`, whose
    number they have; `measured` is False for cell types that the store of a region lacks.
    """

    features: Shaped[ndarray, "P M"] | StackedRows
    motifs: tuple[str, ...]
    chromosomes: Shaped[ndarray, " N"]
    chromosome_number: _Numbers
    start: _Numbers
    end: _Numbers
    open: Bool[ndarray, "P C"]
    cells: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    divisor: _PerMotif | None = None
    atpm: Float[ndarray, "P C"] | None = None
    expression: Float[ndarray, "P C 2"] | None = None
    tss: Bool[ndarray, "P C 2"] | None = None
    gene: Shaped[ndarray, " G"] | None = None
    gene_region: Integer[ndarray, " G"] | None = None
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    store: Integer[ndarray, " P"] | None = None
    measured: Bool[ndarray, "P C"] | None = None

    @classmethod
    def of(
        cls, arrays: Mapping[str, Any], valid: Sequence[str], test: Sequence[str]
    ) -> RegionMatrix:
        """Return the matrix of arrays by name; chromosomes are names, or numbers of them."""
        chromosomes = arrays.get("chromosomes")
        numbers = arrays["chromosome"]
        if chromosomes is None:
            chromosomes, numbers = np.unique(
                numbers.astype(np.str_), return_inverse=True
            )
        return cls(
            features=arrays["features"],
            motifs=tuple(map(str, arrays["motifs"])),
            chromosomes=chromosomes,
            # A byte a region, unless there are 256 chromosomes or more.
            chromosome_number=numbers.astype(np.min_scalar_type(len(chromosomes))),
            start=arrays["start"].astype(np.int64, copy=False),
            end=arrays["end"].astype(np.int64, copy=False),
            open=arrays["open"].astype(np.bool_, copy=False),
            cells=tuple(map(str, arrays["cells"])),
            valid=tuple(valid),
            test=tuple(test),
            unknown=tuple(map(str, arrays.get("unknown", ()))),
            **{name: arrays[name] for name in OPTIONAL if name in arrays},
        )

    def __len__(self) -> int:
        return len(self.features)

    @property
    def chromosome(self) -> Shaped[ndarray, " P"]:
        """Name of the chromosome of each region."""
        return np.asarray(self.chromosomes[self.chromosome_number])

    @property
    def stretch(self) -> Integer[ndarray, " P"]:
        """Number of the chromosome in its store: regions of one are neighbours, in order."""
        if self.store is None:
            return self.chromosome_number
        # Stored in as little as a byte, in which the sum would overflow.
        number = self.chromosome_number.astype(np.int64)
        return number + len(self.chromosomes) * self.store

    def scores(self, rows: Any) -> _Motifs:
        """Return motifs of regions in the units of the source."""
        # Stored as float16 perhaps, and on disk: only these rows are read.
        return np.asarray(self.features[rows], np.float32)

    def scaled(self, rows: Any) -> _Motifs:
        """Return motifs of regions divided by `divisor` and cut at 1."""
        scores = self.scores(rows)
        if self.divisor is None:
            return scores
        return np.minimum(scores / self.divisor, np.float32(1))

    def rows(self, split: Split) -> Bool[ndarray, " P"]:
        """True for the regions of a split; a whole chromosome belongs to one split. `P`."""
        return np.asarray(self._chromosomes_of(split)[self.chromosome_number])

    def _chromosomes_of(self, split: Split) -> Bool[ndarray, " N"]:
        valid = np.isin(self.chromosomes, self.valid)
        test = np.isin(self.chromosomes, self.test)
        return {"train": ~(valid | test), "valid": valid, "test": test}[split]

    def _longest(self, split: Split) -> int:
        """Return the number of regions of the longest stretch of a split."""
        # minlength: without regions the counts would be empty, and max() would fail.
        counts = np.bincount(self.stretch[self.rows(split)], minlength=1)
        return int(counts.max())

    def sizes(self) -> Integer[ndarray, " N"]:
        """Return the number of regions of each chromosome."""
        return np.bincount(self.chromosome_number, minlength=len(self.chromosomes))

    def facts(self) -> RegionFacts:
        # A subset of regions may leave a chromosome empty.
        sizes = self.sizes()
        return RegionFacts(
            motifs=len(self.motifs),
            cells=self.cells,
            longest=self._longest("train"),
            chromosomes=int((sizes > 0).sum()),
            atpm=self.atpm is not None,
            expression=self.expression is not None,
            tss=self.tss is not None,
            unknown=self.unknown,
        )

    def number(self, cell: str) -> int:
        """Return the index of a cell type; raise Refused if there is none of this name."""
        if cell not in self.cells:
            fix = did_you_mean(cell, self.cells)
            hint = f" ({fix})" if fix else ""
            available = ", ".join(self.cells) or "none"
            message = f'no cell type "{cell}"{hint}; available: {available}'
            raise Refused(message, code="unknown-value")
        return self.cells.index(cell)


def all_rows(count: int) -> slice:
    """Return the slice of all rows of `count`."""
    return slice(0, count)


def row_blocks(count: int, rows_of: RowsOf = all_rows) -> Iterator[slice]:
    """Yield slices of `BLOCK` rows that cover rows of `count`, by default all."""
    rows = rows_of(count)
    for start in range(rows.start, rows.stop, BLOCK):
        yield slice(start, min(start + BLOCK, rows.stop))


@dataclass(frozen=True)
class ColumnStats:
    """Mean and standard deviation of each column over the training regions."""

    mean: _PerMotif
    std: _PerMotif

    @classmethod
    def of(cls, columns: Float32[ndarray, "P M"]) -> ColumnStats:
        return cls.over([(columns, np.ones(len(columns)))])

    @classmethod
    def over(
        cls,
        blocks: Iterable[tuple[Float32[ndarray, "P M"], Float[ndarray, " P"]]],
    ) -> ColumnStats:
        """Return the statistics of blocks of rows with weights; a constant column has std 1."""
        from sklearn.preprocessing import StandardScaler

        # Welford's algorithm over blocks, in float64.
        scaler = StandardScaler()
        for columns, weight in blocks:
            if weight.any():
                scaler.partial_fit(columns.astype(np.float64), sample_weight=weight)
        return cls(scaler.mean_.astype(np.float32), scaler.scale_.astype(np.float32))

    @classmethod
    def none(cls, width: int) -> ColumnStats:
        """Return mean 0 and std 1 for `width` columns."""
        return cls(np.zeros(width, np.float32), np.ones(width, np.float32))


def column_divisors(
    features: Shaped[ndarray, "P M"] | StackedRows, train: Bool[ndarray, " P"]
) -> _PerMotif:
    """Return the largest value of each motif in the training regions, 1 if that is 0. `M`."""
    largest = np.zeros(features.shape[1], np.float32)
    # By blocks, as the features may be larger than the memory.
    for block in row_blocks(len(features)):
        if train[block].any():
            values = np.asarray(features[block], np.float32)[train[block]]
            largest = np.maximum(largest, values.max(0))
    return np.where(largest > 0, largest, 1).astype(np.float32)


def assemble(
    path: Path,
    arrays: Mapping[str, Any],
    splits: Splits,
    notes: Sequence[str] = (),
) -> RegionMatrix:
    """Return the matrix of arrays that `check_arrays` accepted; memory-mapped features stay so.

    Without `open`, regions with atpm > 0 are open; `path` is for messages. Refused if a chromosome
    to hold out does not exist, or none is left for training.
    """
    columns = {"cells": np.zeros(0, "U1"), **arrays}
    unknown = [*columns.get("unknown", ())]
    if "open" not in columns:
        if "atpm" in columns:
            columns["open"] = columns["atpm"] > 0
        else:
            columns["open"] = np.zeros(
                (len(columns["start"]), len(columns["cells"])), bool
            )
            unknown += [f"open:{cell}" for cell in columns["cells"]]
    columns["unknown"] = np.array(unknown, np.str_)
    if "tss" in columns:
        columns["tss"] = np.asarray(columns["tss"]).astype(np.bool_)
    matrix = replace(RegionMatrix.of(columns, (), ()), notes=tuple(notes))
    return divide(path, matrix, splits)


def divide(path: Path, matrix: RegionMatrix, splits: Splits) -> RegionMatrix:
    """Return a matrix with these splits, and motifs scaled to 1; Refused as `assemble` says."""
    matrix = replace(matrix, valid=tuple(splits.valid), test=tuple(splits.test))
    _check_chromosomes(path, matrix)
    if not splits.scale:
        return matrix
    return replace(
        matrix, divisor=column_divisors(matrix.features, matrix.rows("train"))
    )


def _check_chromosomes(path: Path, matrix: RegionMatrix) -> None:
    existing = matrix.chromosomes[matrix.sizes() > 0].tolist()
    available = f"available: {', '.join(existing[:30])}"
    problems = []
    for split, names in (("valid", matrix.valid), ("test", matrix.test)):
        for name in names:
            if name not in existing:
                near = did_you_mean(name, existing, "")
                # Genomes of UCSC and of Ensembl name chromosomes differently.
                for other in (f"chr{name}", name.removeprefix("chr")):
                    if other != name and other in existing:
                        near = f'the data call it "{other}";'
                fix = f"{near} {available}".lstrip()
                message = f'{path}: no chromosome "{name}" to hold out for {split}'
                place = ("task", "data", split)
                problems.append(
                    Problem(message, path=place, help=fix, code="unknown-value")
                )
    if not problems and not matrix.rows("train").any():
        message = f"{path}: every chromosome is held out, none is left for training"
        problems.append(
            Problem(message, path=("task", "data", "valid"), code="no-samples")
        )
    if problems:
        raise Refused(problems)
