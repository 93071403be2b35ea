"""Errors and correlations of predictions, by column and over all columns of a group.

All are computed from all pairs together. Letters: n pairs, K columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Shaped

__all__ = [
    "BINARY",
    "FLAT",
    "Pair",
    "group_metrics",
    "is_binary",
    "pearson",
    "r2",
    "rank_metrics",
    "spearman",
    "squared_error",
    "varies",
]

Pair = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]
"""Truth and prediction of a column."""

BINARY = 1e-3
"""Distance from 0 or 1 up to which numbers count as closed or open."""

FLAT = 1e-6
"""Range, as a share of the largest value, up to which predictions count as constant: the resolution of float32."""

PRECISION = 2.0**14
"""Numbers of different columns whose relative difference is below its inverse have the same rank."""


def varies(truth: Shaped[np.ndarray, " n"]) -> bool:
    """Whether there are two different values."""
    return bool(truth.size and truth.min() < truth.max())


def is_binary(truth: Shaped[np.ndarray, " n"]) -> bool:
    """Whether every value is 0 or 1, up to the rounding of standardised numbers."""
    return bool((np.abs(truth - truth.round().clip(0, 1)) <= BINARY).all())


def squared_error(pairs: Sequence[Pair]) -> float | None:
    """Return the mean squared error over all pairs; None without pairs."""
    count = sum(truth.size for truth, _ in pairs)
    errors = (np.square(guess.astype(np.float64) - truth).sum() for truth, guess in pairs)
    return float(sum(errors)) / count if count else None


def pearson(truth: Float[np.ndarray, " n"], guess: Float[np.ndarray, " n"]) -> float:
    """Return Pearson's r for a truth that varies; 0 for a constant prediction, NaN for one that is not finite."""
    from scipy.stats import pearsonr

    constant = _constant(guess)
    return (
        float(pearsonr(truth.astype(np.float64), guess.astype(np.float64)).statistic) if constant is None else constant
    )


def spearman(truth: Float[np.ndarray, " n"], guess: Float[np.ndarray, " n"]) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; otherwise as `pearson`."""
    from scipy.stats import rankdata

    constant = _constant(guess)
    return pearson(rankdata(truth), rankdata(guess)) if constant is None else constant


def _constant(guess: Float[np.ndarray, " n"]) -> float | None:
    """Return the correlation of predictions that are not finite (NaN) or constant (0); None for all others."""
    if not np.isfinite(guess).all():
        return float("nan")
    return 0.0 if np.ptp(guess) <= FLAT * np.abs(guess).max() else None


def r2(truth: Float[np.ndarray, " n"], guess: Float[np.ndarray, " n"]) -> float:
    """Return the coefficient of determination; the truth must vary. NaN for a prediction that is not finite."""
    from sklearn.metrics import r2_score

    if not np.isfinite(guess).all():
        return float("nan")
    return float(r2_score(truth.astype(np.float64), guess.astype(np.float64)))


def group_metrics(name: str, pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the metrics of a group of columns, over the columns whose truth varies.

    `NAME_mse` is over all pairs. `NAME_pearson`, `NAME_spearman` and `NAME_r2` are means over columns; with the suffix
    `_overall` they are computed over the pairs of all columns together, where predicting the mean of each column
    already scores well. A group of one column has no `_overall`. If no truth varies there is only the error.
    """
    varying = [pair for pair in pairs if varies(pair[0])]
    error = squared_error(varying or pairs)
    if error is None:
        return {}
    metrics = {f"{name}_mse": error}
    if not varying:
        return metrics
    functions = {"pearson": pearson, "spearman": spearman, "r2": r2}
    metrics |= {f"{name}_{key}": float(np.mean([f(*pair) for pair in varying])) for key, f in functions.items()}
    if len(pairs) > 1:
        truth, guess = (np.concatenate(side) for side in zip(*varying, strict=True))
        metrics |= {f"{name}_{key}_overall": f(truth, guess) for key, f in functions.items() if key != "spearman"}
        # Columns are standardised separately, and each rounds the same number differently.
        metrics[f"{name}_spearman_overall"] = spearman(_rounded(truth), guess)
    return metrics


def _rounded(truth: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Round away what inverting the standardisation adds; bytes and float16 stay distinct."""
    share, power = np.frexp(truth)
    rounded: Float[np.ndarray, " n"] = np.ldexp(np.round(share * PRECISION) / PRECISION, power)
    return rounded


def rank_metrics(truth: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> dict[str, float]:
    """Return the areas under the ROC and precision-recall curves of a score that ranks open regions first.

    Empty if all regions are open or all closed, or if a score is not finite.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    if truth.all() or not truth.any() or not np.isfinite(score).all():
        return {}
    return {
        "accessibility_auc": float(roc_auc_score(truth, score)),
        "accessibility_auprc": float(average_precision_score(truth, score)),
    }
