"""Batches that are read ahead are those that would have been read, and none is read in vain or left behind."""

import threading
import time

import pytest

from dither.engine.config.options import AHEAD
from dither.engine.training.batches import Prefetcher


class Source:
    """Reads in any time, and notes who reads what."""

    def __init__(self):
        self.read, self.threads = [], set()

    def __call__(self, rows):
        self.read.append(rows[0])
        self.threads.add(threading.current_thread())
        time.sleep(0.001 * (rows[0] * 7 % 5))
        if rows[0] == 13:
            raise ValueError("row 13 cannot be read")
        return rows


@pytest.mark.parametrize("workers", [0, 1, 3])
@pytest.mark.parametrize("first", [0, 5])
def test_each_batch_is_read_once_and_none_behind_the_last(workers, first):
    source = Source()
    ahead = Prefetcher(source, lambda step: [step], workers)
    assert [ahead(step, 12) for step in range(first, 12)] == [[step] for step in range(first, 12)]
    assert sorted(source.read) == list(range(first, 12))
    assert (threading.current_thread() in source.threads) == (not workers)
    assert len(source.threads) <= max(workers, 1)


def test_a_step_may_be_looked_at_again_or_passed_over():
    source = Source()
    ahead = Prefetcher(source, lambda step: [step], 1)
    assert ahead(3, 100) == [3]
    assert ahead(3, 100) == [3], "to tell which of its samples are at fault"
    assert ahead(9, 100) == [9]
    assert ahead(10, 100) == [10]
    assert max(source.read) <= 10 + AHEAD
    assert len(ahead._pending) == AHEAD


def test_what_cannot_be_read_is_told_at_its_step():
    ahead = Prefetcher(Source(), lambda step: [step], 2)
    assert [ahead(step, 20) for step in (11, 12)] == [[11], [12]]
    with pytest.raises(ValueError, match="row 13"):
        ahead(13, 20)
