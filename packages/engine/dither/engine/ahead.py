"""Batches that are read while steps are computed. A batch hangs on its rows alone, so that it stays the same."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor

from dither.registry.flow import Clean

from .settings import AHEAD

__all__ = ["Ahead"]


class Ahead:
    """Reads the batch of a step, and in threads those of the next ones.

    Reading is numpy and torch at work on files and memory, which leave Python to others meanwhile; so threads do what
    processes would, without a copy of the data and of every batch.

    Args:
        read: Reads rows.
        rows: The rows of a step.
        workers: Threads; with none a batch is read when it is asked for.
    """

    def __init__(
        self, read: Callable[[Sequence[int]], Clean], rows: Callable[[int], Sequence[int]], workers: int
    ) -> None:
        self._read, self._rows = read, rows
        self._most = AHEAD * workers
        self._threads = ThreadPoolExecutor(workers, "dither-reader") if workers else None
        self._waiting: dict[int, Future[Clean]] = {}

    def __call__(self, step: int, last: int) -> Clean:
        """Return the batch of a step; nothing is read for steps from `last` on."""
        if self._threads is None:
            return self._read(self._rows(step))
        if self._waiting and step < min(self._waiting):  # looked at once more, to tell what is wrong in it
            return self._read(self._rows(step))
        for passed in [other for other in self._waiting if other < step]:
            self._waiting.pop(passed).cancel()
        for coming in range(step, max(min(step + 1 + self._most, last), step + 1)):
            if coming not in self._waiting:
                self._waiting[coming] = self._threads.submit(self._read, self._rows(coming))
        return self._waiting.pop(step).result()
