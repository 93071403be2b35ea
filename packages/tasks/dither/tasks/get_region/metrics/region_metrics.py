"""Metrics of masked elements, by group of columns, without constant columns; nothing that the model sees is counted.

Metrics are computed from the stored pairs, so they are exact however a split is cut into batches and over ranks. Their
95 % confidence intervals are by the bootstrap (Efron 1979) over whole windows, whose regions are correlated; weights
are fixed. Letters: B batch, L length, M or K columns, R resamples, W windows, n pairs, T distinct scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer, Shaped
from torch import Tensor

from dither.registry.flow.records import Clean, Measured, Noised
from dither.registry.flow.spaces import Group

from ..data.column_groups import BASELINE_REGIONS
from ..data.region_matrix import ColumnStats
from ..data.units import ColumnUnits
from .baselines import RIVALS, Baselines, MaskedBatch
from .column_metrics import (
    FLAT,
    Pair,
    Predictions,
    group_metrics,
    is_binary,
    rank_metrics,
    squared_error,
    varies,
)

__all__ = [
    "APART",
    "DRAWS",
    "BaselineSubset",
    "RegionMetrics",
    "baseline_metrics",
    "bootstrap_weights",
    "compute_metrics",
]

DRAWS = 500
"""Number of resamples."""

APART = "trained_chromosomes_"
"""Prefix of the metrics of held-out cell types on training chromosomes."""

ONE_COLUMN = ("logistic", *RIVALS)
"""Baselines of single columns after the motifs."""

MIN_WINDOWS = 8
"""Fewer windows give no interval: they do not show how windows vary."""

MAX_NUMBERS = 2**22
"""Largest number of values in memory."""
PREFIXES = {"motifs": "motif"}
"""Prefix of the metrics of a group, if it is not the name of the group."""


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

    - `masked_mse`: mean squared error of all target elements, in scaled units: before transform and standardisation,
      motifs divided by their largest training value.
    - `masked_gain`: 1 - masked_mse / error of the training means on the same elements. 0 is as good as knowing
      nothing, 1 is perfect.
    - `motif_*`, `accessibility_*`, `expression_*`: error, correlations and R2 of one group; see `group_metrics`.
    - `accessibility_auc`, `accessibility_auprc`: how well target regions that are open rank before closed ones.
    - `constant_columns`: number of target columns that are left out of all metrics because their truth is constant. If
      all are, their errors count.
    - `NAME_ci95`: half of a 95 % interval of a metric, over the windows; see `_Resampled.half`.

    Args:
        groups: Columns of motifs, accessibility and expression.
        standard: Transform and standardisation of x0, which are inverted.
        mean: Mean of each column over the training regions, in scaled units.
        trained_chromosomes: Numbers of chromosomes on which windows of held-out cell types (label -1) are accumulated
            apart; the names of their metrics begin with "trained_chromosomes_". Empty for none.
    """

    def __init__(
        self,
        groups: Sequence[Group],
        standard: ColumnUnits | ColumnStats,
        mean: Float[np.ndarray, " M"],
        trained_chromosomes: Integer[np.ndarray, " n"] | None = None,
    ) -> None:
        self.chromosomes = trained_chromosomes
        self.trained = None if trained_chromosomes is None else RegionMetrics(groups, standard, mean)
        self.groups, self.mean = groups, mean
        if isinstance(standard, ColumnStats):
            standard = ColumnUnits(np.ones_like(standard.mean), standard)
        self.units = standard
        self.predictions = Predictions(len(mean))
        self.subset = BaselineSubset(BASELINE_REGIONS)
        self.values: dict[str, float] = {}

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Add one batch; `pred` has x0."""
        target = noised.target_mask & noised.valid[..., None]
        truth, guess = self.in_data_units(noised.x0), self.in_data_units(pred.x0)
        batch = MaskedBatch.of(truth, target, clean, guess)
        if self.trained is None or self.chromosomes is None:
            self._add(batch)
            return
        apart = (batch.cell < 0) & np.isin(clean.cond["chromosome"].cpu().numpy(), self.chromosomes)
        for metrics, rows in ((self, ~apart), (self.trained, apart)):
            if rows.any():
                metrics._add(batch.of_windows(rows))

    def _add(self, batch: MaskedBatch) -> None:
        assert batch.guess is not None
        self.predictions.add(batch.truth, batch.guess, batch.target, batch.window)
        self.subset.add(batch)

    def merge(self, other: RegionMetrics) -> None:
        """Add what another rank accumulated."""
        self.predictions.merge(other.predictions)
        self.subset.merge(other.subset)
        if self.trained is not None and other.trained is not None:
            self.trained.merge(other.trained)

    def compute(self) -> dict[str, float]:
        """Return the metrics and their confidence intervals, and keep them in `values`."""
        resampled = _Resampled.of(self)
        self.values = {}
        for name, value in resampled.values.items():
            self.values[name] = value
            if (half := resampled.half(name)) is not None:
                self.values[f"{name}_ci95"] = half
        if self.trained is not None:
            self.values |= {f"{APART}{name}": value for name, value in self.trained.compute().items()}
        return self.values

    def in_data_units(self, value: Float[Tensor, "B L M"]) -> Float[np.ndarray, "B L M"]:
        """Return scaled values: invert standardisation and transform, on the CPU."""
        return self.units.inverse(value.detach().to("cpu", torch.float32).numpy())


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

    Where the predictions of the model are known, `METRIC/BASELINE-lead` is the metric of the model on the same elements
    minus that of the baseline, and `METRIC/BASELINE-lead_ci95` half of its 95 % interval by the paired bootstrap: both
    are computed in the same resamples of windows.

    Args:
        new: Returns a new accumulator.
        fit: Returns the baselines fitted on a cell type, by number, or -1; one is in memory at a time.
        batches: Target elements, by the prefix of the names of their metrics.
    """
    metrics: dict[tuple[str, str], RegionMetrics] = {}
    models: dict[tuple[str, str], RegionMetrics] = {}
    every = [(prefix, batch) for prefix, of_prefix in batches.items() for batch in of_prefix]
    for cell in np.unique(np.concatenate([np.zeros(0, np.int64), *(batch.cell for _, batch in every)])).tolist():
        baselines = fit(cell)
        for prefix, batch in every:
            of_cell = batch.of_windows(batch.cell == cell)
            if not of_cell.target.any():
                continue
            for name, guess, counted in baselines.predictions(of_cell):
                metrics.setdefault((prefix, name), new()).predictions.add(of_cell.truth, guess, counted, of_cell.window)
                key = _model_key(name)
                if of_cell.guess is not None and (key or name == "mean"):
                    models.setdefault((prefix, key), new()).predictions.add(
                        of_cell.truth, of_cell.guess, counted, of_cell.window
                    )
        del baselines  # before the next one is fitted: each has a copy of the training regions
    resampled = {key: _Resampled.of(model) for key, model in models.items()}
    result: dict[str, float] = {}
    for (prefix, name), accumulator in metrics.items():
        own, model = _Resampled.of(accumulator), resampled.get((prefix, _model_key(name)))
        for metric, value in own.values.items():
            if metric == "constant_columns" or (name in ONE_COLUMN and metric.startswith(("masked", "motif"))):
                continue
            result[f"{prefix}{metric}/{name}"] = value
            if model is not None and (half := model.half(metric, own)) is not None:
                result[f"{prefix}{metric}/{name}-lead"] = model.values[metric] - value
                result[f"{prefix}{metric}/{name}-lead_ci95"] = half
    return result


def _model_key(name: str) -> str:
    """Return the key of the model's predictions on the elements of a baseline: "" for all target elements."""
    return name if name in ONE_COLUMN else ""


@dataclass(frozen=True)
class _Resampled:
    """Metrics of predictions, their values in each resample of `count` windows, by name."""

    values: dict[str, float]
    resamples: dict[str, Float[np.ndarray, " R"]]
    count: int

    @classmethod
    def of(cls, metrics: RegionMetrics) -> _Resampled:
        predictions, groups, mean = metrics.predictions, metrics.groups, metrics.mean
        return cls(compute_metrics(predictions, groups, mean), *_resample(predictions, groups, mean))

    def half(self, metric: str, other: _Resampled | None = None) -> float | None:
        """Return half of a 95 % interval of a metric, or of its difference to that of others on the same elements.

        Spearman's correlation has none, since ranks would change with each resample, and nothing has one with fewer
        than `MIN_WINDOWS` windows. The variance of resamples is (W - 1) / W of that of windows, which is corrected.
        """
        if metric not in self.resamples or (other is not None and metric not in other.resamples):
            return None
        half = _half(self.resamples[metric] - (0 if other is None else other.resamples[metric]))
        return None if half is None else float(np.sqrt(self.count / (self.count - 1))) * half


def _resample(
    predictions: Predictions, groups: Sequence[Group], mean: Float[np.ndarray, " M"]
) -> tuple[dict[str, Float[np.ndarray, " R"]], int]:
    """Return the metrics in each resample of the windows, and the number of windows; nothing if those are too few."""
    known = predictions.windows()
    if known is None or known[0] < MIN_WINDOWS:
        return {}, 0
    (count, windows), pairs = known, predictions.pairs()
    weights = bootstrap_weights(count)
    varying = [varies(truth) for truth, _ in pairs]
    totals, values_of = np.zeros((3, DRAWS)), dict[str, Shaped[np.ndarray, " R"]]()
    for group in groups:
        name = PREFIXES.get(group.name, group.name)
        columns = range(group.start, group.stop)
        counted = [k for k in columns if varying[k]]
        if not any(varying):
            counted = [k for k in columns if len(pairs[k][0])]
        if not counted:
            continue
        centre = float(mean[counted].mean())
        sums = np.stack([weights @ _sums(pairs[k], windows[k], count, centre) for k in counted], 1)
        totals += _errors(sums, mean[counted] - centre)
        values_of |= {f"{name}_{key}": values for key, values in _group_values(sums, columns).items()}
        if group.name == "accessibility" and is_binary(pairs[group.start][0]):
            values_of |= _areas(pairs[group.start], windows[group.start], weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        values_of |= {"masked_mse": totals[0] / totals[2], "masked_gain": 1 - totals[0] / totals[1]}
    return values_of, count


def bootstrap_weights(count: int) -> Float[np.ndarray, "R W"]:
    """Return the number of occurrences of each window in each resample."""
    times = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), DRAWS)
    return times.astype(np.float64)


def _half(values: Float[np.ndarray, " R"]) -> float | None:
    """Return half the range of the middle 95 % of the finite values; None if fewer than half are finite."""
    finite = values[np.isfinite(values)]
    return float(np.diff(np.quantile(finite, [0.025, 0.975]))[0] / 2) if len(finite) > DRAWS // 2 else None


def _sums(pair: Pair, window: Int[np.ndarray, " n"], count: int, centre: float) -> Float[np.ndarray, "W 6"]:
    """Return sums by window of 1, x, y, x x, y y and x y, for truth x and prediction y minus `centre`."""
    x, y = (value.astype(np.float64) - centre for value in pair)
    return np.stack([np.bincount(window, part, count) for part in (np.ones_like(x), x, y, x * x, y * y, x * y)], 1)


def _errors(sums: Float[np.ndarray, "R K 6"], mean: Float[np.ndarray, " K"]) -> Float[np.ndarray, "3 R"]:
    """Return the squared errors, those of the training means, and the number of pairs."""
    n, x, _, xx, yy, xy = np.moveaxis(sums, -1, 0)
    return np.stack([(xx + yy - 2 * xy).sum(1), (xx - 2 * mean * x + mean**2 * n).sum(1), n.sum(1)])


def _group_values(sums: Float[np.ndarray, "R K 6"], columns: range) -> dict[str, Float[np.ndarray, " R"]]:
    """Return error, Pearson's r and R2 of a group in each resample."""
    errors, _, n = _errors(sums, np.zeros(sums.shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        result = {"mse": errors / n} | {key: _mean(values) for key, values in _columns(sums).items()}
        if len(columns) > 1:
            overall = _columns(sums.sum(1, keepdims=True))
            result |= {f"{key}_overall": values[:, 0] for key, values in overall.items()}
    return result


def _columns(sums: Float[np.ndarray, "R K 6"]) -> dict[str, Float[np.ndarray, "R K"]]:
    """Return r and R2 by resample and column: NaN if the truth is constant, r = 0 if the prediction is."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    of_x, of_y, both = xx - x * x / n, yy - y * y / n, xy - x * y / n
    varied, constant = of_x > np.square(FLAT) * xx, of_y <= np.square(FLAT) * yy
    r = np.where(constant, 0.0, both / np.sqrt(of_x * np.where(constant, 1.0, of_y)))
    values = {"pearson": r, "r2": 1 - (xx + yy - 2 * xy) / of_x}
    return {key: np.where(varied, value, np.nan) for key, value in values.items()}


def _mean(values: Float[np.ndarray, "R K"]) -> Float[np.ndarray, " R"]:
    """Return the mean over the columns with a finite value."""
    finite = np.isfinite(values)
    mean: Float[np.ndarray, " R"] = np.where(finite, values, 0).sum(1) / finite.sum(1)
    return mean


def _areas(
    pair: Pair, window: Int[np.ndarray, " n"], weights: Float[np.ndarray, "R W"]
) -> dict[str, Float[np.ndarray, " R"]]:
    """Return the areas under both curves in each resample, with ties as in scikit-learn."""
    label, score = pair[0] > 0.5, pair[1]
    if not len(score) or label.all() or not label.any() or not np.isfinite(score).all():
        return {}
    order = np.argsort(-score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0])
    parts = []
    for block in np.array_split(weights, -(-len(weights) * len(score) // MAX_NUMBERS)):
        by_pair = block[:, window[order]]
        positives, both = (np.add.reduceat(part, starts, 1) for part in (by_pair * label[order], by_pair))
        parts.append(_area(positives, both - positives))
    roc, precision = (np.concatenate(area) for area in zip(*parts, strict=True))
    return {"accessibility_auc": roc, "accessibility_auprc": precision}


def _area(
    positives: Float[np.ndarray, "R T"], negatives: Float[np.ndarray, "R T"]
) -> tuple[Float[np.ndarray, " R"], Float[np.ndarray, " R"]]:
    """Return the areas under the ROC and precision-recall curves, from counts at decreasing scores."""
    true, false = positives.cumsum(1), negatives.cumsum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        roc = (negatives * (true - positives / 2)).sum(1) / (true[:, -1] * false[:, -1])
        precision = np.nansum(positives * true / (true + false), 1) / true[:, -1]
    return roc, precision
