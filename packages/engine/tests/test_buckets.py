"""Bucketed batches: every sample once an epoch, in an order that is a function of the seed."""

import numpy as np
import pytest

from dither.engine.training.batches import BucketOrder
from dither.engine.training.trainer import Trainer
from dither.registry.config.errors import Refused

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
