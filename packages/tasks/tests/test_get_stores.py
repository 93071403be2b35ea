"""Stores, folders and matrices: every format gives the same table, every problem names array and row."""

import gzip
import json
import shutil

import anndata
import numpy as np
import pandas
import pyarrow
import pytest
from pyarrow import parquet
from scipy import sparse

from dither.registry.config.errors import Refused
from dither.tasks.get_region.formats.get_model import read_store, write_store
from dither.tasks.get_region.formats.peaks import read_bed
from dither.tasks.get_region.formats.sources import ReadOptions, find_regions, find_source
from dither.tasks.get_region.formats.zarr_store import write_array

RANDOM = np.random.default_rng(0)
P, M = 24, 3


def table():
    atpm = RANDOM.random((P, 2)).astype(np.float32)
    atpm[::3] = 0
    return {
        "features": RANDOM.integers(0, 9, (P, M)).astype(np.float32),
        "motifs": np.array(["GATA1", "AP1/1", "HD/10"]),
        "chromosome": np.repeat(["chr1", "chr2", "chr3"], 8),
        "start": np.tile(np.arange(8) * 1000, 3) + 9790,
        "end": np.tile(np.arange(8) * 1000, 3) + 10675,
        "cells": np.array(["cd4_naive", "k562"]),
        "atpm": atpm,
        "expression": RANDOM.random((P, 2, 2)).astype(np.float32),
        "tss": RANDOM.integers(0, 2, (P, 2, 2)).astype(np.int8),
        "gene_index": np.array([3, 5]),
        "gene_name": np.array(["TAL1", "GAPDH"]),
        "gene_strand": np.array(["+", "-"]),
    }


def same(found, expected, names=None):
    for name in names or expected:
        np.testing.assert_array_equal(np.asarray(found[name]), expected[name], err_msg=name)


def read(*paths, **options):
    return find_regions(find_source(paths), ReadOptions(**options)).arrays


def refusal(*paths, **options):
    with pytest.raises(Refused) as refused:
        read(*paths, **options)
    return refused.value


@pytest.mark.parametrize("version", [2, 3])
def test_round_trip_of_a_store(tmp_path, version):
    arrays = table()
    write_store(tmp_path / "x.zarr", arrays, version)
    same(read(tmp_path / "x.zarr"), arrays)
    if version == 2:  # the layout that get_model reads
        header = json.loads((tmp_path / "x.zarr" / "peak_names" / ".zarray").read_text())
        assert (header["dtype"], header["chunks"], header["zarr_format"]) == ("<U16", [P], 2)
        header = json.loads((tmp_path / "x.zarr" / "data" / ".zarray").read_text())
        assert (header["dtype"], header["chunks"], header["compressor"]["id"]) == ("<f4", [1000, M], "zlib")
        header = json.loads((tmp_path / "x.zarr" / "tss" / "k562" / ".zarray").read_text())
        assert (header["dtype"], header["shape"], header["chunks"]) == ("|i1", [P, 2], [1000, 2])
        names = {path.name for path in (tmp_path / "x.zarr").iterdir()}
        assert {".zgroup", "atpm", "data", "expression_negative", "expression_positive"} <= names
        assert read_store(tmp_path / "x.zarr").arrays["chromosome"][0] == "chr1"
    with pytest.raises(Refused) as info:
        write_store(tmp_path / "x.zarr", arrays)
    assert info.value.codes == ["file-exists"]


def test_only_motifs_are_required(tmp_path):
    arrays = {name: table()[name] for name in ("features", "motifs", "chromosome", "start", "end")}
    write_store(tmp_path / "x.zarr", arrays)
    found = read(tmp_path / "x.zarr")
    assert "cells" not in found
    assert "atpm" not in found


@pytest.fixture
def store(tmp_path):
    write_store(tmp_path / "x.zarr", table())
    return tmp_path / "x.zarr"


def put(store, name, values):
    shutil.rmtree(store / name, ignore_errors=True)
    write_array(store / name, values, None)


def changed(name, at, value):
    values = np.array(table()[name])
    values[at] = value
    return values


def peaks(*rows):
    arrays = table()
    names = [f"{c}:{s}-{e}" for c, s, e in zip(arrays["chromosome"], arrays["start"], arrays["end"], strict=True)]
    for row, name in rows:
        names[row] = name
    return np.array(names)


MISTAKES = {
    "nan": ("data", changed("features", (5, 1), np.nan), "invalid-sample", 'data, row 5, column "AP1/1"'),
    "inf": ("data", changed("features", (5, 1), np.inf), "invalid-sample", 'data, row 5, column "AP1/1"'),
    "negative": ("data", changed("features", (7, 2), -3), "invalid-sample", 'data, row 7, column "HD/10"'),
    "negative atpm": ("atpm/k562", changed("atpm", (9, 1), -1)[:, 1], "invalid-sample", "atpm/k562, row 9"),
    "nan expression": (
        "expression_negative/cd4_naive",
        changed("expression", (9, 0, 1), np.nan)[:, 0, 1],
        "invalid-sample",
        "expression_negative/cd4_naive, row 9",
    ),
    "tss": ("tss/k562", changed("tss", (4, 1, 0), 3)[:, 1], "invalid-sample", "tss/k562, row 4"),
    "tss of one strand": ("tss/k562", np.zeros(P, np.int8), "wrong-shape", '"tss/k562"'),
    "unsorted": ("peak_names", peaks((2, "chr1:100-200")), "unsorted", "peak_names, row 2"),
    "overlap": ("peak_names", peaks((2, "chr1:11000-12000")), "invalid-sample", "peak_names, row 2: chr1:11000-12000"),
    "overlap of earlier": (
        "peak_names",
        peaks((0, "chr1:1-13000")),
        "invalid-sample",
        "row 2: chr1:11790-12675",
    ),
    "copy": ("peak_names", peaks((2, "chr1:10790-11675")), "duplicate", "peak_names, row 2: chr1:10790-11675"),
    "backward": ("peak_names", peaks((7, "chr1:20000-19000")), "invalid-sample", "row 7: the region ends at 19000"),
    "not a place": ("peak_names", peaks((7, "peak-7")), "invalid-sample", 'peak_names, row 7: "peak-7"'),
    "chromosome twice": ("peak_names", peaks((20, "chr2:1-2")), "unsorted", "row 20: chr2"),
    "two ways of naming": ("peak_names", peaks((23, "X:1-2")), "invalid-sample", 'row 23: named "X"'),
    "names as numbers": ("peak_names", np.arange(P), "wrong-shape", '"peak_names"'),
    "motifs as numbers": ("motif_names", np.arange(M), "wrong-shape", '"motif_names"'),
    "data as text": ("data", np.full((P, M), "1"), "wrong-shape", '"data" holds <U1'),
    "motif count": ("motif_names", np.array(["a", "b"]), "wrong-shape", '"data" has the shape (24, 3)'),
    "motif twice": ("motif_names", np.array(["a", "b", "a"]), "duplicate", '"a"'),
    "peak count": ("peak_names", peaks()[:20], "wrong-shape", '"data" has the shape (24, 3)'),
    "motif without a name": ("motif_names", np.array(["a", " ", "c"]), "invalid-sample", "number 2 of the motifs"),
    "truth values": ("data", table()["features"] > 1, "wrong-shape", '"data" holds bool'),
    "gene after the last peak": ("gene_idx_info_index", np.array([3, P]), "invalid-sample", "index, row 1: 24"),
    "gene before the first peak": ("gene_idx_info_index", np.array([-1, 3]), "invalid-sample", "index, row 0: -1"),
    "gene on no strand": ("gene_idx_info_strand", np.array(["+", "x"]), "invalid-sample", 'strand, row 1: "x"'),
    "more names than genes": ("gene_idx_info_name", np.array(["a", "b", "c"]), "wrong-shape", "name (3,)"),
    "genes in a table": ("gene_idx_info_index", np.zeros((2, 1), int), "wrong-shape", "index (2, 1)"),
    "no peaks": ("peak_names", peaks()[:0], "wrong-shape", "P = 0"),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_store_are_named(store, mistake):
    name, values, code, place = MISTAKES[mistake]
    put(store, name, values)
    refused = refusal(store)
    assert any(code == problem.code and place in problem.message for problem in refused.problems), refused
    assert all(str(store) in problem.message for problem in refused.problems)


def test_all_problems_are_reported_at_once(store):
    put(store, "data", changed("features", (slice(None), 1), np.nan))
    put(store, "atpm/k562", changed("atpm", (9, 1), -1)[:, 1])
    put(store, "peak_names", peaks((2, "chr1:100-200"), (12, "chr2:1-2")))
    text = str(refusal(store))
    for place in ("data, row 0", "data, row 4", "and 19 more", "atpm/k562, row 9", "peak_names, row 2", "row 12"):
        assert place in text
    shutil.rmtree(store / "data")
    put(store, "motif_names", np.arange(M))
    put(store, "tss/k562", np.zeros((3, 2), np.int8))
    refused = refusal(store)
    assert {"missing-array", "wrong-shape"} <= set(refused.codes)
    for place in ('"data"', '"motif_names"', '"tss/k562"'):
        assert place in str(refused)


def test_without_data_and_peak_names_arrays_are_compared_with_each_other(store):
    shutil.rmtree(store / "data")
    shutil.rmtree(store / "peak_names")
    put(store, "tss/k562", np.zeros((3, 2), np.int8))
    refused = refusal(store)
    assert refused.codes.count("missing-array") == 2
    assert '"tss/k562" has the shape (3, 2), expected (P, 2) with P = 24 peaks' in str(refused)


def test_overlaps_may_be_allowed(store):
    put(store, "peak_names", peaks((2, "chr1:11000-12000")))
    assert read(store, overlaps=True)["start"][2] == 11000
    put(store, "peak_names", peaks((2, "chr1:10790-11675")))
    assert refusal(store, overlaps=True).codes == ["duplicate"]


def test_an_incomplete_store(store):
    (store / "atpm" / "k562" / ".zarray").unlink()
    assert refusal(store).codes == ["file-not-found"]
    put(store, "atpm/k562", table()["atpm"][:, 1])
    chunk = store / "data" / "0.0"
    chunk.write_bytes(chunk.read_bytes()[:-5])
    refused = refusal(store)
    assert refused.codes == ["damaged-file"]
    assert "data/0.0: rows 0 to 23" in refused.problems[0].message
    chunk.unlink()
    refused = refusal(store)
    assert refused.codes == ["missing-chunk"]
    assert '"data": missing chunk: 0.0 (rows 0 to 23)' in refused.problems[0].message
    assert not np.asarray(read(store, empty_chunks=True)["features"]).any()  # the fill value
    (store / ".zgroup").unlink()
    assert refusal(store).codes == ["unknown-format"]


def write_legacy(folder, arrays, rows=None):
    lines = ["id,celltype,cluster,datatype,expression"]
    (folder / "wATAC").mkdir(parents=True)
    for number, cell in enumerate(arrays["cells"]):
        keep = slice(None) if rows is None else rows[number]
        lines.append(f"{number},{cell},{cell},wATAC,True")
        columns = np.concatenate([arrays["features"], arrays["atpm"][:, number : number + 1]], 1)[keep]
        sparse.save_npz(folder / "wATAC" / f"{number}.watac.npz", sparse.csr_matrix(columns))
        np.save(folder / "wATAC" / f"{number}.exp.npy", arrays["expression"][keep, number])
        np.save(folder / "wATAC" / f"{number}.tss.npy", arrays["tss"][keep, number])
        places = zip(arrays["chromosome"][keep], arrays["start"][keep], arrays["end"][keep], strict=True)
        text = "\n".join([",Chromosome,Start,End", *(f"{i},{c},{s},{e}" for i, (c, s, e) in enumerate(places))])
        (folder / "wATAC" / f"{number}.csv.gz").write_bytes(gzip.compress(text.encode()))
    (folder / "cell_type_align.txt").write_text("\n".join(lines) + "\n")


def test_the_older_layout(tmp_path):
    arrays = table()
    write_legacy(tmp_path / "old", arrays)
    found = read(tmp_path / "old")
    same(found, arrays, ("features", "atpm", "expression", "tss", "cells", "chromosome", "start", "end"))
    assert found["motifs"].tolist() == ["motif-0001", "motif-0002", "motif-0003"]


def test_the_older_layout_with_regions_of_their_own(tmp_path):
    arrays = table()
    rows = [np.array([i for i in range(P) if i % 3]), np.arange(0, P, 2)]
    write_legacy(tmp_path / "old", arrays, rows)
    found = read(tmp_path / "old")
    union = np.array(sorted({*rows[0].tolist(), *rows[1].tolist()}))
    same(found, {name: arrays[name][union] for name in ("features", "start", "chromosome")})
    for number in (0, 1):
        there = np.isin(union, rows[number])
        np.testing.assert_array_equal(found["atpm"][there, number], arrays["atpm"][rows[number], number])
        assert not found["atpm"][~there, number].any()
        np.testing.assert_array_equal(found["expression"][there, number], arrays["expression"][rows[number], number])


OLD_MISTAKES = {
    "matrix gone": (lambda f: (f / "wATAC/0.watac.npz").unlink(), "file-not-found", "0.watac.npz"),
    "no sparse matrix": (lambda f: np.savez(f / "wATAC/0.watac.npz", a=np.ones(3)), "damaged-file", "0.watac.npz"),
    "lying": (
        lambda f: np.savez(
            f / "wATAC/0.watac.npz",
            **{"format": np.array(b"csr"), "shape": np.array([24, 4]), "data": np.ones(1)},
            indices=np.array([9]),
            indptr=np.array([0] * 24 + [1]),
        ),
        "damaged-file",
        "0.watac.npz",
    ),
    "bomb": (
        lambda f: np.savez(
            f / "wATAC/0.watac.npz",
            **{"format": np.array(b"csr"), "shape": np.array([10**9, 10**6]), "data": np.ones(1)},
            indices=np.array([9]),
            indptr=np.array([0, 1]),
        ),
        "damaged-file",
        "4,000,000,000,000,000 bytes",
    ),
    "rows": (lambda f: np.save(f / "wATAC/0.exp.npy", np.ones((3, 2))), "wrong-shape", "0.watac.npz 24"),
    "pickled": (lambda f: np.save(f / "wATAC/0.tss.npy", np.array([{}])), "damaged-file", "0.tss.npy"),
    "one strand": (lambda f: np.save(f / "wATAC/0.tss.npy", np.ones(24)), "wrong-shape", "0.tss.npy"),
    "header": (lambda f: (f / "cell_type_align.txt").write_text("a,b\n"), "missing-array", "line 1"),
    "outside": (
        lambda f: (f / "cell_type_align.txt").write_text("id,celltype,datatype\n../x,a,b\n"),
        "invalid-sample",
        "line 2",
    ),
    "half a base": (
        lambda f: (f / "wATAC/0.csv").write_text(
            "Chromosome,Start,End\n" + "".join(f"chr1,{1000 * n}.7,{1000 * n + 9}\n" for n in range(P))
        ),
        "invalid-sample",
        "0.csv, line 2: 0.7",
    ),
    "no such base": (
        lambda f: (f / "wATAC/0.csv").write_text("Chromosome,Start,End\n" + "chr1,nan,1e300\n" * P),
        "invalid-sample",
        "0.csv, line 2: nan",
    ),
    "maybe": (
        lambda f: (f / "cell_type_align.txt").write_text("id,celltype,datatype,expression\n0,a,wATAC,maybe\n"),
        "invalid-sample",
        "line 2: expression",
    ),
    "empty": (
        lambda f: (f / "cell_type_align.txt").write_text("id,celltype,datatype\n"),
        "no-samples",
        "cell_type_align.txt",
    ),
}


@pytest.mark.parametrize("mistake", OLD_MISTAKES)
def test_mistakes_in_the_older_layout(tmp_path, mistake):
    write_legacy(tmp_path / "old", table())
    spoil, code, place = OLD_MISTAKES[mistake]
    spoil(tmp_path / "old")
    refused = refusal(tmp_path / "old")
    assert refused.codes[0] == code
    assert place in refused.problems[0].message


def test_expression_denied_by_the_list_is_unknown(tmp_path):
    write_legacy(tmp_path / "old", table())
    path = tmp_path / "old" / "cell_type_align.txt"
    listed = path.read_text()
    path.write_text(listed.replace("k562,wATAC,True", "k562,wATAC,False"))
    found = read(tmp_path / "old")
    assert found["unknown"].tolist() == ["expression:k562"]
    assert found["expression"][:, 0].any()
    assert not found["expression"][:, 1].any()
    path.write_text(listed.replace("True", "False"))
    assert "expression" not in read(tmp_path / "old")


def test_motifs_that_differ_between_cell_types(tmp_path):
    arrays = table()
    write_legacy(tmp_path / "old", arrays)
    write_legacy(tmp_path / "other", {**arrays, "features": arrays["features"] + 1})
    shutil.copy(tmp_path / "other/wATAC/1.watac.npz", tmp_path / "old/wATAC/1.watac.npz")
    refused = refusal(tmp_path / "old")
    assert refused.codes == ["contradiction"]
    assert "chr1:9790-10675" in refused.problems[0].message


def bed(path, arrays, fourth=None):
    rows = zip(arrays["chromosome"], arrays["start"], arrays["end"], strict=True)
    lines = [
        f"{c}\t{s}\t{e}" + (f"\t{fourth[row]}" if fourth is not None else "") for row, (c, s, e) in enumerate(rows)
    ]
    text = "track name=x\n" + "\n".join(lines) + "\n"
    path.write_bytes(gzip.compress(text.encode()) if path.suffix == ".gz" else text.encode())
    return path


PLACED = ("features", "chromosome", "start", "end")


def test_matrices_with_bed_files(tmp_path):
    arrays = table()
    np.savez(tmp_path / "a.npz", features=arrays["features"], motifs=arrays["motifs"])
    np.savez(tmp_path / "b.npz", arrays["features"])
    sparse.save_npz(tmp_path / "c.npz", sparse.csr_matrix(arrays["features"]))
    sparse.save_npz(tmp_path / "e.npz", sparse.csc_matrix(arrays["features"]))
    lines = [",".join(arrays["motifs"]), *(",".join(map(str, row)) for row in arrays["features"])]
    (tmp_path / "d.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    places = [bed(tmp_path / "p.bed", arrays), bed(tmp_path / "p.bed.gz", arrays)]
    for name in ("a.npz", "b.npz", "c.npz", "e.npz", "d.csv.gz"):
        for place in places:
            found = read(tmp_path / name, place)
            same(found, arrays, PLACED)
            assert found["motifs"][0] in ("GATA1", "motif-0001")
        assert refusal(tmp_path / name).codes == ["missing-array"]
    atac = bed(tmp_path / "k562.atac.bed", arrays, arrays["atpm"][:, 1])
    found = read(tmp_path / "a.npz", atac)
    same(found, {**arrays, "cells": np.array(["k562"]), "atpm": arrays["atpm"][:, 1:]}, (*PLACED, "cells"))
    np.testing.assert_allclose(found["atpm"][:, 0], arrays["atpm"][:, 1], rtol=1e-6)


def test_names_and_cell_types_in_a_table(tmp_path):
    arrays = table()
    header = ["peak", *arrays["motifs"], "atpm:k562", "expression_negative:k562", "tss_positive:cd4_naive"]
    rows = [
        [name, *f, arrays["atpm"][i, 1], arrays["expression"][i, 1, 1], arrays["tss"][i, 0, 0]]
        for i, (name, f) in enumerate(zip(peaks(), arrays["features"], strict=True))
    ]
    path = tmp_path / "x.tsv"
    path.write_text("\n".join("\t".join(map(str, row)) for row in [header, *rows]))
    found = read(path)
    same(found, arrays, (*PLACED, "motifs"))
    for name in ("tss:k562", "expression:k562", "Open:k562"):
        (tmp_path / "y.tsv").write_text(path.read_text().replace("atpm:k562", name))
        assert f'the column "{name}"' in refusal(tmp_path / "y.tsv").problems[0].message
    assert found["cells"].tolist() == ["k562", "cd4_naive"]
    np.testing.assert_allclose(found["atpm"], np.stack([arrays["atpm"][:, 1], np.zeros(P)], 1), rtol=1e-6)
    np.testing.assert_allclose(found["expression"][:, 0, 1], arrays["expression"][:, 1, 1], rtol=1e-6)
    np.testing.assert_array_equal(found["tss"][:, 1, 0], arrays["tss"][:, 0, 0])
    path.write_text(path.read_text().replace("chr1:10790-11675", "chr1:1-2"))
    refused = refusal(path)
    assert refused.codes == ["unsorted"]
    assert "line 3: " in refused.problems[0].message


def test_files_that_do_not_match(tmp_path):
    arrays = table()
    np.savez(tmp_path / "a.npz", features=arrays["features"], motifs=arrays["motifs"])
    place = bed(tmp_path / "p.bed", arrays)
    place.write_text("\n".join(place.read_text().splitlines()[:-1]))
    assert refusal(tmp_path / "a.npz", place).codes == ["wrong-shape"]
    assert refusal(tmp_path / "a.npz", bed(tmp_path / "k.atac.bed", arrays)).codes == ["missing-array"]
    place.write_text("chr1\t1\n")
    with pytest.raises(Refused, match="line 1: "):
        read_bed(place)
    np.savez(tmp_path / "b.npz", a=np.ones((2, 2)), b=np.ones((2, 2)))
    assert refusal(tmp_path / "b.npz", place).codes == ["missing-array"]
    assert refusal(tmp_path / "none.zarr").codes == ["file-not-found"]
    assert refusal(tmp_path / "a.npz", tmp_path / "b.npz").codes == ["usage"]
    (tmp_path / "empty").mkdir()
    assert refusal(tmp_path / "empty").codes == ["unknown-format"]
    (tmp_path / "x.zarr.tar").touch()
    assert refusal(tmp_path / "x.zarr.tar").codes == ["unknown-format"]


def test_parquet(tmp_path):
    arrays = table()
    columns = {"chromosome": arrays["chromosome"].tolist(), "start": arrays["start"], "end": arrays["end"]}
    columns |= {name: arrays["features"][:, k] for k, name in enumerate(arrays["motifs"].tolist())}
    parquet.write_table(pyarrow.table({**columns, "atpm:k562": arrays["atpm"][:, 1]}), tmp_path / "x.parquet")
    found = read(tmp_path / "x.parquet")
    same(found, arrays, (*PLACED, "motifs"))
    np.testing.assert_allclose(found["atpm"][:, 0], arrays["atpm"][:, 1], rtol=1e-6)
    content = (tmp_path / "x.parquet").read_bytes()
    (tmp_path / "y.parquet").write_bytes(content[:-20])
    assert refusal(tmp_path / "y.parquet").codes == ["damaged-file"]
    parquet.write_table(pyarrow.table({**columns, "GATA1": ["x"] * P}), tmp_path / "z.parquet")
    assert 'the column "GATA1"' in refusal(tmp_path / "z.parquet").problems[0].message


@pytest.mark.filterwarnings("ignore")
def test_anndata(tmp_path):
    arrays = table()
    obs = pandas.DataFrame({"atpm:k562": arrays["atpm"][:, 1], "note": ["a"] * P}, index=peaks())
    var = pandas.DataFrame(index=arrays["motifs"])
    for number, matrix in enumerate((arrays["features"], sparse.csr_matrix(arrays["features"]))):
        anndata.AnnData(matrix, obs=obs, var=var).write_h5ad(tmp_path / f"{number}.h5ad")
        found = read(tmp_path / f"{number}.h5ad")
        same(found, arrays, (*PLACED, "motifs"))
        np.testing.assert_allclose(found["atpm"][:, 0], arrays["atpm"][:, 1], rtol=1e-6)
    obs["open:k562"] = pandas.Categorical(["yes"] * P)
    anndata.AnnData(arrays["features"], obs=obs, var=var).write_h5ad(tmp_path / "odd.h5ad")
    refused = refusal(tmp_path / "odd.h5ad")
    assert refused.codes == ["wrong-shape"]
    assert 'obs, column "open:k562"' in refused.problems[0].message
    turned = anndata.AnnData(arrays["features"].T, obs=var, var=pandas.DataFrame(index=peaks()))
    turned.write_h5ad(tmp_path / "turned.h5ad")
    assert refusal(tmp_path / "turned.h5ad").codes == ["wrong-shape"]
    (tmp_path / "x.h5ad").write_bytes(b"nothing")
    assert refusal(tmp_path / "x.h5ad").codes == ["damaged-file"]
