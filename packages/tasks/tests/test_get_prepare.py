"""The builder from end to end: two small wheels in, a matrix out, every number checked by hand-written loops."""

import sqlite3
import zipfile

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
    read_sequences,
)
from dither.tasks.get_region.data.motif_scan import Motif, encode, scan
from dither.tasks.prepared.arrays import read_archive

torch.set_num_threads(1)
RANDOM = np.random.default_rng(0)
COUNTS = {f"MA{i:04d}": RANDOM.integers(0, 20, (4 + i % 3, 4)).astype(float) + 1 for i in range(8)}

SEQUENCES = ["".join(RANDOM.choice(list("ACGT"), 30)) for _ in range(120)][60:]  # made once: any test may run alone


@pytest.fixture
def region_wheel(tmp_path):
    columns = ["chr", "start", "end", "sequence", *CELLS.values()]
    lines = ["\t".join(columns)]
    for i in range(60):
        chromosome = ("chr10", "chr2", "chrX", "chr1")[i % 4]
        open_in = ["1" if i % 5 == k else "0" for k in range(4)]
        lines.append("\t".join([chromosome, str(9_000 - 100 * i), str(9_050 - 100 * i), SEQUENCES[i], *open_in]))
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
    entries = [(motif, 2, "CORE", "vertebrates", table) for motif, table in COUNTS.items()]
    entries += [("MA0000", 1, "CORE", "vertebrates", np.ones((9, 4)))]  # an older version
    entries += [("MA0000", 3, "UNVALIDATED", "vertebrates", np.ones((9, 4)))]  # newer, but of another collection
    entries += [("MA0001", 2, "UNVALIDATED", "vertebrates", np.ones((9, 4)))]
    entries += [("MA9999", 1, "CORE", "fungi", np.ones((5, 4)))]
    for number, (motif, version, collection, group, table) in enumerate(entries):
        database.execute("INSERT INTO MATRIX VALUES (?, ?, ?, ?, ?)", (number, collection, motif, version, f"N{motif}"))
        database.execute("INSERT INTO MATRIX_ANNOTATION VALUES (?, 'tax_group', ?)", (number, group))
        database.execute("INSERT INTO MATRIX_ANNOTATION VALUES (?, 'class', 'x')", (number,))
        for (column, base), value in np.ndenumerate(table):
            row = (number, "ACGT"[base], column + 1, value)
            database.execute("INSERT INTO MATRIX_DATA VALUES (?, ?, ?, ?)", row)
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
    row = int(np.flatnonzero(regions.start == 9_000 - 100 * 7)[0])  # the eighth line: chr1, open in the third cell type
    assert regions.chromosome[row] == "chr1"
    assert regions.open[row].tolist() == [False, False, True, False]
    assert regions.end[row] == regions.start[row] + 50


def test_the_matrix_follows_the_recipe(region_wheel, motif_wheel):
    regions, counts = read_sequences(region_wheel), read_counts(motif_wheel)
    arrays = prepare.build_matrix(regions, counts, 5)
    found = scan(encode(regions.sequence), [Motif.of(name, table) for name, table in counts.values()])
    labels = cluster(correlation(found), 5)
    train = [name not in ("chr1", "chr2") for name in regions.chromosome]
    for archetype in range(5):
        pooled = found[:, labels == archetype].sum(1)
        top = pooled[train].max()
        assert top > 0
        np.testing.assert_allclose(arrays["features"][:, archetype], np.minimum(pooled / top, 1), rtol=1e-5)
        assert arrays["scale"][archetype] == pytest.approx(top)
    assert arrays["features"].max() == 1
    assert arrays["cells"].tolist() == list(CELLS)


def test_the_packaged_matrix_is_the_built_one_rounded(region_wheel, motif_wheel, tmp_path, monkeypatch):
    arrays = prepare.build_matrix(read_sequences(region_wheel), read_counts(motif_wheel), 5)
    monkeypatch.setitem(arrays, "chromosome", np.where(arrays["chromosome"] == "chrX", "chr21", arrays["chromosome"]))
    prepare.write_packaged(arrays, tmp_path)
    whole, part = read_archive(tmp_path / "whole.npz", ""), read_archive(tmp_path / "chr21-22.npz", "")
    assert np.abs(whole["features"] / 255 - arrays["features"]).max() <= 0.5 / 255 + 1e-6
    few = arrays["chromosome"] == "chr21"
    np.testing.assert_array_equal(part["features"], whole["features"][few])
    np.testing.assert_array_equal(part["start"], arrays["start"][few])
    np.testing.assert_array_equal(part["motifs"], arrays["motifs"])


def test_a_wheel_without_the_file_is_named(region_wheel, motif_wheel, refusal):
    assert "motifs.whl" in str(refusal(read_sequences, motif_wheel))
    assert "regions.whl" in str(refusal(read_counts, region_wheel))


def test_a_stop_leaves_nothing_behind(region_wheel, motif_wheel, tmp_path, monkeypatch):
    def stop(done, total):
        raise KeyboardInterrupt

    wheels = {REGION_WHEEL[0]: region_wheel, MOTIF_WHEEL[0]: motif_wheel}
    monkeypatch.setattr(prepare, "fetch_wheel", lambda name, version, sha256: wheels[name])
    monkeypatch.setattr(prepare, "ARCHETYPES", 5)
    with monkeypatch.context() as stopped:
        stopped.setattr("dither.tasks.prepared.progress.Progress.update", lambda self, done, total: stop(done, total))
        with pytest.raises(KeyboardInterrupt):
            prepare.write_built(tmp_path / "built" / "matrix.npz")
    assert not list(tmp_path.glob("built/*"))
    arrays = prepare.write_built(tmp_path / "built" / "matrix.npz")
    assert sorted(path.name for path in (tmp_path / "built").iterdir()) == ["matrix.json", "matrix.npz"]
    assert read_archive(tmp_path / "built" / "matrix.npz", "")["features"].shape == arrays["features"].shape == (60, 5)


def average_linkage(r, number):
    """Merge the two groups that are closest on average until `number` are left."""
    groups = [[i] for i in range(len(r))]
    while len(groups) > number:
        pairs = [(a, b) for a in range(len(groups)) for b in range(a)]
        a, b = max(pairs, key=lambda pair: r[np.ix_(groups[pair[0]], groups[pair[1]])].mean())
        groups[b] += groups.pop(a)
    return {frozenset(group) for group in groups}


def test_correlation_is_pearson_and_0_for_a_constant_column():
    found = np.random.default_rng(0).random((50, 6)).astype(np.float32)
    np.testing.assert_allclose(correlation(found), np.corrcoef(found.T), atol=1e-6)
    found[:, 2] = 3
    assert (np.delete(correlation(found)[2], 2) == 0).all()


@pytest.mark.parametrize("number", [1, 3, 5, 8, 12])
def test_clusters_are_those_of_average_linkage(number):
    random = np.random.default_rng(number)
    hidden = random.random((80, 4))
    r = correlation((hidden[:, random.integers(0, 4, 12)] + 0.4 * random.random((80, 12))).astype(np.float32))
    labels = cluster(r, number)
    assert {frozenset(np.flatnonzero(labels == i).tolist()) for i in range(number)} == average_linkage(r, number)
    firsts = [int(np.flatnonzero(labels == i)[0]) for i in range(number)]
    assert firsts == sorted(firsts)


def test_an_archetype_is_named_after_its_most_typical_motif():
    r = np.eye(5)
    for a, b, value in ((0, 1, 0.9), (1, 2, 0.8), (0, 2, 0.5)):
        r[a, b] = r[b, a] = value
    labels = np.array([0, 0, 0, 1, 2])
    assert archetype_names(["A", "B", "C", "D", "E"], r, labels) == ["B+2", "D", "E"]
    assert archetype_names(["A", "B", "C", "D", "D"], r, labels) == ["B+2", "D (1)", "D (2)"]
