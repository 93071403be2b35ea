"""Which samples make up the batch of a step, and reading them ahead of time."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import numpy as np

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.protocols import BucketedTask, Task
from dither.registry.flow.records import Clean

from ..config.options import Train

__all__ = ["BATCHES_PER_WORKER", "BucketOrder", "Prefetcher", "SampleOrder", "make_order"]


class SampleOrder:
    """Order of `size` training samples: one permutation per epoch, a function of the seed alone."""

    def __init__(self, size: int, seed: int) -> None:
        self.size, self.seed = size, seed

    def rows(self, start: int, count: int) -> list[int]:
        """Return the numbers of the next `count` samples after `start` samples; a batch may cross epochs."""
        rows: list[int] = []
        while len(rows) < count:
            epoch, offset = divmod(start + len(rows), self.size)
            rows += _permutation(self.size, self.seed, epoch)[offset : offset + count - len(rows)].tolist()
        return rows


@lru_cache(maxsize=2)
def _permutation(size: int, seed: int, epoch: int) -> np.ndarray:
    return np.random.default_rng([seed, epoch]).permutation(size)


class BucketOrder:
    """Order in which most batches hold samples of one bucket, such as equal padding; a function of the seed alone.

    Each epoch shuffles the samples, cuts those of a bucket into batches, cuts the remainders of all buckets into mixed
    batches, and shuffles the batches. Samples that do not fill the last batch are dropped for this epoch.

    Args:
        buckets: Bucket of each sample, at least `size` of them.
        size: Batch size.
        seed: Of the run.
    """

    def __init__(self, buckets: Sequence[int], size: int, seed: int) -> None:
        self.buckets, self.size, self.seed = np.asarray(buckets), size, seed
        self._epoch = lru_cache(maxsize=2)(self._batches)

    def rows(self, start: int, count: int) -> list[int]:
        """Return the numbers of the samples in the batch after `start` samples, a multiple of the batch size."""
        epoch, batch = divmod(start // count, len(self.buckets) // self.size)
        rows: list[int] = self._epoch(epoch)[batch].tolist()
        return rows

    def _batches(self, epoch: int) -> np.ndarray:
        """Return the batches of an epoch, `batches size`."""
        generator = np.random.default_rng([self.seed, epoch])
        shuffled = generator.permutation(len(self.buckets))
        pure, remainders = [], []
        for bucket in np.unique(self.buckets):
            rows = shuffled[self.buckets[shuffled] == bucket]
            full = len(rows) // self.size * self.size
            pure.append(rows[:full])
            remainders.append(rows[full:])
        mixed = generator.permutation(np.concatenate(remainders))
        batches = np.concatenate([*pure, mixed[: len(mixed) // self.size * self.size]]).reshape(-1, self.size)
        return batches[generator.permutation(len(batches))]


def make_order(task: Task, train: Train, seed: int) -> SampleOrder | BucketOrder:
    """Return the order of the training samples.

    Raises:
        Refused: The task has no buckets, or fewer samples than a batch.
    """
    size, place = task.size("train"), ("train", "buckets")
    if not train.buckets:
        return SampleOrder(size, seed)
    if not isinstance(task, BucketedTask):
        raise Refused(Problem("the task defines no buckets of equal padding", place, code="misfit"))
    if size < train.batch_size:
        message = f"{size} training samples do not fill a batch of {train.batch_size}"
        raise Refused(Problem(message, place, code="no-samples"))
    return BucketOrder(task.buckets("train"), train.batch_size, seed)


BATCHES_PER_WORKER = 2
"""Prefetched batches for each of `train.workers`."""


class Prefetcher:
    """Reads the batch of a step, and those of the next steps in threads.

    Reading is numpy and torch working on files and memory, which release the GIL, so threads are as fast as processes
    and copy neither the data nor the batches.

    Args:
        read: Reads the batch of a step.
        workers: Threads; 0 reads each batch on request.
    """

    def __init__(self, read: Callable[[int], Clean], workers: int) -> None:
        self._read, self._capacity = read, BATCHES_PER_WORKER * workers
        self._threads = ThreadPoolExecutor(workers, "dither-reader") if workers else None
        self._pending: dict[int, Future[Clean]] = {}

    def __call__(self, step: int, last: int) -> Clean:
        """Return the batch of a step; steps from `last` on are not read."""
        if self._threads is None or (self._pending and step < min(self._pending)):  # read again to diagnose it
            return self._read(step)
        for passed in [other for other in self._pending if other < step]:
            self._pending.pop(passed).cancel()
        for coming in range(step, max(min(step + 1 + self._capacity, last), step + 1)):
            if coming not in self._pending:
                self._pending[coming] = self._threads.submit(self._read, coming)
        return self._pending.pop(step).result()
