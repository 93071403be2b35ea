"""The order of the training samples, and the batches that are read in it, ahead of the steps that use them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from concurrent.futures import Future, ThreadPoolExecutor
from functools import lru_cache

import numpy as np
import torch
from jaxtyping import Int

from dither.registry.config.errors import Problem, Refused
from dither.registry.contracts.protocols import Task
from dither.registry.contracts.records import Clean

from ..config.options import Train
from .randomness import mix_seed

__all__ = [
    "DEFAULT_WORKERS",
    "Batches",
    "BucketOrder",
    "MixtureOrder",
    "Prefetcher",
    "SampleOrder",
    "make_order",
]

BATCHES_PER_WORKER = 2
"""Prefetched batches for each of `train.workers`."""

DEFAULT_WORKERS = 2
"""Prefetching threads on an accelerator; a CPU has none, as they would take its cores from the
step."""


class Batches:
    """The training batches of a run: that of a step is a function of seed and step."""

    def __init__(
        self, task: Task, train: Train, seed: int, device: torch.device
    ) -> None:
        self.task = task
        self.size = train.batch_size
        self.order = make_order(task, train, seed)
        self.has_buckets = isinstance(self.order, BucketOrder)

        workers = train.workers
        if workers is None:
            workers = 0 if device.type == "cpu" else DEFAULT_WORKERS
        self._prefetch = Prefetcher(self.read, workers, last=train.steps)

    def __call__(self, step: int) -> Clean:
        """Return the batch of a step, and start to read those of the next steps."""
        return self._prefetch(step)

    def read(self, step: int) -> Clean:
        """Read the batch of a step now."""
        return self.task.batch("train", self.rows(step))

    def rows(self, step: int) -> list[int]:
        """Return the numbers of the samples in the batch of a step."""
        return self.order.rows(step * self.size, self.size)


def make_order(
    task: Task, train: Train, seed: int
) -> SampleOrder | BucketOrder | MixtureOrder:
    """Return the order of the training samples; Refused if buckets are required and the task or its size has none."""
    size = task.size("train")
    sources = task.mixture()
    if sources is not None:
        return MixtureOrder(sources, seed)
    place = ("train", "buckets")
    buckets = None if train.buckets is False else task.buckets("train")
    possible = buckets is not None and size >= train.batch_size
    if train.buckets is False or (train.buckets is None and not possible):
        return SampleOrder(size, seed)

    if buckets is None:
        raise Refused(
            Problem(
                "the task defines no buckets of equal padding", place, code="misfit"
            )
        )
    if size < train.batch_size:
        message = f"{size} training samples do not fill a batch of {train.batch_size}"
        raise Refused(Problem(message, place, code="no-samples"))
    return BucketOrder(buckets, train.batch_size, seed)


class SampleOrder:
    """Order of `size` training samples: one permutation per epoch, a function of the seed alone."""

    def __init__(self, size: int, seed: int) -> None:
        self.size = size
        self.seed = seed
        # A batch may cross the end of an epoch, so that two permutations are in use.
        self._epoch = lru_cache(maxsize=2)(self._permutation)

    def rows(self, start: int, count: int) -> list[int]:
        """Return the numbers of the next `count` samples after `start` samples; a batch may cross epochs."""
        rows: list[int] = []
        while len(rows) < count:
            epoch, offset = divmod(start + len(rows), self.size)
            missing = count - len(rows)
            rows += self._epoch(epoch)[offset : offset + missing].tolist()
        return rows

    def _permutation(self, epoch: int) -> Int[np.ndarray, " size"]:
        return permutation(self.size, np.random.default_rng([self.seed, epoch]))


class MixtureOrder:
    """Order of several sources with weights: a function of the seed alone, in epochs of each source.

    In each cycle of sum(weights) samples a source has as many as its weight, at even distances: the
    k-th of w at the time (k + 1/2) / w. A cycle begins at a random sample of this pattern, because
    training times depend on the place in a batch.

    Args:
        sources: Samples and weight of each source.
        seed: Seed of the run.
    """

    def __init__(self, sources: Sequence[tuple[int, int]], seed: int) -> None:
        sizes = [size for size, _ in sources]
        self.weights = np.array([weight for _, weight in sources])
        self.firsts = np.cumsum([0, *sizes])
        self.seed = seed
        self.orders = [
            SampleOrder(size, mix_seed(seed, number))
            for number, size in enumerate(sizes)
        ]
        # Source of each sample of a cycle, and how many of the source come before it.
        source = np.repeat(np.arange(len(sources)), self.weights)
        k = np.concatenate([np.arange(weight) for weight in self.weights])
        by_time = np.argsort((k + 0.5) / self.weights[source], kind="stable")
        self.source = source[by_time]
        self.k = k[by_time]

    def rows(self, start: int, count: int) -> list[int]:
        """Return the numbers of the next `count` samples after `start` samples."""
        return [self._row(number) for number in range(start, start + count)]

    def _row(self, number: int) -> int:
        cycle, place = divmod(number, len(self.source))
        begin = mix_seed(self.seed, cycle) % len(self.source)
        turn = (begin + place) % len(self.source)
        source = int(self.source[turn])
        weight = int(self.weights[source])

        # A cycle that begins inside the pattern counts the samples of a source from there.
        skipped = self.source[:begin] == source
        k_in_cycle = (int(self.k[turn]) - int(skipped.sum())) % weight

        order = self.orders[source]
        (row,) = order.rows(cycle * weight + k_in_cycle, 1)
        first = int(self.firsts[source])
        return first + row


class BucketOrder:
    """Order in which most batches hold samples of one bucket, such as equal padding; a function of the seed alone.

    Each epoch shuffles the samples, cuts those of a bucket into batches, cuts the remainders of all
    buckets into mixed batches, and shuffles the batches. Samples that do not fill the last batch
    are dropped for this epoch.
    """

    def __init__(self, buckets: Sequence[int], size: int, seed: int) -> None:
        self.buckets = np.asarray(buckets[:])
        self.size = size
        self.seed = seed
        # Threads that prefetch may be in the next epoch already.
        self._epoch = lru_cache(maxsize=2)(self._batches)

    def rows(self, start: int, count: int) -> list[int]:
        """Return the numbers of the samples in the batch after `start` samples, a multiple of the batch size."""
        epoch, batch = divmod(start // count, len(self.buckets) // self.size)
        rows: list[int] = self._epoch(epoch)[batch].tolist()
        return rows

    def _batches(self, epoch: int) -> Int[np.ndarray, "batches size"]:
        generator = np.random.default_rng([self.seed, epoch])
        shuffled = permutation(len(self.buckets), generator)
        buckets = self.buckets[shuffled]

        # Remainders are mixed, so that an epoch drops less than one batch in all, not per bucket.
        batches = []
        remainders = []
        for bucket in np.unique(buckets):
            rows = shuffled[buckets == bucket]
            full = len(rows) // self.size * self.size
            batches.append(rows[:full])
            remainders.append(rows[full:])

        mixed = generator.permutation(np.concatenate(remainders))
        batches.append(mixed[: len(mixed) // self.size * self.size])

        # Shuffled, as the batches are still in the order of buckets.
        table = np.concatenate(batches).reshape(-1, self.size)
        return table[generator.permutation(len(table))]


def permutation(size: int, generator: np.random.Generator) -> Int[np.ndarray, " size"]:
    """Return the numbers below `size` in random order.

    4 bytes a sample: 3 * 10^8 samples take 1.2 GB and a minute at the start of an epoch, which then
    lasts hours.
    """
    numbers = np.arange(size, dtype=np.int32 if size <= 2**31 else np.int64)
    generator.shuffle(numbers)
    return numbers


class Prefetcher:
    """Reads the batch of a step, and those of the next steps in `workers` threads; with 0, each on request.

    Reading is numpy and torch working on files and memory, which release the GIL, so threads are as
    fast as processes and copy neither the data nor the batches. Steps from `last` on are not read.
    """

    def __init__(self, read: Callable[[int], Clean], workers: int, last: int) -> None:
        self._read = read
        self._last = last
        self._capacity = BATCHES_PER_WORKER * workers
        self._threads: ThreadPoolExecutor | None = None
        if workers:
            self._threads = ThreadPoolExecutor(workers, "dither-reader")
        self._pending: dict[int, Future[Clean]] = {}

    def __call__(self, step: int) -> Clean:
        """Return the batch of a step."""
        if self._threads is None:
            return self._read(step)

        # After a resumed or repeated step, prefetched batches of earlier steps are never read.
        for passed in [other for other in self._pending if other < step]:
            self._pending.pop(passed).cancel()

        # The requested step is read even from `last` on.
        stop = max(step + 1, min(step + 1 + self._capacity, self._last))
        for coming in range(step, stop):
            if coming not in self._pending:
                self._pending[coming] = self._threads.submit(self._read, coming)
        return self._pending.pop(step).result()
