"""The table that everything starts from: regions of a genome, in order, with their motifs and where they are open.

Letters: P regions, M motifs, C cell types, N regions of a window.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import Bool, Float32, Integer, Shaped

from dither.registry.problems import Refused, nearest

if TYPE_CHECKING:  # the table is read before torch is
    from dither.registry.parts import Split

__all__ = ["RegionMatrix", "Standard", "Window", "scale_to_largest"]


@dataclass(frozen=True)
class Window:
    """Consecutive regions of one chromosome: rows `first` to `first + count - 1`."""

    first: int
    count: int


@dataclass(frozen=True)
class Standard:
    """Shift and scale of each column, so that it has mean 0 and standard deviation 1 over the training regions."""

    mean: Float32[np.ndarray, " M"]
    std: Float32[np.ndarray, " M"]

    @classmethod
    def of(cls, columns: Float32[np.ndarray, "P M"]) -> Standard:
        """Measure `P M`; a constant column is only shifted."""
        std = columns.std(0, dtype=np.float64)
        return cls(columns.mean(0, dtype=np.float64).astype(np.float32), np.where(std > 0, std, 1).astype(np.float32))

    @classmethod
    def none(cls, width: int) -> Standard:
        """Leave `width` columns as they are."""
        return cls(np.zeros(width, np.float32), np.ones(width, np.float32))


@dataclass(frozen=True)
class RegionMatrix:
    """Regions sorted by chromosome and start.

    Attributes:
        features: How much of each motif a region holds, scaled to [0, 1]. `P M` float32.
        motifs: Names of the columns.
        chromosome: Name of each region's chromosome. `P`.
        start: First base, from 0, as in a BED file. `P`.
        end: Behind the last base. `P`.
        open: True where the region is accessible in a cell type. `P C`.
        cells: Names of the cell types.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test; all others are for training.
    """

    features: Float32[np.ndarray, "P M"]
    motifs: tuple[str, ...]
    chromosome: Shaped[np.ndarray, " P"]
    start: Integer[np.ndarray, " P"]
    end: Integer[np.ndarray, " P"]
    open: Bool[np.ndarray, "P C"]
    cells: tuple[str, ...]
    valid: tuple[str, ...]
    test: tuple[str, ...]

    @classmethod
    def of(
        cls, arrays: Mapping[str, Shaped[np.ndarray, "..."]], valid: Sequence[str], test: Sequence[str]
    ) -> RegionMatrix:
        """Take in arrays under these names, plus `features` as float, or as uint8 in steps of 1/255."""
        features = arrays["features"]
        if features.dtype == np.uint8:
            features = features * np.float32(1 / 255)
        return cls(
            features=np.ascontiguousarray(features, np.float32),
            motifs=tuple(map(str, arrays["motifs"])),
            chromosome=arrays["chromosome"].astype(np.str_),
            start=arrays["start"].astype(np.int64),
            end=arrays["end"].astype(np.int64),
            open=arrays["open"].astype(np.bool_),
            cells=tuple(map(str, arrays["cells"])),
            valid=tuple(valid),
            test=tuple(test),
        )

    def __len__(self) -> int:
        return len(self.features)

    def rows(self, split: Split) -> Bool[np.ndarray, " P"]:
        """True for the regions of a split; a whole chromosome belongs to one split. `P`."""
        held_out = {"valid": np.isin(self.chromosome, self.valid), "test": np.isin(self.chromosome, self.test)}
        return ~(held_out["valid"] | held_out["test"]) if split == "train" else held_out[split]

    def windows(self, split: Split, regions: int, stride: int) -> list[Window]:
        """Cut the chromosomes of a split into windows.

        Training windows are full and may overlap: one starts every `stride` regions. Windows of a held-out split do
        not overlap and leave nothing out, so that each region counts once; the last one of a chromosome may be short.
        """
        cuts = np.flatnonzero(self.chromosome[1:] != self.chromosome[:-1]) + 1
        edges = [0, *cuts.tolist(), len(self)]
        inside = self.rows(split)
        found = []
        for low, high in pairwise(edges):
            if low == high or not inside[low]:
                continue
            if split == "train":
                found += [Window(first, regions) for first in range(low, high - regions + 1, stride)]
            else:
                found += [Window(first, min(regions, high - first)) for first in range(low, high, regions)]
        return found

    def labels(self, cell: str) -> Bool[np.ndarray, " P"]:
        """Where a cell type is open. `P`.

        Raises:
            Refused: If there is no such cell type.
        """
        if cell not in self.cells:
            close = nearest(cell, self.cells)
            hint = f' (did you mean "{close}"?)' if close else ""
            raise Refused(f'no cell type is called "{cell}"{hint}; there are: {", ".join(self.cells) or "none"}')
        return self.open[:, self.cells.index(cell)]


def scale_to_largest(
    features: Float32[np.ndarray, "P M"], train: Bool[np.ndarray, " P"]
) -> tuple[Float32[np.ndarray, "P M"], Float32[np.ndarray, " M"]]:
    """Divide each motif by its largest value in the training regions, and cut at 1. Returns `P M` and divisors `M`."""
    largest = features[train].max(0)
    divisor = np.where(largest > 0, largest, 1).astype(np.float32)
    return (features / divisor).clip(max=1), divisor
