"""Export of samples: values in the units of the data, with place, cell type and column of each.

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

from .data.column_groups import extra_columns
from .data.dataset import RegionSamples
from .metrics.sample_metrics import draw_groups, sampled_mask

__all__ = ["HEADER", "SampledRegions", "write_regions"]

HEADER: Final = ("chromosome", "start", "end", "cell", "column", "truth", "mean", "sd", "draws")
"""Columns of the table."""


@dataclass(frozen=True)
class SampledRegions:
    """Samples and their places. On padding, values are NaN and places 0.

    Attributes:
        samples: Sampled and given values, in the units of the data. `N L W`.
        truth: Values of the data. `N L W`.
        known: True for given values. `N L W`.
        drawn: True for sampled values; all others were left visible by the process. `N L W`.
        valid: True for real regions. `N L`.
        chromosome: Chromosome of each window. `N`.
        start: First base of each region, from 0. `N L`.
        end: One past the last base. `N L`.
        cell: Cell type of each window; "" if nothing depends on one. `N`.
        column: Names of the columns. `W`.
        window: Number of each window in the validation split; draws of one window are adjacent. `N`.
        draws: Runs of samples of the same window.
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
    def of(cls, source: RegionSamples, samples: Float[Tensor, "N L W"], like: Clean) -> SampledRegions:
        """Look up the places and the truth of samples, given the windows and what sampling started from."""
        window = like.cond["window"].cpu()
        rows, real, cell = source.windows["valid"].take(window.tolist(), source.options.regions)
        if "cell" in like.cond:  # the condition may have been changed to another cell type
            label = like.cond["cell"].cpu().numpy()
            cell = np.where(label >= 0, label, cell)
        standard, layout = source.columns.standard, source.columns.layout
        truth = source.columns.in_data_units(torch.from_numpy(rows), torch.from_numpy(cell)[:, None]).numpy()
        values = samples.cpu().numpy() * standard.std + standard.mean
        padding, matrix = ~real[..., None], source.matrix
        return cls(
            samples=np.where(padding, np.float32(np.nan), values),
            truth=np.where(padding, np.float32(np.nan), truth),
            known=like.known.cpu().numpy(),
            drawn=sampled_mask(samples.cpu(), like.to("cpu")).numpy(),
            valid=real,
            chromosome=matrix.chromosome[rows[:, 0]],
            start=matrix.start[rows] * real,
            end=matrix.end[rows] * real,
            cell=np.array([source.cells[number] for number in cell.tolist()] if source.cells else [""] * len(rows)),
            column=np.array([*matrix.motifs, *extra_columns(source.space.groups, layout.accessibility)]),
            window=window.numpy(),
            draws=draw_groups(like),
        )

    def rows(self) -> Iterator[tuple[object, ...]]:
        """Yield a row of the table for each sampled region and column, with all draws of it."""
        for draws in self.draws:
            first, count = draws.start, draws.stop - draws.start
            values = self.samples[draws].astype(np.float64)
            mean = values.mean(0)
            spread = values.std(0, ddof=1) if count > 1 else np.full_like(mean, np.nan)
            for region, column in np.argwhere(self.drawn[first]).tolist():
                numbers = self.truth[first, region, column], mean[region, column], spread[region, column]
                texts = ("" if np.isnan(number) else f"{number:.7g}" for number in numbers)
                place = self.chromosome[first], self.start[first, region], self.end[first, region]
                yield (*place, self.cell[first], self.column[column], *texts, count)


def write_regions(sampled: SampledRegions, folder: Path, form: str) -> list[Path]:
    """Write regions.npz with all arrays, or regions.csv (see `HEADER`), atomically; return the files."""
    path = folder / f"regions.{form}"
    with atomic_write(path) as temporary:
        if form == "npz":
            arrays: dict[str, Any] = {name: value for name, value in vars(sampled).items() if name != "draws"}
            np.savez_compressed(temporary, **arrays)
        else:
            with temporary.open("w", encoding="utf-8", newline="") as file:
                table = csv.writer(file, lineterminator="\n")
                table.writerow(HEADER)
                table.writerows(sampled.rows())
    return [path]
