"""Batches of samples with the same real positions, so that no padding is computed."""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache

import numpy as np

__all__ = ["BucketOrder"]


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
