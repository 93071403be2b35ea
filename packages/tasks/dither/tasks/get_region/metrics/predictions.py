"""Predictions of target elements, by column, with the window that each pair comes from.

Letters: B batch, L length, M columns, n pairs, W windows.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from jaxtyping import Bool, Float, Int, Integer

from dither.registry.flow.records import Clean

from .column_metrics import Pair

__all__ = ["Predictions", "windows_of"]


@dataclass(frozen=True)
class _Part:
    """Predictions of one batch: pairs are sorted by column, and within a column by window."""

    counts: Int[np.ndarray, "M B"]
    truth: Float[np.ndarray, " n"]
    guess: Float[np.ndarray, " n"]
    windows: Integer[np.ndarray, "B 2"] | None


class Predictions:
    """Pairs of true and predicted numbers, by column.

    Args:
        width: M.
    """

    def __init__(self, width: int) -> None:
        self.width = width
        self._parts: list[_Part] = []

    def add(
        self,
        truth: Float[np.ndarray, "B L M"],
        guess: Float[np.ndarray, "B L M"],
        counted: Bool[np.ndarray, "B L M"],
        windows: Integer[np.ndarray, "B 2"] | None = None,
    ) -> None:
        """Add the counted elements, and their windows if known."""
        rows = counted.reshape(-1, self.width).T
        true, guessed = (value.reshape(-1, self.width).T[rows].astype(np.float32) for value in (truth, guess))
        self._parts.append(_Part(counted.sum(1).T, true, guessed, windows))

    def merge(self, other: Predictions) -> None:
        """Add the pairs of another rank."""
        self._parts += other._parts

    def pairs(self) -> list[Pair]:
        """Return all pairs, by column."""
        if not self._parts:
            return [(np.zeros(0, np.float32), np.zeros(0, np.float32))] * self.width
        ends = [part.counts.sum(1).cumsum()[:-1] for part in self._parts]
        sides = [
            [np.split(side, end) for side in (part.truth, part.guess)]
            for part, end in zip(self._parts, ends, strict=True)
        ]
        return [
            (np.concatenate([side[0][column] for side in sides]), np.concatenate([side[1][column] for side in sides]))
            for column in range(self.width)
        ]

    def windows(self) -> tuple[int, list[Int[np.ndarray, " n"]]] | None:
        """Return the number of windows, and by column the window of each pair; None if unknown.

        Windows are numbered by place, so that the numbers do not depend on the batches.
        """
        known = [part.windows for part in self._parts if part.windows is not None]
        if not known or len(known) < len(self._parts):
            return None
        names, number = np.unique(np.concatenate(known), axis=0, return_inverse=True)
        numbers = np.split(number.ravel(), np.cumsum([len(windows) for windows in known])[:-1])
        columns = [
            np.concatenate([np.repeat(own, part.counts[k]) for own, part in zip(numbers, self._parts, strict=True)])
            for k in range(self.width)
        ]
        return len(names), columns


def windows_of(clean: Clean) -> Integer[np.ndarray, "B 2"] | None:
    """Return chromosome and first place of each window; None if the batch has no such conditions.

    The same regions in another cell type are the same window: their motifs are equal.
    """
    if not {"chromosome", "centre"} <= clean.cond.keys():
        return None
    places = clean.cond["chromosome"], clean.cond["centre"][:, 0]
    return np.stack([place.cpu().numpy() for place in places], 1).astype(np.int64)
