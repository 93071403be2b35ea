"""Exported samples: units of the data, places, and the spread of the draws."""

import csv

import numpy as np
import pytest
import torch

from dither.tasks.get_region.data_specs import RegionStore
from dither.tasks.get_region.specs import GetRegion
from dither.tasks.get_region.task import HEADER

torch.set_num_threads(1)
LENGTHS = {"chr1": 7, "chr2": 13, "chr3": 30}
CELLS, P, M, WINDOW, DRAWS = ("a", "b"), 50, 3, 5, 4


@pytest.fixture(scope="module")
def arrays():
    random = np.random.default_rng(0)
    start = np.concatenate(
        [
            1000 * np.arange(length) + random.integers(0, 300, length)
            for length in LENGTHS.values()
        ]
    )
    atpm = (random.random((P, 2)) * (random.random((P, 2)) < 0.6)).astype(np.float32)
    return {
        "features": random.random((P, M)).astype(np.float32) * 4,
        "motifs": np.array([f"m{k}" for k in range(M)]),
        "chromosome": np.repeat(list(LENGTHS), list(LENGTHS.values())),
        "start": start,
        "end": start + random.integers(50, 400, P),
        "open": atpm > 0,
        "cells": np.array(CELLS),
        "atpm": atpm,
        "expression": random.random((P, 2, 2)).astype(np.float32),
    }


@pytest.fixture(scope="module")
def store(arrays, tmp_path_factory, write_store):
    path = tmp_path_factory.mktemp("regions") / "regions.zarr"
    write_store(path, arrays)
    return path


def drawn_from(store, scale=False, **options):
    """A task, what sampling starts from, and samples: what is asked for, with noise of standard deviation 1."""
    data = RegionStore(path=str(store), valid=["chr2"], test=["chr1"], scale=scale)
    spec = GetRegion(
        data=data,
        regions=WINDOW,
        stride=2,
        draws=DRAWS,
        standardise=True,
        expression=True,
        expressed=0,
        **options,
    )
    task = spec.build()
    like = task.like(3 * DRAWS, 1)
    torch.manual_seed(0)
    return (
        task,
        like,
        torch.where(like.fixed, like.x0, like.x0 + torch.randn(like.x0.shape)),
    )


def exported(task, like, samples, folder):
    table = next(iter(task.export(samples, like, "csv", folder)[0]))
    (arrays,) = task.export(samples, like, "npz", folder)[0]
    with table.open(newline="") as file:
        rows = list(csv.DictReader(file))
    return rows, dict(np.load(arrays, allow_pickle=False))


OPTIONS = [
    {"cell_type": ["b", "a"]},
    {"cell_type": "b", "valid_cells": ["a"], "fill_unit": "element"},
    {
        "cell_type": ["a", "b"],
        "drop_closed": True,
        "accessibility": "quantitative",
        "given": "motifs",
    },
    {
        "cell_type": "b",
        "scale": True,
        "accessibility": "quantitative",
        "largest": "window",
    },
]


@pytest.mark.parametrize("options", OPTIONS)
def test_values_and_places_equal_those_of_the_store(store, arrays, tmp_path, options):
    task, like, samples = drawn_from(store, **options)
    _, found = exported(task, like, samples, tmp_path)
    at = {
        (c, s): row
        for row, (c, s) in enumerate(
            zip(arrays["chromosome"], arrays["start"], strict=True)
        )
    }
    train = arrays["chromosome"] == "chr3"
    quantitative = "accessibility" in options
    top = (
        arrays["features"][train].max(0)
        if "scale" in options
        else np.ones(M, np.float32)
    )
    np.testing.assert_array_equal(found["divisor"][:M], top)
    assert (
        found["mean"].shape
        == found["std"].shape
        == found["divisor"].shape
        == (len(found["column"]),)
    )
    for sample in range(len(samples)):
        there = found["valid"][sample]
        assert there.sum() in (WINDOW, 13 % WINDOW) or "drop_closed" in options
        rows = [
            at[found["chromosome"][sample], start]
            for start in found["start"][sample][there]
        ]
        assert {*arrays["chromosome"][rows]} == {"chr2"}
        np.testing.assert_array_equal(found["end"][sample][there], arrays["end"][rows])
        cell = CELLS.index(found["cell"][sample])
        opened = arrays["open"][rows, cell]
        divisor = found["divisor"].copy()
        if quantitative:
            opened = arrays["atpm"][rows, cell]
            divisor[M] = (
                opened.max() if "scale" in options else arrays["atpm"][train].max()
            )
        truth = np.column_stack(
            [arrays["features"][rows], opened, arrays["expression"][rows, cell]]
        )
        np.testing.assert_allclose(found["truth"][sample][there], truth, rtol=1e-6)
        given = found["known"][sample][there]
        noise = (samples - like.x0)[sample].numpy() * task.standard.std
        scaled = np.minimum(
            truth / divisor, np.where(divisor == 1, np.inf, 1)
        )  # above all training values: cut
        drawn = np.where(given, truth, (scaled + noise[there]) * divisor)
        np.testing.assert_allclose(found["samples"][sample][there], drawn, atol=2e-5)
        assert np.isnan(found["samples"][sample][~there]).all()
        assert not found["end"][sample][~there].any()
    names = [*arrays["motifs"], "accessibility" if quantitative else "open"]
    assert found["column"].tolist() == [
        *names,
        "expression_positive",
        "expression_negative",
    ]
    assert {*found["cell"]} == {*options.get("valid_cells", options["cell_type"])}
    np.testing.assert_array_equal(found["known"], like.known.numpy())


@pytest.mark.parametrize("options", OPTIONS[1:3])
def test_a_row_has_mean_and_spread_of_the_draws_of_a_window(store, tmp_path, options):
    task, like, samples = drawn_from(store, **options)
    rows, found = exported(task, like, samples, tmp_path)
    assert tuple(rows[0]) == HEADER
    expected = {}
    for first in range(0, len(samples), DRAWS):
        assert len(set(found["window"][first : first + DRAWS])) == 1
        for region, column in np.argwhere(
            ~found["known"][first] & found["valid"][first][:, None]
        ):
            key = [str(found["chromosome"][first]), str(found["start"][first, region])]
            key += [
                str(found["end"][first, region]),
                str(found["cell"][first]),
                str(found["column"][column]),
            ]
            values = found["samples"][first : first + DRAWS, region, column].astype(
                float
            )
            expected[tuple(key)] = (
                found["truth"][first, region, column],
                values.mean(),
                values.std(ddof=1),
            )
    assert len(rows) == len(expected)
    for row in rows:
        numbers = [float(row[name]) for name in ("truth", "mean", "sd")]
        np.testing.assert_allclose(
            numbers,
            expected[tuple(row[name] for name in HEADER[:5])],
            rtol=1e-5,
            atol=1e-6,
        )
        assert row["draws"] == str(DRAWS)
    assert {row["imputation"] for row in rows} == {"0", "1", "2"}
    assert len({float(row["sd"]) for row in rows}) > len(rows) / 2


def test_a_single_draw_has_no_spread(store, tmp_path):
    task, like, samples = drawn_from(store, cell_type="a")
    rows, _ = exported(task, like[:1], samples[:1], tmp_path)
    assert {row["sd"] for row in rows} == {""}
    files, notes = task.export(like.x0, like, "csv", tmp_path / "none")
    assert files[0].read_text().splitlines() == [",".join(HEADER)]
    assert notes == ["no value was sampled: all were given"]


def test_samples_in_another_cell_type_are_compared_with_its_truth(
    store, arrays, tmp_path
):
    task, like, samples = drawn_from(store, cell_type=["a", "b"])
    like.cond["cell"][:] = 1
    _, found = exported(task, like, samples, tmp_path)
    assert set(found["cell"]) == {"b"}
    rows = np.flatnonzero(arrays["chromosome"] == "chr2")[
        found["start"][0][found["valid"][0]] // 1000
    ]
    np.testing.assert_allclose(
        found["truth"][0][found["valid"][0]][:, M + 1 :], arrays["expression"][rows, 1]
    )


@pytest.mark.parametrize("transform", ["none", "sqrt", "quantile"])
def test_units_are_kept_without_data(store, tmp_path, refusal, transform):
    task, _, samples = drawn_from(store, scale=True, cell_type="a", transform=transform)
    task.save_assets(tmp_path)
    spec = GetRegion(data=RegionStore(path="gone"), regions=WINDOW)
    kept = spec.restore(tmp_path, task.space)
    np.testing.assert_array_equal(
        kept.inverse_transform(samples), task.inverse_transform(samples)
    )
    np.savez(tmp_path / "columns.npz", mean=np.zeros(1))
    assert refusal(spec.restore, tmp_path, task.space).codes == ["damaged-file"]
