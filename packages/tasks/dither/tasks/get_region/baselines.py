"""Predictors that know nothing of neighbours, to hold a model against.

Letters: P regions, M motifs.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Float32

from dither.registry.parts import Split

from .regions import RegionMatrix, Standard

__all__ = ["accessibility_baselines", "mean_error", "rank_figures"]


def rank_figures(truth: Bool[np.ndarray, " n"], score: Float[np.ndarray, " n"]) -> dict[str, float]:
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


def accessibility_baselines(matrix: RegionMatrix, cell: str, split: Split = "valid") -> dict[str, float]:
    """Score two predictors of accessibility on a held-out split.

    `chance` ranks at random: 0.5 of the ROC area, the share of open regions of the other. `logistic` is a logistic
    regression on the motifs of the region itself, fitted on the training chromosomes (0.1 s for 39,254 regions).
    """
    from sklearn.linear_model import LogisticRegression

    label = matrix.labels(cell)
    train, held = matrix.rows("train"), matrix.rows(split)
    truth = label[held]
    if truth.all() or not truth.any():
        return {}
    figures = {"accessibility_auc/chance": 0.5, "accessibility_auprc/chance": float(truth.mean())}
    if label[train].all() or not label[train].any():
        return figures
    standard = Standard.of(matrix.features[train])
    columns = (matrix.features - standard.mean) / standard.std
    fitted = LogisticRegression(C=0.01, max_iter=500).fit(columns[train], label[train])
    ranks = rank_figures(truth, fitted.decision_function(columns[held]))
    return figures | {f"{name}/logistic": value for name, value in ranks.items()}


def mean_error(
    columns: Float32[np.ndarray, "P M"], train: Bool[np.ndarray, " P"], held: Bool[np.ndarray, " P"]
) -> float:
    """Return the mean squared error, on the held-out rows of `P M`, of each column's mean over the training rows."""
    mean = columns[train].mean(0, dtype=np.float64)
    return float(np.square(columns[held] - mean).mean())
