"""Metrics of masked elements, by group of columns, without constant columns.

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
from numpy import ndarray
from torch import Tensor

from dither.registry.contracts.protocols import Metrics
from dither.registry.contracts.records import Clean, Measured, Noised
from dither.registry.contracts.spaces import Group

from ..data.units import ColumnUnits
from .auc import areas_under_curves
from .baselines import RIVALS, Baselines, MaskedBatch
from .column_metrics import (
    FLAT,
    Pair,
    Predictions,
    is_binary,
    is_flat,
    spearman,
    varies,
)

__all__ = [
    "APART",
    "BASELINE_REGIONS",
    "DRAWS",
    "RegionMetrics",
    "baseline_metrics",
    "bootstrap_weights",
]

_PerDraw = Float[ndarray, " R"]
_Sums = Float[ndarray, "R K 7"]

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

PREFIXES = {"motifs": "motif"}
"""Prefix of the metrics of a group, if it is not the name of the group."""


class RegionMetrics(Metrics):
    """Accumulates batches; a metric without target elements is left out.

    - `masked_mse`: mean squared error of all target elements, in scaled units: before transform and
      standardisation, motifs divided by their largest training value.
    - `masked_gain`: 1 - masked_mse / error of the training means on the same elements. 0 is as good
      as knowing nothing, 1 is perfect.
    - `motif_*`, `accessibility_*`, `expression_*`: error of a group over all pairs, and means over
      its columns of Pearson's and Spearman's correlations and R2; with the suffix `_overall` over
      the pairs of all columns together, where predicting the mean of each column already scores
      well.
    - `accessibility_auc`, `accessibility_auprc`: how well target regions that are open rank before
      closed ones.
    - `constant_columns`: number of target columns that are left out of all metrics because their
      truth is constant. If all are, their errors count.
    - `NAME_ci95`: half of a 95 % interval of a metric, over the windows; see `_Resampled.half`.

    `units` of x0 are inverted; `mean` has the mean of each column over the training regions, in
    scaled units. On `trained_chromosomes` windows of held-out cell types (label -1) are accumulated
    apart; the names of their metrics begin with "trained_chromosomes_".
    """

    def __init__(
        self,
        groups: Sequence[Group],
        units: ColumnUnits,
        mean: Float[ndarray, " M"],
        trained_chromosomes: Integer[ndarray, " n"] | None = None,
    ) -> None:
        self.chromosomes = trained_chromosomes
        self.trained: RegionMetrics | None = None
        if trained_chromosomes is not None:
            self.trained = RegionMetrics(groups, units, mean)
        # One of every `_every` windows seen is kept for the baselines.
        self._every = 1
        self._seen = 0
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
        # The prediction is copied last and waits for the device, once for all copies.
        target = noised.target_mask & noised.valid[..., None]
        target = target.to("cpu", non_blocking=True)
        clean = replace(clean, x0=noised.x0).to("cpu", non_blocking=True)
        guess = self.in_data_units(pred.x0)
        truth = self.in_data_units(clean.x0)
        batch = MaskedBatch.of(truth, target, clean, guess)
        if self.trained is None or self.chromosomes is None:
            self.add(batch)
            return
        chromosome = clean.cond["chromosome"].numpy()
        apart = (batch.cell < 0) & np.isin(chromosome, self.chromosomes)
        for metrics, rows in ((self, ~apart), (self.trained, apart)):
            if rows.any():
                metrics.add(batch.of_windows(rows))

    def add(self, batch: MaskedBatch) -> None:
        """Add predictions of a batch."""
        assert batch.guess is not None
        self.predictions.add(batch.truth, batch.guess, batch.target, batch.window)
        numbers = self._seen + np.arange(len(batch.truth))
        self._seen += len(numbers)
        self.batches.append(batch.of_windows(numbers % self._every == 0))
        self._thin()

    def _thin(self) -> None:
        """Drop every other window until at most `BASELINE_REGIONS` regions or one window remain."""
        windows = sum(len(batch.truth) for batch in self.batches)
        regions = sum(batch.truth[..., 0].size for batch in self.batches)
        if regions <= BASELINE_REGIONS or windows <= 1:
            return
        thinned = []
        first = 0
        for batch in self.batches:
            # Windows are numbered through all batches, so that batch sizes do not matter.
            numbers = np.arange(first, first + len(batch.truth))
            thinned.append(batch.of_windows(numbers % 2 == 0))
            first += len(numbers)
        self.batches = thinned
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
            half = resampled.half(name)
            if half is not None:
                self.values[f"{name}_ci95"] = half
        if self.trained is not None:
            for name, value in self.trained.compute().items():
                self.values[f"{APART}{name}"] = value
        return self.values

    def in_data_units(self, value: Float[Tensor, "B L M"]) -> Float[ndarray, "B L M"]:
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
    `batches` are by the prefix of the names of their metrics; those of fewer than `MIN_WINDOWS`
    windows are without the rivals.
    """
    rivals: dict[tuple[str, str], RegionMetrics] = {}
    models: dict[tuple[str, str], RegionMetrics] = {}
    cells: set[int] = set()
    for of_prefix in batches.values():
        for batch in of_prefix:
            cells.update(batch.cell.tolist())

    for cell in sorted(cells):
        baselines = fit(cell)
        for prefix, of_prefix in batches.items():
            # Fitting takes minutes, and of fewer windows a comparison says nothing.
            rivals_too = sum(len(b.truth) for b in of_prefix) >= MIN_WINDOWS
            for batch in of_prefix:
                of_cell = batch.of_windows(batch.cell == cell)
                if of_cell.target.any():
                    _predict(
                        prefix=prefix,
                        baselines=baselines,
                        batch=of_cell,
                        new=new,
                        rivals=rivals,
                        models=models,
                        rivals_too=rivals_too,
                    )
        # Before the next ones are fitted: each has a copy of the training regions.
        del baselines

    resampled = {key: _Resampled.of(model) for key, model in models.items()}
    result: dict[str, float] = {}
    for (prefix, name), accumulator in rivals.items():
        model = resampled.get((prefix, _model_key(name)))
        values = _compare(name, _Resampled.of(accumulator), model)
        result |= {f"{prefix}{key}": value for key, value in values.items()}
    return result


def _compare(
    name: str, rival: _Resampled, model: _Resampled | None
) -> dict[str, float]:
    """Return the metrics of a baseline, and the lead of the model with its interval."""
    left_out = ("masked", "motif") if name in ONE_COLUMN else ()
    result = {}
    for metric in rival.values:
        if metric == "constant_columns" or metric.startswith(left_out):
            continue
        value = rival.value(metric)
        result[f"{metric}/{name}"] = value

        half = None
        if model is not None:
            half = model.half(metric, rival)

        if model is not None and half is not None:
            result[f"{metric}/{name}-lead"] = model.value(metric) - value
            result[f"{metric}/{name}-lead_ci95"] = half
    return result


def _predict(
    prefix: str,
    baselines: Baselines,
    batch: MaskedBatch,
    new: Callable[[], RegionMetrics],
    rivals: dict[tuple[str, str], RegionMetrics],
    models: dict[tuple[str, str], RegionMetrics],
    *,
    rivals_too: bool,
) -> None:
    """Add predictions of each baseline, and those of the model for the same elements."""
    for name, guess, counted in baselines.predictions(batch, rivals=rivals_too):
        rival = rivals.setdefault((prefix, name), new())
        rival.predictions.add(batch.truth, guess, counted, batch.window)
        key = _model_key(name)
        # All baselines of all target elements share the predictions of the model.
        if batch.guess is not None and (key or name == "mean"):
            model = models.setdefault((prefix, key), new())
            model.predictions.add(batch.truth, batch.guess, counted, batch.window)


def _model_key(name: str) -> str:
    """Return the key of the model's predictions on the elements of a baseline: "" for all."""
    return name if name in ONE_COLUMN else ""


@dataclass(frozen=True)
class _Resampled:
    """Each metric of all windows, then its values in each resample of `count` windows."""

    values: dict[str, _PerDraw]
    count: int

    @classmethod
    def of(cls, metrics: RegionMetrics) -> _Resampled:
        known = metrics.predictions.windows()
        pairs = metrics.predictions.pairs()
        if known is None or known[0] < MIN_WINDOWS:
            count = 1
            windows = [np.zeros(len(truth), np.int64) for truth, _ in pairs]
            weights = np.ones((1, 1))
        else:
            # The first row weighs every window once: the value itself.
            count, windows = known
            weights = np.concatenate([np.ones((1, count)), bootstrap_weights(count)])
        values = _metrics(pairs, windows, weights, metrics.groups, metrics.mean)
        return cls(values, count)

    def value(self, metric: str) -> float:
        return float(self.values[metric][0])

    def half(self, metric: str, other: _Resampled | None = None) -> float | None:
        """Return half of a 95 % interval of a metric, or of its difference to `other`.

        Spearman's correlation has none, as ranks change.
        """
        values = self.values[metric]
        if other is not None:
            # The same resamples of windows, so that their variation cancels.
            if metric not in other.values:
                return None
            values = values - other.values[metric]
        resamples = values[1:]
        finite = resamples[np.isfinite(resamples)]
        # Where most resamples are undefined, the others are no sample of the metric.
        if not len(resamples) or len(finite) <= len(resamples) // 2:
            return None
        low, high = np.quantile(finite, [0.025, 0.975])
        half = float((high - low) / 2)
        # The variance of the bootstrap is too low by the factor (W - 1) / W.
        return float(np.sqrt(self.count / (self.count - 1))) * half


def _metrics(
    pairs: Sequence[Pair],
    windows: Sequence[Int[ndarray, " n"]],
    weights: Float[ndarray, "R W"],
    groups: Sequence[Group],
    mean: Float[ndarray, " M"],
) -> dict[str, _PerDraw]:
    """Return each metric of `RegionMetrics` under the weights of windows, or under the first."""
    varying = [column for column, (truth, _) in enumerate(pairs) if varies(truth)]
    target = [column for column, (truth, _) in enumerate(pairs) if len(truth)]
    # Squared errors, those of the means, and pairs of all columns.
    totals = np.zeros((3, len(weights)))
    result = dict[str, _PerDraw]()
    for group in groups:
        name = PREFIXES.get(group.name, group.name)
        columns = set(range(group.start, group.stop))
        informative = sorted(columns.intersection(varying))
        # Columns whose truth is constant count only where there are no others.
        counted = informative or sorted(columns.intersection(target))
        if not counted:
            continue
        # Sums of squares of centred values lose fewer digits.
        centre = float(mean[counted].mean())
        of_columns = []
        for column in counted:
            sums = _sums(
                pair=pairs[column],
                window=windows[column],
                count=weights.shape[1],
                centre=centre,
            )
            of_columns.append(weights @ sums)
        sums = np.stack(of_columns, 1)
        errors = _errors(sums, mean[counted] - centre)
        if informative or not varying:
            totals += errors
        result[f"{name}_mse"] = errors[0] / errors[2]

        if informative:
            varied = [pairs[column] for column in counted]
            correlations = _correlations(sums, varied, overall=len(columns) > 1)
            for key, values in correlations.items():
                result[f"{name}_{key}"] = values
        truth, score = pairs[group.start]
        if group.name == "accessibility" and len(truth) and is_binary(truth):
            is_open = truth > 0.5
            areas = areas_under_curves(
                label=is_open,
                score=score,
                window=windows[group.start],
                weights=weights,
            )
            for key, values in areas.items():
                result[f"accessibility_{key}"] = values
    return _metrics_of_all(totals, len(target) - len(varying)) | result


def _metrics_of_all(
    totals: Float[ndarray, "3 R"], constant: int
) -> dict[str, _PerDraw]:
    """Return the metrics of all columns from their errors, those of the means, and counts."""
    error, error_of_means, count = totals
    result = {}
    if count[0]:
        with np.errstate(divide="ignore", invalid="ignore"):
            result["masked_mse"] = error / count
            if error_of_means[0]:
                result["masked_gain"] = 1 - error / error_of_means
    if constant:
        result["constant_columns"] = np.array([float(constant)])
    return result


def bootstrap_weights(count: int) -> Float[ndarray, "R W"]:
    """Return the number of occurrences of each window in each resample."""
    # One seed: all metrics and baselines have the same resamples, so their differences are paired.
    random = np.random.default_rng(0)
    times = random.multinomial(count, np.full(count, 1 / count), DRAWS)
    return times.astype(np.float64)


def _sums(
    pair: Pair,
    window: Int[ndarray, " n"],
    count: int,
    centre: float,
) -> Float[ndarray, "W 7"]:
    """Return sums by window of 1, x, y, x x, y y, x y and (x - y)^2.

    x is the truth and y the prediction, both minus `centre`.
    """
    # All metrics but ranks follow from these sums, so a resample is a product of matrices.
    x, y = (value.astype(np.float64) - centre for value in pair)
    error = np.square(x - y)
    parts = (np.ones_like(x), x, y, x * x, y * y, x * y, error)
    sums = [np.bincount(window, part, count) for part in parts]
    return np.stack(sums, 1)


def _errors(sums: _Sums, mean: Float[ndarray, " K"]) -> Float[ndarray, "3 R"]:
    """Return the squared errors, those of the training means, and the number of pairs."""
    n, x, _, xx, _, _, error = np.moveaxis(sums, -1, 0)
    # Of (x - mean)^2, from the sums of its terms.
    of_mean = xx - 2 * mean * x + mean**2 * n
    return np.stack([error.sum(1), of_mean.sum(1), n.sum(1)])


def _correlations(
    sums: _Sums, pairs: Sequence[Pair], *, overall: bool
) -> dict[str, _PerDraw]:
    """Return means over columns of r, Spearman's correlation and R2, and those of all pairs."""
    result = _columns(sums, [is_flat(guess) for _, guess in pairs])
    ranks = [spearman(*pair) for pair in pairs]
    result["spearman"] = np.array([np.mean(ranks)])
    if overall:
        # All pairs as those of one column.
        guesses = np.concatenate([guess for _, guess in pairs])
        whole = _columns(sums.sum(1, keepdims=True), [is_flat(guesses)])
        for key, values in whole.items():
            result[f"{key}_overall"] = values
    return result


def _columns(sums: _Sums, flat: Sequence[bool]) -> dict[str, _PerDraw]:
    """Return means of r and R2 over columns whose truth varies; r of a flat prediction is 0."""
    n, x, y, xx, yy, xy, error = np.moveaxis(sums, -1, 0)
    with np.errstate(divide="ignore", invalid="ignore"):
        # n times the variances and the covariance.
        of_x = xx - x * x / n
        of_y = yy - y * y / n
        both = xy - x * y / n
        # Sums of equal numbers differ by rounding.
        rounding = np.square(FLAT)
        varied = of_x > rounding * xx
        constant = (of_y <= rounding * yy) | flat

        scale = np.sqrt(of_x * np.where(constant, 1.0, of_y))
        r = np.where(constant, 0.0, both / scale)
        r2 = 1 - error / of_x

        means = {}
        for key, values in (("pearson", r), ("r2", r2)):
            value_sum = np.where(varied, values, 0).sum(1)
            means[key] = value_sum / varied.sum(1)
        return means
