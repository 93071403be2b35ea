"""The task get-region: windows of regions, metrics, baselines, plots and export.

Letters: B batch, L regions of a window, M columns (motifs, perhaps accessibility and expression), N
samples, T states.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any, Final

import numpy as np
import torch
from jaxtyping import Float, Float32, Shaped
from torch import Tensor

from dither.registry.contracts.protocols import Picture, Split
from dither.registry.contracts.records import Clean
from dither.registry.files.atomic import atomic_write

from .data.column_groups import extra_columns
from .data.dataset import RegionSamples
from .data.region_matrix import RegionMatrix
from .data.units import UNITS
from .metrics.baselines import Baselines, MaskedBatch
from .metrics.region_metrics import APART, RegionMetrics, baseline_metrics
from .metrics.sample_metrics import draw_groups, sample_metrics, sampled_batches, sampled_mask
from .plots import Labels, plot_samples
from .predict import predict_values

__all__ = ["HEADER", "RegionWindows"]

HEADER: Final = (
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


class RegionWindows:
    """Windows of consecutive regions, each in one cell type; the conditions of a batch are those of `RegionSamples`.

    `spec` has the options of `GetRegion`.
    """

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

    def size(self, split: Split) -> int:
        return self.samples.size(split)

    def batch(self, split: Split, rows: Sequence[int]) -> Clean:
        clean = self.samples.batch(split, rows)
        return replace(clean, known=self.given & clean.valid[..., None])

    def like(self, n: int, seed: int) -> Clean:
        """Return `n` validation windows to impute, with their truth; all draws of a window are adjacent.

        A share `fill` of the regions or elements of each window is masked, the same in every draw.
        Besides the conditions of `batch`, `window` is the number of each window in its split, and
        `imputation` a number that the draws of one masked window share (`B`); a window that occurs
        again is another imputation.
        """
        random = np.random.default_rng(seed)
        size = self.samples.strict["valid"]
        count = -(-n // self.draws)
        rows = np.concatenate(
            [np.zeros(0, int), *(random.permutation(size) for _ in range(-(-count // size)))]
        )[:count]
        clean = self.batch("valid", rows.tolist())
        places = clean.valid if self.spec.fill_unit == "region" else ~clean.fixed.flatten(1)
        masked = torch.zeros_like(places)
        for of_window, mask in zip(places, masked, strict=True):
            (candidates,) = torch.where(of_window)
            chosen = random.permutation(len(candidates))[
                : max(1, round(self.spec.fill * len(candidates)))
            ]
            mask[candidates[chosen]] = True
        width = places.shape[1] // clean.valid.shape[1]
        known = clean.known | (places & ~masked).view(*clean.valid.shape, width)
        cond = clean.cond | {"window": torch.from_numpy(rows), "imputation": torch.arange(count)}
        return Clean(clean.x0, clean.valid, known, cond).apply(
            lambda value: value.repeat_interleave(self.draws, 0)[:n]
        )

    def metrics(self) -> RegionMetrics:
        """Return a new accumulator of errors, correlations and areas under curves."""
        self._latest = self._new_metrics()
        return self._latest

    def _new_metrics(self) -> RegionMetrics:
        apart = self.samples.trained_chromosomes
        return RegionMetrics(
            self.space.groups, self.units, self.samples.measured.mean, apart if len(apart) else None
        )

    def inverse_transform(self, values: Float[Tensor, "*B W"]) -> Float32[np.ndarray, "*B W"]:
        """Return values of the model in the units of the source; see `ColumnUnits.inverse_transform`.

        Accessibility under `largest = "window"` remains a share of the largest of its window.
        """
        return self.units.inverse_transform(values.detach().to("cpu", torch.float32).numpy())

    def save_assets(self, folder: Path) -> None:
        """Write the units of columns, for a run and exports without data."""
        kept: dict[str, Any] = {
            "motif": np.array(self.matrix.motifs),
            "cell": np.array(self.samples.cells, np.str_),
        }
        kept |= {"transform": np.array(self.units.transform), **self.units.arrays()}
        np.savez(folder / UNITS, **kept)

    def _fit(self, cell: int) -> Baselines:
        """Return baselines fitted on the training regions of a cell type; on all for a held-out one (-1)."""
        return Baselines(
            *self.samples.training(cell=None if cell < 0 else cell),
            self.space.groups,
            self.spec.rivals,
        )

    def baselines(self, split: Split = "valid", samples: int | None = None) -> dict[str, float]:
        """Return the metrics of `Baselines` on the target elements of the latest evaluation, of any split.

        Those with the prefix "sample " are on the elements of the latest samples.
        """
        trained = None if self._latest is None else self._latest.trained
        batches = {
            "": [] if self._latest is None else self._latest.batches,
            "sample ": self._sampled,
        }
        batches[APART] = [] if trained is None else trained.batches
        return baseline_metrics(self._new_metrics, self._fit, batches)

    def sample_metrics(self, samples: Float[Tensor, "N L M"], like: Clean) -> dict[str, float]:
        """Return the metrics of sampled values, and of several draws of a window."""
        self._sampled = sampled_batches(self._new_metrics(), samples, like)
        return sample_metrics(self._new_metrics(), samples, like)

    def plots(self, samples: Float[Tensor, "N L M"], like: Clean) -> Iterator[Picture]:
        """Yield heat maps of the first windows, and plots of the metrics of motifs, accessibility and draws."""
        latest = self._latest if self._latest is not None and self._latest.values else None
        extra = extra_columns(self.space.groups, self.spec.column())
        labels = Labels(self.matrix.motifs, extra, self._places, self._cell)
        return plot_samples(self._new_metrics(), samples, like, labels, latest)

    def data_warnings(self) -> Iterator[str]:
        return self.samples.data_warnings()

    def export(
        self,
        samples: Float[Tensor, "N L M"],
        like: Clean,
        form: str,
        folder: Path,
    ) -> tuple[list[Path], list[str]]:
        """Write regions.npz with all arrays, or regions.csv (see `HEADER`), atomically; return files and notes."""
        arrays = sampled_regions(self.samples, samples, like)
        notes = [] if arrays["drawn"].any() else ["no value was sampled: all were given"]
        path = folder / f"regions.{form}"
        with atomic_write(path) as temporary:
            if form == "npz":
                np.savez_compressed(temporary, **arrays | self.units.arrays())  # type: ignore[arg-type]
            else:
                table = table_of(arrays, draw_groups(like))
                table.to_csv(temporary, index=False, lineterminator="\n", float_format="%.7g")
        return [path], notes

    predict_values = predict_values

    def _cell(self, like: Clean, number: int) -> str:
        cells = self.samples.cells
        held = sorted({cells[cell] for cell in self.samples.windows["valid"].cell}) if cells else []
        label = int(like.cond["cell"][number]) if "cell" in like.cond else -1
        return cells[label] if label >= 0 else ", ".join(held[:3])

    def _places(self, like: Clean, number: int) -> list[str]:
        name = self.samples.chromosomes[int(like.cond["chromosome"][number])]
        return [
            f"{name}:{place:,}"
            for place in like.cond["centre"][number][like.valid[number]].tolist()
        ]


def sampled_regions(
    source: RegionSamples, samples: Float[Tensor, "N L W"], like: Clean
) -> dict[str, Shaped[np.ndarray, "..."]]:
    """Return samples and truth in the units of the source, and their places, given what sampling started from.

    - `samples`, `truth`: `N L W`; NaN on padding.
    - `known` values were given, `drawn` ones sampled, all others left visible by the process. `N L
    W`.
    - `valid` regions are real; `start` and `end` are 0 on padding. `N L`.
    - `chromosome`, `cell` ("" if nothing depends on one), `window` (number in the validation
    split), `imputation` (the
      same for all draws of one masked window). `N`.
    - `column`: names. `W`.
    """
    window = like.cond["window"].cpu()
    rows, real, cell = source.windows["valid"].take(window.tolist(), source.options.regions)
    if "cell" in like.cond:  # the condition may have been changed to another cell type
        label = like.cond["cell"].cpu().numpy()
        cell = np.where(label >= 0, label, cell)
    columns = source.columns
    groups = draw_groups(like)
    truth = columns.in_source_units(rows, cell[:, None])
    scaled = columns.in_data_units(torch.from_numpy(rows), torch.from_numpy(cell)[:, None]).numpy()
    values = source.units.inverse_transform(samples.to("cpu", torch.float32).numpy())
    if columns.by_window:
        largest = truth[..., columns.motifs].max(1, keepdims=True)  # padding repeats a region
        values[..., columns.motifs] *= np.where(largest > 0, largest, 1)
    known = like.known.cpu().numpy()
    own = known & np.isclose(
        like.x0.cpu().numpy(), source.units.forward(scaled), rtol=1e-5, atol=1e-6
    )
    values = np.where(
        own, truth, values
    )  # a given value that was cut at 1 is that of the source again
    padding = ~real[..., None]
    matrix = source.matrix
    return {
        "samples": np.where(padding, np.float32(np.nan), values),
        "truth": np.where(padding, np.float32(np.nan), truth),
        "known": known,
        "drawn": sampled_mask(samples.cpu(), like.to("cpu")).numpy(),
        "valid": real,
        "chromosome": matrix.chromosome[rows[:, 0]],
        "start": matrix.start[rows] * real,
        "end": matrix.end[rows] * real,
        "cell": np.array(
            [source.cells[number] for number in cell.tolist()] if source.cells else [""] * len(rows)
        ),
        "column": np.array(
            [*matrix.motifs, *extra_columns(source.space.groups, columns.accessibility)]
        ),
        "window": window.numpy(),
        "imputation": np.repeat(
            np.arange(len(groups)), [group.stop - group.start for group in groups]
        ),
    }


def table_of(arrays: Mapping[str, Shaped[np.ndarray, "..."]], draws: Sequence[slice]) -> Any:
    """Return a data frame with a row for each sampled region and column, with all draws of it; see `HEADER`."""
    import pandas  # type: ignore[import-untyped,unused-ignore]

    rows = list[tuple[Any, ...]]()
    for number, own in enumerate(draws):
        first = own.start
        count = own.stop - own.start
        values = arrays["samples"][own].astype(np.float64)
        mean = values.mean(0)
        spread = values.std(0, ddof=1) if count > 1 else np.full_like(mean, np.nan)
        for region, column in np.argwhere(arrays["drawn"][first]).tolist():
            numbers = (
                arrays["truth"][first, region, column],
                mean[region, column],
                spread[region, column],
            )
            place = (
                arrays["chromosome"][first],
                arrays["start"][first, region],
                arrays["end"][first, region],
            )
            labels = arrays["cell"][first], arrays["column"][column]
            rows.append((*place, *labels, *numbers, count, number))
    return pandas.DataFrame(rows, columns=HEADER)
