"""The task: samples without held-out values, options, sampling, baselines of what was sampled, and plots."""

from types import SimpleNamespace
from typing import ClassVar

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from dither.registry.contracts.records import Measured, Noise, Noised, State
from dither.registry.contracts.spaces import Condition, FeatureSpace, Group
from dither.registry.kinds import DataSpec
from dither.tasks.get_region import plots
from dither.tasks.get_region.data import human_dhs
from dither.tasks.get_region.data.region_matrix import RegionMatrix
from dither.tasks.get_region.data_specs import HumanDHS, RegionFile
from dither.tasks.get_region.metrics.column_metrics import windows_of
from dither.tasks.get_region.metrics.sample_metrics import draw_groups
from dither.tasks.get_region.specs import GetRegion
from dither.tasks.language_model.data.specs import StdlibText
from dither.tasks.plot_style import to_picture
from dither.tasks.prepared.arrays import write_archive

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
        "chromosome": np.repeat(list(LENGTHS), list(LENGTHS.values())),
        "start": np.concatenate(
            [np.arange(length) * 1000 for length in LENGTHS.values()]
        ),
        "end": np.concatenate(
            [np.arange(length) * 1000 + 400 for length in LENGTHS.values()]
        ),
        "open": atpm > 0,
        "cells": np.array(CELLS),
        "atpm": atpm,
        "expression": random.random((P, 4, 2)).astype(np.float32),
        "tss": random.random((P, 4, 2)) < 0.2,
    }


ARRAYS = arrays()


class Given(DataSpec):
    """Arrays of a test, as a source that tells nothing beforehand."""

    name = "given"
    gives: ClassVar[str] = "regions"
    without: tuple[str, ...] = ()

    def build(self):
        known = {
            name: array for name, array in ARRAYS.items() if name not in self.without
        }
        return RegionMatrix.of(known, ("chr2",), ("chr1",))


def spec(**options):
    return GetRegion(
        **{
            "data": Given(),
            "regions": 6,
            "stride": 4,
            "cell_type": ["b", "a"],
            **options,
        }
    )


def small(**options):
    return GetRegion(data=HumanDHS(subset="chr21-22"), regions=50, **options)


def every(task, split="train"):
    return task.batch(split, range(task.size(split)))


def rows_of(clean):
    """Rows of the arrays, found by their places."""
    names = np.unique(ARRAYS["chromosome"])
    middles = (ARRAYS["start"] + ARRAYS["end"]) // 2
    place = {
        key: row
        for row, key in enumerate(
            zip(ARRAYS["chromosome"], middles.tolist(), strict=True)
        )
    }
    labels, centres = clean.cond["chromosome"].tolist(), clean.cond["centre"].tolist()
    return np.array(
        [
            [place[names[label], c] for c in row]
            for label, row in zip(labels, centres, strict=True)
        ]
    )


def test_windows_in_several_cell_types():
    task = spec().build()
    clean = every(task)
    one = spec(cell_type="b").build()
    assert task.size("train") == 2 * one.size("train")
    assert torch.equal(
        clean.cond["cell"], torch.arange(2).repeat_interleave(one.size("train"))
    )
    rows = rows_of(clean)
    numbers = np.array([CELLS.index(name) for name in ("b", "a")])[
        clean.cond["cell"].numpy()
    ]
    np.testing.assert_array_equal(clean.x0[..., :M].numpy(), ARRAYS["features"][rows])
    np.testing.assert_array_equal(
        clean.x0[..., M].numpy(), ARRAYS["open"][rows, numbers[:, None]]
    )
    np.testing.assert_array_equal(
        clean.cond["tss"].numpy(), ARRAYS["tss"][rows, numbers[:, None]].any(-1)
    )
    expected = (
        Condition("chromosome", 5),
        Condition("centre"),
        Condition("tss"),
        Condition("cell", 2, ("b", "a")),
    )
    assert spec().space() == task.space
    assert task.space.conditions == expected


def test_held_out_regions_are_not_in_training_windows():
    task = spec(
        valid_cells=["c"],
        test_cells=["d"],
        jitter=3,
        accessibility="quantitative",
        expression=True,
    ).build()
    seen = {split: every(task, split) for split in ("train", "valid", "test")}
    chromosomes = {
        split: {*clean.cond["chromosome"].tolist()} for split, clean in seen.items()
    }
    assert chromosomes == {"train": {2, 3, 4}, "valid": {1}, "test": {0}}
    samples = task.samples
    cells = {
        split: {samples.cells[cell] for cell in samples.windows[split].cell}
        for split in seen
    }
    assert cells == {"train": {"b", "a"}, "valid": {"c"}, "test": {"d"}}
    assert "cell" in seen["train"].cond
    assert (
        seen["valid"].cond["cell"] == -1
    ).all()  # a cell type that was never trained on has no label
    truth = (ARRAYS["expression"][:, 2] * (ARRAYS["atpm"][:, [2]] >= 0.05))[
        ARRAYS["chromosome"] == "chr2"
    ]
    np.testing.assert_array_equal(
        seen["valid"].x0[seen["valid"].valid][:, M + 1 :].numpy(), truth
    )


@pytest.mark.parametrize(
    "options",
    [{}, {"standardise": True}, {"drop_closed": True, "accessibility": "quantitative"}],
)
def test_held_out_values_do_not_affect_training(options, monkeypatch):
    """Samples and metrics do not depend on the values of held-out chromosomes and cell types."""

    def built():
        return spec(
            valid_cells=["c"], test_cells=["d"], expression=True, jitter=2, **options
        ).build()

    task = built()
    before, measured, reference = (
        every(task),
        task.samples.measured,
        task.samples.training(),
    )
    for name, array in ARRAYS.items():
        monkeypatch.setitem(ARRAYS, name, array.copy())
    away = np.isin(ARRAYS["chromosome"], ("chr1", "chr2"))
    for name in ("features", "atpm", "expression"):
        ARRAYS[name][away] *= 7
        if name != "features":
            ARRAYS[name][:, 2:] *= 3
    ARRAYS["open"][away] = ~ARRAYS["open"][away]
    again = built()
    after = every(again)
    assert not torch.equal(every(again, "valid").x0, every(task, "valid").x0)
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
    np.testing.assert_allclose(
        found, atpm / ARRAYS["atpm"][train][:, :2].max(), rtol=1e-6
    )
    _, found = column(accessibility="quantitative", largest="window")
    np.testing.assert_allclose(found, atpm / atpm.max(1, keepdims=True), rtol=1e-6)
    clean = every(
        spec(accessibility="quantitative", largest="window", regions=8).build(), "valid"
    )
    assert clean.valid.sum() == 2 * LENGTHS["chr2"]
    assert (clean.x0[..., M].amax(1) == 1).all(), "padding is ignored"
    assert not clean.x0[~clean.valid].any()
    assert not clean.cond["centre"][~clean.valid].any()
    assert (column(accessibility="constant")[1] == 1).all()
    for same in ("open", True):
        np.testing.assert_array_equal(column(accessibility=same)[1], atpm > 0)
    for none in ("none", False):
        task = spec(accessibility=none).build()
        assert task.space.groups == (Group("motifs", 0, M),)
        assert "cell" not in every(task).cond


def test_closed_regions_are_dropped_before_windows_are_cut():
    task = spec(
        drop_closed=True,
        accessibility="quantitative",
        expression=True,
        regions=4,
        stride=2,
    ).build()
    for number, cell in enumerate((1, 0)):
        expected = []
        for name in ("chr3", "chr4", "chr5"):
            rows = np.flatnonzero(
                (ARRAYS["chromosome"] == name) & (ARRAYS["atpm"][:, cell] > 0)
            )
            expected += [
                rows[first : first + 4].tolist() for first in range(0, len(rows) - 3, 2)
            ]
        clean = every(task)
        mine = clean.cond["cell"] == number
        assert rows_of(clean)[mine.numpy()].tolist() == expected
    assert (every(task).x0[..., M] > 0).all()


@pytest.mark.parametrize("standardise", [False, True])
@pytest.mark.parametrize("transform", ["none", "sqrt", "log1p", "quantile"])
def test_bins_are_the_distance_of_the_two_values_of_a_column(
    monkeypatch, transform, standardise
):
    hits = (ARRAYS["features"] > 2).astype(np.float32)
    monkeypatch.setitem(ARRAYS, "features", hits)
    task = spec(transform=transform, standardise=standardise).build()
    clean = every(task)
    for column, width in enumerate(task.bin_widths.tolist()):
        low, high = clean.x0[clean.valid][:, column].unique().tolist()
        assert width == pytest.approx(high - low, rel=1e-5)


def test_standardised_columns_are_measured_over_regions_and_cell_types():
    task = spec(standardise=True, expression=True).build()
    train = np.flatnonzero(~np.isin(ARRAYS["chromosome"], ("chr1", "chr2")))
    closed = ARRAYS["atpm"] < 0.05
    behind = [
        np.concatenate(
            [
                ARRAYS["open"][:, [c]],
                np.where(closed[:, [c]], 0, ARRAYS["expression"][:, c]),
            ],
            1,
        )[train]
        for c in (1, 0)
    ]
    whole = np.concatenate(
        [np.concatenate([ARRAYS["features"][train]] * 2), np.concatenate(behind)], 1
    )
    np.testing.assert_allclose(task.samples.measured.mean, whole.mean(0), rtol=1e-5)
    np.testing.assert_allclose(task.samples.measured.std, whole.std(0), rtol=1e-5)
    values, starts = task.samples.training()
    np.testing.assert_allclose(values, whole, rtol=1e-6)
    # Windows of six regions, in each chromosome of each cell type.
    runs = (30, 22, 17) * 2
    offsets = np.cumsum([0, *runs[:-1]])
    windows = [
        offset + np.arange(0, run, 6) for offset, run in zip(offsets, runs, strict=True)
    ]
    assert np.flatnonzero(starts).tolist() == np.concatenate(windows).tolist()
    fewer, starts = task.samples.training(limit=40)
    assert 0 < len(fewer) <= 40 + 6
    assert starts[0]
    x0 = task.batch("train", [0]).x0[0].numpy()
    plain = spec(expression=True).build().batch("train", [0]).x0[0].numpy()
    np.testing.assert_allclose(
        x0 * task.standard.std + task.standard.mean, plain, atol=1e-6
    )


def misfits(**options):
    return {
        misfit.path: f"{misfit.message} {misfit.help}"
        for misfit in spec(**options).check()
    }


def test_values_that_the_data_do_not_have(refusal):
    assert misfits() == {}
    found = misfits(
        cell_type=["b", "e"], valid_cells=["A"], test_cells=["zz"], motifs=7
    )
    assert 'the data have no cell type "e"' in found["cell_type",]
    assert (
        'the data have no cell type "A" did you mean "a"? available: a, b, c, d'
        in found["valid_cells",]
    )
    assert "test_cells" in {path[0] for path in found}
    assert "the data have 5 motif columns, not 7" in found["motifs",]
    for without, options in (
        ("atpm", {"accessibility": "quantitative"}),
        ("expression", {"expression": True}),
    ):
        (path,) = misfits(data=Given(without=(without,)), **options)
        assert path == (*options,)
        assert "the data have no" in str(
            refusal(spec(data=Given(without=(without,)), **options).build)
        )
    assert ("drop_closed",) in misfits(drop_closed=True)
    assert misfits(data=HumanDHS(subset="chr21-22"), cell_type="K562", motifs=282) == {}
    assert ("accessibility",) in misfits(
        data=HumanDHS(), cell_type="K562", accessibility="quantitative"
    )


def test_options_that_contradict_or_leave_no_windows(refusal):
    for options, message in (
        ({"valid_cells": ["b"]}, '"b" is in cell_type and in valid_cells'),
        ({"cell_type": ["b", "b"]}, 'cell_type names "b" twice'),
        ({"cell_type": []}, "at least 1 item"),
        ({"accessibility": "shut"}, "Input should be"),
    ):
        with pytest.raises(ValueError, match=message):
            spec(**options)
    for span in (1000, 5399):
        refused = refusal(spec(span=span).build)
        assert {(problem.code, problem.path) for problem in refused.problems} == {
            ("no-samples", ("task", "span"))
        }
    assert spec(span=5400).build().size("train") == spec().build().size("train")


def test_dropped_windows_are_reported(monkeypatch):
    assert (
        list(spec(span=5400).build().data_warnings())
        == list(spec().build().data_warnings())
        == []
    )
    monkeypatch.setitem(ARRAYS, "end", ARRAYS["end"].copy())
    ARRAYS["end"][[-1, LENGTHS["chr1"] + 5]] += (
        7  # of the last window of train, and of one of valid
    )
    task = spec(span=5400, stride=1).build()
    assert list(task.data_warnings()) == [
        f"2 of {task.size('train') + 2} windows of train are wider than span = 5,400 bases and were dropped",
        f"2 of {task.size('valid') + 2} windows of valid are wider than span = 5,400 bases and were dropped",
    ]


def test_options_without_effect_are_reported():
    def warned(**options):
        chosen = spec(**options)
        return (
            [(misfit.path, misfit.help) for misfit in chosen.warn()]
            if not list(chosen.check())
            else None
        )

    assert warned() == warned(accessibility="quantitative", largest="window") == []
    assert warned(expression=True, expressed=0.3) == []
    assert warned(largest="window") == [
        (("largest",), 'set accessibility = "quantitative"')
    ]
    assert warned(expressed=0.3) == [(("expressed",), "set expression = true")]
    no_atpm = Given(without=("atpm",))
    assert warned(expression=True, expressed=0.3, data=no_atpm) == [
        (("expressed",), "remove expressed")
    ]


@pytest.mark.parametrize("standardise", [False, True])
def test_the_space_has_given_columns_and_standardisation(standardise):
    expected = {
        "nothing": (),
        "motifs": ("motifs",),
        "motifs-and-accessibility": ("motifs", "accessibility"),
    }
    for given, names in expected.items():
        chosen = spec(given=given, expression=True, standardise=standardise)
        assert chosen.space() == chosen.build().space
        assert (chosen.space().given, chosen.space().standardised) == (
            names,
            standardise,
        )
    bare = spec(given="motifs-and-accessibility", expression=True, accessibility=False)
    assert bare.space().given == bare.build().space.given == ("motifs",)


def test_closed_chromosomes_are_refused(refusal, monkeypatch):
    few = refusal(
        spec(
            regions=25,
            stride=1,
            drop_closed=True,
            accessibility="constant",
            cell_type="a",
        ).build
    )
    assert (few.codes, "chr3 has 18" in str(few)) == (["no-samples"], True)
    monkeypatch.setitem(
        ARRAYS, "atpm", ARRAYS["atpm"] * (ARRAYS["chromosome"] != "chr2")[:, None]
    )
    (problem,) = refusal(
        spec(drop_closed=True, accessibility="constant").build
    ).problems
    assert (problem.code, problem.path) == ("no-samples", ("task", "drop_closed"))


def test_held_out_cell_types_on_trained_chromosomes_are_evaluated_apart():
    options = {"valid_cells": ["c"], "given": "motifs", "fill": 1.0, "rivals": False}
    strict, both = (
        spec(trained_chromosomes=on, **options).build() for on in (False, True)
    )
    found, windows = [], [every(task, "valid") for task in (strict, both)]
    for task, clean in zip((strict, both), windows, strict=True):
        noise = Noise(torch.ones(len(clean.x0)), torch.ones(len(clean.x0)))
        target = ~clean.fixed
        noised = Noised(
            clean.x0, State(clean.x0, target), noise, target, clean.valid, clean.fixed
        )
        halves = task.metrics(), task.metrics()
        for half, rows in zip(
            halves, (slice(0, None, 2), slice(1, None, 2)), strict=True
        ):
            guess = SimpleNamespace(x0=(0.3 * clean.x0 + 0.1)[rows])
            half.update(
                clean[rows],
                noised[rows],
                guess,
                Measured(torch.zeros(1), torch.zeros(1)),
            )
        halves[0].merge(halves[1])
        task._latest = halves[0]
        found.append(halves[0].compute() | task.baselines())
    assert {
        name: value
        for name, value in found[1].items()
        if not name.startswith("trained")
    } == found[0]
    assert int(windows[1].valid.sum()) == P - LENGTHS["chr1"]
    assert {*windows[1].cond["chromosome"].tolist()} == {1, 2, 3, 4}
    opened = ARRAYS["open"][~np.isin(ARRAYS["chromosome"], ("chr1", "chr2")), 2]
    error = np.square(0.7 * opened - 0.1).mean()
    assert found[1]["trained_chromosomes_accessibility_mse"] == pytest.approx(
        error, rel=1e-5
    )
    assert "trained_chromosomes_accessibility_auc/logistic" in found[1]
    assert {*both.like(40, 0).cond["chromosome"].tolist()} == {1}
    assert [misfit.code for misfit in spec(trained_chromosomes=True).warn()] == [
        "no-effect"
    ]


def test_the_default_size_fits_the_default_data():
    chosen = GetRegion(data=HumanDHS())
    assert list(chosen.check()) == []
    groups = (Group("motifs", 0, 282), Group("accessibility", 282, 283))
    conditions = (
        Condition("chromosome", 24),
        Condition("centre"),
        Condition("cell", 1, ("K562",)),
    )
    assert chosen.space() == FeatureSpace(
        900, 283, groups, conditions, standardised=False
    )
    task = chosen.build()
    assert {split: task.size(split) for split in ("train", "valid", "test")} == {
        "train": 218,
        "valid": 5,
        "test": 6,
    }
    assert task.batch("train", [0, 217]).valid.all()
    assert task.batch("valid", range(5)).valid.sum() == 4_053


def test_given_motifs_are_known_everywhere():
    task = spec(given="motifs", fill=1.0).build()
    for clean in (task.batch("train", [0, 1]), task.like(3, 0)):
        assert (clean.known[..., :M] == clean.valid[..., None]).all()
        assert not clean.known[..., M].any()


@pytest.mark.parametrize("fill", [0.02, 0.3, 1.0])
def test_sampling_imputes_a_share_of_each_window(fill):
    task = small(fill=fill).build()
    like = task.like(20, 1)  # more than there are windows
    drawn = (like.valid[..., None] & ~like.known).sum(1)
    count = like.valid.sum(1, keepdim=True)
    assert (drawn == (fill * count).round().clamp(min=1)).all()
    assert not like.known[~like.valid].any()
    if fill == 0.3:  # not always the same regions
        assert len({tuple(row) for row in like.known[..., 0].tolist()}) > 12
    assert task.like(0, 0).x0.shape == (0, 50, 283)


def test_sampling_imputes_a_share_of_the_elements():
    task = small(fill=0.3, fill_unit="element", draws=2).build()
    like = task.like(8, 1)
    drawn = (like.valid[..., None] & ~like.known).flatten(1).sum(1)
    assert (drawn == (0.3 * 283 * like.valid.sum(1)).round()).all()
    assert torch.equal(like.known[::2], like.known[1::2])
    share = (
        (~like.known).double().mean(2)[like.valid]
    )  # no region is drawn whole, none is left out
    assert ((share > 0.15) & (share < 0.5)).all()
    assert not like.known[~like.valid].any()
    like = (
        small(fill=0.02, fill_unit="element", given="motifs").build().like(16, 0)
    )  # elements that are not given
    assert (
        (~like.fixed).flatten(1).sum(1)
        == (0.02 * like.valid.sum(1)).round().clamp(min=1)
    ).all()


def test_sample_metrics_count_only_sampled_values():
    task = spec().build()
    like = task.like(4, 0)
    close = task.sample_metrics(like.x0 + torch.where(like.fixed, 5.0, 1e-4), like)
    assert close["masked_mse"] == pytest.approx(1e-8, rel=0.01)
    assert task.sample_metrics(like.x0 + 0.5, like)["masked_mse"] == pytest.approx(
        0.25, rel=1e-5
    )
    assert task.sample_metrics(like.x0 + 0.5, like)["accessibility_auc"] == 1
    half = (
        torch.arange(6)[:, None] % 2 == 0
    )  # what a process left in sight does not halve the error
    assert task.sample_metrics(like.x0 + 0.5 * half, like)[
        "masked_mse"
    ] == pytest.approx(0.25, rel=1e-5)
    assert task.sample_metrics(like.x0, like) == {}


def found_by_check(**options):
    return [(misfit.path, misfit.message) for misfit in GetRegion(**options).check()]


def test_incompatible_options_are_found_by_check(tmp_path):
    assert found_by_check(data=StdlibText()) == [
        (("data",), '"stdlib-text" gives text, not regions')
    ]
    ((path, message),) = found_by_check(data=HumanDHS(subset="chr21-22"))
    assert (path, "859" in message) == (("regions",), True)
    assert found_by_check(data=HumanDHS(), cell_type="k562")[0][0] == ("cell_type",)
    assert found_by_check(data=HumanDHS(), stride=901)[0][0] == ("stride",)
    assert found_by_check(data=HumanDHS(), given="motifs", accessibility=False)[0][
        0
    ] == ("given",)
    ((path, message),) = found_by_check(
        data=RegionFile(path=str(tmp_path / "none.csv"))
    )
    assert path == ("data",)
    assert "none.csv: No such file" in message


def test_prepare_builds_once(cache, monkeypatch):
    built = []

    def pretend(path):
        built.append(path)
        arrays = {"features": np.ones((3, 2), np.float32)}
        write_archive(path, arrays, {})
        return arrays

    monkeypatch.setattr(human_dhs, "write_built", pretend)
    assert HumanDHS().prepare() is None
    assert "built 3 regions x 2 motifs" in HumanDHS(subset="built").prepare()
    assert "exists already" in HumanDHS(subset="built").prepare()
    built[0].write_bytes(b"damaged")
    assert "built" in HumanDHS(subset="built").prepare()
    assert len(built) == 2


@pytest.mark.parametrize("draws", [1, 3])
def test_windows_that_occur_again_are_other_imputations(draws):
    task = spec(cell_type="a", given="motifs", fill=1.0, draws=draws).build()
    for seed in range(9):
        like = task.like(11, seed)
        groups = draw_groups(like)
        assert [rows.stop - rows.start for rows in groups] == [draws] * (
            11 // draws
        ) + [11 % draws] * (11 % draws > 0)
        assert all(len(set(like.cond["window"][rows].tolist())) == 1 for rows in groups)


def test_baselines_predict_the_elements_of_the_latest_evaluation():
    task = spec(cell_type="a", standardise=True).build()
    clean = task.batch("valid", range(task.size("valid")))
    g = torch.Generator().manual_seed(0)
    chosen = (torch.rand(clean.x0.shape, generator=g) < 0.3) & clean.valid[..., None]
    noise = Noise(torch.ones(len(chosen)), torch.ones(len(chosen)))
    noised = Noised(
        clean.x0, State(clean.x0, chosen), noise, chosen, clean.valid, ~chosen
    )
    metrics = task.metrics()
    metrics.update(clean, noised, SimpleNamespace(x0=torch.zeros_like(clean.x0)), None)
    model, baselines = metrics.compute(), task.baselines()
    assert baselines["masked_mse/mean"] == pytest.approx(
        model["masked_mse"]
    )  # 0, standardised, is the mean
    assert baselines["motif_mse/mean"] == pytest.approx(model["motif_mse"])
    assert baselines.keys() >= {"motif_pearson/ridge", "motif_pearson/mean"}
    task.sample_metrics(clean.x0, clean)  # nothing was drawn
    assert task.baselines() == baselines


def test_baselines_of_sampled_values():
    task = spec(cell_type="a", draws=2).build()
    like = task.like(6, 0)
    samples = torch.where(
        like.fixed, like.x0, torch.from_numpy(task.samples.measured.mean)
    )
    found, baselines = task.sample_metrics(samples, like), task.baselines()
    for figure in ("masked_mse", "motif_mse", "accessibility_mse"):
        assert baselines[f"sample {figure}/mean"] == pytest.approx(found[figure])
        assert f"{figure}/mean" not in baselines, "nothing was evaluated"
    assert 0 < baselines["sample accessibility_auc/logistic"] < 1
    task.sample_metrics(samples[:0], like[:0])


@pytest.fixture
def coarse(monkeypatch):
    """Pictures in less time: of few pixels, and without room made for what is written."""
    save = Figure.savefig

    def saved(figure, *where, **how):
        figure.set_layout_engine("none")
        save(figure, *where, **how | {"dpi": 40})

    monkeypatch.setattr(Figure, "savefig", saved)


def noisy(like, seed=0):
    g = torch.Generator().manual_seed(seed)
    return like.x0 + torch.where(
        like.fixed, 0.0, 0.2 * torch.randn(like.x0.shape, generator=g)
    )


def drawn(**options):
    return spec(cell_type=[*CELLS], **options).build()


def shown(task, samples, like):
    return {picture.name: picture.png for picture in task.plots(samples, like)}


@pytest.mark.usefixtures("coarse")
@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"scatter", "accessibility"}),
        ({"accessibility": False}, {"scatter"}),
        ({"given": "motifs", "fill": 1.0}, {"accessibility"}),
        (
            {"draws": 3, "standardise": True, "fill": 1.0},
            {"scatter", "accessibility", "calibration"},
        ),
    ],
)
def test_plots_depend_on_the_sampled_values(options, names, monkeypatch):
    monkeypatch.setattr(plots, "_draw_window", lambda **_: Figure())
    monkeypatch.setattr(plots, "SHOWN", 2)
    task = drawn(**options)
    like = task.like(18, 0)
    pictures = shown(task, noisy(like), like)
    heat_maps = {f"window-{number:03d}" for number in range(4)}
    assert pictures.keys() == names | heat_maps | {"tracks"}
    assert all(png.startswith(b"\x89PNG") for png in pictures.values())
    assert shown(task, like.x0, like).keys() == heat_maps  # nothing was drawn
    assert shown(task, like.x0[:0], like[:0]) == {}


@pytest.mark.usefixtures("coarse")
def test_curves_of_accessibility_have_the_area_of_the_evaluation(monkeypatch):
    titles = []
    monkeypatch.setattr(
        plots,
        "to_picture",
        lambda _, figure: titles.append([axis.get_title() for axis in figure.axes]),
    )
    task = small(given="motifs", fill=1.0).build()
    like = task.like(2, 0)
    list(task.plots(noisy(like), like))
    clean = task.batch("valid", range(task.size("valid")))
    target = clean.valid[..., None] & ~clean.known
    metrics = task.metrics()
    metrics.predictions.add(
        clean.x0.numpy(), noisy(clean, 1).numpy(), target.numpy(), windows_of(clean)
    )
    values = metrics.compute()
    list(task.plots(noisy(like), like))
    sampled, evaluated = (
        title for shown in titles for title in shown if title.startswith("ROC")
    )
    area = (
        f"{values['accessibility_auc']:.3f} +- {values['accessibility_auc_ci95']:.3f}"
    )
    assert evaluated == f"ROC: area {area}, random .5" != sampled


def test_heat_maps_show_sampled_values(monkeypatch):
    seen = []
    monkeypatch.setattr(
        plots, "_draw_window", lambda **parts: seen.append(parts) or Figure()
    )
    task = drawn(standardise=True)
    like = task.like(2, 0)
    samples = noisy(like)
    list(task.plots(samples, like))
    for number, parts in enumerate(seen):
        truth, masked, values, places, extra = (
            parts[name] for name in ("truth", "masked", "drawn", "places", "extra")
        )
        keep = like.valid[number]
        assert (masked != like.known[number][keep].numpy()).all()
        assert len(places) == len(truth) == int(keep.sum())
        assert places[0].startswith("chr2:")
        assert extra[0].startswith("open in ")
        off = (samples - like.x0)[number][keep].numpy() * task.standard.std
        np.testing.assert_allclose(values - truth, off, atol=1e-5)


def test_every_colour_bar_has_a_label():
    values = np.random.default_rng(0).random((5, 4))
    masked = values > 0.5
    figure = plots._draw_window(
        title="",
        truth=values,
        masked=masked,
        drawn=values,
        places=[*"abcde"],
        motifs=["m1", "m2"],
        extra=["open in K562", "expressed, + strand"],
    )
    bars = [axis for axis in figure.axes if axis.get_label() == "<colorbar>"]
    labels = [bar.get_xlabel() for bar in bars]
    assert {"motif score", "open", "expressed, + strand", "difference"} <= {*labels}
    # The mask has no scale.
    assert [bar for bar in bars if len(bar.get_xticks()) and not bar.get_xlabel()] == []

    figure = plots.draw_attributions(values, [*"abcde"], [*"wxyz"])
    assert figure.axes[1].get_ylabel() == "gradient x input"


def test_plots_are_rendered_alike_in_every_format():
    figure = Figure(figsize=(1, 1))
    figure.subplots().plot([0, 1], label="x")
    picture = to_picture("line", figure)
    for form, start in (("svg", b"<?xml"), ("pdf", b"%PDF")):
        content = picture.render(form)
        assert content.startswith(start)
        assert content == picture.render(form)
        assert b"CreationDate" not in content
    assert picture.png.startswith(b"\x89PNG")
