"""Order of the samples, random seeds, and prefetched batches."""

import threading
import time

import numpy as np
import pytest
import torch

from dither.engine.training.randomness import Stream, mix_seed, seed_generators
from dither.engine.training.trainer import BucketOrder, Prefetcher, SampleOrder, Trainer
from dither.registry.config.errors import Refused

CPU = torch.device("cpu")


def test_rows_are_a_function_of_the_start():
    order = SampleOrder(7, seed=1)
    stream = order.rows(0, 50)
    for size in (1, 3, 10):
        batches = [order.rows(start, size) for start in range(0, 50, size)]
        assert [row for rows in batches for row in rows][:50] == stream
    assert SampleOrder(7, seed=1).rows(23, 9) == stream[23:32]
    assert SampleOrder(7, seed=2).rows(0, 50) != stream


def test_seeds_differ_in_the_low_32_bits():
    """torch's CPU generator uses only these."""
    low = {mix_seed(Stream.STEP, seed, step, 0) & 0xFFFFFFFF for seed in range(20) for step in range(2000)}
    assert len(low) > 40_000 - 5
    assert mix_seed(1, 2) != mix_seed(2, 1) != mix_seed(2, 1, 0)


def test_seeding_is_independent_of_earlier_draws():
    seed_generators(CPU, Stream.STEP, 5, 1, 0)
    torch.randn(3)  # the generator caches half a pair of normals
    first = []
    for _ in range(2):
        seed_generators(CPU, Stream.STEP, 5, 2, 0)
        first.append((torch.randn(5), torch.rand(5), torch.randperm(5)))
        torch.randn(3)
    assert all(torch.equal(a, b) for a, b in zip(*first, strict=True))
    seed_generators(CPU, Stream.STEP, 5, 3, 0)
    assert not torch.equal(torch.randn(5), first[0][0])
    seed_generators(CPU, Stream.DRAWING, 5, 2, 0)
    assert not torch.equal(torch.randn(5), first[0][0])


BUCKETS = np.random.default_rng(0).choice(3, 64 * 8 + 5, p=[0.02, 0.38, 0.6])


def epoch(order, number):
    count = len(BUCKETS) // 8
    return [order.rows((number * count + batch) * 8, 8) for batch in range(count)]


def test_epoch_has_every_sample_once_except_the_last_partial_batch():
    order = BucketOrder(BUCKETS, 8, 3)
    taken = np.concatenate(epoch(order, 0))
    assert len(taken) == len(set(taken)) == 64 * 8
    left = {n: set(range(len(BUCKETS))) - set(np.concatenate(epoch(order, n))) for n in (0, 1)}
    assert left[0] != left[1]


def test_batches_hold_one_bucket_except_remainders():
    batches = epoch(BucketOrder(BUCKETS, 8, 3), 0)
    mixed = [batch for batch in batches if len(set(BUCKETS[batch])) > 1]
    assert len(mixed) <= 2
    kinds = [BUCKETS[batch[0]] for batch in batches if len(set(BUCKETS[batch])) == 1]
    assert kinds != sorted(kinds)


def test_order_is_a_function_of_seed_and_epoch():
    order = BucketOrder(BUCKETS, 8, 3)
    first = epoch(order, 0)
    assert epoch(order, 1) != first
    assert epoch(BucketOrder(BUCKETS.tolist(), 8, 3), 0) == first
    assert epoch(BucketOrder(BUCKETS, 8, 4), 0) != first


def test_task_without_buckets(load):
    from dither.engine.training.diffusion import Diffusion

    experiment = load("train.buckets=true").experiment
    with pytest.raises(Refused) as refused:
        Trainer(Diffusion.build(experiment), experiment.train, 0)
    assert refused.value.codes == ["misfit"]


class Source:
    """Reads with varying delay, and records rows and threads."""

    def __init__(self):
        self.read, self.threads = [], set()

    def __call__(self, step):
        self.read.append(step)
        self.threads.add(threading.current_thread())
        time.sleep(0.001 * (step * 7 % 5))
        if step == 13:
            raise ValueError("row 13 cannot be read")
        return [step]


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("first", [0, 5])
def test_each_batch_is_read_once(workers, first):
    source = Source()
    batches = Prefetcher(source, workers)
    assert [batches(step, 12) for step in range(first, 12)] == [[step] for step in range(first, 12)]
    assert sorted(source.read) == list(range(first, 12))
    assert (threading.current_thread() in source.threads) == (not workers)
    assert len(source.threads) <= max(workers, 1)


def test_read_error_is_raised_at_its_step():
    batches = Prefetcher(Source(), 2)
    assert [batches(step, 20) for step in (11, 12)] == [[11], [12]]
    with pytest.raises(ValueError, match="row 13"):
        batches(13, 20)
