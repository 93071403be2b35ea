"""A Markov chain of fixed order for each cell type: the baseline of likelihoods and of samples.

Letters: N sequences, L bases, C cell types.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Float, Int64, UInt8

__all__ = ["Markov", "kmer_codes"]

WEIGHT = 4.0
"""Observations that the distribution of the next lower order counts for."""


def kmer_codes(bases: UInt8[np.ndarray, "N L"], k: int) -> Int64[np.ndarray, "N n"]:
    """Return the k-mers of each sequence as numbers in base 4, the first base most significant."""
    codes = np.zeros((len(bases), max(bases.shape[1] - k + 1, 0)), np.int64)
    for place in range(k):
        codes = 4 * codes + bases[:, place : place + codes.shape[1]]
    return codes


class Markov:
    """Chain in which a base depends on the `order` bases before it and on the cell type; fitted to `bases`.

    The first bases depend on those there are. Each context's counts are smoothed with the distribution of the context
    that is one base shorter, which counts for 4 observations.
    """

    def __init__(
        self, bases: UInt8[np.ndarray, "N L"], labels: Int64[np.ndarray, " N"], cells: int, order: int = 5
    ) -> None:
        shorter = np.full((cells, 1, 4), 0.25)
        self.tables: list[Float[np.ndarray, "C _ 4"]] = []
        for known in range(order + 1):
            codes = kmer_codes(bases, known + 1) + labels[:, None] * 4 ** (known + 1)
            counts = np.bincount(codes.ravel(), minlength=cells * 4 ** (known + 1)).reshape(cells, -1, 4)
            lower = np.tile(shorter, (1, 4 if known else 1, 1))
            shorter = (counts + WEIGHT * lower) / (counts.sum(2, keepdims=True) + WEIGHT)
            self.tables.append(shorter)

    def nats(self, bases: UInt8[np.ndarray, "N L"], labels: Int64[np.ndarray, " N"]) -> Float[np.ndarray, " N"]:
        """Return -log p of each sequence given its cell type."""
        total = np.zeros(len(bases))
        for place, base in enumerate(bases.T):
            total -= np.log(self._next(bases, labels, place)[np.arange(len(bases)), base])
        return total

    def draw(self, labels: Int64[np.ndarray, " N"], length: int, seed: int) -> UInt8[np.ndarray, "N L"]:
        """Draw one sequence for each label."""
        rng, bases = np.random.default_rng(seed), np.zeros((len(labels), length), np.uint8)
        for place in range(length):
            below = self._next(bases, labels, place).cumsum(1)[:, :3]
            bases[:, place] = (rng.random((len(labels), 1)) >= below).sum(1)
        return bases

    def _next(
        self, bases: UInt8[np.ndarray, "N L"], labels: Int64[np.ndarray, " N"], place: int
    ) -> Float[np.ndarray, "N 4"]:
        known = min(place, len(self.tables) - 1)
        rows: Float[np.ndarray, "N 4"] = self.tables[known][
            labels, kmer_codes(bases[:, place - known : place], known)[:, 0]
        ]
        return rows
