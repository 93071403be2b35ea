"""Values that a store, folder or table lost or never had are reported; none of them silently becomes 0."""

import gzip
import json
import shutil
import sys

import numpy as np
import pytest

from dither.registry.config.errors import Refused
from dither.tasks.get_region.data_specs import PreparedRegions, RegionArrays, RegionStore
from dither.tasks.get_region.formats.get_model import write_store
from dither.tasks.get_region.formats.sources import find_regions, find_source
from dither.tasks.get_region.formats.zarr_store import write_array
from dither.tasks.get_region.specs import GetRegion

RANDOM = np.random.default_rng(0)
P, M = 2500, 3


def table():
    return {
        "features": RANDOM.random((P, M)).astype(np.float32),
        "motifs": np.array(["GATA1", "AP1/1", "HD/10"]),
        "chromosome": np.repeat(["chr1", "chr2", "chr3"], [900, 800, 800]),
        "start": np.arange(P) * 1000,
        "end": np.arange(P) * 1000 + 500,
        "cells": np.array(["cd4_naive", "k562"]),
        "atpm": RANDOM.random((P, 2)).astype(np.float32),
        "expression": RANDOM.random((P, 2, 2)).astype(np.float32),
        "tss": RANDOM.integers(0, 2, (P, 2, 2)).astype(np.int8),
        "gene_index": np.array([3, 5]),
        "gene_name": np.array(["TAL1", "GAPDH"]),
        "gene_strand": np.array(["+", "-"]),
    }


ARRAYS = table()
MANY = {"chromosome": np.full(9000, "chr1"), "start": np.arange(9000) * 9, "end": np.arange(9000) * 9 + 5}


@pytest.fixture(params=[2, 3])
def store(tmp_path, request):
    write_store(tmp_path / "x.zarr", ARRAYS, request.param)
    return tmp_path / "x.zarr"


def refusals(store, tmp_path, **options):
    """Return the problems that `facts`, `build` and `prepare get` report: always the same."""
    problems = []
    ways = [
        RegionStore(path=str(store), **options).facts,
        RegionStore(path=str(store), **options).build,
        PreparedRegions(paths=[str(store)], out=str(tmp_path / "out"), **options).prepare,
    ]
    for way in ways:
        with pytest.raises(Refused) as refused:
            way()
        problems.append(refused.value)
    assert len({str(refused) for refused in problems}) == 1
    assert not (tmp_path / "out").exists()
    return problems[0]


NAMED = {
    "data": "1.0",
    "atpm/k562": "1",
    "expression_positive/cd4_naive": "1",
    "expression_negative/k562": "1",
    "tss/k562": "1.0",
    "peak_names": "0",
    "motif_names": "0",
    "gene_idx_info_name": "0",
}
"""A chunk of each kind of array."""


@pytest.mark.parametrize("name", NAMED)
def test_a_missing_chunk_is_refused_in_every_array(store, tmp_path, name):
    new = (store / "zarr.json").is_file()
    key = "c/" + NAMED[name].replace(".", "/") if new else NAMED[name]
    (store / name / key).unlink()
    refused = refusals(store, tmp_path)
    rows = {"motif_names": "rows 0 to 2", "peak_names": f"rows 0 to {P - 1}"}.get(name, "rows 1000 to 1999")
    rows = "rows 0 to 1" if name.startswith("gene") else rows
    assert refused.codes == ["missing-chunk"]
    assert f'x.zarr: "{name}": missing chunk: {key} ({rows})' in refused.problems[0].message
    assert "--empty-chunks" in refused.problems[0].help


def test_all_missing_parts_are_reported_at_once(store, tmp_path):
    new = (store / "zarr.json").is_file()
    for path in (store / "data").rglob("*"):
        if path.is_file() and path.name[0] in "012":
            path.unlink()
    (store / "tss/k562" / ("c/2/0" if new else "2.0")).unlink()
    damaged = store / "atpm/k562" / ("c/1" if new else "1")
    damaged.write_bytes(damaged.read_bytes()[:-5])
    (store / "motif_names" / ("zarr.json" if new else ".zarray")).unlink()
    with pytest.raises(Refused) as refused:
        RegionStore(path=str(store)).build()
    assert sorted(refused.value.codes) == ["damaged-file", "file-not-found", "missing-chunk", "missing-chunk"]
    text = str(refused.value)
    for place in ('"data"', "(rows 0 to 999)", "(rows 2000 to 2499)", '"tss/k562"', "rows 1000 to 1999", "motif_names"):
        assert place in text


def test_empty_chunks_are_read_as_the_fill_value(store, tmp_path):
    new = (store / "zarr.json").is_file()
    (store / "tss/k562" / ("c/1/0" if new else "1.0")).unlink()
    for way in (
        RegionStore(path=str(store), empty_chunks=True),
        PreparedRegions(paths=[str(store)], out=str(tmp_path / "out"), empty_chunks=True),
    ):
        way.prepare()
        tss = way.build().tss
        assert not tss[1000:2000, 1].any()
        np.testing.assert_array_equal(tss[:1000], ARRAYS["tss"][:1000] > 0)
    (store / "peak_names" / ("c/0" if new else "0")).unlink()  # names are never empty
    assert 'peak_names, row 0: ""' in refusals(store, tmp_path / "y", empty_chunks=True).problems[0].message


def test_missing_counterparts(store, tmp_path):
    shutil.rmtree(store / "expression_negative" / "k562")
    shutil.rmtree(store / "gene_idx_info_strand")
    refused = refusals(store, tmp_path)
    assert refused.codes == ["missing-array"] * 2
    assert "expression_negative/k562" in refused.problems[0].message
    assert "gene_idx_info_strand" in refused.problems[1].message


def test_consolidated_metadata_are_compared_with_the_arrays(store, tmp_path):
    new = (store / "zarr.json").is_file()
    names = ["data", "tss/k562", "atpm/k562", "something/else"]
    if new:
        metadata = {name: {"node_type": "array"} for name in names} | {"tss": {"node_type": "group"}}
        header = json.loads((store / "zarr.json").read_text()) | {"consolidated_metadata": {"metadata": metadata}}
        (store / "zarr.json").write_text(json.dumps(header))
    else:
        metadata = {f"{name}/.zarray": {} for name in names} | {"tss/.zgroup": {}}
        (store / ".zmetadata").write_text(json.dumps({"metadata": metadata}))
    RegionStore(path=str(store)).build()
    shutil.rmtree(store / "tss" / "k562")
    refused = refusals(store, tmp_path)
    assert refused.codes == ["missing-array"]
    assert "tss/k562" in refused.problems[0].message
    (store / ("zarr.json" if new else ".zmetadata")).write_text(
        json.dumps({"metadata": 3, "node_type": "group", "consolidated_metadata": {"metadata": 3}})
    )
    assert refusals(store, tmp_path).codes == ["damaged-file"]


def test_values_known_of_one_cell_type_only(store, tmp_path):
    """Accessibility of k562 and expression of cd4_naive were never written: neither is 0, both are not known."""
    shutil.rmtree(store / "atpm" / "k562")
    for strand in ("positive", "negative"):
        shutil.rmtree(store / f"expression_{strand}" / "cd4_naive")
    out = tmp_path / "out"
    told = PreparedRegions(paths=[str(store)], out=str(out)).prepare()
    assert "note: atpm of k562 is unknown" in told
    assert "note: expression of cd4_naive is unknown" in told
    copy = str(tmp_path / "copy.zarr")
    PreparedRegions(paths=[str(store)], out=copy).prepare()
    for data in (
        {"use": "region-store", "path": str(store)},
        {"use": "region-arrays", "path": str(out)},
        {"use": "region-store", "path": copy},
    ):
        spec = RegionStore if data["use"] == "region-store" else RegionArrays
        part = spec(path=data["path"])
        matrix = part.build()
        assert part.facts() == matrix.facts()
        assert matrix.unknown == ("atpm:k562", "expression:cd4_naive", "open:k562")
        for cell, options, what in (
            ("k562", {}, 'no accessibility of "k562"'),
            ("k562", {"accessibility": "quantitative"}, 'accessibility as a number of "k562"'),
            ("k562", {"accessibility": "constant", "drop_closed": True}, 'no accessibility of "k562"'),
            ("cd4_naive", {"expression": True}, 'no expression of "cd4_naive"'),
            ("k562", {"accessibility": "none", "expression": True}, None),
            ("cd4_naive", {}, None),
        ):
            task = GetRegion(data=part, regions=20, cell_type=cell, **options)
            assert [what in misfit.message for misfit in task.check()] == [True] * (what is not None)
            if what:
                with pytest.raises(Refused, match=what):
                    task.build()
            else:
                built = task.build()
        batch = GetRegion(data=part, regions=20, cell_type="k562", accessibility="none", expression=True).build()
        x0 = batch.batch("valid", [0]).x0[0, :, -2:].numpy()  # atpm is not known, so that nothing falls below a limit
        np.testing.assert_array_equal(x0, ARRAYS["expression"][900:920, 1])
        assert built.space.width == M + 1


def test_unknown_tss_of_one_cell_type_removes_the_condition(tmp_path):
    store = tmp_path / "x.zarr"
    write_store(store, ARRAYS)
    for tss in ("tss/k562",):
        shutil.rmtree(store / tss)
    for cells, told in ((["k562"], False), (["cd4_naive"], True), (["cd4_naive", "k562"], False)):
        spec = GetRegion(data=RegionStore(path=str(store)), regions=20, cell_type=cells)
        task = spec.build()
        assert spec.space() == task.space
        assert ("tss" in [condition.name for condition in task.space.conditions]) == told
        assert ("tss" in task.batch("valid", [0]).cond) == told


def test_a_table_with_different_values_for_each_cell_type(tmp_path):
    header = [
        "chromosome",
        "start",
        "end",
        "GATA1",
        "open:a",
        "atpm:b",
        "expression_positive:a",
        "expression_negative:a",
    ]
    header += ["expression_positive:b"]
    lines = [",".join(header)] + [f"chr{1 + n // 4},{n}00,{n}50,1,{n % 2},{n % 3},1,1,1" for n in range(12)]
    (tmp_path / "x.csv.gz").write_bytes(gzip.compress("\n".join(lines).encode()))
    found = find_regions(find_source([tmp_path / "x.csv.gz"])).arrays
    assert found["unknown"].tolist() == ["atpm:a", "expression:b"]
    np.testing.assert_array_equal(found["open"][:, 0], np.arange(12) % 2)
    np.testing.assert_array_equal(found["open"][:, 1], np.arange(12) % 3 > 0)
    write_store(tmp_path / "x.zarr", found)
    again = find_regions(find_source([tmp_path / "x.zarr"])).arrays
    np.testing.assert_array_equal(again["atpm"], np.stack([np.arange(12) % 2, np.arange(12) % 3], 1))
    assert again["unknown"].tolist() == ["expression:b"]


def test_a_cell_type_that_cannot_name_an_array(tmp_path):
    for name in ("CD4/T", "", "..", "a\\b"):
        with pytest.raises(Refused, match="cannot name an array"):
            write_store(tmp_path / "y.zarr", {**ARRAYS, "cells": np.array(["k562", name])})
        assert not (tmp_path / "y.zarr").exists()


def test_numbers_are_checked_before_conversion(store):
    """A tss of 256 is no 0 and one of 0.5 none either; an atpm too large for float32 is no infinity."""
    for name, values, message in (
        ("tss/k562", np.full((P, 2), 256, np.int16), "tss/k562, row 0: 256 is neither 0 nor 1"),
        ("tss/k562", np.full((P, 2), 0.5), "tss/k562, row 0: 0.5 is neither 0 nor 1"),
        ("atpm/k562", np.full(P, 1e39), "atpm/k562, row 0: 1e+39 is more than float32 holds"),
    ):
        shutil.rmtree(store / name)
        write_array(store / name, values, None, 3 if (store / "zarr.json").is_file() else 2)
        with pytest.raises(Refused) as refused:
            find_regions(find_source([store]))
        assert message in str(refused.value)
        shutil.rmtree(store / name)
        write_array(store / name, np.zeros(values.shape, np.int8), None, 3 if (store / "zarr.json").is_file() else 2)


def test_zarr_is_required_once(store, tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "zarr", None)
    assert refusals(store, tmp_path).codes == ["missing-dependency"]


def test_many_damaged_chunks_are_counted(tmp_path):
    write_store(tmp_path / "x.zarr", {"features": np.ones((9000, 1)), "motifs": np.array(["a"]), **MANY})
    for path in (tmp_path / "x.zarr" / "data").iterdir():
        if not path.name.startswith("."):
            path.write_bytes(path.read_bytes()[:-3])
    with pytest.raises(Refused) as refused:
        find_regions(find_source([tmp_path / "x.zarr"]))
    messages = [problem.message for problem in refused.value.problems]
    assert refused.value.codes == ["damaged-file"] * 6
    assert "rows 0 to 999 cannot be read" in messages[0]
    assert "more such problems" in messages[-1]
