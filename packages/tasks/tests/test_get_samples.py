"""Samples: columns, cell types, conditions; held-out values are never seen."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch

from dither.registry.config.errors import Refused
from dither.registry.flow.protocols import DataWarnings
from dither.registry.flow.records import Measured, Noise, Noised, State
from dither.registry.flow.spaces import Condition, Group
from dither.registry.kinds import DataSpec
from dither.tasks.get_region.data.region_matrix import RegionMatrix
from dither.tasks.get_region.data_specs import HumanDHS
from dither.tasks.get_region.specs import GetRegion

torch.set_num_threads(1)
LENGTHS = {"chr1": 9, "chr2": 13, "chr3": 30, "chr4": 22, "chr5": 17}
CELLS = ("a", "b", "c", "d")
P, M = sum(LENGTHS.values()), 5


def arrays():
    random = np.random.default_rng(0)
    atpm = (random.random((P, 4)) * (random.random((P, 4)) < 0.7)).astype(np.float32)
    return {
        "features": random.random((P, M)).astype(np.float32) * 4,
        "motifs": np.array([f"m{k}" for k in range(M)]),
        "chromosome": np.concatenate([[name] * length for name, length in LENGTHS.items()]),
        "start": np.concatenate([np.arange(length) * 1000 for length in LENGTHS.values()]),
        "end": np.concatenate([np.arange(length) * 1000 + 400 for length in LENGTHS.values()]),
        "open": atpm > 0,
        "cells": np.array(CELLS),
        "atpm": atpm,
        "expression": random.random((P, 4, 2)).astype(np.float32),
        "tss": random.random((P, 4, 2)) < 0.2,
    }


ARRAYS = arrays()


class Given(DataSpec):
    """Arrays of a test, as a source that tells nothing beforehand."""

    name: ClassVar[str] = "given"
    gives: ClassVar[str] = "regions"
    without: tuple[str, ...] = ()

    def build(self):
        known = {name: array for name, array in ARRAYS.items() if name not in self.without}
        return RegionMatrix.of(known, ("chr2",), ("chr1",))


def spec(**options):
    return GetRegion(**{"data": Given(), "regions": 6, "stride": 4, "cell_type": ["b", "a"], **options})


def every(task, split="train"):
    return task.batch(split, range(task.size(split)))


def rows_of(clean):
    """Rows of the arrays, found by their places."""
    names = np.unique(ARRAYS["chromosome"])
    place = {
        (c, (s + e) // 2): row
        for row, (c, s, e) in enumerate(zip(*(ARRAYS[n] for n in ("chromosome", "start", "end")), strict=True))
    }
    labels = clean.cond["chromosome"].tolist()
    return np.array(
        [
            [place[names[label], middle] for middle in middles]
            for label, middles in zip(labels, clean.cond["centre"].tolist(), strict=True)
        ]
    )


def test_windows_in_several_cell_types():
    task = spec().build()
    clean = every(task)
    one = spec(cell_type="b").build()
    assert task.size("train") == 2 * one.size("train")
    assert torch.equal(clean.cond["cell"], torch.arange(2).repeat_interleave(one.size("train")))
    rows = rows_of(clean)
    numbers = np.array([CELLS.index(name) for name in ("b", "a")])[clean.cond["cell"].numpy()]
    np.testing.assert_array_equal(clean.x0[..., :M].numpy(), ARRAYS["features"][rows])
    np.testing.assert_array_equal(clean.x0[..., M].numpy(), ARRAYS["open"][rows, numbers[:, None]])
    np.testing.assert_array_equal(clean.cond["tss"].numpy(), ARRAYS["tss"][rows, numbers[:, None]].any(-1))
    expected = (Condition("chromosome", 5), Condition("centre"), Condition("tss"), Condition("cell", 2, ("b", "a")))
    assert spec().space() == task.space
    assert task.space.conditions == expected
    for condition in expected:
        value = clean.cond[condition.name]
        if condition.size is None:
            assert value.shape == clean.valid.shape
        else:
            assert value.dtype == torch.int64
            assert value.shape == clean.valid.shape[:1]
            assert 0 <= int(value.min()) <= int(value.max()) < condition.size


def test_held_out_regions_are_not_in_training_windows():
    task = spec(valid_cells=["c"], test_cells=["d"], jitter=3, accessibility="quantitative", expression=True).build()
    seen = {split: every(task, split) for split in ("train", "valid", "test")}
    chromosomes = {split: {*clean.cond["chromosome"].tolist()} for split, clean in seen.items()}
    assert chromosomes == {"train": {2, 3, 4}, "valid": {1}, "test": {0}}
    samples = task.samples
    cells = {split: {samples.cells[cell] for cell in samples.windows[split].cell} for split in seen}
    assert cells == {"train": {"b", "a"}, "valid": {"c"}, "test": {"d"}}
    assert "cell" in seen["train"].cond
    assert (seen["valid"].cond["cell"] == -1).all()  # a cell type that was never trained on has no label
    truth = (
        ARRAYS["expression"][ARRAYS["chromosome"] == "chr2", 2]
        * (ARRAYS["atpm"][ARRAYS["chromosome"] == "chr2", 2] >= 0.05)[:, None]
    )
    np.testing.assert_array_equal(seen["valid"].x0[seen["valid"].valid][:, M + 1 :].numpy(), truth)


@pytest.mark.parametrize("options", [{}, {"standardise": True}, {"drop_closed": True, "accessibility": "quantitative"}])
def test_held_out_values_do_not_affect_training(options):
    """Samples and metrics do not depend on the values of held-out chromosomes and cell types."""

    def built():
        return spec(valid_cells=["c"], test_cells=["d"], expression=True, jitter=2, **options).build()

    task = built()
    before, measured, reference = every(task), task.samples.measured, task.samples.training()
    saved = {name: array.copy() for name, array in ARRAYS.items()}
    try:
        away = np.isin(ARRAYS["chromosome"], ("chr1", "chr2"))
        for name in ("features", "atpm", "expression"):
            ARRAYS[name][away] *= 7
            if name != "features":
                ARRAYS[name][:, 2:] *= 3
        ARRAYS["open"][away] = ~ARRAYS["open"][away]
        again = built()
        after = every(again)
        assert not torch.equal(every(again, "valid").x0, every(task, "valid").x0)
    finally:
        ARRAYS.update(saved)
    assert torch.equal(before.x0, after.x0)
    np.testing.assert_array_equal(measured.mean, again.samples.measured.mean)
    np.testing.assert_array_equal(measured.std, again.samples.measured.std)
    for one, other in zip(reference, again.samples.training(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_kinds_of_accessibility():
    def column(**options):
        clean = every(spec(**options).build())
        return clean, clean.x0[..., M].numpy()

    clean, found = column(accessibility="quantitative")
    rows, numbers = rows_of(clean), np.array([1, 0])[clean.cond["cell"].numpy()]
    atpm = ARRAYS["atpm"][rows, numbers[:, None]]
    train = ~np.isin(ARRAYS["chromosome"], ("chr1", "chr2"))
    np.testing.assert_allclose(found, atpm / ARRAYS["atpm"][train][:, :2].max(), rtol=1e-6)
    _, found = column(accessibility="quantitative", largest="window")
    np.testing.assert_allclose(found, atpm / atpm.max(1, keepdims=True), rtol=1e-6)
    assert (column(accessibility="constant")[1] == 1).all()
    for same in ("open", True):
        np.testing.assert_array_equal(column(accessibility=same)[1], atpm > 0)
    for none in ("none", False):
        task = spec(accessibility=none).build()
        assert task.space.groups == (Group("motifs", 0, M),)
        assert "cell" not in every(task).cond


def test_the_largest_value_of_a_window_ignores_padding():
    task = spec(accessibility="quantitative", largest="window", regions=8).build()
    clean = every(task, "valid")
    assert clean.valid.sum() == 2 * LENGTHS["chr2"]
    assert not clean.valid.all()
    assert (clean.x0[..., M].amax(1) == 1).all()
    assert not clean.x0[~clean.valid].any()


def test_closed_regions_are_dropped_before_windows_are_cut():
    task = spec(drop_closed=True, accessibility="quantitative", expression=True, regions=4, stride=2).build()
    for number, cell in enumerate((1, 0)):
        expected = []
        for name in ("chr3", "chr4", "chr5"):
            rows = np.flatnonzero((ARRAYS["chromosome"] == name) & (ARRAYS["atpm"][:, cell] > 0))
            expected += [rows[first : first + 4].tolist() for first in range(0, len(rows) - 3, 2)]
        clean = every(task)
        mine = clean.cond["cell"] == number
        assert rows_of(clean)[mine.numpy()].tolist() == expected
    assert (every(task).x0[..., M] > 0).all()


def test_standardised_columns_are_measured_over_regions_and_cell_types():
    task = spec(standardise=True, expression=True).build()
    train = np.flatnonzero(~np.isin(ARRAYS["chromosome"], ("chr1", "chr2")))
    closed = ARRAYS["atpm"] < 0.05
    behind = [
        np.concatenate([ARRAYS["open"][:, [c]], np.where(closed[:, [c]], 0, ARRAYS["expression"][:, c])], 1)[train]
        for c in (1, 0)
    ]
    whole = np.concatenate([np.concatenate([ARRAYS["features"][train]] * 2), np.concatenate(behind)], 1)
    np.testing.assert_allclose(task.samples.measured.mean, whole.mean(0), rtol=1e-5)
    np.testing.assert_allclose(task.samples.measured.std, whole.std(0), rtol=1e-5)
    values, starts = task.samples.training()
    np.testing.assert_allclose(values, whole, rtol=1e-6)
    assert np.flatnonzero(starts).tolist() == [0, 30, 52, 69, 99, 121]
    fewer, starts = task.samples.training(limit=40)
    assert 0 < len(fewer) <= 40 + 6
    assert starts[0]
    x0 = task.batch("train", [0]).x0[0].numpy()
    plain = spec(expression=True).build().batch("train", [0]).x0[0].numpy()
    np.testing.assert_allclose(x0 * task.standard.std + task.standard.mean, plain, atol=1e-6)


def misfits(**options):
    return {misfit.path: f"{misfit.message} {misfit.help}" for misfit in spec(**options).check()}


def test_values_that_the_data_do_not_have():
    assert misfits() == {}
    found = misfits(cell_type=["b", "e"], valid_cells=["A"], test_cells=["zz"], motifs=7)
    assert 'the data have no cell type "e"' in found["cell_type",]
    assert 'the data have no cell type "A" did you mean "a"? available: a, b, c, d' in found["valid_cells",]
    assert "test_cells" in {path[0] for path in found}
    assert "the data have 5 motif columns, not 7" in found["motifs",]
    for without, options in (("atpm", {"accessibility": "quantitative"}), ("expression", {"expression": True})):
        (path,) = misfits(data=Given(without=(without,)), **options)
        assert path == (*options,)
        with pytest.raises(Refused, match="the data have no"):
            spec(data=Given(without=(without,)), **options).build()
    assert ("drop_closed",) in misfits(drop_closed=True)
    assert misfits(data=HumanDHS(subset="chr21-22"), cell_type="K562", motifs=282) == {}
    assert ("accessibility",) in misfits(data=HumanDHS(), cell_type="K562", accessibility="quantitative")


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"valid_cells": ["b"]}, '"b" is in cell_type and in valid_cells'),
        ({"cell_type": ["b", "b"]}, 'cell_type names "b" twice'),
        ({"cell_type": []}, "at least 1 item"),
        ({"accessibility": "shut"}, "Input should be"),
    ],
)
def test_options_that_contradict(options, message):
    with pytest.raises(ValueError, match=message):
        spec(**options)


def test_options_that_leave_no_windows():
    for span in (1000, 5399):
        with pytest.raises(Refused) as info:
            spec(span=span).build()
        assert set(info.value.codes) == {"no-samples"}
        assert {problem.path for problem in info.value.problems} == {("task", "span")}
    assert spec(span=5400).build().size("train") == spec().build().size("train")


def test_dropped_windows_are_reported():
    assert list(spec(span=5400).build().data_warnings()) == list(spec().build().data_warnings()) == []
    saved = ARRAYS["end"].copy()
    try:
        ARRAYS["end"][-1] += 7  # the last training window, and one of the two of the validation chromosome
        ARRAYS["end"][LENGTHS["chr1"] + 5] += 7
        task = spec(span=5400, stride=1).build()
        assert isinstance(task, DataWarnings)
        assert list(task.data_warnings()) == [
            f"2 of {task.size('train') + 2} windows of train are wider than span = 5,400 bases and were dropped",
            f"2 of {task.size('valid') + 2} windows of valid are wider than span = 5,400 bases and were dropped",
        ]
    finally:
        ARRAYS["end"] = saved


def test_options_without_effect_are_reported():
    def warned(**options):
        chosen = spec(**options)
        return [(misfit.path, misfit.help) for misfit in chosen.warn()] if not list(chosen.check()) else None

    assert warned() == warned(accessibility="quantitative", largest="window") == []
    assert warned(expression=True, expressed=0.3) == []
    assert warned(largest="window") == [(("largest",), 'set accessibility = "quantitative"')]
    assert warned(expressed=0.3) == [(("expressed",), "set expression = true")]
    no_atpm = Given(without=("atpm",))
    assert warned(expression=True, expressed=0.3, data=no_atpm) == [(("expressed",), "remove expressed")]


@pytest.mark.parametrize("given", ["nothing", "motifs", "motifs-and-accessibility"])
@pytest.mark.parametrize("standardise", [False, True])
def test_the_space_has_given_columns_and_standardisation(given, standardise):
    chosen = spec(given=given, expression=True, standardise=standardise)
    expected = {"nothing": (), "motifs": ("motifs",), "motifs-and-accessibility": ("motifs", "accessibility")}
    assert chosen.space() == chosen.build().space
    assert (chosen.space().given, chosen.space().standardised) == (expected[given], standardise)
    bare = spec(given="motifs-and-accessibility", expression=True, accessibility=False)
    assert bare.space().given == bare.build().space.given == ("motifs",)
    with pytest.raises(Refused, match="chr3 has 18") as info:
        spec(regions=25, stride=1, drop_closed=True, accessibility="constant", cell_type="a").build()
    saved = ARRAYS["atpm"].copy()
    try:
        ARRAYS["atpm"][ARRAYS["chromosome"] == "chr2"] = 0
        with pytest.raises(Refused) as dropped:
            spec(drop_closed=True, accessibility="constant").build()
        assert [problem.path for problem in dropped.value.problems] == [("task", "drop_closed")]
        assert info.value.codes == dropped.value.codes == ["no-samples"]
    finally:
        ARRAYS["atpm"] = saved


def test_held_out_cell_types_on_trained_chromosomes_are_evaluated_apart():
    options = {"valid_cells": ["c"], "given": "motifs", "fill": 1.0, "rivals": False}
    strict, both = (spec(trained_chromosomes=on, **options).build() for on in (False, True))
    found, windows = [], [every(task, "valid") for task in (strict, both)]
    for task, clean in zip((strict, both), windows, strict=True):
        noise = Noise(torch.ones(len(clean.x0)), torch.ones(len(clean.x0)))
        target = ~clean.fixed
        noised = Noised(clean.x0, State(clean.x0, target), noise, target, clean.valid, clean.fixed)
        halves = task.metrics(), task.metrics()
        for half, rows in zip(halves, (slice(0, None, 2), slice(1, None, 2)), strict=True):
            guess = SimpleNamespace(x0=(0.3 * clean.x0 + 0.1)[rows])
            half.update(clean[rows], noised[rows], guess, Measured(torch.zeros(1), torch.zeros(1)))
        halves[0].merge(halves[1])
        task._latest = halves[0]
        found.append(halves[0].compute() | task.baselines())
    assert {name: value for name, value in found[1].items() if not name.startswith("trained")} == found[0]
    assert int(windows[1].valid.sum()) == P - LENGTHS["chr1"]
    assert {*windows[1].cond["chromosome"].tolist()} == {1, 2, 3, 4}
    opened = ARRAYS["open"][~np.isin(ARRAYS["chromosome"], ("chr1", "chr2")), 2]
    error = np.square(0.7 * opened - 0.1).mean()
    assert found[1]["trained_chromosomes_accessibility_mse"] == pytest.approx(error, rel=1e-5)
    assert "trained_chromosomes_accessibility_auc/logistic" in found[1]
    assert {*both.like(40, 0).cond["chromosome"].tolist()} == {1}
    assert [misfit.code for misfit in spec(trained_chromosomes=True).warn()] == ["no-effect"]
