"""What was asked and what was answered, column by column, with the windows that each pair comes from.

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
    """What one batch answered: the pairs of a column stand together, and among them those of a window."""

    counts: Int[np.ndarray, "M B"]
    truth: Float[np.ndarray, " n"]
    guess: Float[np.ndarray, " n"]
    windows: Integer[np.ndarray, "B 2"] | None


class Predictions:
    """Pairs of true and guessed numbers, column by column.

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
        """Take in the elements that are counted, and which windows they are of, where that is known."""
        rows = counted.reshape(-1, self.width).T
        said, found = (value.reshape(-1, self.width).T[rows].astype(np.float32) for value in (truth, guess))
        self._parts.append(_Part(counted.sum(1).T, said, found, windows))

    def merge(self, other: Predictions) -> None:
        """Take in what another took in."""
        self._parts += other._parts

    def pairs(self) -> list[Pair]:
        """Return what was taken in, per column."""
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
        """Return the number of windows, and per column the window of each pair; None where that is not known.

        They are numbered by where they lie, so that no number hangs on how they were cut into batches.
        """
        known = [part.windows for part in self._parts if part.windows is not None]
        if not known or len(known) < len(self._parts):
            return None
        names, number = np.unique(np.concatenate(known), axis=0, return_inverse=True)
        each = np.split(number.ravel(), np.cumsum([len(windows) for windows in known])[:-1])
        found = [
            np.concatenate([np.repeat(own, part.counts[column]) for own, part in zip(each, self._parts, strict=True)])
            for column in range(self.width)
        ]
        return len(names), found


def windows_of(clean: Clean) -> Integer[np.ndarray, "B 2"] | None:
    """Return chromosome and first place of each window; None where a batch does not tell.

    The same regions in another cell type are the same window: their motifs are the same numbers.
    """
    if not {"chromosome", "centre"} <= clean.cond.keys():
        return None
    places = clean.cond["chromosome"], clean.cond["centre"][:, 0]
    return np.stack([place.cpu().numpy() for place in places], 1).astype(np.int64)
