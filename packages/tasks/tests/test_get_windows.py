"""The table of regions, its splits and statistics; windows within a chromosome that cover all regions."""

import numpy as np
import pytest

from dither.tasks.get_region.data.human_dhs import read_human
from dither.tasks.get_region.data.region_matrix import ColumnStats, LazyMatrix, RegionMatrix
from dither.tasks.get_region.data.windows import WindowOptions, cut_windows

LENGTHS = {"a": 11, "b": 7, "c": 9, "d": 3, "e": 20}


def matrix(gap=10):
    names = np.repeat(list(LENGTHS), list(LENGTHS.values()))
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
    return RegionMatrix.of(arrays, ("b",), ("c",))


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
    table = matrix()
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


def test_each_region_is_in_one_split_and_chromosomes_stay_whole():
    table = matrix()
    rows = {split: table.rows(split) for split in ("train", "valid", "test")}
    assert (sum(row.astype(int) for row in rows.values()) == 1).all()
    found = {split: set(table.chromosome[row]) for split, row in rows.items()}
    assert found == {"train": {"a", "d", "e"}, "valid": {"b"}, "test": {"c"}}


def test_the_human_split_is_that_of_the_authors():
    table, part = read_human("whole"), read_human("chr21-22")
    sizes = {split: int(table.rows(split).sum()) for split in ("train", "valid", "test")}
    assert sizes == {"train": 39_254, "valid": 4_053, "test": 4_565}
    assert {*table.chromosome[table.rows("valid")]} == {"chr2"}
    assert {*table.chromosome[table.rows("test")]} == {"chr1"}
    assert len(cut_windows(table, "train", WindowOptions(900, 100), [0])) == 218
    assert len(cut_windows(table, "train", WindowOptions(200, 100), [0])) == 362
    assert table.open.sum(0).tolist() == [11_968] * 4
    assert (table.open.sum(1) == 1).all()
    same = table.chromosome[1:] == table.chromosome[:-1]
    assert (np.diff(table.start)[same] > 0).all()
    assert len({*table.motifs}) == 282
    few = np.isin(table.chromosome, ("chr21", "chr22"))
    np.testing.assert_array_equal(table.features[few], part.features)
    np.testing.assert_array_equal(table.open[few], part.open)
    assert (part.rows("train").sum(), part.rows("test").any()) == (859, False)


def test_the_packaged_bytes_are_steps_of_1_255():
    every = np.arange(256, dtype=np.uint8)[:, None]
    assert read_human("chr21-22").features.step == np.float32(1 / 255)
    stored = LazyMatrix(every, step=np.float32(1 / 255))
    np.testing.assert_array_equal(stored[:], every * np.float32(1 / 255))
    divided = LazyMatrix(every, np.float32([0.5]), stored.step)
    np.testing.assert_array_equal(divided[:], np.minimum(stored[:] / 0.5, 1))
    np.testing.assert_array_equal(divided.source(slice(9)), stored[:9])


def test_statistics_of_blocks_are_combined():
    random = np.random.default_rng(0)
    columns = random.random((50, 3), dtype=np.float32) * np.float32(1e-3) + 1000
    columns[:, 1] = 1 / 3
    times = random.integers(0, 4, 50).astype(float)
    times[:7] = 0
    standard = ColumnStats.over((columns[i : i + 7], times[i : i + 7]) for i in range(0, 50, 7))
    repeated = np.repeat(columns, times.astype(int), 0).astype(np.float64)
    np.testing.assert_allclose(standard.mean, repeated.mean(0), rtol=1e-7)
    np.testing.assert_allclose(standard.std[[0, 2]], repeated.std(0)[[0, 2]], rtol=1e-5)
    assert standard.std[1] == 1
