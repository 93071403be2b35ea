"""Stores of get_model and its older folders: every problem names array and row, and nothing lost silently becomes 0."""

import gzip
import shutil

import numpy as np
import pytest
from scipy import sparse

from dither.tasks.get_region.data_specs import (
    PreparedRegions,
    RegionArrays,
    RegionFile,
    RegionStore,
)
from dither.tasks.get_region.formats.sources import (
    ReadOptions,
    find_regions,
    find_source,
)
from dither.tasks.get_region.specs import GetRegion
from dither.tasks.prepared.manifest import MANIFEST

RANDOM = np.random.default_rng(0)
P, M = 2400, 3


def table():
    return {
        "features": RANDOM.random((P, M)).astype(np.float32) * 9,
        "motifs": np.array(["GATA1", "AP1/1", "HD/10"]),
        "chromosome": np.repeat(["chr1", "chr2", "chr3"], 800),
        "start": np.tile(np.arange(800) * 1000, 3) + 9790,
        "end": np.tile(np.arange(800) * 1000, 3) + 10675,
        "cells": np.array(["cd4_naive", "k562"]),
        "atpm": RANDOM.random((P, 2)).astype(np.float32)
        * (np.arange(P) % 3 > 0)[:, None],
        "expression": RANDOM.random((P, 2, 2)).astype(np.float32),
        "tss": RANDOM.integers(0, 2, (P, 2, 2)).astype(np.int8),
    }


ARRAYS = table()
NAMES = [
    f"{c}:{s}-{e}"
    for c, s, e in zip(
        *(ARRAYS[name] for name in ("chromosome", "start", "end")), strict=True
    )
]


def read(path, **options):
    return find_regions(find_source([path]), ReadOptions(**options)).arrays


def same(found, expected, names=None):
    for name in names or expected:
        np.testing.assert_array_equal(found[name][:], expected[name], err_msg=name)


@pytest.fixture(scope="module")
def stores(tmp_path_factory, write_store):
    folder = tmp_path_factory.mktemp("stores")
    for version in (2, 3):
        write_store(folder / f"{version}.zarr", ARRAYS, version)
    return folder


@pytest.fixture(params=[2, 3])
def store(stores, tmp_path, request):
    return shutil.copytree(stores / f"{request.param}.zarr", tmp_path / "x.zarr")


@pytest.fixture
def old_store(stores, tmp_path):
    return shutil.copytree(stores / "2.zarr", tmp_path / "x.zarr")


@pytest.fixture
def put(write_array):
    def replace(store, name, values):
        shutil.rmtree(store / name, ignore_errors=True)
        write_array(
            store / name,
            np.asarray(values),
            None,
            3 if (store / "zarr.json").is_file() else 2,
        )

    return replace


def changed(name, at, value):
    values = np.array(ARRAYS[name])
    values[at] = value
    return values


def peaks(*rows):
    names = [*NAMES]
    for row, name in rows:
        names[row] = name
    return np.array(names)


def chunk(store, name, *place):
    return (
        store
        / name
        / (
            "c/" + "/".join(place)
            if (store / "zarr.json").is_file()
            else ".".join(place)
        )
    )


def test_a_store_is_read_whole(store):
    same(read(store), ARRAYS)
    for name in ("atpm", "expression_positive", "expression_negative", "tss"):
        shutil.rmtree(store / name)
    assert read(store).keys().isdisjoint({"cells", "atpm"})


MISTAKES = {
    "nan": (
        "data",
        changed("features", (5, 1), np.nan),
        "invalid-sample",
        'data, row 5, column "AP1/1"',
    ),
    "negative": (
        "data",
        changed("features", (7, 2), -3),
        "invalid-sample",
        'data, row 7, column "HD/10"',
    ),
    "large atpm": (
        "atpm/k562",
        np.full(P, 1e39),
        "invalid-sample",
        "atpm/k562, row 0: 1e+39 is more than float32",
    ),
    "tss of 256": (
        "tss/k562",
        np.full((P, 2), 256, np.int16),
        "invalid-sample",
        "tss/k562, row 0: 256",
    ),
    "tss of other peaks": (
        "tss/k562",
        np.zeros((3, 2), np.int8),
        "wrong-shape",
        '"tss/k562" has the shape (3, 2)',
    ),
    "unsorted": (
        "peak_names",
        peaks((2, "chr1:100-200")),
        "unsorted",
        "peak_names, row 2",
    ),
    "overlap": (
        "peak_names",
        peaks((2, "chr1:11000-12000")),
        "invalid-sample",
        "peak_names, row 2: chr1:11000-12000",
    ),
    "overlap of earlier": (
        "peak_names",
        peaks((0, "chr1:1-13000")),
        "invalid-sample",
        "row 2: chr1:11790-12675",
    ),
    "copy": (
        "peak_names",
        peaks((2, "chr1:10790-11675")),
        "duplicate",
        "peak_names, row 2: chr1:10790-11675",
    ),
    "not a place": (
        "peak_names",
        peaks((7, "peak-7")),
        "invalid-sample",
        'peak_names, row 7: "peak-7"',
    ),
    "chromosome twice": (
        "peak_names",
        peaks((2000, "chr2:1-2")),
        "unsorted",
        "row 2000: chr2",
    ),
    "two ways of naming": (
        "peak_names",
        peaks((2399, "X:1-2")),
        "invalid-sample",
        'row 2399: named "X"',
    ),
    "motif twice": ("motif_names", np.array(["a", "b", "a"]), "duplicate", '"a"'),
    "no peaks": ("peak_names", peaks()[:0], "wrong-shape", "(0,)"),
    "motif without a name": (
        "motif_names",
        np.array(["a", " ", "c"]),
        "invalid-sample",
        "number 2 of the motifs",
    ),
    "truth values": (
        "data",
        ARRAYS["features"] > 1,
        "wrong-shape",
        '"data" holds bool',
    ),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_mistakes_in_a_store_are_named(old_store, put, refusal, mistake):
    name, values, code, place = MISTAKES[mistake]
    put(old_store, name, values)
    refused = refusal(read, old_store)
    assert any(
        code == problem.code and place in problem.message
        for problem in refused.problems
    ), refused
    assert all(str(old_store) in problem.message for problem in refused.problems)


def test_overlaps_may_be_allowed(old_store, put, refusal):
    put(old_store, "peak_names", peaks((2, "chr1:11000-12000")))
    assert read(old_store, overlaps=True)["start"][2] == 11000
    put(old_store, "peak_names", peaks((2, "chr1:10790-11675")))
    assert refusal(read, old_store, overlaps=True).codes == ["duplicate"]


CHUNKS = dict.fromkeys(("peak_names", "motif_names"), ("0",))
CHUNKS |= {
    "data": ("1", "0"),
    "tss/k562": ("1", "0"),
    "atpm/k562": ("1",),
    "expression_positive/cd4_naive": ("1",),
}
"""A chunk of each kind of array."""


@pytest.mark.parametrize("name", CHUNKS)
def test_a_missing_chunk_is_refused_or_noted_in_every_array(
    store, tmp_path, refusal, name
):
    path = chunk(store, name, *CHUNKS[name])
    path.unlink()
    whole = {"motif_names": "rows 0 to 2", "peak_names": f"rows 0 to {P - 1}"}
    place = f"{path.relative_to(store / name)} ({whole.get(name, 'rows 1000 to 1999')})"
    line = f'x.zarr: "{name}": missing chunk: {place}'
    options = (
        {"path": str(store)}
        if "_name" in name
        else {"path": str(store), "empty_chunks": False}
    )
    prepared = PreparedRegions(
        paths=[options.pop("path")], out=str(tmp_path / "out"), **options
    )
    for way in (RegionStore(path=str(store), **options).build, prepared.prepare):
        refused = refusal(way)
        assert refused.codes == ["missing-chunk"]
        assert line in refused.problems[0].message
    assert not (tmp_path / "out").exists()
    if "_name" not in name:
        prepared = PreparedRegions(paths=[str(store)], out=str(tmp_path / "out"))
        assert line in prepared.prepare()
        for data in (RegionStore(path=str(store)), prepared):
            task = GetRegion(data=data, regions=20, cell_type="k562").build()
            assert any(line in warning for warning in task.data_warnings())
            expected = ARRAYS["tss"][:, 1] * (np.arange(P) // 1000 != 1)[:, None] ** (
                name == "tss/k562"
            )
            np.testing.assert_array_equal(data.build().tss[:, 1], expected > 0)


def test_all_missing_and_damaged_parts_are_reported_at_once(store, refusal):
    for number in "02":
        chunk(store, "data", number, "0").unlink()
    damaged = chunk(store, "atpm/k562", "1")
    damaged.write_bytes(damaged.read_bytes()[:-5])
    (
        store
        / "motif_names"
        / ("zarr.json" if (store / "zarr.json").is_file() else ".zarray")
    ).unlink()
    refused = refusal(RegionStore(path=str(store), empty_chunks=False).build)
    assert sorted(refused.codes) == ["damaged-file", "file-not-found", "missing-chunk"]
    for place in (
        '"data"',
        "(rows 0 to 999)",
        "(rows 2000 to 2399)",
        "rows 1000 to 1999",
        "motif_names",
    ):
        assert place in str(refused)
    (store / ("zarr.json" if (store / "zarr.json").is_file() else ".zgroup")).unlink()
    assert refusal(read, store).codes == ["unknown-format"]


def test_values_known_of_one_cell_type_only(store, tmp_path, refusal):
    """Accessibility of k562 and expression of cd4_naive were never written: neither is 0, both are not known."""
    shutil.rmtree(store / "atpm" / "k562")
    for strand in ("positive", "negative"):
        shutil.rmtree(store / f"expression_{strand}" / "cd4_naive")
    report = PreparedRegions(paths=[str(store)], out=str(tmp_path / "out")).prepare()
    assert "note: atpm of k562 is unknown" in report
    assert "note: expression of cd4_naive is unknown" in report
    for data in (
        RegionStore(path=str(store)),
        RegionArrays(path=str(tmp_path / "out")),
    ):
        assert data.build().unknown == (
            "atpm:k562",
            "expression:cd4_naive",
            "open:k562",
        )
        for options, message in (
            ({"cell_type": "k562"}, 'no accessibility of "k562"'),
            (
                {"cell_type": "k562", "accessibility": "quantitative"},
                'accessibility as a number of "k562"',
            ),
            (
                {"cell_type": "k562", "accessibility": "constant", "drop_closed": True},
                'no accessibility of "k562"',
            ),
            (
                {"cell_type": "cd4_naive", "expression": True},
                'no expression of "cd4_naive"',
            ),
            (
                {"cell_type": "cd4_naive", "valid_cells": ["k562"]},
                'no accessibility of "k562"',
            ),
            (
                {"cell_type": "cd4_naive", "test_cells": ["k562"]},
                'no accessibility of "k562"',
            ),
        ):
            task = GetRegion(data=data, regions=20, **options)
            (misfit,) = task.check()
            assert message in misfit.message
            assert message in str(refusal(task.build))
        assert not [*GetRegion(data=data, regions=20, cell_type="cd4_naive").check()]
        task = GetRegion(
            data=data,
            regions=20,
            cell_type="k562",
            accessibility="none",
            expression=True,
        )
        x0 = (
            task.build().batch("valid", [0]).x0[0, :, -2:].numpy()
        )  # without atpm nothing is below the limit
        np.testing.assert_array_equal(x0, ARRAYS["expression"][800:820, 1])


def test_unknown_tss_of_one_cell_type_removes_the_condition(old_store):
    shutil.rmtree(old_store / "tss/k562")
    for cells, known in (
        (["k562"], False),
        (["cd4_naive"], True),
        (["cd4_naive", "k562"], False),
    ):
        spec = GetRegion(
            data=RegionStore(path=str(old_store)), regions=20, cell_type=cells
        )
        task = spec.build()
        assert spec.space() == task.space
        assert (
            "tss" in [condition.name for condition in task.space.conditions]
        ) == known
        assert ("tss" in task.batch("valid", [0]).cond) == known


def test_a_part_of_a_store(old_store, refusal):
    for part in ("data", "atpm/k562"):
        refused = refusal(find_source, [old_store / part])
        assert refused.codes == ["unknown-format"]
        assert f"give the store: {old_store}" in refused.problems[0].help


KEPT = 24
"""Regions in the older folders, of one chromosome each eight."""
OLD = {
    name: values[::100] if len(values) == P else values
    for name, values in ARRAYS.items()
    if name != "motifs"
}


def write_legacy(folder, arrays, rows=None):
    lines = ["id,celltype,cluster,datatype,expression"]
    (folder / "wATAC").mkdir(parents=True)
    for number, cell in enumerate(arrays["cells"]):
        keep = slice(None) if rows is None else rows[number]
        lines.append(f"{number},{cell},{cell},wATAC,True")
        columns = np.concatenate(
            [arrays["features"], arrays["atpm"][:, number : number + 1]], 1
        )[keep]
        sparse.save_npz(
            folder / "wATAC" / f"{number}.watac.npz", sparse.csr_matrix(columns)
        )
        np.save(
            folder / "wATAC" / f"{number}.exp.npy", arrays["expression"][keep, number]
        )
        np.save(folder / "wATAC" / f"{number}.tss.npy", arrays["tss"][keep, number])
        places = zip(
            arrays["chromosome"][keep],
            arrays["start"][keep],
            arrays["end"][keep],
            strict=True,
        )
        text = "\n".join(
            [
                ",Chromosome,Start,End",
                *(f"{i},{c},{s},{e}" for i, (c, s, e) in enumerate(places)),
            ]
        )
        (folder / "wATAC" / f"{number}.csv.gz").write_bytes(
            gzip.compress(text.encode())
        )
    (folder / "cell_type_align.txt").write_text("\n".join(lines) + "\n")


@pytest.fixture
def old(tmp_path):
    write_legacy(tmp_path / "old", OLD)
    return tmp_path / "old"


def test_the_older_layout(old, tmp_path):
    found = read(old)
    same(found, OLD)
    assert found["motifs"].tolist() == ["motif-0001", "motif-0002", "motif-0003"]
    rows = [
        np.array([i for i in range(KEPT) if i % 3]),
        np.arange(0, KEPT, 2),
    ]  # regions of their own
    write_legacy(tmp_path / "own", OLD, rows)
    found = read(tmp_path / "own")
    union = np.array(sorted({*rows[0].tolist(), *rows[1].tolist()}))
    same(
        found, {name: OLD[name][union] for name in ("features", "start", "chromosome")}
    )
    for number in (0, 1):
        there = np.isin(union, rows[number])
        np.testing.assert_array_equal(
            found["atpm"][there, number], OLD["atpm"][rows[number], number]
        )
        assert not found["atpm"][~there, number].any()
        np.testing.assert_array_equal(
            found["expression"][there, number], OLD["expression"][rows[number], number]
        )


def sparse_of(shape):
    arrays = {
        "format": np.array(b"csr"),
        "shape": np.array(shape),
        "data": np.ones(1),
        "indices": np.array([9]),
    }
    return lambda f: np.savez(
        f / "wATAC/0.watac.npz", **arrays, indptr=np.array([0] * 24 + [1])
    )


def listed(text):
    return lambda f: (f / "cell_type_align.txt").write_text(text)


def placed(line):
    text = "Chromosome,Start,End\n" + "".join(line.format(n) for n in range(KEPT))
    return lambda f: (f / "wATAC/0.csv").write_text(text)


OLD_MISTAKES = {
    "matrix gone": (
        lambda f: (f / "wATAC/0.watac.npz").unlink(),
        "file-not-found",
        "0.watac.npz",
    ),
    "indices": (sparse_of([24, 4]), "damaged-file", "0.watac.npz"),
    "bomb": (sparse_of([10**9, 10**6]), "damaged-file", "4,000,000,000,000,000 bytes"),
    "rows": (
        lambda f: np.save(f / "wATAC/0.exp.npy", np.ones((3, 2))),
        "wrong-shape",
        "0.watac.npz 24",
    ),
    "pickled": (
        lambda f: np.save(f / "wATAC/0.tss.npy", np.array([{}])),
        "damaged-file",
        "0.tss.npy",
    ),
    "header": (listed("a,b\n"), "missing-array", "line 1"),
    "outside": (listed("id,celltype,datatype\n../x,a,b\n"), "invalid-sample", "line 2"),
    "maybe": (
        listed("id,celltype,datatype,expression\n0,a,wATAC,maybe\n"),
        "invalid-sample",
        "line 2: expression",
    ),
    "no such base": (placed("chr1,nan,1e300\n"), "invalid-sample", "0.csv, line 2"),
    "backward": (
        placed("chr1,{0}9,{0}1\n"),
        "invalid-sample",
        "0.csv, line 2: the region ends",
    ),
}


@pytest.mark.parametrize("mistake", OLD_MISTAKES)
def test_mistakes_in_the_older_layout(old, refusal, mistake):
    spoil, code, place = OLD_MISTAKES[mistake]
    spoil(old)
    refused = refusal(read, old)
    assert refused.codes[0] == code
    assert place in refused.problems[0].message


def test_expression_denied_by_the_list_is_unknown(old):
    path = old / "cell_type_align.txt"
    text = path.read_text()
    path.write_text(text.replace("k562,wATAC,True", "k562,wATAC,False"))
    found = read(old)
    assert found["unknown"].tolist() == ["expression:k562"]
    assert found["expression"][:, 0].any()
    assert not found["expression"][:, 1].any()
    path.write_text(text.replace("True", "False"))
    assert "expression" not in read(old)


def test_motifs_that_differ_between_cell_types(old, tmp_path, refusal):
    write_legacy(tmp_path / "other", {**OLD, "features": OLD["features"] + 1})
    shutil.copy(tmp_path / "other/wATAC/1.watac.npz", old / "wATAC/1.watac.npz")
    refused = refusal(read, old)
    assert refused.codes == ["contradiction"]
    assert "chr1:9790-10675" in refused.problems[0].message


def spec(store, **options):
    return PreparedRegions(paths=[str(store)], **options)


@pytest.mark.parametrize("scale", [False, True])
def test_all_ways_to_a_matrix_agree(
    old_store, cache, tmp_path, scale, write_array, refusal
):
    genes = np.array(["MYC", "TP53"]), np.array([0, P - 1])
    for name, values in zip(("name", "index"), genes, strict=True):
        write_array(old_store / f"gene_idx_info_{name}", values)
    np.savez(tmp_path / "x.npz", **ARRAYS, gene=genes[0], gene_region=genes[1])
    out = str(tmp_path / "arrays")
    ways = [
        RegionStore(path=str(old_store), scale=scale),
        RegionFile(path=str(tmp_path / "x.npz"), scale=scale),
        spec(old_store, scale=scale),
        spec(old_store, scale=scale, out=out),
        RegionArrays(path=out, scale=scale),
    ]
    train = ~np.isin(ARRAYS["chromosome"], ["chr1", "chr2"])
    largest = ARRAYS["features"][train].max(0)
    expected = (
        np.minimum(ARRAYS["features"] / largest, 1) if scale else ARRAYS["features"]
    )
    for way in ways:
        if isinstance(way, PreparedRegions):
            (misfit,) = way.check()
            assert misfit.code == "not-prepared"
            assert f"dither prepare get {old_store}" in misfit.help
            assert "2,400 regions x 3 motifs" in way.prepare()
        assert list(way.check()) == []
        matrix = way.build()
        np.testing.assert_array_equal(matrix.scaled(slice(None)), expected)
        np.testing.assert_array_equal(matrix.open, ARRAYS["atpm"] > 0)
        for name in ("chromosome", "start", "end", "atpm", "expression"):
            np.testing.assert_array_equal(
                getattr(matrix, name), ARRAYS[name], err_msg=name
            )
        np.testing.assert_array_equal(matrix.tss, ARRAYS["tss"] > 0)
        assert (matrix.motifs, matrix.cells) == (
            tuple(ARRAYS["motifs"]),
            ("cd4_naive", "k562"),
        )
        assert (matrix.gene.tolist(), matrix.gene_region.tolist()) == (
            genes[0].tolist(),
            genes[1].tolist(),
        )
    np.savez(tmp_path / "x.npz", **ARRAYS, gene=genes[0], gene_region=genes[1] + 1)
    assert (
        "gene_region, row 1 (from 0): 2400 is"
        in refusal(ways[1].build).problems[0].message
    )
    mapped, plain = ways[3].build(), ways[0].build()
    assert isinstance(mapped.features, np.memmap)
    rows = RANDOM.integers(0, P, (4, 5))
    for key in (rows, slice(3, 9), 7):
        np.testing.assert_array_equal(mapped.scaled(key), plain.scaled(key))
    assert not scale or (mapped.divisor == largest).all()


@pytest.mark.parametrize("dtype", ["u1", ">f8"])
def test_integer_types_are_counts(old_store, cache, tmp_path, write_array, dtype):
    shutil.rmtree(old_store / "data")
    counts = np.arange(P * M).reshape(P, M).astype(dtype)
    write_array(old_store / "data", counts, 1600)
    np.savez(tmp_path / "x.npz", **{**ARRAYS, "features": counts})
    ways = [
        spec(path, out=str(tmp_path / path.suffix[1:]), scale=False)
        for path in (old_store, tmp_path / "x.npz")
    ]
    for way in (*ways, RegionStore(path=str(old_store), scale=False)):
        way.prepare()
        np.testing.assert_array_equal(
            way.build().scaled(slice(None)), counts.astype(np.float32)
        )


def test_float16_is_close_and_too_large_numbers_are_named(
    old_store, cache, write_array, refusal
):
    plain, half = (
        spec(old_store, scale=False),
        spec(old_store, scale=False, dtype="float16"),
    )
    plain.prepare()
    assert "float16" in half.prepare()
    a, b = (way.build().scaled(slice(None)) for way in (half, plain))
    assert 0 < np.abs(a - b).max() <= 2**-11 * b.max()
    features = np.ones((P, M), np.float32)
    features[20, 1] = 7e4
    shutil.rmtree(old_store / "data")
    write_array(old_store / "data", features)
    (problem,) = refusal(spec(old_store, dtype="float16", force=True).prepare).problems
    assert problem.message.startswith(
        f'{old_store}: data, row 20, column "AP1/1": 70000'
    )
    assert (problem.code, problem.help) == ("out-of-range", "use --dtype float32")


def test_prepared_twice(old_store, tmp_path, refusal):
    out = str(tmp_path / "out")
    spec(old_store, out=out).prepare()
    assert "all checksums match" in spec(old_store, out=out).prepare()
    (tmp_path / "elsewhere").mkdir()
    moved = old_store.rename(tmp_path / "elsewhere" / old_store.name)
    assert spec(moved, out=out).build().motifs  # a moved source counts as the same
    assert refusal(spec(tmp_path / "y.zarr", out=out).build).codes == [
        "changed-options"
    ]
    chunk = moved / "atpm" / "k562" / "0"
    chunk.write_bytes((moved / "atpm" / "cd4_naive" / "0").read_bytes())
    assert (
        "the source changed"
        in refusal(spec(moved, out=out).prepare).problems[0].message
    )


def test_a_damaged_folder_is_refused(old_store, cache, tmp_path, refusal):
    out = tmp_path / "out"
    spec(old_store, out=str(out)).prepare()
    for name, old, new in (
        ("start.npy", b"\0\0\0\0", b"\0\0\0\1"),
        (MANIFEST, b'"GATA1",', b""),
        (MANIFEST, b'"motifs"', b'"motives"'),
    ):
        content = (out / name).read_bytes()
        (out / name).write_bytes(content.replace(old, new))
        refused = refusal(RegionArrays(path=str(out)).build)
        assert refused.codes == ["damaged-file"]
        assert "dither prepare get" in refused.problems[0].help
        (out / name).write_bytes(content)


def test_held_out_chromosomes_must_exist(old_store, cache, refusal):
    for way in (
        RegionStore(path=str(old_store), valid=["chr22"]),
        spec(old_store, valid=["chr22"]),
    ):
        way.prepare()
        assert refusal(way.build).codes == ["unknown-value"]
        (misfit,) = GetRegion(data=way, regions=2, cell_type="k562").check()
        assert (misfit.code, misfit.path) == ("unknown-value", ("data", "valid"))
        nothing = type(way)(**{**way.model_dump(), "valid": ["chr2", "chr3"]})
        (misfit,) = GetRegion(data=nothing, regions=2, cell_type="k562").check()
        assert misfit.code == "no-samples"
    for sort in (RegionStore, RegionArrays, RegionFile):
        with pytest.raises(ValueError, match="chr2 cannot be held out both"):
            sort(path="x", valid=["chr2"], test=["chr2"])
