"""How sure figures are: 95 % intervals from drawing the windows of an evaluation again (the bootstrap; Efron 1979).

Regions of a window are alike, and one model sees them together, so whole windows are drawn. Each draw weighs every
window by how often it came; the draws are the same ones each time, so the same answers have the same interval. What a
window adds to errors and correlations are six sums for each column, so that a draw costs next to nothing.

Letters: R draws, W windows, K columns, n pairs, T different scores.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Float, Int, Shaped

from dither.registry.flow.spaces import Group

from .column_metrics import FLAT, Pair, binary, varies
from .predictions import Predictions

__all__ = ["DRAWS", "intervals", "times_drawn"]

DRAWS = 500
"""How often windows are drawn again."""

FEWEST = 8
"""Windows below which there is no interval: a few windows do not tell how windows differ."""

HELD = 2**22
"""Numbers that are held at once, at most."""


def intervals(
    answers: Predictions, groups: Sequence[Group], names: Sequence[str], mean: Float[np.ndarray, " M"]
) -> dict[str, float]:
    """Return half of a 95 % interval for figures of errors, correlations and areas, by their names.

    There are none for ranks over all pairs (Spearman), which would have to be made anew in each draw, and none over
    fewer than `FEWEST` windows. Draws of W windows vary by (W - 1) / W of what windows do, which is made good.

    Args:
        answers: Everything that was answered.
        groups: Columns that belong together.
        names: What figures of each group are called.
        mean: Mean of each column over the training regions.
    """
    known = answers.windows()
    if known is None or known[0] < FEWEST:
        return {}
    (count, windows), pairs = known, answers.pairs()
    weights = times_drawn(count)
    varying = [varies(truth) for truth, _ in pairs]
    totals, found = np.zeros((3, DRAWS)), dict[str, Shaped[np.ndarray, " R"]]()
    for group, name in zip(groups, names, strict=True):
        inside = range(group.start, group.stop)
        chosen = [k for k in inside if varying[k]] or ([] if any(varying) else [k for k in inside if len(pairs[k][0])])
        if not chosen:
            continue
        centre = float(mean[chosen].mean())
        sums = np.stack([weights @ _sums(pairs[k], windows[k], count, centre) for k in chosen], 1)
        totals += _errors(sums, mean[chosen] - centre)
        found |= {f"{name}_{key}": values for key, values in _agreement(sums, inside).items()}
        if group.name == "accessibility" and binary(pairs[group.start][0]):
            found |= _areas(pairs[group.start], windows[group.start], weights)
    with np.errstate(divide="ignore", invalid="ignore"):
        found |= {"masked_mse": totals[0] / totals[2], "masked_gain": 1 - totals[0] / totals[1]}
    short = np.sqrt(count / (count - 1))
    return {name: short * half for name, values in found.items() if (half := _half(values)) is not None}


def times_drawn(count: int) -> Float[np.ndarray, "R W"]:
    """Return how often each window comes in each draw of as many as there are."""
    times = np.random.default_rng(0).multinomial(count, np.full(count, 1 / count), DRAWS)
    return times.astype(np.float64)


def _half(values: Float[np.ndarray, " R"]) -> float | None:
    """Return half of the range that holds the middle 95 % of the draws in which there is a figure; None without any."""
    finite = values[np.isfinite(values)]
    return float(np.diff(np.quantile(finite, [0.025, 0.975]))[0] / 2) if len(finite) > DRAWS // 2 else None


def _sums(pair: Pair, window: Int[np.ndarray, " n"], count: int, centre: float) -> Float[np.ndarray, "W 6"]:
    """Return what each window adds: pairs, truth x, guess y, x x, y y and x y, of numbers less `centre`."""
    x, y = (value.astype(np.float64) - centre for value in pair)
    return np.stack([np.bincount(window, part, count) for part in (np.ones_like(x), x, y, x * x, y * y, x * y)], 1)


def _errors(sums: Float[np.ndarray, "R K 6"], mean: Float[np.ndarray, " K"]) -> Float[np.ndarray, "3 R"]:
    """Return the squared errors, those of the means, and how many pairs there are."""
    n, x, _, xx, yy, xy = np.moveaxis(sums, -1, 0)
    return np.stack([(xx + yy - 2 * xy).sum(1), (xx - 2 * mean * x + mean**2 * n).sum(1), n.sum(1)])


def _agreement(sums: Float[np.ndarray, "R K 6"], inside: range) -> dict[str, Float[np.ndarray, " R"]]:
    """Return error, Pearson's r and R2 of a group in each draw."""
    errors, _, n = _errors(sums, np.zeros(sums.shape[1]))
    with np.errstate(divide="ignore", invalid="ignore"):
        found = {"mse": errors / n} | {key: _mean(values) for key, values in _columns(sums).items()}
        if len(inside) > 1:
            whole = _columns(sums.sum(1, keepdims=True))
            found |= {f"{key}_overall": values[:, 0] for key, values in whole.items()}
    return found


def _columns(sums: Float[np.ndarray, "R K 6"]) -> dict[str, Float[np.ndarray, "R K"]]:
    """Return r and R2 of each column in each draw: nan where its truth does not vary, r 0 where its guess does not."""
    n, x, y, xx, yy, xy = np.moveaxis(sums, -1, 0)
    of_x, of_y, both = xx - x * x / n, yy - y * y / n, xy - x * y / n
    varied, quiet = of_x > np.square(FLAT) * xx, of_y <= np.square(FLAT) * yy
    r = np.where(quiet, 0.0, both / np.sqrt(of_x * np.where(quiet, 1.0, of_y)))
    found = {"pearson": r, "r2": 1 - (xx + yy - 2 * xy) / of_x}
    return {key: np.where(varied, values, np.nan) for key, values in found.items()}


def _mean(values: Float[np.ndarray, "R K"]) -> Float[np.ndarray, " R"]:
    """Return the mean over the columns of which a draw has a figure."""
    there = np.isfinite(values)
    mean: Float[np.ndarray, " R"] = np.where(there, values, 0).sum(1) / there.sum(1)
    return mean


def _areas(
    pair: Pair, window: Int[np.ndarray, " n"], weights: Float[np.ndarray, "R W"]
) -> dict[str, Float[np.ndarray, " R"]]:
    """Return the areas under both curves in each draw, ties as scikit-learn has them."""
    label, score = pair[0] > 0.5, pair[1]
    if not len(score) or label.all() or not label.any() or not np.isfinite(score).all():
        return {}
    order = np.argsort(-score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0])
    parts = []
    for some in np.array_split(weights, -(-len(weights) * len(score) // HELD)):
        each = some[:, window[order]]
        tops, both = (np.add.reduceat(part, starts, 1) for part in (each * label[order], each))
        parts.append(_area(tops, both - tops))
    roc, precision = (np.concatenate(area) for area in zip(*parts, strict=True))
    return {"accessibility_auc": roc, "accessibility_auprc": precision}


def _area(
    tops: Float[np.ndarray, "R T"], others: Float[np.ndarray, "R T"]
) -> tuple[Float[np.ndarray, " R"], Float[np.ndarray, " R"]]:
    """Return the areas under the ROC and precision-recall curves of open and closed pairs at falling scores."""
    found, false = tops.cumsum(1), others.cumsum(1)
    with np.errstate(divide="ignore", invalid="ignore"):
        roc = (others * (found - tops / 2)).sum(1) / (found[:, -1] * false[:, -1])
        precision = np.nansum(tops * found / (found + false), 1) / found[:, -1]
    return roc, precision
