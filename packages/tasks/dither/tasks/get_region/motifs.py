"""Binding motifs: counts -> integer log-odds -> the score at which a sequence is a hit.

A motif of W columns scores a W-mer by the sum of one number per base. Scores are integers, in hundredths of a bit: sums
are then exact in any order and on any machine, and so is their distribution over random sequences, from which the
threshold follows. Letters: W columns of a motif, 4 bases (A, C, G, T).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Float, Integer

__all__ = ["BASES", "UNITS_PER_BIT", "Motif", "log_odds", "score_distribution", "threshold"]

BASES = "ACGT"
"""Order of the bases in every matrix and sequence."""
UNITS_PER_BIT = 100
"""Integer scores per bit."""


@dataclass(frozen=True)
class Motif:
    """A motif ready to be scanned for.

    Attributes:
        name: What it is called, such as "GATA1".
        scores: Integer log-odds, one row per column of the motif and one entry per base. `W 4`.
        threshold: A W-mer that scores this much or more is a hit.
    """

    name: str
    scores: Integer[np.ndarray, "W 4"]
    threshold: int

    @classmethod
    def of(cls, name: str, counts: Float[np.ndarray, "W 4"], p_value: float = 1e-4) -> Motif:
        """Make a motif from base counts `W 4` and the chance of a hit in a random W-mer."""
        scores = log_odds(counts)
        return cls(name, scores, threshold(scores, p_value))


def log_odds(counts: Float[np.ndarray, "W 4"], pseudocount: float = 1.0) -> Integer[np.ndarray, "W 4"]:
    """Return log2 of the odds of each base against chance (1/4), in units of 1/100 bit, rounded.

    Args:
        counts: How often each base was seen at each column. `W 4`.
        pseudocount: Added to each column, shared by its four bases.

    Raises:
        ValueError: If the counts are no `W 4` table of numbers that are at least 0, with something in each column.
    """
    table = np.asarray(counts, dtype=np.float64)
    if table.ndim != 2 or table.shape[1] != 4 or len(table) == 0:
        raise ValueError(f"a motif is a table of W columns by 4 bases, got the shape {table.shape}")
    if not (np.isfinite(table).all() and (table >= 0).all() and (table.sum(1) > 0).all()):
        raise ValueError("the counts of a motif are finite and at least 0, and no column of it is empty")
    share = (table + pseudocount / 4) / (table.sum(1, keepdims=True) + pseudocount)
    scores: Integer[np.ndarray, "W 4"] = np.rint(UNITS_PER_BIT * np.log2(share * 4)).astype(np.int64)
    return scores


def score_distribution(scores: Integer[np.ndarray, "W 4"]) -> tuple[int, Float[np.ndarray, " n"]]:
    """Return how the score of a random W-mer is distributed: the lowest score, and the chance of it and each one above.

    Bases are independent and equally likely. The sum over columns is a convolution, done column by column.
    """
    chance = np.ones(1)
    for column in scores - scores.min(1, keepdims=True):
        longer = np.zeros(len(chance) + int(column.max()))
        for step in column:
            longer[step : step + len(chance)] += chance / 4
        chance = longer
    return int(scores.min(1).sum()), chance


def threshold(scores: Integer[np.ndarray, "W 4"], p_value: float = 1e-4, floor: int = UNITS_PER_BIT // 2) -> int:
    """Return the lowest score that a random W-mer reaches with a chance of at most `p_value`.

    A motif too short for that (the best of 4^6 words is already more likely than 1e-4) takes its best word. A motif
    that hardly prefers any base would have a threshold near or below 0, and its "hits" would count against it; `floor`
    (half a bit) stops that.
    """
    lowest, chance = score_distribution(scores)
    reached = np.cumsum(chance[::-1])[::-1]  # chance of this score or more
    rare = np.flatnonzero(reached <= p_value * (1 + 1e-9))  # the slack is for the rounding of the sum
    best = int(scores.max(1).sum())
    return max(min(lowest + int(rare[0]) if len(rare) else best, best), floor)
