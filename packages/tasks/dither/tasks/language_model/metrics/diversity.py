"""Diversity of text samples.

Letters: N samples, L length.
"""

from __future__ import annotations

from math import log

import numpy as np
from jaxtyping import Bool, Integer

from .baselines import entropy

__all__ = ["LOOP", "distinct", "diversity_metrics", "repetition"]

LOOP = 8
"""Length of the n-grams whose repetition is counted."""


def diversity_metrics(samples: Integer[np.ndarray, "N L"], valid: Bool[np.ndarray, "N L"]) -> dict[str, float]:
    """Return diversity metrics: means over samples, each measured on its own.

    `sample_unigram_bits` is the entropy of the ids of a sample in bits; `distinct_1` to `distinct_3` are the distinct
    n-grams as a share of all, and `repetition` is the share of 8-grams that occurred before in the same sample.
    Repetitive text is low in all but the last; compare with real text of the same length. `unique` is the share of
    distinct samples.
    """
    rows = [row[keep] for row, keep in zip(samples, valid, strict=True)]
    return {
        "sample_unigram_bits": _mean([entropy(np.unique(row, return_counts=True)[1]) / log(2) for row in rows]),
        **{f"distinct_{n}": _mean([distinct(row, n) for row in rows]) for n in (1, 2, 3)},
        "repetition": _mean([repetition(row) for row in rows]),
        "unique": len({row.tobytes() for row in rows}) / len(rows) if rows else float("nan"),
    }


def distinct(ids: Integer[np.ndarray, " L"], n: int) -> float:
    """Return the number of distinct n-grams divided by the number of n-grams; 1 if there is no n-gram."""
    if len(ids) < n:
        return 1.0
    grams = np.lib.stride_tricks.sliding_window_view(ids, n)
    return len(np.unique(grams, axis=0)) / len(grams)


def repetition(ids: Integer[np.ndarray, " L"]) -> float:
    """Return the share of n-grams of `LOOP` ids that occurred before in the same sample."""
    return 1.0 - distinct(ids, LOOP)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
