"""`prepare get`: converted regions equal the source; changed options and damaged folders are found."""

import shutil

import numpy as np
import pytest

from dither.tasks.get_region.data.region_matrix import LazyMatrix
from dither.tasks.get_region.data_specs import PreparedRegions, RegionArrays, RegionFile, RegionStore
from dither.tasks.get_region.specs import GetRegion
from dither.tasks.prepared.manifest import MANIFEST

RANDOM = np.random.default_rng(0)
P, M = 40, 3


def table():
    atpm = RANDOM.random((P, 2)).astype(np.float32)
    atpm[::3, 1] = 0
    return {
        "features": RANDOM.random((P, M)).astype(np.float32) * 9,
        "motifs": np.array(["GATA1", "AP1/1", "HD/10"]),
        "chromosome": np.repeat(["chr1", "chr2", "chr3", "chr10"], 10),
        "start": np.tile(np.arange(10) * 1000, 4),
        "end": np.tile(np.arange(10) * 1000, 4) + 500,
        "cells": np.array(["cd4_naive", "k562"]),
        "atpm": atpm,
        "expression": RANDOM.random((P, 2, 2)).astype(np.float32),
        "tss": RANDOM.integers(0, 2, (P, 2, 2)).astype(np.int8),
    }


ARRAYS = table()


@pytest.fixture
def store(tmp_path, cache, write_store):
    write_store(tmp_path / "x.zarr", ARRAYS)
    return tmp_path / "x.zarr"


def spec(store, **options):
    return PreparedRegions(paths=[str(store)], **options)


@pytest.mark.parametrize("scale", [False, True])
def test_all_ways_to_a_matrix_agree(store, tmp_path, scale):
    np.savez(tmp_path / "x.npz", **ARRAYS)
    out = str(tmp_path / "arrays")
    ways = [
        RegionStore(path=str(store), scale=scale),
        RegionFile(path=str(tmp_path / "x.npz"), scale=scale),
        spec(store, scale=scale),
        spec(store, scale=scale, out=out),
        RegionArrays(path=out, scale=scale),
    ]
    train = ~np.isin(ARRAYS["chromosome"], ["chr1", "chr2"])
    largest = ARRAYS["features"][train].max(0)
    expected = np.minimum(ARRAYS["features"] / largest, 1) if scale else ARRAYS["features"]
    for way in ways:
        if isinstance(way, PreparedRegions):
            (misfit,) = way.check()
            assert misfit.code == "not-prepared"
            assert f"dither prepare get {store}" in misfit.help
            assert "40 regions x 3 motifs" in way.prepare()
        assert list(way.check()) == []
        matrix = way.build()
        np.testing.assert_array_equal(np.asarray(matrix.features), expected)
        np.testing.assert_array_equal(matrix.open, ARRAYS["atpm"] > 0)
        for name in ("chromosome", "start", "end", "atpm", "expression"):
            np.testing.assert_array_equal(getattr(matrix, name), ARRAYS[name], err_msg=name)
        np.testing.assert_array_equal(matrix.tss, ARRAYS["tss"] > 0)
        assert (matrix.motifs, matrix.cells) == (tuple(ARRAYS["motifs"]), ("cd4_naive", "k562"))
    mapped, plain = ways[3].build().features, np.asarray(ways[0].build().features)
    assert isinstance(mapped, LazyMatrix)
    assert isinstance(mapped.stored, np.memmap)
    rows = RANDOM.integers(0, P, (4, 5))
    for key in (rows, slice(3, 9), plain[:, 0] > 0.5, (rows, 1), (slice(None), slice(0, 2)), 7):
        np.testing.assert_array_equal(mapped[key], plain[key])
    np.testing.assert_array_equal(mapped - np.ones(M, np.float32), plain - 1)


@pytest.mark.parametrize("dtype", ["u1", ">f8"])
def test_integer_types_are_counts(store, tmp_path, write_array, dtype):
    shutil.rmtree(store / "data")
    counts = np.arange(P * M).reshape(P, M).astype(dtype)
    write_array(store / "data", counts, 16)
    np.savez(tmp_path / "x.npz", **{**ARRAYS, "features": counts})
    ways = [spec(path, out=str(tmp_path / path.suffix[1:]), scale=False) for path in (store, tmp_path / "x.npz")]
    for way in (*ways, RegionStore(path=str(store), scale=False)):
        way.prepare()
        np.testing.assert_array_equal(np.asarray(way.build().features), counts.astype(np.float32))


def test_float16_is_close_and_too_large_numbers_are_named(store, write_array, refusal):
    plain, half = spec(store, scale=False), spec(store, scale=False, dtype="float16")
    plain.prepare()
    assert "float16" in half.prepare()
    a, b = (np.asarray(way.build().features) for way in (half, plain))
    assert 0 < np.abs(a - b).max() <= 2**-11 * b.max()
    features = np.ones((P, M), np.float32)
    features[20, 1] = 7e4
    shutil.rmtree(store / "data")
    write_array(store / "data", features)
    (problem,) = refusal(spec(store, dtype="float16", force=True).prepare).problems
    assert problem.message.startswith(f'{store}: data, row 20, column "AP1/1": 70000')
    assert (problem.code, problem.help) == ("out-of-range", "use --dtype float32")


def test_prepared_twice(store, tmp_path, refusal):
    out = str(tmp_path / "out")
    spec(store, out=out).prepare()
    assert "all checksums match" in spec(store, out=out).prepare()
    half = spec(store, out=out, dtype="float16")
    for use in (half.prepare, half.build):
        assert refusal(use).codes == ["changed-options"]
    spec(store, out=out, dtype="float16", force=True).prepare()
    assert np.load(tmp_path / "out" / "features.npy").dtype == np.float16
    chunk = store / "atpm" / "k562" / "0"
    chunk.write_bytes((store / "atpm" / "cd4_naive" / "0").read_bytes())
    assert "the source changed" in refusal(half.prepare).problems[0].message
    (tmp_path / "elsewhere").mkdir()
    moved = store.rename(tmp_path / "elsewhere" / store.name)
    assert spec(moved, out=out, dtype="float16").build().motifs  # a moved source counts as the same
    assert refusal(spec(tmp_path / "y.zarr", out=out).build).codes == ["changed-options"]


def test_a_damaged_folder_is_refused(store, tmp_path, refusal):
    out = tmp_path / "out"
    spec(store, out=str(out)).prepare()
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


def test_held_out_chromosomes_must_exist(store, refusal):
    for way in (RegionStore(path=str(store), valid=["chr22"]), spec(store, valid=["chr22"])):
        way.prepare()
        assert refusal(way.build).codes == ["unknown-value"]
        (misfit,) = GetRegion(data=way, regions=2, cell_type="k562").check()
        assert (misfit.code, misfit.path) == ("unknown-value", ("data", "valid"))
        nothing = type(way)(**{**way.model_dump(), "valid": ["chr2", "chr3", "chr10"]})
        (misfit,) = GetRegion(data=nothing, regions=2, cell_type="k562").check()
        assert misfit.code == "no-samples"
    for sort in (RegionStore, RegionArrays, RegionFile):
        with pytest.raises(ValueError, match="chr2 cannot be held out both"):
            sort(path="x", valid=["chr2"], test=["chr2"])
