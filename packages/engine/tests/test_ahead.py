"""Prefetched batches are those of the steps, each read once."""

import threading
import time

import pytest

from dither.engine.training.batches import BATCHES_PER_WORKER, Prefetcher


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


def test_repeated_and_skipped_steps():
    source = Source()
    batches = Prefetcher(source, 1)
    assert batches(3, 100) == [3]
    assert batches(3, 100) == [3], "read again for a diagnosis"
    assert batches(9, 100) == [9]
    assert batches(10, 100) == [10]
    assert max(source.read) <= 10 + BATCHES_PER_WORKER
    assert len(batches._pending) == BATCHES_PER_WORKER


def test_read_error_is_raised_at_its_step():
    batches = Prefetcher(Source(), 2)
    assert [batches(step, 20) for step in (11, 12)] == [[11], [12]]
    with pytest.raises(ValueError, match="row 13"):
        batches(13, 20)
