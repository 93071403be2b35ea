"""Samples for other programs: numbers in the units of the data, with the place, the cell type and the column of each.

Letters: N samples, L regions of a window, W columns.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Bool, Float, Float32, Integer, Shaped
from torch import Tensor

from dither.registry.files.atomic import atomic_write
from dither.registry.flow.records import Clean

from .data.dataset import RegionSamples
from .metrics.sample_metrics import drawn, same_windows

__all__ = ["HEADER", "DrawnRegions", "write_regions"]

HEADER: Final = ("chromosome", "start", "end", "cell", "column", "truth", "mean", "sd", "draws")
"""The columns of the table."""

BEHIND: Final = {
    "open": ("open",),
    "accessibility": ("accessibility",),
    "expression": ("expression_positive", "expression_negative"),
}
"""Names of the columns of a group behind the motifs; "open" are those of accessibility that is 0 or 1."""


@dataclass(frozen=True)
class DrawnRegions:
    """Windows that were filled in, and where they are. On padding numbers are nan, and places 0.

    Attributes:
        samples: What was drawn, and what was given, in the units of the data. `N L W`.
        truth: What the data hold there. `N L W`.
        known: True where the value was given. `N L W`.
        drawn: True where it was drawn; the rest a process left in sight. `N L W`.
        valid: True on regions that are there. `N L`.
        chromosome: Of each window. `N`.
        start: First base of each region, from 0. `N L`.
        end: Behind its last base. `N L`.
        cell: The cell type of each window; "" where nothing depends on one. `N`.
        column: Names of the columns. `W`.
        window: Number of each window in the validation split; draws of the same window stand together. `N`.
        draws: The samples that started from the same, in order.
    """

    samples: Float32[np.ndarray, "N L W"]
    truth: Float32[np.ndarray, "N L W"]
    known: Bool[np.ndarray, "N L W"]
    drawn: Bool[np.ndarray, "N L W"]
    valid: Bool[np.ndarray, "N L"]
    chromosome: Shaped[np.ndarray, " N"]
    start: Integer[np.ndarray, "N L"]
    end: Integer[np.ndarray, "N L"]
    cell: Shaped[np.ndarray, " N"]
    column: Shaped[np.ndarray, " W"]
    window: Integer[np.ndarray, " N"]
    draws: Sequence[slice]

    @classmethod
    def of(cls, source: RegionSamples, samples: Float[Tensor, "N L W"], like: Clean) -> DrawnRegions:
        """Look up what was drawn where.

        Args:
            source: Which windows there are.
            samples: What was drawn.
            like: What sampling started from, as the task gives it.
        """
        window = like.cond["window"].cpu()
        rows, there, cell = source.places("valid", window.tolist())
        if "cell" in like.cond:  # samples may be asked for in another cell type
            told = like.cond["cell"].cpu().numpy()
            cell = np.where(told >= 0, told, cell)
        standard, layout = source.columns.standard, source.columns.layout
        truth = source.columns.plain(torch.from_numpy(rows), torch.from_numpy(cell)[:, None]).numpy()
        plain = samples.cpu().numpy() * standard.std + standard.mean
        which = {"accessibility": "open"} if layout.accessibility == "open" else {}
        behind = [name for group in source.space.groups[1:] for name in BEHIND[which.get(group.name, group.name)]]
        padding, matrix = ~there[..., None], source.matrix
        return cls(
            samples=np.where(padding, np.float32(np.nan), plain),
            truth=np.where(padding, np.float32(np.nan), truth),
            known=like.known.cpu().numpy(),
            drawn=drawn(samples.cpu(), like.to("cpu")).numpy(),
            valid=there,
            chromosome=matrix.chromosome[rows[:, 0]],
            start=matrix.start[rows] * there,
            end=matrix.end[rows] * there,
            cell=np.array([source.cells[number] for number in cell.tolist()] if source.cells else [""] * len(rows)),
            column=np.array([*matrix.motifs, *behind]),
            window=window.numpy(),
            draws=same_windows(like),
        )

    def arrays(self) -> dict[str, Any]:
        """Return all but the draws, by name."""
        return {name: value for name, value in vars(self).items() if name != "draws"}

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield a row of the table for each region and column that was drawn, all draws of it together."""
        for some in self.draws:
            first, count = some.start, some.stop - some.start
            values = self.samples[some].astype(np.float64)
            mean = values.mean(0)
            spread = values.std(0, ddof=1) if count > 1 else np.full_like(mean, np.nan)
            place = self.chromosome[first], self.cell[first]
            for region, column in np.argwhere(self.drawn[first]).tolist():
                numbers = self.truth[first, region, column], mean[region, column], spread[region, column]
                said = ("" if np.isnan(number) else f"{number:.7g}" for number in numbers)
                where = place[0], self.start[first, region], self.end[first, region], place[1], self.column[column]
                yield (*where, *said, count)


def write_regions(found: DrawnRegions, folder: Path, form: str) -> list[Path]:
    """Write windows that were filled in, whole or not at all; return the files.

    Args:
        found: The windows.
        folder: Where to.
        form: npz, for regions.npz with everything as arrays; csv, for regions.csv, see `HEADER`.
    """
    path = folder / f"regions.{form}"
    with atomic_write(path) as beside:
        if form == "npz":
            np.savez_compressed(beside, **found.arrays())
        else:
            with beside.open("w", encoding="utf-8", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                table.writerow(HEADER)
                table.writerows(found.rows())
    return [path]
