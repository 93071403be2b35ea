"""The task get-region: windows of regions, metrics, baselines, plots and export.

Letters: B batch, L regions of a window, M columns (motifs, perhaps accessibility and expression), N
samples, T states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Float32, Shaped
from numpy import ndarray
from torch import Tensor

from dither.registry.contracts.protocols import Picture, Split, Task
from dither.registry.contracts.records import Clean
from dither.registry.files.atomic import atomic_write

from .data.column_groups import extra_columns
from .data.dataset import RegionSamples
from .data.region_matrix import RegionMatrix
from .data.units import UNITS
from .metrics.baselines import Baselines, MaskedBatch
from .metrics.region_metrics import (
    APART,
    BASELINE_REGIONS,
    RegionMetrics,
    baseline_metrics,
)
from .metrics.sample_metrics import (
    draw_groups,
    sample_metrics,
    sampled_batch,
    sampled_mask,
)
from .plots import Labels, plot_samples
from .predict import predict_values

__all__ = ["HEADER", "RegionWindows"]

_Samples = Float[Tensor, "N L M"]

HEADER = (
    "chromosome",
    "start",
    "end",
    "cell",
    "column",
    "truth",
    "mean",
    "sd",
    "draws",
    "imputation",
)


class RegionWindows(Task):
    """Windows of consecutive regions, each in one cell type; `spec` has options of `GetRegion`."""

    def __init__(self, matrix: RegionMatrix, spec: Any) -> None:
        self.samples = RegionSamples(matrix, spec)
        self.matrix = matrix
        self.spec = spec
        samples = self.samples
        self.space = self.samples.space
        self.regions = spec.regions
        self.draws = spec.draws
        self.motifs = len(self.matrix.motifs)
        self.units = samples.units
        self.standard = self.units.standard
        self.given = torch.zeros(self.space.width, dtype=torch.bool)
        for group in self.space.groups:
            self.given[group.start : group.stop] = group.name in self.space.given
        self._latest: RegionMetrics | None = None
        self._sampled: list[MaskedBatch] = []

    @cached_property
    def bin_widths(self) -> Float[Tensor, " M"] | None:
        """Distance of 0 and 1 in units of the model, of columns that have no others in the training regions."""
        train, _ = self.samples.training(cell=None)
        # Both values occur: the bins of a constant column have no width.
        binary = ((train == 0) | (train == 1)).all(0) & (np.ptp(train, axis=0) == 1)
        if not binary.any():
            return None
        # A transform of motifs may change the distance: log1p makes it log 2.
        ends = np.stack([np.zeros_like(train[0]), np.ones_like(train[0])])
        low, high = self.units.transformed(ends)
        return torch.from_numpy(np.where(binary, (high - low) / self.standard.std, 0.0))

    def size(self, split: Split) -> int:
        return self.samples.size(split)

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        clean = self.samples.batch(split, rows)
        return replace(clean, known=self.given & clean.valid[..., None])

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` validation windows to impute, with their truth; draws of one are adjacent.

        A share `fill` of the regions or elements of each window is masked, the same in every draw.
        Besides the conditions of `batch`, `window` is the number of each window in its split, and
        `imputation` a number that the draws of one masked window share (`B`); a window that occurs
        again is another imputation.
        """
        random = np.random.default_rng(seed)
        size = self.samples.strict["valid"]
        # If `draws` does not divide `n`, the last window has fewer of them.
        count = -(-n // self.draws)
        # Every window once, then again in another order.
        orders = [random.permutation(size) for _ in range(-(-count // size))]
        rows = np.concatenate([np.zeros(0, int), *orders])[:count]
        clean = self.batch("valid", rows.tolist())

        # What may be masked: whole regions, or single elements.
        places = clean.valid
        if self.spec.fill_unit == "element":
            places = ~clean.fixed.flatten(1)
        masked = torch.zeros_like(places)
        for of_window, mask in zip(places, masked, strict=True):
            (candidates,) = torch.where(of_window)
            number = max(1, round(self.spec.fill * len(candidates)))
            mask[candidates[random.permutation(len(candidates))[:number]]] = True
        width = places.shape[1] // clean.valid.shape[1]
        known = clean.known | (places & ~masked).view(*clean.valid.shape, width)
        cond = clean.cond | {
            "window": torch.from_numpy(rows),
            "imputation": torch.arange(count),
        }
        windows = Clean(clean.x0, clean.valid, known, cond)
        return windows.apply(lambda value: value.repeat_interleave(self.draws, 0)[:n])

    def metrics(self) -> RegionMetrics:
        """Return a new accumulator of errors, correlations and areas under curves."""
        self._latest = self._new_metrics()
        return self._latest

    def _new_metrics(self) -> RegionMetrics:
        apart = self.samples.trained_chromosomes
        return RegionMetrics(
            groups=self.space.groups,
            units=self.units,
            mean=self.samples.measured.mean,
            trained_chromosomes=apart if len(apart) else None,
        )

    def inverse_transform(
        self, values: Float[Tensor, "*B W"]
    ) -> Float32[ndarray, "*B W"]:
        """Return values of the model in the units of the source.

        Accessibility under `largest = "window"` remains a share of the largest of its window.
        """
        host = values.detach().to("cpu", torch.float32)
        return self.units.inverse_transform(host.numpy())

    def save_assets(self, folder: Path) -> None:
        """Write the units of columns, for a run and exports without data."""
        arrays: dict[str, Any] = {
            "motif": np.array(self.matrix.motifs),
            "cell": np.array(self.samples.cells, np.str_),
            "transform": np.array(self.units.transform),
            **self.units.arrays(),
        }
        np.savez(folder / UNITS, **arrays)

    def _fit(self, cell: int) -> Baselines:
        """Return baselines of the training regions of a cell type, or of all (-1: held out)."""
        train, starts = self.samples.training(cell=None if cell < 0 else cell)
        return Baselines(
            train=train,
            starts=starts,
            groups=self.space.groups,
            rivals=self.spec.rivals,
        )

    def baselines(
        self, split: Split = "valid", samples: int | None = None
    ) -> dict[str, float]:
        """Return the metrics of `Baselines` on the target elements of the latest evaluation.

        Those with the prefix "sample " are on the elements of the latest samples.
        """
        batches: dict[str, list[MaskedBatch]] = {"sample ": self._sampled}
        if self._latest is not None:
            batches[""] = self._latest.batches
            if self._latest.trained is not None:
                batches[APART] = self._latest.trained.batches
        return baseline_metrics(self._new_metrics, self._fit, batches)

    def sample_metrics(self, samples: _Samples, like: Clean) -> dict[str, float]:
        """Return the metrics of sampled values, and of several draws of a window."""
        self._sampled = []
        if len(samples):
            batch = sampled_batch(self._new_metrics(), samples, like)
            # Baselines are measured on as many regions as after an evaluation.
            windows = -(-BASELINE_REGIONS // self.regions)
            self._sampled.append(batch.of_windows(slice(windows)))
        return sample_metrics(self._new_metrics(), samples, like)

    def plots(self, samples: _Samples, like: Clean) -> Iterator[Picture]:
        """Yield heat maps of the first windows, and plots of columns and draws."""
        latest = self._latest
        # An evaluation that was interrupted has no curves.
        if latest is not None and not latest.values:
            latest = None
        extra = extra_columns(self.space.groups, self.spec.column())
        labels = Labels(
            motifs=self.matrix.motifs,
            extra=extra,
            places=self._places,
            cell=self._cell,
        )
        return plot_samples(
            metrics=self._new_metrics(),
            samples=samples,
            like=like,
            labels=labels,
            evaluated=latest,
        )

    def data_warnings(self) -> Iterator[str]:
        return self.samples.data_warnings()

    def decode(self, samples: _Samples, like: Clean) -> Any:
        """Return a table with a row for each sampled region and column; see `HEADER`."""
        arrays = sampled_regions(self.samples, samples, like)
        return table_of(arrays, draw_groups(like))

    def export(
        self,
        samples: _Samples,
        like: Clean,
        form: str,
        folder: Path,
    ) -> tuple[list[Path], list[str]]:
        """Write regions.npz with all arrays, or regions.csv (see `HEADER`)."""
        arrays = sampled_regions(self.samples, samples, like)
        notes = []
        if not arrays["drawn"].any():
            notes.append("no value was sampled: all were given")
        path = folder / f"regions.{form}"
        with atomic_write(path) as temporary:
            if form == "npz":
                np.savez_compressed(temporary, **arrays | self.units.arrays())  # type: ignore[arg-type]
            else:
                table = table_of(arrays, draw_groups(like))
                table.to_csv(
                    temporary, index=False, lineterminator="\n", float_format="%.7g"
                )
        return [path], notes

    # Its only label is the cell type.
    predict_values = predict_values  # type: ignore[assignment]

    def _cell(self, like: Clean, number: int) -> str:
        cells = self.samples.cells
        if not cells:
            return ""
        if "cell" in like.cond and like.cond["cell"][number] >= 0:
            return cells[int(like.cond["cell"][number])]
        # A window without a label is in one of the held-out cell types.
        held_out = {cells[cell] for cell in self.samples.windows["valid"].cell}
        return ", ".join(sorted(held_out)[:3])

    def _places(self, like: Clean, number: int) -> list[str]:
        name = self.samples.chromosomes[int(like.cond["chromosome"][number])]
        centres = like.cond["centre"][number][like.valid[number]].tolist()
        return [f"{name}:{centre:,}" for centre in centres]


def sampled_regions(
    source: RegionSamples, samples: Float[Tensor, "N L W"], like: Clean
) -> dict[str, Shaped[ndarray, "..."]]:
    """Return samples and truth in the units of the source, and their places.

    - `samples`, `truth`: NaN on padding. `N L W`.
    - `known` values were given, `drawn` ones sampled, all others left visible by the process.
      `N L W`.
    - `valid` regions are real; `start` and `end` are 0 on padding. `N L`.
    - `chromosome`, `cell` ("" if nothing depends on one), `window` (number in the validation
      split), `imputation` (the same for all draws of one masked window). `N`.
    - `column`: names. `W`.
    """
    window = like.cond["window"].cpu()
    rows, real, cell = source.windows["valid"].take(
        window.tolist(), source.options.regions
    )
    if "cell" in like.cond:
        # The condition may have been changed to another cell type.
        label = like.cond["cell"].cpu().numpy()
        cell = np.where(label >= 0, label, cell)
    columns = source.columns
    truth = columns.in_source_units(rows, cell[:, None])
    index = torch.from_numpy(rows)
    scaled = columns.in_data_units(index, torch.from_numpy(cell)[:, None]).numpy()
    values = source.units.inverse_transform(samples.to("cpu", torch.float32).numpy())
    if columns.by_window:
        # Padding repeats a region, so it does not change the largest value.
        largest = truth[..., columns.motifs].max(1, keepdims=True)
        values[..., columns.motifs] *= np.where(largest > 0, largest, 1)
    # A given value that was cut at 1 is that of the source again.
    known = like.known.cpu().numpy()
    x0 = like.x0.cpu().numpy()
    unchanged = np.isclose(x0, source.units.forward(scaled), rtol=1e-5, atol=1e-6)
    values = np.where(known & unchanged, truth, values)

    padding = ~real[..., None]
    matrix = source.matrix
    cells = [""] * len(rows)
    if source.cells:
        cells = [source.cells[number] for number in cell.tolist()]
    names = [*matrix.motifs, *extra_columns(source.space.groups, columns.accessibility)]
    sizes = [group.stop - group.start for group in draw_groups(like)]
    return {
        "samples": np.where(padding, np.float32(np.nan), values),
        "truth": np.where(padding, np.float32(np.nan), truth),
        "known": known,
        "drawn": sampled_mask(samples.cpu(), like.to("cpu")).numpy(),
        "valid": real,
        "chromosome": matrix.chromosome[rows[:, 0]],
        "start": np.where(real, matrix.start[rows], 0),
        "end": np.where(real, matrix.end[rows], 0),
        "cell": np.array(cells),
        "column": np.array(names),
        "window": window.numpy(),
        "imputation": np.repeat(np.arange(len(sizes)), sizes),
    }


def table_of(
    arrays: Mapping[str, Shaped[ndarray, "..."]], draws: Sequence[slice]
) -> Any:
    """Return a row for each sampled region and column, with all draws of it; see `HEADER`."""
    import pandas  # type: ignore[import-untyped,unused-ignore]

    tables = []
    for number, group in enumerate(draws):
        first = group.start
        count = group.stop - group.start
        region, column = np.nonzero(arrays["drawn"][first])
        values = arrays["samples"][group][:, region, column].astype(np.float64)
        table = {
            "chromosome": arrays["chromosome"][first],
            "start": arrays["start"][first, region],
            "end": arrays["end"][first, region],
            "cell": arrays["cell"][first],
            "column": arrays["column"][column],
            "truth": arrays["truth"][first, region, column],
            "mean": values.mean(0),
            "sd": values.std(0, ddof=1) if count > 1 else np.nan,
            "draws": count,
            "imputation": number,
        }
        tables.append(pandas.DataFrame(table, columns=HEADER))

    if tables:
        return pandas.concat(tables)
    return pandas.DataFrame(columns=HEADER)
