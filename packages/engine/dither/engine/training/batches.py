"""Batches of samples with the same real positions, so that no padding is computed."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.protocols import BucketedTask, Task
from dither.registry.flow.records import Clean

from ..config.options import AHEAD, Train

__all__ = ["BucketOrder", "Prefetcher", "SampleOrder", "make_order"]


class BucketOrder:
    """The order in which samples are taken where a batch holds samples of one bucket: a function of the seed alone.

    In each epoch the samples are shuffled, those of a bucket are cut into batches, what is left over of all buckets
    makes mixed batches, and the batches are shuffled. What does not fill the last batch waits for another epoch.

    Args:
        buckets: The bucket of each sample.
        size: Samples of a batch.
        seed: Of the run.
    """

    def __init__(self, buckets: Sequence[int], size: int, seed: int) -> None:
        self.buckets, self.seed = np.asarray(buckets), seed
        if not 1 <= size <= len(self.buckets):
            raise ValueError(f"{len(self.buckets)} samples do not fill a batch of {size}")
        self.size = size
        self._epoch = lru_cache(maxsize=2)(self._batches)

    def rows(self, start: int, count: int) -> list[int]:
        """Return the numbers of the samples in the batch after `start` samples, which is a number of whole batches."""
        if count != self.size or start % count:
            raise ValueError(f"batches of {self.size} are taken one by one, not {count} samples after {start}")
        epoch, batch = divmod(start // count, len(self.buckets) // self.size)
        rows: list[int] = self._epoch(epoch)[batch].tolist()
        return rows

    def _batches(self, epoch: int) -> np.ndarray:
        """Return the batches of an epoch, `batches size`."""
        generator = np.random.default_rng([self.seed, epoch])
        shuffled = generator.permutation(len(self.buckets))
        pure, rest = [], []
        for bucket in np.unique(self.buckets):
            own = shuffled[self.buckets[shuffled] == bucket]
            full = len(own) // self.size * self.size
            pure.append(own[:full])
            rest.append(own[full:])
        mixed = generator.permutation(np.concatenate(rest))
        batches = np.concatenate([*pure, mixed[: len(mixed) // self.size * self.size]]).reshape(-1, self.size)
        return batches[generator.permutation(len(batches))]


class Prefetcher:
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


class SampleOrder:
    """The order in which samples are taken: one permutation after another, and a function of the seed alone.

    Args:
        size: Number of samples.
        seed: Of the run.
    """

    def __init__(self, size: int, seed: int) -> None:
        if size < 1:
            raise ValueError(f"there must be at least one sample, not {size}")
        self.size, self.seed = size, seed

    def rows(self, start: int, count: int) -> list[int]:
        """Return the numbers of `count` samples, after `start` samples have been taken; a batch may cross epochs."""
        rows: list[int] = []
        while len(rows) < count:
            epoch, place = divmod(start + len(rows), self.size)
            rows += _permutation(self.size, self.seed, epoch)[place : place + count - len(rows)].tolist()
        return rows


@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)


def make_order(task: Task, train: Train, seed: int) -> SampleOrder | BucketOrder:
    """Return the order in which the samples of a task are taken.

    Raises:
        Refused: Buckets are asked for of a task that has none, or of fewer samples than a batch takes.
    """
    size = task.size("train")
    if not train.buckets:
        return SampleOrder(size, seed)
    if not isinstance(task, BucketedTask):
        raise Refused(Problem("the task does not say which samples have the same padding", ("train", "buckets")))
    if size < train.batch_size:
        message = f"{size} training samples do not fill a batch of {train.batch_size}"
        raise Refused(Problem(message, ("train", "buckets")))
    return BucketOrder(task.buckets("train"), train.batch_size, seed)
