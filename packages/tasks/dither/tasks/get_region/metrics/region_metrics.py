"""Metrics of masked elements, by group of columns, without constant columns; nothing that the model sees is counted.

Metrics are computed from the stored pairs, so they are exact however a split is cut into batches and over ranks.
Letters: B batch, L length, M columns.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Integer
from torch import Tensor

from dither.registry.flow.records import Clean, Measured, Noised
from dither.registry.flow.spaces import Group

from ..data.column_groups import BASELINE_REGIONS
from ..data.region_matrix import ColumnStats
from .baselines import Baselines, MaskedBatch
from .bootstrap import confidence_intervals
from .column_metrics import (
    Predictions,
    group_metrics,
    is_binary,
    rank_metrics,
    squared_error,
    varies,
    windows_of,
)

__all__ = ["BaselineSubset", "RegionMetrics", "baseline_metrics", "compute_metrics"]

PREFIXES = {"motifs": "motif"}
"""Prefix of the metrics of a group, if it is not the name of the group."""
ROUNDING = 2.0**-20
"""Share of the mean of a column that standardising in float32 and its inverse may leave of a 0; 2^-22 at most."""


def compute_metrics(
    predictions: Predictions, groups: Sequence[Group], mean: Float[np.ndarray, " M"]
) -> dict[str, float]:
    """Return all metrics of predictions; see `RegionMetrics`. Empty without predictions."""
    pairs = predictions.pairs()
    varying = [column for column, (truth, _) in enumerate(pairs) if varies(truth)]
    target = [column for column, (truth, _) in enumerate(pairs) if truth.size]
    counted = varying or target
    error = squared_error([pairs[column] for column in counted])
    metrics: dict[str, float] = {}
    if error is not None:
        metrics["masked_mse"] = error
        of_mean = squared_error(
            [(pairs[column][0], np.full_like(pairs[column][0], mean[column])) for column in counted]
        )
        if of_mean:
            metrics["masked_gain"] = 1 - error / of_mean
    for group in groups:
        of_group = pairs[group.start : group.stop]
        metrics |= group_metrics(PREFIXES.get(group.name, group.name), of_group)
        if group.name == "accessibility":
            truth, score = of_group[0]
            if is_binary(truth):
                metrics |= rank_metrics(truth > 0.5, score)
    constant = len(target) - len(varying)
    return metrics | ({"constant_columns": float(constant)} if constant else {})


class RegionMetrics:
    """Accumulates batches; a metric without target elements is left out.

    - `masked_mse`: mean squared error of all target elements, in the units of the data (before standardising).
    - `masked_gain`: 1 - masked_mse / error of the training means on the same elements. 0 is as good as knowing
      nothing, 1 is perfect.
    - `motif_*`, `accessibility_*`, `expression_*`: error, correlations and R2 of one group; see `group_metrics`.
    - `accessibility_auc`, `accessibility_auprc`: how well target regions that are open rank before closed ones.
    - `constant_columns`: number of target columns that are left out of all metrics because their truth is constant. If
      all are, their errors count.
    - `NAME_ci95`: half of a 95 % interval of a metric, over the windows; see `confidence_intervals`.

    Args:
        groups: Columns of motifs, accessibility and expression.
        standard: Standardisation of x0, which is inverted.
        mean: Mean of each column over the training regions, in the units of the data.
    """

    def __init__(self, groups: Sequence[Group], standard: ColumnStats, mean: Float[np.ndarray, " M"]) -> None:
        self.groups, self.mean = groups, mean
        self.shift, self.scale = standard.mean, standard.std
        self.predictions = Predictions(len(mean))
        self.subset = BaselineSubset(BASELINE_REGIONS)

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Add one batch; `pred` has x0."""
        target = noised.target_mask & noised.valid[..., None]
        truth = self.in_data_units(noised.x0)
        self.predictions.add(truth, self.in_data_units(pred.x0), target.cpu().numpy(), windows_of(clean))
        self.subset.add(MaskedBatch.of(truth, target, clean))

    def merge(self, other: RegionMetrics) -> None:
        """Add what another rank accumulated."""
        self.predictions.merge(other.predictions)
        self.subset.merge(other.subset)

    def compute(self) -> dict[str, float]:
        """Return the metrics and their confidence intervals."""
        metrics = compute_metrics(self.predictions, self.groups, self.mean)
        names = [PREFIXES.get(group.name, group.name) for group in self.groups]
        halves = confidence_intervals(self.predictions, self.groups, names, self.mean) if metrics else {}
        result: dict[str, float] = {}
        for name, value in metrics.items():
            result[name] = value
            if name in halves:
                result[f"{name}_ci95"] = halves[name]
        return result

    def in_data_units(self, value: Float[Tensor, "B L M"]) -> Float[np.ndarray, "B L M"]:
        """Invert the standardisation, on the CPU. Values within rounding of 0 become 0 and rank as such."""
        plain: Float[np.ndarray, "B L M"] = value.detach().to("cpu", torch.float32).numpy() * self.scale + self.shift
        plain[np.abs(plain) <= ROUNDING * np.abs(self.shift)] = 0
        return plain


class BaselineSubset:
    """Batches thinned to every window, or every second, fourth, eighth one, to keep at most `limit` regions."""

    def __init__(self, limit: int) -> None:
        self.limit = limit
        self._every, self._seen = 1, 0
        self._parts: list[tuple[Integer[np.ndarray, " B"], MaskedBatch]] = []

    @property
    def batches(self) -> list[MaskedBatch]:
        """The batches, in the order in which they came."""
        return [batch for _, batch in self._parts]

    def add(self, batch: MaskedBatch) -> None:
        """Add a batch."""
        self._parts.append((self._seen + np.arange(len(batch.truth)), batch))
        self._seen += len(batch.truth)
        self._thin()

    def merge(self, other: BaselineSubset) -> None:
        """Add the batches of another rank."""
        self._seen += other._seen
        self._parts += other._parts
        self._every = max(self._every, other._every)
        self._thin()

    def _thin(self) -> None:
        """Drop every second window, as often as needed."""
        while True:
            chosen = [(numbers, batch, numbers % self._every == 0) for numbers, batch in self._parts]
            self._parts = [
                (numbers, batch) if rows.all() else (numbers[rows], batch.of_windows(rows))
                for numbers, batch, rows in chosen
                if rows.any()
            ]
            regions = sum(batch.truth.shape[0] * batch.truth.shape[1] for batch in self.batches)
            if regions <= self.limit or self._every >= self._seen:
                return
            self._every *= 2


def baseline_metrics(
    new: Callable[[], RegionMetrics], fit: Callable[[int], Baselines], batches: Mapping[str, Sequence[MaskedBatch]]
) -> dict[str, float]:
    """Return `METRIC/BASELINE` for everything that a baseline predicts; empty without batches.

    Args:
        new: Returns a new accumulator.
        fit: Returns the baselines fitted on a cell type, by number, or -1; one is in memory at a time.
        batches: Target elements, by the prefix of the names of their metrics.
    """
    metrics: dict[tuple[str, str], RegionMetrics] = {}
    every = [(prefix, batch) for prefix, of_prefix in batches.items() for batch in of_prefix]
    for cell in np.unique(np.concatenate([np.zeros(0, np.int64), *(batch.cell for _, batch in every)])).tolist():
        baselines = fit(cell)
        for prefix, batch in every:
            of_cell = batch.of_windows(batch.cell == cell)
            if not of_cell.target.any():
                continue
            for name, guess, counted in baselines.predictions(of_cell):
                metrics.setdefault((prefix, name), new()).predictions.add(of_cell.truth, guess, counted)
        del baselines  # before the next one is fitted: each has a copy of the training regions
    return {
        f"{prefix}{metric}/{name}": value
        for (prefix, name), accumulator in metrics.items()
        for metric, value in compute_metrics(accumulator.predictions, accumulator.groups, accumulator.mean).items()
        if metric != "constant_columns" and (name != "logistic" or metric.startswith("accessibility"))
    }
