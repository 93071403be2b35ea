"""`prepare get`: what is converted is what was there, whole or not at all, and a folder that changed is found out."""

import json
import shutil

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.registry.kinds.task import DataSpec
from dither.tasks.get_region.data import prepared_folder as folders
from dither.tasks.get_region.data.lazy_matrix import LazyMatrix
from dither.tasks.get_region.data_specs import HumanDHS, PreparedRegions, RegionArrays, RegionFile, RegionStore
from dither.tasks.get_region.formats.get_model import write_store
from dither.tasks.get_region.formats.zarr_array import write_array
from dither.tasks.get_region.specs import GetRegion

RANDOM = np.random.default_rng(0)
P, M = 40, 3
HELD = {"valid": ["chr2"], "test": ["chr1"]}


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
def store(tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
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
        spec(store, scale=scale, out=str(tmp_path / "copy.zarr")),
        spec(store, scale=scale, out=str(tmp_path / "new.zarr"), zarr_format=3),
    ]
    train = ~np.isin(ARRAYS["chromosome"], ["chr1", "chr2"])
    largest = ARRAYS["features"][train].max(0)
    expected = np.minimum(ARRAYS["features"] / largest, 1) if scale else ARRAYS["features"]
    for way in ways:
        if isinstance(way, PreparedRegions):
            (misfit,) = way.check()
            assert "these regions have not been prepared" in misfit.message
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
        assert way.facts() == matrix.facts()
    assert [isinstance(way.build().features, LazyMatrix) for way in ways] == [way in ways[2:5] for way in ways]


def test_counts_stay_counts_whatever_their_type(store, tmp_path):
    for number, sort in enumerate(("u1", "<i8", ">f8", ">i2", "<f2")):
        data = store.with_name(f"{number}.zarr")
        write_store(data, ARRAYS)
        shutil.rmtree(data / "data")
        counts = np.arange(P * M).reshape(P, M).astype(sort)
        write_array(data / "data", counts, 16)
        out = str(tmp_path / f"out{number}")
        spec(data, out=out).prepare()
        for way in (RegionStore(path=str(data), scale=False), RegionArrays(path=out, scale=False)):
            np.testing.assert_array_equal(np.asarray(way.build().features), counts.astype(np.float32))


def test_mapped_rows_are_rows_of_the_matrix(store):
    spec(store).prepare()
    mapped = spec(store).build().features
    plain = RegionStore(path=str(store)).build().features
    assert isinstance(mapped.stored, np.memmap)
    rows = RANDOM.integers(0, P, (4, 5))
    for key in (rows, slice(3, 9), plain[:, 0] > 0.5, (rows, 1), (slice(None), slice(0, 2)), 7):
        np.testing.assert_array_equal(mapped[key], plain[key])
    assert (mapped.shape, len(mapped), mapped.dtype) == ((P, M), P, np.float32)
    np.testing.assert_array_equal(mapped - np.ones(M, np.float32), plain - 1)


def test_halves_are_near(store):
    plain = spec(store, scale=False)
    half = spec(store, scale=False, dtype="float16")
    assert "float16" in half.prepare()
    plain.prepare()
    a, b = (np.asarray(way.build().features) for way in (half, plain))
    assert 0 < np.abs(a - b).max() <= 2**-11 * b.max()


def test_what_float16_cannot_hold_is_named_and_what_it_holds_badly_noted(store, tmp_path, monkeypatch):
    monkeypatch.setattr("dither.tasks.get_region.data.lazy_matrix.BLOCK", 16)
    features = np.ones((P, M), np.float32)
    features[[3, 20, 39], [1, 1, 2]] = 7e4
    write_store(tmp_path / "large.zarr", {**ARRAYS, "features": features})
    with pytest.raises(Refused) as refused:
        spec(tmp_path / "large.zarr", dtype="float16").prepare()
    assert [problem.message for problem in refused.value.problems] == [
        f'{tmp_path / "large.zarr"}: data, row {row}, column "{motif}": 70000 is more than float16 holds (65504)'
        for row, motif in ((3, "AP1/1"), (20, "AP1/1"), (39, "HD/10"))
    ]
    assert [problem.help for problem in refused.value.problems] == ["take --dtype float32", None, None]
    features[:] = 1e-6, 1, 1e-8
    features[5, 0], features[6, 1] = 2e-5, 1e-9
    write_store(tmp_path / "small.zarr", {**ARRAYS, "features": features})
    out = str(tmp_path / "small")
    (note,) = [line for line in spec(tmp_path / "small.zarr", dtype="float16", out=out).prepare().splitlines()
               if "float16 is coarse" in line]  # fmt: skip
    assert (
        "HD/10 (at most 1e-08, off by up to 100.0% of that), GATA1 (at most 2e-05, off by up to 0.1% of that)" in note
    )
    assert "AP1/1" not in note
    assert "--dtype float32" in note
    kept = np.load(tmp_path / "small" / "features.npy").astype(np.float64)
    assert not kept[:, 2].any()
    assert np.abs(kept - features).max() <= 2.0**-25
    assert "coarse" not in spec(tmp_path / "small.zarr", out=str(tmp_path / "plain")).prepare()


def test_prepared_twice(store, tmp_path):
    out = tmp_path / "out"
    once = spec(store, out=str(out))
    once.prepare()
    before = (out / "features.npy").stat().st_mtime_ns
    assert "holds exactly this already, every checksum is right" in once.prepare()
    assert (out / "features.npy").stat().st_mtime_ns == before
    with pytest.raises(Refused, match="made otherwise: dtype was 'float32'"):
        spec(store, out=str(out), dtype="float16").prepare()
    with pytest.raises(Refused, match="was prepared otherwise: dtype changed"):
        spec(store, out=str(out), dtype="float16").build()
    spec(store, out=str(out), dtype="float16", force=True).prepare()
    assert np.load(out / "features.npy").dtype == np.float16
    write_store(tmp_path / "other.zarr", {**ARRAYS, "features": ARRAYS["features"] + 1})
    shutil.rmtree(store)
    (tmp_path / "other.zarr").rename(store)
    with pytest.raises(Refused, match="the source has changed"):
        spec(store, out=str(out), dtype="float16").prepare()


@pytest.mark.parametrize("layout", [{}, {"layout": 2}])
def test_a_folder_of_an_earlier_version_is_refused_and_made_anew(store, tmp_path, layout):
    out, once = tmp_path / "out", spec(store, out=str(tmp_path / "out"))
    once.prepare()
    said = json.loads((out / folders.SIDECAR).read_text())
    said |= {"version": 1, "made": said["made"] | layout}
    (out / folders.SIDECAR).write_text(json.dumps(said))
    read = RegionArrays(path=str(out))
    for use in (once.facts, once.build, read.facts, read.build, read.prepare):
        with pytest.raises(Refused, match="prepared by an earlier version of dither: it is of version 1, this one"):
            use()
    with pytest.raises(Refused) as refused:
        spec(store, out=str(out), dtype="float16").prepare()
    assert "layout" not in str(refused.value)
    assert "exactly this" not in once.prepare()
    assert json.loads((out / folders.SIDECAR).read_text())["version"] == folders.VERSION
    assert "exactly this" in once.prepare()
    assert read.build().motifs


def test_places_that_are_taken(store, tmp_path):
    (tmp_path / "file").touch()
    (tmp_path / "full").mkdir()
    (tmp_path / "full" / "thesis.tex").touch()
    for name, message in (("file", "is a file"), ("full", "holds other files"), ("x.zarr", "is there already")):
        with pytest.raises(Refused, match=message):
            spec(store, out=str(tmp_path / name)).prepare()
    assert [path.name for path in (tmp_path / "full").iterdir()] == ["thesis.tex"]


def test_a_stop_leaves_nothing_behind(store, tmp_path, monkeypatch):
    def stop(*_):
        raise KeyboardInterrupt

    monkeypatch.setattr("dither.tasks.prepared.progress.Progress.update", stop)
    with pytest.raises(KeyboardInterrupt):
        spec(store, out=str(tmp_path / "out")).prepare()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["x.zarr"]


def test_a_bad_source_is_refused_before_anything_is_written(store, tmp_path):
    bad = {**ARRAYS, "features": np.where(np.arange(P)[:, None] == 7, np.nan, ARRAYS["features"])}
    write_store(tmp_path / "bad.zarr", bad)
    with pytest.raises(Refused, match='data, row 7, column "GATA1": nan is not finite'):
        spec(tmp_path / "bad.zarr", out=str(tmp_path / "out")).prepare()
    assert not (tmp_path / "out").exists()


def test_what_is_odd_is_noted(store, tmp_path):
    (store / "data" / "0.0").unlink()
    shutil.rmtree(store / "atpm" / "k562")
    shutil.rmtree(store / "tss" / "k562")
    said = spec(store, empty_chunks=True).prepare()
    assert "note: 1 chunks of data are not there (0.0): their regions have 0 for every motif" in said
    assert "note: atpm of k562 is not known; a run that asks for it is refused" in said
    assert "note: tss of k562 is not known; a run of it is told no starts" in said.splitlines()


def test_the_sidecar_says_what_there_is(store, tmp_path):
    spec(store, out=str(tmp_path / "out")).prepare()
    said = json.loads((tmp_path / "out" / folders.SIDECAR).read_text())
    assert said["chromosomes"] == {"chr1": 10, "chr10": 10, "chr2": 10, "chr3": 10}
    assert said["cells"] == ["cd4_naive", "k562"]
    assert said["made"]["source"]["files"] == sum(path.is_file() for path in store.rglob("*"))
    for name, array in said["arrays"].items():
        assert np.load(tmp_path / "out" / f"{name}.npy").shape == tuple(array["shape"])
    assert said["arrays"]["atpm"]["shape"] == [2, P]


DAMAGE = {
    "cut short": ("features.npy", lambda content: content[:-5], "it was cut short or changed"),
    "changed": ("start.npy", lambda content: content[:-1] + b"\x09", "its sha256 is not the one in regions.json"),
    "gone": ("features.npy", None, "features.npy: No such file"),
    "gone sidecar": ("regions.json", None, "regions.json: No such file"),
    "no sidecar": ("regions.json", lambda content: b"{", "regions.json: is damaged"),
    "lying shape": ("regions.json", lambda content: content.replace(b"3\n   ]", b"4\n   ]"), "regions.json says"),
    "lying type": ("regions.json", lambda content: content.replace(b'"<f4"', b'"<f2"'), "regions.json says <f2"),
    "other version": ("regions.json", lambda content: content.replace(b'"version": 3', b'"version": 9'), "version"),
    "no array": ("features.npy", lambda content: b"x" * len(content), "features.npy: damaged or cut short"),
    "fewer motifs": ("regions.json", lambda content: content.replace(b'"GATA1",\n', b"\n"), "not of 40 regions and 2"),
}


@pytest.mark.parametrize("damage", DAMAGE)
def test_a_damaged_folder_is_refused(store, tmp_path, damage):
    out = tmp_path / "out"
    spec(store, out=str(out)).prepare()
    name, change, message = DAMAGE[damage]
    if change is None:
        (out / name).unlink()
    else:
        content = (out / name).read_bytes()
        assert change(content) != content
        (out / name).write_bytes(change(content))
    with pytest.raises(Refused) as refused:
        RegionArrays(path=str(out)).build()
    assert message in str(refused.value)
    assert "prepare them again: dither prepare get" in str(refused.value)


def test_every_checksum_is_compared_when_it_is_prepared(store, tmp_path):
    out = tmp_path / "out"
    spec(store, out=str(out)).prepare()
    assert "every checksum is right" in RegionArrays(path=str(out)).prepare()
    content = (out / "features.npy").read_bytes()
    (out / "features.npy").write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    with pytest.raises(Refused, match=r"features\.npy: has changed"):
        RegionArrays(path=str(out)).prepare()
    assert "40 regions" in spec(store, out=str(out)).prepare()  # what is damaged is made again
    assert (out / "features.npy").read_bytes() == content


def test_chromosomes_to_hold_out_must_be_there(store):
    for way in (RegionStore(path=str(store), valid=["chr22"]), spec(store, valid=["chr22"])):
        way.prepare()
        with pytest.raises(Refused, match='has no chromosome "chr22" to hold out for valid'):
            way.build()
        (misfit,) = GetRegion(data=way, regions=2, cell_type="k562").check()
        assert misfit.message == 'the data have no chromosome "chr22" to hold out'
        assert misfit.path == ("data", "valid")
        nothing = type(way)(**{**way.model_dump(), "valid": ["chr2", "chr3", "chr10"]})
        (misfit,) = GetRegion(data=nothing, regions=2, cell_type="k562").check()
        assert misfit.message == "every chromosome is held out, none is left to train on"
    for sort in (RegionStore, RegionArrays):
        with pytest.raises(ValueError, match="chr2 cannot be held out both"):
            sort(path="x", valid=["chr2"], test=["chr2"])


def test_words_that_stand_for_a_preparation():
    assert HumanDHS.prepared_as == {"dhs": {"subset": "built"}}
    assert DataSpec.prepared_as == {}
