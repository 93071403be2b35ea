"""The table of regions: its splits, its cell types, and how columns are scaled and standardised."""

import numpy as np

from dither.tasks.get_region.data.human_dhs import read_human
from dither.tasks.get_region.data.region_matrix import ColumnStats, LazyMatrix, RegionMatrix
from dither.tasks.get_region.data.windows import WindowOptions, cut_windows


def matrix(lengths, valid=("b",), test=("c",)):
    names = np.concatenate([[name] * length for name, length in lengths.items()])
    features = np.random.default_rng(0).random((len(names), 3), dtype=np.float32)
    arrays = {
        "features": features,
        "motifs": np.array(["x", "y", "z"]),
        "chromosome": names,
        "start": np.arange(len(names)) * 10,
        "end": np.arange(len(names)) * 10 + 5,
        "open": features[:, :2] > 0.5,
        "cells": np.array(["K562", "HepG2"]),
    }
    return RegionMatrix.of(arrays, valid, test)


LENGTHS = {"a": 11, "b": 7, "c": 9, "d": 3, "e": 20}


def test_each_region_is_in_one_split_and_chromosomes_stay_whole():
    table = matrix(LENGTHS)
    rows = {split: table.rows(split) for split in ("train", "valid", "test")}
    assert (sum(row.astype(int) for row in rows.values()) == 1).all()
    found = {split: set(table.chromosome[row]) for split, row in rows.items()}
    assert found == {"train": {"a", "d", "e"}, "valid": {"b"}, "test": {"c"}}


def test_the_human_split_is_that_of_the_authors():
    table = read_human("whole")
    assert {split: int(table.rows(split).sum()) for split in ("train", "valid", "test")} == {
        "train": 39_254,
        "valid": 4_053,
        "test": 4_565,
    }
    assert set(table.chromosome[table.rows("valid")]) == {"chr2"}
    assert set(table.chromosome[table.rows("test")]) == {"chr1"}
    assert len(cut_windows(table, "train", WindowOptions(900, 100), [0])) == 218
    assert len(cut_windows(table, "train", WindowOptions(200, 100), [0])) == 362
    assert table.open.sum(0).tolist() == [11_968] * 4
    assert (table.open.sum(1) == 1).all()
    same = table.chromosome[1:] == table.chromosome[:-1]
    assert (np.diff(table.start)[same] > 0).all()
    assert len(set(table.motifs)) == 282


def test_the_small_table_is_part_of_the_whole():
    whole, part = read_human("whole"), read_human("chr21-22")
    few = np.isin(whole.chromosome, ("chr21", "chr22"))
    np.testing.assert_array_equal(whole.features[few], part.features)
    np.testing.assert_array_equal(whole.open[few], part.open)
    assert part.rows("train").sum() == 859
    assert not part.rows("test").any()


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
