"""Which questions of an evaluation baselines are asked again: those of windows that stand evenly among all of them."""

from __future__ import annotations

import numpy as np
from jaxtyping import Integer

from .baselines import Question

__all__ = ["Kept"]


class Kept:
    """Questions of every window, or of every second, fourth, eighth one, so that they hold no more regions than asked.

    The first ones alone would be those of the first chromosomes and cell types.

    Args:
        most: Regions that are held, at most; a single window stays however large.
    """

    def __init__(self, most: int) -> None:
        self.most = most
        self._every, self._seen = 1, 0
        self._parts: list[tuple[Integer[np.ndarray, " B"], Question]] = []

    @property
    def questions(self) -> list[Question]:
        """What is held, in the order in which it came."""
        return [question for _, question in self._parts]

    def add(self, question: Question) -> None:
        """Take in what was asked in a batch."""
        count = len(question.truth)
        self._take(self._seen + np.arange(count), question)
        self._seen += count
        self._thin()

    def merge(self, other: Kept) -> None:
        """Take in what another rank holds."""
        self._seen += other._seen
        self._parts += other._parts
        self._every = max(self._every, other._every)
        self._take_again()
        self._thin()

    def _take(self, numbers: Integer[np.ndarray, " B"], question: Question) -> None:
        rows = numbers % self._every == 0
        if rows.any():
            self._parts.append((numbers[rows], question.of_windows(rows)))

    def _thin(self) -> None:
        """Leave every second window out, as often as it takes."""
        while self._regions() > self.most and self._every < self._seen:
            self._every *= 2
            self._take_again()

    def _take_again(self) -> None:
        parts, self._parts = self._parts, []
        for part in parts:
            self._take(*part)

    def _regions(self) -> int:
        return sum(question.truth.shape[0] * question.truth.shape[1] for question in self.questions)
