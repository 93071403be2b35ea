"""Metrics of masked elements, by group of columns, without constant columns; nothing that the model sees is counted.

Metrics are computed from the stored pairs, so they are exact however a split is cut into batches
and over ranks. Their 95 % confidence intervals are by the bootstrap (Efron 1979) over whole
windows, whose regions are correlated; weights are fixed. Letters: B batch, L length, M or K
columns, R resamples, W windows, n pairs, T distinct scores.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np
import torch
from jaxtyping import Float, Int, Integer
from torch import Tensor

from dither.registry.contracts.records import Clean, Measured, Noised
from dither.registry.contracts.spaces import Group

from ..data.units import ColumnUnits
from .baselines import RIVALS, Baselines, MaskedBatch
from .column_metrics import FLAT, Pair, Predictions, is_binary, is_flat, spearman, varies

__all__ = [
    "APART",
    "BASELINE_REGIONS",
    "DRAWS",
    "RegionMetrics",
    "baseline_metrics",
    "bootstrap_weights",
]

BASELINE_REGIONS = 1 << 15
"""Largest number of regions of an evaluation on which baselines are measured; windows are thinned
out evenly."""

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


class RegionMetrics:
    """Accumulates batches; a metric without target elements is left out.

    - `masked_mse`: mean squared error of all target elements, in scaled units: before transform and
    standardisation,
      motifs divided by their largest training value.
    - `masked_gain`: 1 - masked_mse / error of the training means on the same elements. 0 is as good
    as knowing
      nothing, 1 is perfect.
    - `motif_*`, `accessibility_*`, `expression_*`: error of a group over all pairs, and means over
    its columns of
      Pearson's and Spearman's correlations and R2; with the suffix `_overall` they are computed
      over the pairs of all columns together, where predicting the mean of each column already
      scores well.
    - `accessibility_auc`, `accessibility_auprc`: how well target regions that are open rank before
    closed ones.
    - `constant_columns`: number of target columns that are left out of all metrics because their
    truth is constant. If
      all are, their errors count.
    - `NAME_ci95`: half of a 95 % interval of a metric, over the windows; see `_Resampled.half`.

    `units` of x0 are inverted; `mean` has the mean of each column over the training regions, in
    scaled units. On `trained_chromosomes` windows of held-out cell types (label -1) are accumulated
    apart; the names of their metrics begin with "trained_chromosomes_".
    """

    def __init__(
        self,
        groups: Sequence[Group],
        units: ColumnUnits,
        mean: Float[np.ndarray, " M"],
        trained_chromosomes: Integer[np.ndarray, " n"] | None = None,
    ) -> None:
        self.chromosomes = trained_chromosomes
        self._every = 1
        self._seen = 0
        self.trained = None if trained_chromosomes is None else RegionMetrics(groups, units, mean)
        self.groups = groups
        self.units = units
        self.mean = mean
        self.predictions = Predictions(len(mean))
        self.batches: list[MaskedBatch] = []
        self.values: dict[str, float] = {}

    def update(
        self,
        clean: Clean,
        noised: Noised,
        pred: Any,
        measured: Measured,
    ) -> None:
        """Add one batch; `pred` has x0."""
        target = (noised.target_mask & noised.valid[..., None]).to("cpu", non_blocking=True)
        clean = replace(clean, x0=noised.x0).to("cpu", non_blocking=True)
        guess = self.in_data_units(pred.x0)  # the first waits for all copies
        truth = self.in_data_units(clean.x0)
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
        rows = (self._seen + np.arange(len(batch.truth))) % self._every == 0
        self._seen += len(rows)
        self.batches.append(batch.of_windows(rows))
        self._thin()

    def _thin(self) -> None:
        """Drop every other window until at most `BASELINE_REGIONS` regions or one window remain."""
        sizes = [len(batch.truth) for batch in self.batches]
        if (
            sum(batch.truth[..., 0].size for batch in self.batches) > BASELINE_REGIONS
            and sum(sizes) > 1
        ):
            even = np.split(np.arange(sum(sizes)) % 2 == 0, np.cumsum(sizes)[:-1])
            self.batches = [
                batch.of_windows(rows) for batch, rows in zip(self.batches, even, strict=True)
            ]
            self._every *= 2
            self._thin()

    def merge(self, other: RegionMetrics) -> None:
        self.predictions.merge(other.predictions)
        self.batches += other.batches
        self._thin()
        if self.trained is not None and other.trained is not None:
            self.trained.merge(other.trained)

    def compute(self) -> dict[str, float]:
        """Return the metrics and their confidence intervals, and keep them in `values`."""
        resampled = _Resampled.of(self)
        self.values = {}
        for name in resampled.values:
            self.values[name] = resampled.value(name)
            if (half := resampled.half(name)) is not None:
                self.values[f"{name}_ci95"] = half
        if self.trained is not None:
            self.values |= {
                f"{APART}{name}": value for name, value in self.trained.compute().items()
            }
        return self.values

    def in_data_units(self, value: Float[Tensor, "B L M"]) -> Float[np.ndarray, "B L M"]:
        """Return scaled values: invert standardisation and transform, on the CPU."""
        return self.units.inverse(value.detach().to("cpu", torch.float32).numpy())


def baseline_metrics(
    new: Callable[[], RegionMetrics],
    fit: Callable[[int], Baselines],
    batches: Mapping[str, Sequence[MaskedBatch]],
) -> dict[str, float]:
    """Return `METRIC/BASELINE` for everything that a baseline predicts; empty without batches.

    Where the predictions of the model are known, `METRIC/BASELINE-lead` is the metric of the model
    on the same elements minus that of the baseline, and `METRIC/BASELINE-lead_ci95` half of its 95
    % interval by the paired bootstrap: both are computed in the same resamples of windows. `fit`
    returns the baselines fitted on a cell type, by number, or -1; one is in memory at a time.
    `batches` are by the prefix of the names of their metrics.
    """
    metrics: dict[tuple[str, str], RegionMetrics] = {}
    models: dict[tuple[str, str], RegionMetrics] = {}
    every = [(prefix, batch) for prefix, of_prefix in batches.items() for batch in of_prefix]
    for cell in np.unique(
        np.concatenate([np.zeros(0, np.int64), *(batch.cell for _, batch in every)])
    ).tolist():
        baselines = fit(cell)
        for prefix, batch in every:
            of_cell = batch.of_windows(batch.cell == cell)
            if not of_cell.target.any():
                continue
            for name, guess, counted in baselines.predictions(of_cell):
                metrics.setdefault((prefix, name), new()).predictions.add(
                    of_cell.truth, guess, counted, of_cell.window
                )
                key = _model_key(name)
                if of_cell.guess is not None and (key or name == "mean"):
                    models.setdefault((prefix, key), new()).predictions.add(
                        of_cell.truth, of_cell.guess, counted, of_cell.window
                    )
        del baselines  # before the next one is fitted: each has a copy of the training regions
    resampled = {key: _Resampled.of(model) for key, model in models.items()}
    result: dict[str, float] = {}
    for (prefix, name), accumulator in metrics.items():
        own = _Resampled.of(accumulator)
        model = resampled.get((prefix, _model_key(name)))
        for metric in own.values:
            if metric == "constant_columns" or (
                name in ONE_COLUMN and metric.startswith(("masked", "motif"))
            ):
                continue
            value = result[f"{prefix}{metric}/{name}"] = own.value(metric)
            if model is not None and (half := model.half(metric, own)) is not None:
                result[f"{prefix}{metric}/{name}-lead"] = model.value(metric) - value
                result[f"{prefix}{metric}/{name}-lead_ci95"] = half
    return result


def _model_key(name: str) -> str:
    """Return the key of the model's predictions on the elements of a baseline: "" for all target elements."""
    return name if name in ONE_COLUMN else ""


@dataclass(frozen=True)
class _Resampled:
    """Each metric of all windows and, if it has an interval, its values in each resample of `count` windows."""

    values: dict[str, Float[np.ndarray, " R"]]
    count: int

    @classmethod
    def of(cls, metrics: RegionMetrics) -> _Resampled:
        predictions = metrics.predictions
        known = metrics.predictions.windows()
        pairs = predictions.pairs()
        if known is None or known[0] < MIN_WINDOWS:
            count = 1
            windows = [np.zeros(len(truth), np.int64) for truth, _ in pairs]
            weights = np.ones((1, 1))
        else:
            count, windows = known
            weights = np.concatenate([np.ones((1, count)), bootstrap_weights(count)])
        return cls(_metrics(pairs, windows, weights, metrics.groups, metrics.mean), count)

    def value(self, metric: str) -> float:
        return float(self.values[metric][0])

    def half(self, metric: str, other: _Resampled | None = None) -> float | None:
        """Return half of a 95 % interval of a metric, or of its difference to that of others on the same elements.

        Spearman's correlation has none: ranks change. The variance, too low by the factor (W - 1) /
        W, is corrected.
        """
        if other is not None and metric not in other.values:
            return None
        values = (self.values[metric] - (0 if other is None else other.values[metric]))[1:]
        finite = values[np.isfinite(values)]
        if not len(values) or len(finite) <= len(values) // 2:
            return None
        half = float(np.diff(np.quantile(finite, [0.025, 0.975]))[0] / 2)
        return float(np.sqrt(self.count / (self.count - 1))) * half


def _metrics(
    pairs: Sequence[Pair],
    windows: Sequence[Int[np.ndarray, " n"]],
    weights: Float[np.ndarray, "R W"],
    groups: Sequence[Group],
    mean: Float[np.ndarray, " M"],
) -> dict[str, Float[np.ndarray, " R"]]:
    """Return each metric of `RegionMetrics` under each of the weights of windows, or under the first ones."""
    varying = [column for column, (truth, _) in enumerate(pairs) if varies(truth)]
    target = [column for column, (truth, _) in enumerate(pairs) if len(truth)]
    totals = np.zeros((3, len(weights)))
    result = dict[str, Float[np.ndarray, " R"]]()
    for group in groups:
        name = PREFIXES.get(group.name, group.name)
        columns = range(group.start, group.stop)
        informative = [column for column in columns if column in varying]
        counted = informative or [column for column in columns if column in target]
        if not counted:
            continue
        centre = float(mean[counted].mean())
        sums = np.stack(
            [weights @ _sums(pairs[k], windows[k], weights.shape[1], centre) for k in counted], 1
        )
        if informative or not varying:
            totals += _errors(sums, mean[counted] - centre)
        result[f"{name}_mse"] = _errors(sums, np.zeros(len(counted)))[0] / sums[..., 0].sum(1)
        if informative:
            of_group = _correlations(sums, [pairs[k] for k in counted], overall=len(columns) > 1)
            result |= {f"{name}_{key}": values for key, values in of_group.items()}
        if group.name == "accessibility" and is_binary(pairs[group.start][0]):
            result |= _areas(pairs[group.start], windows[group.start], weights)
    if totals[2, 0]:
        with np.errstate(divide="ignore", invalid="ignore"):
            result = {"masked_mse": totals[0] / totals[2]} | result
            if totals[1, 0]:
                result["masked_gain"] = 1 - totals[0] / totals[1]
    constant = len(target) - len(varying)
    return result | ({"constant_columns": np.array([float(constant)])} if constant else {})


def bootstrap_weights(count: int) -> Float[np.ndarray, "R W"]:
    """Return the number of occurrences of each window in each resample."""
    times = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), DRAWS)
    return times.astype(np.float64)


def _sums(
    pair: Pair,
    window: Int[np.ndarray, " n"],
    count: int,
    centre: float,
) -> Float[np.ndarray, "W 7"]:
    """Return sums by window of 1, x, y, x x, y y, x y and (x - y)^2, for truth x and prediction y minus `centre`."""
    x, y = (value.astype(np.float64) - centre for value in pair)
    parts = (np.ones_like(x), x, y, x * x, y * y, x * y, np.square(x - y))
    return np.stack([np.bincount(window, part, count) for part in parts], 1)


def _errors(
    sums: Float[np.ndarray, "R K 7"], mean: Float[np.ndarray, " K"]
) -> Float[np.ndarray, "3 R"]:
    """Return the squared errors, those of the training means, and the number of pairs."""
    n, x, _, xx, _, _, error = np.moveaxis(sums, -1, 0)
    return np.stack([error.sum(1), (xx - 2 * mean * x + mean**2 * n).sum(1), n.sum(1)])


def _correlations(
    sums: Float[np.ndarray, "R K 7"], pairs: Sequence[Pair], *, overall: bool
) -> dict[str, Float[np.ndarray, " R"]]:
    """Return means over columns of Pearson's r, Spearman's and R2, and those over the pairs of all columns."""
    result = _columns(sums, [is_flat(guess) for _, guess in pairs])
    result["spearman"] = np.array([np.mean([spearman(*pair) for pair in pairs])])
    if overall:
        together = _columns(
            sums.sum(1, keepdims=True), [is_flat(np.concatenate([guess for _, guess in pairs]))]
        )
        result |= {f"{key}_overall": values for key, values in together.items()}
    return result


def _columns(
    sums: Float[np.ndarray, "R K 7"], flat: Sequence[bool]
) -> dict[str, Float[np.ndarray, " R"]]:
    """Return the means of r and R2 over columns whose truth varies in a resample; r is 0 if the prediction is flat."""
    n, x, y, xx, yy, xy, error = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        of_x = xx - x * x / n
        of_y = yy - y * y / n
        both = xy - x * y / n
        varied = of_x > np.square(FLAT) * xx
        constant = (of_y <= np.square(FLAT) * yy) | flat
        r = np.where(constant, 0.0, both / np.sqrt(of_x * np.where(constant, 1.0, of_y)))
        values = {"pearson": r, "r2": 1 - error / of_x}
        return {
            key: np.where(varied, value, 0).sum(1) / varied.sum(1) for key, value in values.items()
        }


def _areas(
    pair: Pair, window: Int[np.ndarray, " n"], weights: Float[np.ndarray, "R W"]
) -> dict[str, Float[np.ndarray, " R"]]:
    """Return the areas under both curves in each resample, with ties as in scikit-learn."""
    label = pair[0] > 0.5
    score = pair[1]
    if not len(score) or label.all() or not label.any() or not np.isfinite(score).all():
        return {}
    order = np.argsort(-score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0])
    parts = []
    for block in np.array_split(weights, -(-len(weights) * len(score) // MAX_NUMBERS)):
        by_pair = block[:, window[order]]
        positives, both = (
            np.add.reduceat(part, starts, 1) for part in (by_pair * label[order], by_pair)
        )
        parts.append(_area(positives, both - positives))
    roc, precision = (np.concatenate(area) for area in zip(*parts, strict=True))
    return {"accessibility_auc": roc, "accessibility_auprc": precision}


def _area(
    positives: Float[np.ndarray, "R T"], negatives: Float[np.ndarray, "R T"]
) -> tuple[Float[np.ndarray, " R"], Float[np.ndarray, " R"]]:
    """Return the areas under the ROC and precision-recall curves, from counts at decreasing scores."""
    true = positives.cumsum(1)
    false = negatives.cumsum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        roc = (negatives * (true - positives / 2)).sum(1) / (true[:, -1] * false[:, -1])
        precision = np.nansum(positives * true / (true + false), 1) / true[:, -1]
    return roc, precision
