"""Predictions of target elements by column, and their correlations.

Letters: B batch, L length, M columns, n pairs, W windows.
"""

from __future__ import annotations

import numpy as np
from jaxtyping import Bool, Float, Int, Integer, Shaped
from numpy import ndarray

from dither.registry.contracts.records import Clean

__all__ = [
    "FLAT",
    "Pair",
    "Predictions",
    "is_binary",
    "is_flat",
    "pearson",
    "spearman",
    "varies",
    "windows_of",
]

_Vector = Float[ndarray, " n"]
Windows = Integer[ndarray, "B 2"]

Pair = tuple[_Vector, _Vector]
"""Truth and prediction of a column."""

BINARY = 1e-3
"""Distance from 0 or 1 up to which numbers count as closed or open."""

FLAT = 1e-6
"""Range, as a share of the largest value, up to which predictions count as constant: the resolution
of float32."""


def varies(truth: Shaped[ndarray, " n"]) -> bool:
    """Whether there are two different values."""
    return bool(truth.size and truth.min() < truth.max())


def is_binary(truth: Shaped[ndarray, " n"]) -> bool:
    """Whether every value is 0 or 1, up to the rounding of standardised numbers."""
    return bool((np.abs(truth - truth.round().clip(0, 1)) <= BINARY).all())


def is_flat(guess: _Vector) -> bool:
    """Whether predictions are constant, up to rounding."""
    return bool(
        np.isfinite(guess).all() and np.ptp(guess) <= FLAT * np.abs(guess).max()
    )


def pearson(truth: _Vector, guess: _Vector) -> float:
    """Return Pearson's r of a truth that varies; 0 for a flat prediction, NaN if not finite."""
    if not np.isfinite(guess).all():
        return float("nan")
    if is_flat(guess):
        return 0.0
    return float(np.corrcoef(truth, guess, dtype=np.float64)[0, 1])


def spearman(truth: _Vector, guess: _Vector) -> float:
    """Return Spearman's rank correlation, ties at their mean rank; otherwise as `pearson`."""
    from scipy.stats import rankdata

    # Ranks of a prediction that is constant up to rounding would vary.
    if is_flat(guess) or not np.isfinite(guess).all():
        return pearson(truth, guess)
    return pearson(rankdata(truth), rankdata(guess))


class Predictions:
    """Pairs of true and predicted numbers, by column; `width` is M."""

    def __init__(self, width: int) -> None:
        self.width = width
        self._parts: list[tuple[Integer[ndarray, "2 n"], Float[ndarray, "2 n"]]] = []
        self._windows: list[Windows | None] = []

    def add(
        self,
        truth: Float[ndarray, "B L M"],
        guess: Float[ndarray, "B L M"],
        counted: Bool[ndarray, "B L M"],
        windows: Windows | None = None,
    ) -> None:
        """Add the counted elements, and their windows if known."""
        # 16 bytes an element: a split of 100 million is in memory until its metrics are computed.
        window, _, column = np.nonzero(counted)
        places = np.stack([column, window]).astype(np.int32)
        numbers = np.stack([truth[counted], guess[counted]]).astype(np.float32)
        self._parts.append((places, numbers))
        self._windows.append(windows)

    def merge(self, other: Predictions) -> None:
        self._parts += other._parts
        self._windows += other._windows

    def pairs(self) -> list[Pair]:
        """Return the pairs of each column."""
        numbers = [np.zeros((2, 0), np.float32)]
        numbers += [part for _, part in self._parts]
        by_column = self._by_column(np.concatenate(numbers, 1))
        return [(truth, guess) for truth, guess in by_column]

    def windows(self) -> tuple[int, list[Int[ndarray, " n"]]] | None:
        """Return the number of windows, and by column the window of each pair; None if unknown.

        Windows are numbered by place, so that the numbers do not depend on the batches.
        """
        known = [windows for windows in self._windows if windows is not None]
        if not known or len(known) < len(self._windows):
            return None
        names, number = np.unique(np.concatenate(known), axis=0, return_inverse=True)
        ends = np.cumsum([len(windows) for windows in known])
        batches = np.split(number.ravel(), ends[:-1])
        window = []
        for numbers, (place, _) in zip(batches, self._parts, strict=True):
            window.append(numbers[place[1]])
        return len(names), self._by_column(np.concatenate(window))

    def _by_column(
        self, values: Shaped[ndarray, "... n"]
    ) -> list[Shaped[ndarray, "... _"]]:
        columns = [np.zeros(0, np.int32)]
        columns += [place[0] for place, _ in self._parts]
        column = np.concatenate(columns)
        ends = np.bincount(column, minlength=self.width).cumsum()[:-1]
        # Stable: truth, prediction and window of a pair stay at the same index.
        order = np.argsort(column, kind="stable")
        return np.split(values[..., order], ends, axis=-1)


def windows_of(clean: Clean) -> Windows | None:
    """Return chromosome and first place of each window; None if the batch has no such conditions.

    The same regions in another cell type are the same window: their motifs are equal.
    """
    if not {"chromosome", "centre"} <= clean.cond.keys():
        return None
    chromosome = clean.cond["chromosome"].cpu().numpy()
    first = clean.cond["centre"][:, 0].cpu().numpy()
    return np.stack([chromosome, first], 1).astype(np.int64)
