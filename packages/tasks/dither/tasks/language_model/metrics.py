"""How well a model predicts text, and what its samples are like.

Letters: B batch, L length, N samples.
"""

from __future__ import annotations

from math import exp, log
from typing import Any

import numpy as np
from jaxtyping import Bool, Integer

from dither.registry.flow import Clean, Measured, Noised

from .baselines import entropy
from .tokenizers import Tokenizer

__all__ = ["TextMetrics", "distinct", "sample_figures"]


class TextMetrics:
    """Nats per token, bits per character and perplexity of a split, exact however it is cut into batches.

    The loss is weighed as it says itself; where it is a NELBO, these are upper bounds of the true figures. Characters
    are those that the predicted ids decode to, so that figures of different tokenizers compare.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer
        self._nats = self._weight = 0.0
        self._tokens = self._characters = 0

    def update(self, clean: Clean, noised: Noised, pred: Any, measured: Measured) -> None:
        """Take in one batch."""
        self._nats += float((measured.values.double() * measured.weights.double()).sum())
        self._weight += float(measured.weights.double().sum())
        ids = clean.x0[~clean.fixed].cpu().numpy()
        self._tokens += len(ids)
        self._characters += self._tokenizer.characters(ids)

    def compute(self) -> dict[str, float]:
        """Return the figures; nan where nothing was predicted."""
        nats = self._nats / self._weight if self._weight else float("nan")
        bits = nats * self._tokens / log(2)
        return {
            "nats_per_token": nats,
            "bits_per_char": bits / self._characters if self._characters else float("nan"),
            "perplexity": exp(nats) if nats < 700 else float("inf"),
        }


def sample_figures(samples: Integer[np.ndarray, "N L"], valid: Bool[np.ndarray, "N L"]) -> dict[str, float]:
    """Return how varied samples are: means over samples, each taken for itself.

    `sample_unigram_bits` is the entropy of the ids of one sample in bits; `distinct_2` and `distinct_3` are the
    different 2-grams and 3-grams as a share of all. A model that repeats itself is low in all three; the figures of
    real text of the same length are printed beside them.
    """
    rows = [row[keep] for row, keep in zip(samples, valid, strict=True)]
    return {
        "sample_unigram_bits": _mean([entropy(np.unique(row, return_counts=True)[1]) / log(2) for row in rows]),
        "distinct_2": _mean([distinct(row, 2) for row in rows]),
        "distinct_3": _mean([distinct(row, 3) for row in rows]),
    }


def distinct(ids: Integer[np.ndarray, " L"], n: int) -> float:
    """Return the number of different n-grams divided by the number of n-grams; 1 where there is no n-gram."""
    if len(ids) < n:
        return 1.0
    grams = np.lib.stride_tricks.sliding_window_view(ids, n)
    return len(np.unique(grams, axis=0)) / len(grams)


def _mean(values: list[float]) -> float:
    return float(np.mean(values)) if values else float("nan")
