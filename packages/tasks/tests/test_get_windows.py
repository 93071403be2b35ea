"""Windows: within a chromosome, covering all regions; a shift is a function of the sample's number."""

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.get_region.data.region_matrix import RegionMatrix
from dither.tasks.get_region.data.windows import WindowOptions, cut_windows

LENGTHS = {"a": 11, "b": 7, "c": 9, "d": 3, "e": 20}


def matrix(lengths=LENGTHS, valid=("b",), test=("c",), gap=10):
    names = np.concatenate([[name] * length for name, length in lengths.items()])
    features = np.random.default_rng(0).random((len(names), 3), dtype=np.float32)
    arrays = {
        "features": features,
        "motifs": np.array(["x", "y", "z"]),
        "chromosome": names,
        "start": np.arange(len(names)) * gap,
        "end": np.arange(len(names)) * gap + 5,
        "open": features[:, :2] > 0.5,
        "cells": np.array(["K562", "HepG2"]),
    }
    return RegionMatrix.of(arrays, valid, test)


def rows_of(windows, number):
    first = windows.first[number]
    return windows.rows[first : first + windows.count[number]]


def cut(table, split, kept=None, cells=(0,), **options):
    return cut_windows(table, split, WindowOptions(**options), cells, kept, covering=split != "train")


@pytest.mark.parametrize("regions", [1, 4, 9])
@pytest.mark.parametrize(("stride", "jitter"), [(1, 0), (2, 1), (3, 7)])
@pytest.mark.parametrize("drop", [False, True])
def test_windows_are_within_one_chromosome_of_their_split(regions, stride, jitter, drop):
    table = matrix()
    kept = [table.open[:, 0], table.open[:, 1]] if drop else None
    for split in ("train", "valid", "test"):
        inside = table.rows(split)
        windows = cut(table, split, kept, (0, 1), regions=regions, stride=stride, jitter=jitter)
        assert {*windows.cell.tolist()} == {0, 1} or regions > 4
        times = np.zeros((2, len(table)), int)
        for number in range(len(windows)):
            rows = rows_of(windows, number)
            times[windows.cell[number], rows] += 1
            assert len(set(table.chromosome[rows])) == 1
            assert inside[rows].all()
            assert len(rows) == regions if split == "train" else 1 <= len(rows) <= regions
            possible = np.flatnonzero(kept[windows.cell[number]] if drop else np.ones(len(table), bool))
            place = np.searchsorted(possible, rows[0])
            np.testing.assert_array_equal(possible[place : place + len(rows)], rows)  # neighbours among what is kept
        if split != "train":  # each region is covered once
            np.testing.assert_array_equal(
                times, inside & (np.stack(kept) if drop else True) | np.zeros_like(times, bool)
            )


def test_training_windows_start_every_stride():
    table = matrix()
    starts = [0, 3, 6, 30, 33, 36, 39, 42, 45]
    windows = cut(table, "train", regions=4, stride=3)
    assert [int(rows_of(windows, number)[0]) for number in range(len(windows))] == starts
    both = cut(table, "train", regions=4, stride=3, cells=(0, 1))
    assert [int(rows_of(both, number)[0]) for number in range(len(both))] == starts * 2
    assert both.cell.tolist() == [0] * 9 + [1] * 9


@pytest.mark.parametrize("jitter", [1, 3, 50])
def test_starts_are_uniform_at_the_ends_of_a_chromosome(jitter):
    """A start stands once for each window that reaches it, so never more often at an end than in the middle."""
    table, stride = matrix(), 3
    windows = cut(table, "train", regions=4, stride=stride, jitter=jitter)
    starts = [int(rows_of(windows, number)[0]) for number in range(len(windows))]
    for low, high in ((0, 7), (30, 46)):
        reach = [
            sum(abs(start - first) <= jitter for first in range(low, high + 1, stride)) for start in range(high + 1)
        ]
        assert [starts.count(start) for start in range(low, high + 1)] == reach[low:]


def test_wide_windows_are_dropped_and_counted():
    table = matrix(gap=10)
    table.start[40:] += 1000  # a hole in chromosome e
    table.end[40:] += 1000
    windows = cut(table, "train", regions=4, stride=1, span=100)
    every = cut(table, "train", regions=4, stride=1)
    wide = [number for number in range(len(every)) if {39, 40} <= {*rows_of(every, number).tolist()}]
    assert windows.wide == len(wide) == 3
    assert len(windows) == len(every) - 3
    assert not any({39, 40} <= {*rows_of(windows, number).tolist()} for number in range(len(windows)))
    assert len(cut(table, "train", regions=4, stride=1, span=34)) == 0
    assert cut(table, "train", regions=4, stride=1, span=35).wide == 3


def test_window_numbers_out_of_range():
    windows = cut(matrix(), "train", regions=4, stride=3)
    for number in (-1, len(windows)):
        with pytest.raises(IndexError, match=r"numbered 0\.\.8"):
            windows.take([0, number], 4)
    index, there, cell = cut(matrix(), "valid", regions=4, stride=3).take([1, 0], 4)
    assert index.tolist() == [[15, 16, 17, 17], [11, 12, 13, 14]]
    assert there.tolist() == [[True, True, True, False], [True] * 4]
    assert cell.tolist() == [0, 0]


def test_too_many_windows_are_refused(monkeypatch):
    monkeypatch.setattr("dither.tasks.get_region.data.windows.MAX_WINDOWS", 110)
    cut(matrix(), "train", regions=3, stride=1, jitter=1)
    with pytest.raises(Refused, match=r"646 .* 110 .too-large."):
        cut(matrix(), "train", regions=3, stride=1, jitter=9)
