"""The table of regions: places, motifs, accessibility and expression, in genome order; motifs may stay on disk.

Letters: P regions, M motifs, C cell types, N regions of a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, replace
from hashlib import sha256
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
from jaxtyping import Bool, Float, Float32, Int, Integer, Shaped

from dither.registry.config.errors import Problem, Refused, did_you_mean
from dither.registry.files.atomic import atomic_write
from dither.registry.files.cache import cache_folder

from .column_groups import RegionFacts, Splits

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

__all__ = [
    "ColumnStats",
    "Labels",
    "LazyMatrix",
    "RegionMatrix",
    "assemble",
    "column_divisors",
    "row_blocks",
]

BLOCK: Final = 8192
"""Rows per block when all are read."""
OPTIONAL: Final = ("atpm", "expression", "tss", "gene", "gene_region")


class LazyMatrix:
    """A matrix on disk or in bytes, converted to float32 when rows are indexed.

    It is memory-mapped, of any numeric type, or bytes with steps of `step`, such as 1/255. Columns
    are divided by `divisor` and clipped at 1; None for no scaling.
    """

    def __init__(
        self,
        stored: Shaped[np.ndarray, "P M"],
        divisor: Float32[np.ndarray, " M"] | None = None,
        step: np.float32 | None = None,
    ) -> None:
        self.stored = stored
        self.divisor = divisor
        self.step = step
        self.shape = stored.shape
        self.dtype = np.dtype(np.float32)
        self.ndim = 2

    def __len__(self) -> int:
        return len(self.stored)

    def __getitem__(self, rows: Any) -> Float32[np.ndarray, "... M"]:
        read = self.source(rows)
        if self.divisor is None:
            return read
        divisor = self.divisor[rows[1:]] if isinstance(rows, tuple) else self.divisor
        scaled: Float32[np.ndarray, "... M"] = np.minimum(read / divisor, np.float32(1))
        return scaled

    def source(self, rows: Any) -> Float32[np.ndarray, "... M"]:
        """Return rows in the units of the source, neither divided nor clipped."""
        read = np.asarray(self.stored[rows], np.float32)
        return read if self.step is None else read * self.step

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Float[np.ndarray, "P M"]:
        if copy is False:
            raise ValueError("conversion to float32 requires a copy")
        return self[:].astype(dtype or np.float32, copy=False)


@dataclass(frozen=True)
class Labels:
    """Names of many rows as numbers of the distinct `names`, which are sorted; read like an array of names."""

    names: Shaped[np.ndarray, " N"]
    numbers: Integer[np.ndarray, " P"]

    @classmethod
    def of(cls, names: Shaped[np.ndarray, " N"], numbers: Integer[np.ndarray, " P"]) -> Labels:
        """Return the labels of rows, given numbers of names in any order."""
        order = np.argsort(names)
        places = np.argsort(order).astype(np.min_scalar_type(len(names)))
        return cls(names[order], places[numbers])

    def __len__(self) -> int:
        return len(self.numbers)

    def __getitem__(self, rows: Any) -> Any:
        return self.names[self.numbers[rows]]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Shaped[np.ndarray, " P"]:
        return np.asarray(self[:], dtype)

    def counts(self) -> Int[np.ndarray, " N"]:
        """Return the number of rows of each name."""
        blocks = (
            np.bincount(self.numbers[rows], minlength=len(self.names))
            for rows in row_blocks(len(self))
        )
        return np.asarray(np.sum([np.zeros(len(self.names), np.int64), *blocks], 0))


def row_blocks(rows: int) -> Iterator[slice]:
    """Yield slices of `BLOCK` rows that cover all rows."""
    for start in range(0, rows, BLOCK):
        yield slice(start, min(start + BLOCK, rows))


@dataclass(frozen=True)
class ColumnStats:
    """Mean and standard deviation of each column over the training regions."""

    mean: Float32[np.ndarray, " M"]
    std: Float32[np.ndarray, " M"]

    @classmethod
    def of(cls, columns: Float32[np.ndarray, "P M"]) -> ColumnStats:
        return cls.over([(columns, np.ones(len(columns)))])

    @classmethod
    def over(
        cls, blocks: Iterable[tuple[Float32[np.ndarray, "P M"], Float[np.ndarray, " P"]]]
    ) -> ColumnStats:
        """Return the statistics of blocks of rows with weights; a constant column has std 1."""
        from sklearn.preprocessing import StandardScaler

        scaler = StandardScaler()
        for columns, weight in blocks:
            if weight.any():
                scaler.partial_fit(columns.astype(np.float64), sample_weight=weight)
        return cls(scaler.mean_.astype(np.float32), scaler.scale_.astype(np.float32))

    @classmethod
    def none(cls, width: int) -> ColumnStats:
        """Return mean 0 and std 1 for `width` columns."""
        return cls(np.zeros(width, np.float32), np.ones(width, np.float32))


@dataclass(frozen=True)
class RegionMatrix:
    """Regions sorted by chromosome and start.

    Scores of motifs (`features`) are scaled to [0, 1], and rows read on access; `start` is from 0,
    as in a BED file, and `end` one past the last base. Chromosomes besides those of `valid` and
    `test` are for training. `atpm` is accessibility as a number, at least 0, `expression` log10(TPM
    + 1) on the plus and the minus strand, `tss` where transcription starts, `gene` (perhaps
    repeated) what is transcribed in `gene_region`; each is None if unknown. `unknown` values
    ("atpm:CELL" and so on) are stored as 0; `notes` are what is valid, but may be a mistake.
    """

    features: LazyMatrix
    motifs: tuple[str, ...]
    chromosome: Labels
    start: Integer[np.ndarray, " P"]
    end: Integer[np.ndarray, " P"]
    open: Bool[np.ndarray, "P C"]
    cells: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    atpm: Float[np.ndarray, "P C"] | None = None
    expression: Float[np.ndarray, "P C 2"] | None = None
    tss: Bool[np.ndarray, "P C 2"] | None = None
    gene: Shaped[np.ndarray, " G"] | None = None
    gene_region: Integer[np.ndarray, " G"] | None = None
    unknown: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @classmethod
    def of(
        cls, arrays: Mapping[str, Any], valid: Sequence[str], test: Sequence[str]
    ) -> RegionMatrix:
        """Return the matrix of arrays by name; `features` are numbers or a `LazyMatrix`."""
        features = arrays["features"]
        if not isinstance(features, LazyMatrix):
            features = LazyMatrix(
                features if isinstance(features, np.memmap) else np.asarray(features, np.float32)
            )
        chromosome = arrays["chromosome"]
        if not isinstance(chromosome, Labels):
            chromosome = Labels.of(*np.unique(chromosome.astype(np.str_), return_inverse=True))
        return cls(
            features=features,
            motifs=tuple(map(str, arrays["motifs"])),
            chromosome=chromosome,
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

    def rows(self, split: Split) -> Bool[np.ndarray, " P"]:
        """True for the regions of a split; a whole chromosome belongs to one split. `P`."""
        return np.asarray(self._names(split)[self.chromosome.numbers])

    def _names(self, split: Split) -> Bool[np.ndarray, " N"]:
        """True for the chromosomes of a split."""
        valid, test = (np.isin(self.chromosome.names, names) for names in (self.valid, self.test))
        return ~(valid | test) if split == "train" else valid if split == "valid" else test

    def facts(self) -> RegionFacts:
        counts = self.chromosome.counts()
        known = {name: getattr(self, name) is not None for name in ("atpm", "expression", "tss")}
        longest = int(counts[self._names("train")].max(initial=0))
        chromosomes = int((counts > 0).sum())
        return RegionFacts(
            len(self.motifs), self.cells, longest, chromosomes, **known, unknown=self.unknown
        )

    def number(self, cell: str) -> int:
        """Return the index of a cell type; raises Refused if there is none of this name."""
        if cell not in self.cells:
            hint = did_you_mean(cell, self.cells)
            what = f'no cell type "{cell}"' + (f" ({hint})" if hint else "")
            message = f"{what}; available: {', '.join(self.cells) or 'none'}"
            raise Refused(message, code="unknown-value")
        return self.cells.index(cell)


def column_divisors(
    stored: Float[np.ndarray, "P M"], train: Bool[np.ndarray, " P"], key: str = ""
) -> Float32[np.ndarray, " M"]:
    """Return the divisor of each motif: its largest value in the training regions, 1 if that is 0. `M`.

    As all values are read, the result is cached on disk by a `key` of the files and the split, if
    one is given.
    """
    file = cache_folder() / "divisors" / f"{sha256(key.encode()).hexdigest()}.npy"
    with suppress(OSError, ValueError, EOFError):
        if key and len(divisors := np.load(file)) == stored.shape[1]:
            return np.asarray(divisors)
    largest = np.zeros(stored.shape[1], np.float32)
    for block in row_blocks(len(stored)):
        if train[block].any():
            largest = np.maximum(
                largest, np.asarray(stored[block], np.float32)[train[block]].max(0)
            )
    divisors = np.where(largest > 0, largest, 1).astype(np.float32)
    with suppress(OSError):
        if key:
            with atomic_write(file) as beside, beside.open("wb") as opened:
                np.save(opened, divisors)
    return np.asarray(divisors)


def assemble(
    path: Path,
    arrays: Mapping[str, Any],
    splits: Splits,
    notes: Sequence[str] = (),
    key: str = "",
) -> RegionMatrix:
    """Return the matrix of arrays that `check_arrays` accepted; memory-mapped features stay so.

    Without `open`, regions with atpm > 0 are open; `path` is for messages, `key` for
    `column_divisors`. Refused if a chromosome to hold out does not exist, or none is left for
    training.
    """
    columns = {"cells": np.zeros(0, "U1"), **arrays}
    missing = (
        () if {"open", "atpm"} & columns.keys() else [f"open:{cell}" for cell in columns["cells"]]
    )
    columns["unknown"] = np.array([*columns.get("unknown", ()), *missing], np.str_)
    closed = np.zeros((len(columns["start"]), len(columns["cells"])), bool)
    columns.setdefault("open", columns["atpm"] > 0 if "atpm" in columns else closed)
    if "tss" in columns:
        columns["tss"] = np.asarray(columns["tss"]).astype(np.bool_)
    matrix = replace(RegionMatrix.of(columns, splits.valid, splits.test), notes=tuple(notes))
    _check_chromosomes(path, matrix)
    if not splits.scale:
        return matrix
    stored = matrix.features.stored
    return replace(
        matrix, features=LazyMatrix(stored, column_divisors(stored, matrix.rows("train"), key))
    )


def _check_chromosomes(path: Path, matrix: RegionMatrix) -> None:
    existing = matrix.chromosome.names[matrix.chromosome.counts() > 0].tolist()
    problems = []
    for split, names in (("valid", matrix.valid), ("test", matrix.test)):
        for name in names:
            if name not in existing:
                help_text = f"{did_you_mean(name, existing, '')} available: {', '.join(existing[:30])}".lstrip()
                message = f'{path}: no chromosome "{name}" to hold out for {split}'
                place = ("task", "data", split)
                problems.append(Problem(message, path=place, help=help_text, code="unknown-value"))
    if not problems and not matrix.rows("train").any():
        message = f"{path}: every chromosome is held out, none is left for training"
        problems.append(Problem(message, path=("task", "data", "valid"), code="no-samples"))
    if problems:
        raise Refused(problems)
