"""95 % confidence intervals of metrics by the bootstrap over windows (Efron 1979).

Regions of a window are correlated, so whole windows are resampled. Weights are fixed, so equal predictions have equal
intervals. Letters: R resamples, W windows, K columns, n pairs, T distinct scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped

from dither.registry.flow.spaces import Group

from .column_metrics import FLAT, Pair, Predictions, is_binary, varies

__all__ = ["DRAWS", "bootstrap_weights", "confidence_intervals"]

DRAWS = 500
"""Number of resamples."""

MIN_WINDOWS = 8
"""Fewer windows give no interval: they do not show how windows vary."""

MAX_NUMBERS = 2**22
"""Largest number of values in memory at once."""


def confidence_intervals(
    predictions: Predictions, groups: Sequence[Group], names: Sequence[str], mean: Float[np.ndarray, " M"]
) -> dict[str, float]:
    """Return half of a 95 % interval of errors, correlations and areas, by the name of the metric.

    Spearman's correlation has none, since ranks would change with each resample, and nothing has one with fewer than
    `MIN_WINDOWS` windows. The variance of resamples is (W - 1) / W of that of windows, which is corrected. `names` are
    the prefixes of the metrics of each group, `mean` is that of each column over the training regions.
    """
    known = predictions.windows()
    if known is None or known[0] < MIN_WINDOWS:
        return {}
    (count, windows), pairs = known, predictions.pairs()
    weights = bootstrap_weights(count)
    varying = [varies(truth) for truth, _ in pairs]
    totals, values_of = np.zeros((3, DRAWS)), dict[str, Shaped[np.ndarray, " R"]]()
    for group, name in zip(groups, names, strict=True):
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
    correction = np.sqrt(count / (count - 1))
    halves = {name: _half(values) for name, values in values_of.items()}
    return {name: correction * half for name, half in halves.items() if half is not None}


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
