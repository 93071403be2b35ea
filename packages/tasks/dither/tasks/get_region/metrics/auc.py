"""AUC: areas under the ROC and the precision-recall curve, under weights of windows.

Letters: R resamples, W windows, n elements, T distinct scores.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int
from numpy import ndarray

__all__ = ["areas_under_curves"]

MAX_NUMBERS = 2**22
"""Largest number of values in memory."""


def areas_under_curves(
    label: Bool[ndarray, " n"],
    score: Float[ndarray, " n"],
    window: Int[ndarray, " n"],
    weights: Float[ndarray, "R W"],
) -> dict[str, Float[ndarray, " R"]]:
    """Return `auc` and `auprc` in each resample, with ties as in scikit-learn.

    Empty unless both labels occur and scores are finite.
    """
    if label.all() or not label.any() or not np.isfinite(score).all():
        return {}
    # From the highest score down, elements of one score are one step of the curves.
    order = np.argsort(-score, kind="stable")
    starts = np.flatnonzero(np.r_[True, np.diff(score[order]) != 0])
    window = window[order]
    label = label[order]
    roc = []
    precision = []
    blocks = -(-len(weights) * len(score) // MAX_NUMBERS)
    for block in np.array_split(weights, blocks):
        of_elements = block[:, window]
        both = np.add.reduceat(of_elements, starts, 1)
        positives = np.add.reduceat(of_elements * label, starts, 1)
        negatives = both - positives
        true = positives.cumsum(1)
        false = negatives.cumsum(1)
        # A resample may have no positives, or no negatives.
        with np.errstate(divide="ignore", invalid="ignore"):
            # Pairs of a positive ranked above a negative, and half of those with equal scores.
            area = (negatives * (true - positives / 2)).sum(1)
            roc.append(area / (true[:, -1] * false[:, -1]))
            # Steps of windows that a resample left out have no precision.
            steps = positives * true / (true + false)
            precision.append(np.nansum(steps, 1) / true[:, -1])
    return {"auc": np.concatenate(roc), "auprc": np.concatenate(precision)}
