"""The table of regions: places, motifs, accessibility and expression, in genome order.

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
"""A standard deviation below this share of the mean is due to rounding."""


@dataclass(frozen=True)
class ColumnStats:
    """Mean and standard deviation of each column over the training regions."""

    mean: Float32[np.ndarray, " M"]
    std: Float32[np.ndarray, " M"]

    @classmethod
    def of(cls, columns: Float32[np.ndarray, "P M"]) -> ColumnStats:
        """Return the statistics of `P M`; a constant column has std 1."""
        return cls.over([(columns, np.ones(len(columns)))])

    @classmethod
    def over(cls, blocks: Iterable[tuple[Float32[np.ndarray, "P M"], Float[np.ndarray, " P"]]]) -> ColumnStats:
        """Return the statistics of blocks of rows with weights, combined without cancellation (Chan et al. 1979)."""
        total, mean, squares = 0.0, np.zeros(()), np.zeros(())
        for columns, weight in blocks:
            n = float(weight.sum())
            if not n:
                continue
            block_mean = weight @ columns / n
            shift = block_mean - mean
            centred = columns - block_mean
            squares = squares + weight @ np.square(centred, out=centred) + np.square(shift) * (total * n / (total + n))
            mean = block_mean if not total else mean + shift * (n / (total + n))
            total += n
        std = np.sqrt(squares / max(total, 1.0))
        varies = std > CONSTANT * np.abs(mean)  # a constant may differ from its rounded mean
        return cls(mean.astype(np.float32), np.where(varies, std, 1).astype(np.float32))

    @classmethod
    def none(cls, width: int) -> ColumnStats:
        """Return mean 0 and std 1 for `width` columns."""
        return cls(np.zeros(width, np.float32), np.ones(width, np.float32))


@dataclass(frozen=True)
class RegionMatrix:
    """Regions sorted by chromosome and start.

    Attributes:
        features: Score of each motif in each region, scaled to [0, 1]; float32, or rows read on access. `P M`.
        motifs: Names of the columns.
        chromosome: Name of each region's chromosome. `P`.
        start: First base, from 0, as in a BED file. `P`.
        end: One past the last base. `P`.
        open: True where the region is accessible in a cell type. `P C`.
        cells: Names of the cell types.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test; all others are for training.
        atpm: Accessibility as a number, at least 0. `P C`; None if only `open` is known.
        expression: log10(TPM + 1) on the plus and the minus strand. `P C 2`; None if unknown.
        tss: True where transcription starts on a strand. `P C 2`; None if unknown.
        unknown: Values that are unknown and stored as 0: "atpm:CELL", "expression:CELL" and so on.
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
        """Return the matrix of arrays by name; `features` are numbers, a `LazyMatrix`, or bytes in steps of 1/255."""
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
            unknown=tuple(map(str, arrays.get("unknown", ()))),
            **{name: arrays[name] for name in ("atpm", "expression", "tss") if name in arrays},
        )

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, split: Split) -> Bool[np.ndarray, " P"]:
        """True for the regions of a split; a whole chromosome belongs to one split. `P`."""
        held_out = {"valid": np.isin(self.chromosome, self.valid), "test": np.isin(self.chromosome, self.test)}
        return ~(held_out["valid"] | held_out["test"]) if split == "train" else held_out[split]

    def facts(self) -> RegionFacts:
        """Return the facts of this table."""
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
        """Return where a cell type is open; raises Refused if there is no such cell type. `P`."""
        return np.asarray(self.open[:, self.number(cell)])

    def number(self, cell: str) -> int:
        """Return the index of a cell type.

        Raises:
            Refused: There is none of this name.
        """
        if cell not in self.cells:
            close = nearest(cell, self.cells)
            hint = f' (did you mean "{close}"?)' if close else ""
            message = f'no cell type "{cell}"{hint}; available: {", ".join(self.cells) or "none"}'
            raise Refused(message, code="unknown-value")
        return self.cells.index(cell)


def scale_to_largest(
    features: Float32[np.ndarray, "P M"], train: Bool[np.ndarray, " P"]
) -> tuple[Float32[np.ndarray, "P M"], Float32[np.ndarray, " M"]]:
    """Divide each motif by its largest value in the training regions, and clip at 1. Returns `P M` and divisors `M`."""
    divisor = column_divisors(features, train)
    scaled = features / divisor
    return np.minimum(scaled, np.float32(1), out=scaled), divisor
