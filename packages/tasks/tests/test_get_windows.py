"""The table of regions: built from two wheels, its splits and statistics, windows that cover all regions."""

import sqlite3
import zipfile
from dataclasses import replace

import numpy as np
import pytest
import torch

from dither.tasks.get_region.data import human_dhs as prepare
from dither.tasks.get_region.data.human_dhs import (
    CELLS,
    MOTIF_WHEEL,
    MOTIFS_FILE,
    REGION_WHEEL,
    REGIONS_FILE,
    archetype_names,
    cluster,
    correlation,
    read_counts,
    read_human,
    read_sequences,
)
from dither.tasks.get_region.data.motif_scan import Motif, encode, scan
from dither.tasks.get_region.data.region_matrix import ColumnStats, RegionMatrix
from dither.tasks.get_region.data.windows import WindowOptions, cut_windows
from dither.tasks.prepared.arrays import read_archive

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
    return cut_windows(
        table, split, WindowOptions(**options), cells, kept, covering=split != "train"
    )


@pytest.mark.parametrize("regions", [1, 4, 9])
@pytest.mark.parametrize(("stride", "jitter"), [(1, 0), (2, 1), (3, 7)])
@pytest.mark.parametrize("drop", [False, True])
def test_windows_are_within_one_chromosome_of_their_split(
    regions, stride, jitter, drop
):
    table = matrix()
    kept = [table.open[:, 0], table.open[:, 1]] if drop else None
    for split in ("train", "valid", "test"):
        inside = table.rows(split)
        windows = cut(
            table, split, kept, (0, 1), regions=regions, stride=stride, jitter=jitter
        )
        assert {*windows.cell.tolist()} == {0, 1} or regions > 4
        times = np.zeros((2, len(table)), int)
        for number in range(len(windows)):
            rows = rows_of(windows, number)
            times[windows.cell[number], rows] += 1
            assert len(set(table.chromosome[rows])) == 1
            assert inside[rows].all()
            assert (
                len(rows) == regions if split == "train" else 1 <= len(rows) <= regions
            )
            possible = np.flatnonzero(
                kept[windows.cell[number]] if drop else np.ones(len(table), bool)
            )
            place = np.searchsorted(possible, rows[0])
            np.testing.assert_array_equal(
                possible[place : place + len(rows)], rows
            )  # neighbours among what is kept
        if split != "train":  # each region is covered once
            np.testing.assert_array_equal(
                times,
                inside & (np.stack(kept) if drop else True)
                | np.zeros_like(times, bool),
            )


@pytest.mark.parametrize("jitter", [0, 3, 50])
def test_starts_are_uniform_at_the_ends_of_a_chromosome(jitter):
    """A start stands once for each window that reaches it, so never more often at an end than in the middle."""
    table, stride = matrix(), 3
    windows = cut(table, "train", regions=4, stride=stride, jitter=jitter)
    starts = [int(rows_of(windows, number)[0]) for number in range(len(windows))]
    for low, high in ((0, 7), (30, 46)):
        reach = [
            sum(abs(start - first) <= jitter for first in range(low, high + 1, stride))
            for start in range(high + 1)
        ]
        assert [starts.count(start) for start in range(low, high + 1)] == reach[low:]


def test_wide_windows_are_dropped_and_counted():
    table = matrix()
    table.start[40:] += 1000  # a hole in chromosome e
    table.end[40:] += 1000
    windows = cut(table, "train", regions=4, stride=1, span=100)
    every = cut(table, "train", regions=4, stride=1)
    wide = [
        number
        for number in range(len(every))
        if {39, 40} <= {*rows_of(every, number).tolist()}
    ]
    assert windows.wide == len(wide) == 3
    assert len(windows) == len(every) - 3
    assert not any(
        {39, 40} <= {*rows_of(windows, number).tolist()}
        for number in range(len(windows))
    )
    assert len(cut(table, "train", regions=4, stride=1, span=34)) == 0
    assert cut(table, "train", regions=4, stride=1, span=35).wide == 3


def test_window_numbers_out_of_range():
    windows = cut(matrix(), "train", regions=4, stride=3)
    for number in (-1, len(windows)):
        with pytest.raises(IndexError, match=r"numbered 0\.\.8"):
            windows.take([0, number], 4)


def test_the_human_split_is_that_of_the_authors():
    table, part = read_human("whole"), read_human("chr21-22")
    sizes = {
        split: int(table.rows(split).sum()) for split in ("train", "valid", "test")
    }
    assert sizes == {"train": 39_254, "valid": 4_053, "test": 4_565}
    assert {*table.chromosome[table.rows("valid")]} == {"chr2"}
    assert {*table.chromosome[table.rows("test")]} == {"chr1"}
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
    table = read_human("chr21-22")
    every = np.arange(256, dtype=np.uint8) * np.float32(1 / 255)
    assert np.isin(table.features, every).all()
    np.testing.assert_array_equal(table.scaled(slice(9)), table.scores(slice(9)))
    divided = replace(table, divisor=np.full(282, 0.5, np.float32))
    np.testing.assert_array_equal(
        divided.scaled([3, 4]), np.minimum(table.scores([3, 4]) / 0.5, 1)
    )


def test_statistics_of_blocks_are_combined():
    random = np.random.default_rng(0)
    columns = random.random((50, 3), dtype=np.float32) * np.float32(1e-3) + 1000
    columns[:, 1] = 1 / 3
    times = random.integers(0, 4, 50).astype(float)
    times[:7] = 0
    standard = ColumnStats.over(
        (columns[i : i + 7], times[i : i + 7]) for i in range(0, 50, 7)
    )
    repeated = np.repeat(columns, times.astype(int), 0).astype(np.float64)
    np.testing.assert_allclose(standard.mean, repeated.mean(0), rtol=1e-7)
    np.testing.assert_allclose(standard.std[[0, 2]], repeated.std(0)[[0, 2]], rtol=1e-5)
    assert standard.std[1] == 1


torch.set_num_threads(1)
RANDOM = np.random.default_rng(0)
COUNTS = {
    f"MA{i:04d}": RANDOM.integers(0, 20, (4 + i % 3, 4)).astype(float) + 1
    for i in range(8)
}

SEQUENCES = ["".join(RANDOM.choice(list("ACGT"), 30)) for _ in range(120)][
    60:
]  # made once: any test may run alone


@pytest.fixture
def region_wheel(tmp_path):
    columns = ["chr", "start", "end", "sequence", *CELLS.values()]
    lines = ["\t".join(columns)]
    for i in range(60):
        chromosome = ("chr10", "chr2", "chrX", "chr1")[i % 4]
        open_in = ["1" if i % 5 == k else "0" for k in range(4)]
        lines.append(
            "\t".join(
                [
                    chromosome,
                    str(9_000 - 100 * i),
                    str(9_050 - 100 * i),
                    SEQUENCES[i],
                    *open_in,
                ]
            )
        )
    path = tmp_path / "regions.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.writestr(REGIONS_FILE, "\n".join(lines) + "\n")
    return path


@pytest.fixture
def motif_wheel(tmp_path):
    database = sqlite3.connect(tmp_path / "motifs.sqlite")
    database.execute("CREATE TABLE MATRIX (ID, COLLECTION, BASE_ID, VERSION, NAME)")
    database.execute("CREATE TABLE MATRIX_ANNOTATION (ID, TAG, VAL)")
    database.execute("CREATE TABLE MATRIX_DATA (ID, row, col, val)")
    entries = [
        (motif, 2, "CORE", "vertebrates", table) for motif, table in COUNTS.items()
    ]
    others = (("MA0000", 1, "CORE", "vertebrates"), ("MA0000", 3, "UNVALIDATED", "vertebrates"),  # older; not core
              ("MA0001", 2, "UNVALIDATED", "vertebrates"), ("MA9999", 1, "CORE", "fungi"))  # fmt: skip
    entries += [(*other, np.ones((9, 4))) for other in others]
    for number, (motif, version, collection, group, table) in enumerate(entries):
        database.execute(
            "INSERT INTO MATRIX VALUES (?, ?, ?, ?, ?)",
            (number, collection, motif, version, f"N{motif}"),
        )
        database.execute(
            "INSERT INTO MATRIX_ANNOTATION VALUES (?, 'tax_group', ?)", (number, group)
        )
        database.execute(
            "INSERT INTO MATRIX_ANNOTATION VALUES (?, 'class', 'x')", (number,)
        )
        rows = [
            (number, "ACGT"[base], column + 1, value)
            for (column, base), value in np.ndenumerate(table)
        ]
        database.executemany("INSERT INTO MATRIX_DATA VALUES (?, ?, ?, ?)", rows)
    database.commit()
    database.close()
    path = tmp_path / "motifs.whl"
    with zipfile.ZipFile(path, "w") as archive:
        archive.write(tmp_path / "motifs.sqlite", MOTIFS_FILE)
    return path


def test_motifs_are_the_newest_of_the_core_vertebrates(motif_wheel):
    read = read_counts(motif_wheel)
    assert list(read) == sorted(COUNTS)
    for motif, (name, table) in read.items():
        assert name == f"N{motif}"
        np.testing.assert_array_equal(table, COUNTS[motif])


def test_regions_come_in_genome_order(region_wheel):
    regions = read_sequences(region_wheel)
    names = list(dict.fromkeys(regions.chromosome.tolist()))
    assert names == ["chr1", "chr2", "chr10", "chrX"]
    same = regions.chromosome[1:] == regions.chromosome[:-1]
    assert (np.diff(regions.start)[same] > 0).all()
    row = int(
        np.flatnonzero(regions.start == 9_000 - 100 * 7)[0]
    )  # the eighth line: chr1, open in the third cell type
    assert regions.chromosome[row] == "chr1"
    assert regions.open[row].tolist() == [False, False, True, False]
    assert regions.end[row] == regions.start[row] + 50


def test_the_matrix_follows_the_recipe(region_wheel, motif_wheel):
    regions, counts = read_sequences(region_wheel), read_counts(motif_wheel)
    arrays = prepare.build_matrix(regions, counts, 5)
    found = scan(
        encode(regions.sequence),
        [Motif.of(name, table) for name, table in counts.values()],
    )
    labels = cluster(correlation(found), 5)
    train = [name not in ("chr1", "chr2") for name in regions.chromosome]
    for archetype in range(5):
        pooled = found[:, labels == archetype].sum(1)
        top = pooled[train].max()
        assert top > 0
        np.testing.assert_allclose(
            arrays["features"][:, archetype], np.minimum(pooled / top, 1), rtol=1e-5
        )
        assert arrays["scale"][archetype] == pytest.approx(top)
    assert arrays["features"].max() == 1
    assert arrays["cells"].tolist() == list(CELLS)


def test_a_wheel_without_the_file_is_named(region_wheel, motif_wheel, refusal):
    assert "motifs.whl" in str(refusal(read_sequences, motif_wheel))
    assert "regions.whl" in str(refusal(read_counts, region_wheel))


def test_a_stop_leaves_nothing_behind(region_wheel, motif_wheel, tmp_path, monkeypatch):
    def stop(done, total):
        raise KeyboardInterrupt

    wheels = {REGION_WHEEL[0]: region_wheel, MOTIF_WHEEL[0]: motif_wheel}
    monkeypatch.setattr(
        prepare, "fetch_wheel", lambda name, version, sha256: wheels[name]
    )
    monkeypatch.setattr(prepare, "ARCHETYPES", 5)
    with monkeypatch.context() as stopped:
        stopped.setattr(
            "dither.tasks.prepared.progress.Progress.update",
            lambda self, done, total: stop(done, total),
        )
        with pytest.raises(KeyboardInterrupt):
            prepare.write_built(tmp_path / "built" / "matrix.npz")
    assert not list(tmp_path.glob("built/*"))
    arrays = prepare.write_built(tmp_path / "built" / "matrix.npz")
    assert sorted(path.name for path in (tmp_path / "built").iterdir()) == [
        "matrix.json",
        "matrix.npz",
    ]
    assert (
        read_archive(tmp_path / "built" / "matrix.npz", "")["features"].shape
        == arrays["features"].shape
        == (60, 5)
    )


def average_linkage(r, number):
    """Merge the two groups that are closest on average until `number` are left."""
    groups = [[i] for i in range(len(r))]
    while len(groups) > number:
        pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
        a, b = max(
            pairs, key=lambda pair: r[np.ix_(groups[pair[0]], groups[pair[1]])].mean()
        )
        groups[b] += groups.pop(a)
    return {frozenset(group) for group in groups}


def test_correlation_is_pearson_and_0_for_a_constant_column():
    found = np.random.default_rng(0).random((50, 6)).astype(np.float32)
    found[:, 2] = 3
    assert (np.delete(correlation(found)[2], 2) == 0).all()


@pytest.mark.parametrize("number", [1, 5, 12])
def test_clusters_are_those_of_average_linkage(number):
    random = np.random.default_rng(number)
    hidden = random.random((80, 4))
    r = correlation(
        (hidden[:, random.integers(0, 4, 12)] + 0.4 * random.random((80, 12))).astype(
            np.float32
        )
    )
    labels = cluster(r, number)
    assert {
        frozenset(np.flatnonzero(labels == i).tolist()) for i in range(number)
    } == average_linkage(r, number)
    firsts = [int(np.flatnonzero(labels == i)[0]) for i in range(number)]
    assert firsts == sorted(firsts)


def test_an_archetype_is_named_after_its_most_typical_motif():
    r = np.eye(5)
    for a, b, value in ((0, 1, 0.9), (1, 2, 0.8), (0, 2, 0.5)):
        r[a, b] = r[b, a] = value
    labels = np.array([0, 0, 0, 1, 2])
    assert archetype_names(["A", "B", "C", "D", "E"], r, labels) == ["B+2", "D", "E"]
    assert archetype_names(["A", "B", "C", "D", "D"], r, labels) == [
        "B+2",
        "D (1)",
        "D (2)",
    ]
