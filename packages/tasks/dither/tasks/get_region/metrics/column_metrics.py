"""Figures of agreement between true and guessed numbers, by column and over all columns of a group.

Every figure is that of all pairs at once, as scipy and scikit-learn have it. Letters: n pairs, K columns.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from jaxtyping import Bool, Float, Shaped

__all__ = [
    "BINARY",
    "FLAT",
    "Pair",
    "binary",
    "group_metrics",
    "pearson",
    "r2",
    "rank_metrics",
    "spearman",
    "squared_error",
    "varies",
]

Pair = tuple[Float[np.ndarray, " n"], Float[np.ndarray, " n"]]
"""What is true of a column, and what was guessed."""

BINARY = 1e-3
"""Numbers so close to 0 or 1 are open or closed."""

FLAT = 1e-6
"""Spread, as a share of the largest value, up to which guesses are one constant: float32 tells them no better apart."""

TOLD = 2.0**14
"""Numbers that differ by a smaller share than its inverse have one rank among those of other columns."""


def varies(truth: Shaped[np.ndarray, " n"]) -> bool:
    """Tell whether there are two different values."""
    return bool(truth.size and truth.min() < truth.max())


def binary(truth: Shaped[np.ndarray, " n"]) -> bool:
    """Tell whether every value is 0 or 1, to the rounding of standardised numbers."""
    return bool((np.abs(truth - truth.round().clip(0, 1)) <= BINARY).all())


def squared_error(pairs: Sequence[Pair]) -> float | None:
    """Return the mean squared error over all pairs; None where there are none."""
    count = sum(truth.size for truth, _ in pairs)
    errors = (np.square(guess.astype(np.float64) - truth).sum() for truth, guess in pairs)
    return float(sum(errors)) / count if count else None


def pearson(truth: Float[np.ndarray, " n"], guess: Float[np.ndarray, " n"]) -> float:
    """Return Pearson's r of a truth that varies; 0 where the guess is constant, nan where it is not finite."""
    x, y = (value.astype(np.float64) for value in (truth, guess))
    if not np.isfinite(y).all():
        return float("nan")
    if np.ptp(y) <= FLAT * np.abs(y).max():
        return 0.0
    x, y = x - x.mean(), y - y.mean()
    return float(x @ y / np.sqrt((x @ x) * (y @ y)))


def spearman(truth: Float[np.ndarray, " n"], guess: Float[np.ndarray, " n"]) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; otherwise as `pearson`."""
    from scipy.stats import rankdata

    if not np.isfinite(guess).all():
        return float("nan")
    if np.ptp(guess) <= FLAT * np.abs(guess).max():
        return 0.0
    return pearson(rankdata(truth), rankdata(guess))


def r2(truth: Float[np.ndarray, " n"], guess: Float[np.ndarray, " n"]) -> float:
    """Return 1 - squared error / squared distance from the mean of the truth, which must vary."""
    x, y = (value.astype(np.float64) for value in (truth, guess))
    return float(1 - np.square(y - x).sum() / np.square(x - x.mean()).sum())


def group_metrics(name: str, pairs: Sequence[Pair]) -> dict[str, float]:
    """Return the figures of a group of columns, of which those count whose truth varies.

    `NAME_mse` is over all pairs. `NAME_pearson`, `NAME_spearman` and `NAME_r2` are means over columns; with the ending
    `_overall` they are taken over all pairs together, where a predictor that knows no more than the mean of each column
    already looks good. A group of one column has no `_overall`. Where no truth varies there is only the error.
    """
    varying = [pair for pair in pairs if varies(pair[0])]
    error = squared_error(varying or pairs)
    if error is None:
        return {}
    figures = {f"{name}_mse": error}
    if not varying:
        return figures
    of = {"pearson": pearson, "spearman": spearman, "r2": r2}
    figures |= {f"{name}_{key}": float(np.mean([figure(*pair) for pair in varying])) for key, figure in of.items()}
    if len(pairs) > 1:
        truth, guess = (np.concatenate(side) for side in zip(*varying, strict=True))
        figures |= {f"{name}_{key}_overall": figure(truth, guess) for key, figure in of.items() if key != "spearman"}
        # Columns are standardised apart, and each rounds the same number in its own way.
        figures[f"{name}_spearman_overall"] = spearman(_told(truth), guess)
    return figures


def _told(truth: Float[np.ndarray, " n"]) -> Float[np.ndarray, " n"]:
    """Return numbers without what undone standardising makes of them; bytes and float16 can be told apart still."""
    share, power = np.frexp(truth)
    told: Float[np.ndarray, " n"] = np.ldexp(np.round(share * TOLD) / TOLD, power)
    return told


def rank_metrics(truth: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> dict[str, float]:
    """Return how well a score ranks open regions before closed ones: area under the ROC and precision-recall curves.

    Empty where all regions are open or all closed, or where a score is not finite: no area is defined then.
    """
    from sklearn.metrics import average_precision_score, roc_auc_score

    if truth.all() or not truth.any() or not np.isfinite(score).all():
        return {}
    return {
        "accessibility_auc": float(roc_auc_score(truth, score)),
        "accessibility_auprc": float(average_precision_score(truth, score)),
    }
