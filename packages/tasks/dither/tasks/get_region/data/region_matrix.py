"""The table that everything starts from: regions of a genome, in order, with their motifs and where they are open.

Letters: P regions, M motifs, C cell types, N regions of a window.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Float, Float32, Integer, Shaped

from dither.registry.config.errors import Refused, nearest

from .column_groups import RegionFacts
from .lazy_matrix import LazyMatrix, column_divisors

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

__all__ = ["ColumnStats", "RegionMatrix", "scale_to_largest"]

CONSTANT = 1e-12
"""A standard deviation below this share of the mean is rounding."""


@dataclass(frozen=True)
class ColumnStats:
    """Shift and scale of each column, so that it has mean 0 and standard deviation 1 over the training regions."""

    mean: Float32[np.ndarray, " M"]
    std: Float32[np.ndarray, " M"]

    @classmethod
    def of(cls, columns: Float32[np.ndarray, "P M"]) -> ColumnStats:
        """Measure `P M`; a constant column is only shifted."""
        return cls.over([(columns, np.ones(len(columns)))])

    @classmethod
    def over(cls, blocks: Iterable[tuple[Float32[np.ndarray, "P M"], Float[np.ndarray, " P"]]]) -> ColumnStats:
        """Measure rows that come in blocks, each with how often its rows count.

        Blocks are joined by the rule of Chan, Golub and LeVeque (1979), so that nothing cancels.
        """
        total, mean, squares = 0.0, np.zeros(()), np.zeros(())
        for columns, weight in blocks:
            n = float(weight.sum())
            if not n:
                continue
            here = weight @ columns / n
            off = here - mean
            beside = columns - here
            squares = squares + weight @ np.square(beside, out=beside) + np.square(off) * (total * n / (total + n))
            mean = here if not total else mean + off * (n / (total + n))
            total += n
        std = np.sqrt(squares / max(total, 1.0))
        varies = std > CONSTANT * np.abs(mean)  # a mean is rounded, so that a constant may seem to differ from it
        return cls(mean.astype(np.float32), np.where(varies, std, 1).astype(np.float32))

    @classmethod
    def none(cls, width: int) -> ColumnStats:
        """Leave `width` columns as they are."""
        return cls(np.zeros(width, np.float32), np.ones(width, np.float32))


@dataclass(frozen=True)
class RegionMatrix:
    """Regions sorted by chromosome and start.

    Attributes:
        features: How much of each motif a region holds, scaled to [0, 1]. `P M` float32, or rows that are read
            when they are asked for.
        motifs: Names of the columns.
        chromosome: Name of each region's chromosome. `P`.
        start: First base, from 0, as in a BED file. `P`.
        end: Behind the last base. `P`.
        open: True where the region is accessible in a cell type. `P C`.
        cells: Names of the cell types.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test; all others are for training.
        atpm: Accessibility as a number, at least 0. `P C`; None where only `open` is known.
        expression: log10(TPM + 1) on the plus and the minus strand. `P C 2`; None where it is not known.
        tss: True where transcription starts on a strand. `P C 2`; None where it is not known.
        unknown: What is 0 of a cell type only because nobody said it: "atpm:CELL", "expression:CELL" and so on.
    """

    features: Float32[np.ndarray, "P M"] | LazyMatrix
    motifs: tuple[str, ...]
    chromosome: Shaped[np.ndarray, " P"]
    start: Integer[np.ndarray, " P"]
    end: Integer[np.ndarray, " P"]
    open: Bool[np.ndarray, "P C"]
    cells: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]
    atpm: Float[np.ndarray, "P C"] | None = None
    expression: Float[np.ndarray, "P C 2"] | None = None
    tss: Bool[np.ndarray, "P C 2"] | None = None
    unknown: tuple[str, ...] = ()

    @classmethod
    def of(cls, arrays: Mapping[str, Any], valid: Sequence[str], test: Sequence[str]) -> RegionMatrix:
        """Take in arrays under these names, `features` as numbers, as `LazyMatrix`, or as bytes in steps of 1/255."""
        features = arrays["features"]
        if features.dtype == np.uint8:
            features = LazyMatrix(np.ascontiguousarray(features), step=np.float32(1 / 255))
        return cls(
            features=features if isinstance(features, LazyMatrix) else np.ascontiguousarray(features, np.float32),
            motifs=tuple(map(str, arrays["motifs"])),
            chromosome=arrays["chromosome"].astype(np.str_),
            start=arrays["start"].astype(np.int64),
            end=arrays["end"].astype(np.int64),
            open=arrays["open"].astype(np.bool_),
            cells=tuple(map(str, arrays["cells"])),
            valid=tuple(valid),
            test=tuple(test),
            unknown=tuple(map(str, arrays.get("untold", ()))),
            **{name: arrays[name] for name in ("atpm", "expression", "tss") if name in arrays},
        )

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, split: Split) -> Bool[np.ndarray, " P"]:
        """True for the regions of a split; a whole chromosome belongs to one split. `P`."""
        held_out = {"valid": np.isin(self.chromosome, self.valid), "test": np.isin(self.chromosome, self.test)}
        return ~(held_out["valid"] | held_out["test"]) if split == "train" else held_out[split]

    def facts(self) -> RegionFacts:
        """Return what a source may tell of the table beforehand."""
        _, counts = np.unique(self.chromosome[self.rows("train")], return_counts=True)
        return RegionFacts(
            len(self.motifs),
            self.cells,
            int(counts.max()) if len(counts) else 0,
            len(self),
            len(np.unique(self.chromosome)),
            self.atpm is not None,
            self.expression is not None,
            self.tss is not None,
            self.unknown,
        )

    def labels(self, cell: str) -> Bool[np.ndarray, " P"]:
        """Where a cell type is open. `P`.

        Raises:
            Refused: If there is no such cell type.
        """
        return np.asarray(self.open[:, self.number(cell)])

    def number(self, cell: str) -> int:
        """Return which cell type has this name.

        Raises:
            Refused: None has.
        """
        if cell not in self.cells:
            close = nearest(cell, self.cells)
            hint = f' (did you mean "{close}"?)' if close else ""
            raise Refused(f'no cell type is called "{cell}"{hint}; there are: {", ".join(self.cells) or "none"}')
        return self.cells.index(cell)


def scale_to_largest(
    features: Float32[np.ndarray, "P M"], train: Bool[np.ndarray, " P"]
) -> tuple[Float32[np.ndarray, "P M"], Float32[np.ndarray, " M"]]:
    """Divide each motif by its largest value in the training regions, and cut at 1. Returns `P M` and divisors `M`."""
    divisor = column_divisors(features, train)
    scaled = features / divisor
    return np.minimum(scaled, np.float32(1), out=scaled), divisor
