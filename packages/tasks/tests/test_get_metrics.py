"""Metrics against scipy and scikit-learn, their bootstrap intervals by resampling, and several draws of a window."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import (
    average_precision_score,
    mean_squared_error,
    r2_score,
    roc_auc_score,
)

from dither.registry.contracts.records import Clean, Measured, Noise, Noised, State
from dither.registry.contracts.spaces import Group
from dither.tasks.get_region.data.region_matrix import ColumnStats
from dither.tasks.get_region.data.units import ColumnUnits
from dither.tasks.get_region.metrics import region_metrics
from dither.tasks.get_region.metrics.column_metrics import pearson, spearman, windows_of
from dither.tasks.get_region.metrics.region_metrics import (
    RegionMetrics,
    bootstrap_weights,
)
from dither.tasks.get_region.metrics.sample_metrics import (
    Draws,
    coverage,
    draw_groups,
    draw_metrics,
    half_width,
    sample_metrics,
    sampled_mask,
)

torch.set_num_threads(1)
B, L, M = 12, 9, 5
GROUPS = (
    Group("motifs", 0, M),
    Group("accessibility", M, M + 1),
    Group("expression", M + 1, M + 3),
)
W = M + 3


def plain(width):
    return ColumnUnits(np.ones(width, np.float32), ColumnStats.none(width))


def update(metrics, clean, target, guess):
    noise = Noise(torch.ones(len(target)), torch.ones(len(target)))
    noised = Noised(
        clean.x0, State(clean.x0, target), noise, target, clean.valid, ~target
    )
    metrics.update(
        clean,
        noised,
        SimpleNamespace(x0=guess),
        Measured(torch.zeros(1), torch.zeros(1)),
    )


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(0)
    x0 = torch.rand(B, L, W, generator=g)
    x0[..., M] = (torch.rand(B, L, generator=g) < 0.3).float()
    x0[..., 1] = (x0[..., 1] * 3).floor() / 4  # ties
    x0[..., 2] = 0.25  # a motif that never changes
    guess = x0 + torch.randn(x0.shape, generator=g) * 0.6
    guess[..., 1] = (guess[..., 1] * 2).round() / 2
    guess[..., 3] = 0.5  # a motif that is answered by a constant
    valid = torch.arange(L) < torch.randint(3, L + 1, (B, 1), generator=g)
    target = (torch.rand(x0.shape, generator=g) < 0.5) & valid[..., None]
    guess[~target] = float("nan")  # what was not target for must not matter
    return x0, guess, target, valid


def accumulate(case, cuts, standard=None):
    x0, guess, target, valid = case
    metrics = RegionMetrics(GROUPS, standard or plain(W), np.full(W, 0.4, np.float32))
    clean = Clean.of(x0, valid, centre=torch.arange(x0.shape[1]).expand(len(x0), -1))
    for part in torch.arange(len(x0)).tensor_split(cuts):
        update(metrics, clean[part], target[part], guess[part])
    return metrics


def run(case, cuts, standard=None):
    return accumulate(case, cuts, standard).compute()


def oracle(case, name, columns):
    """One group by way of scipy and scikit-learn; the constant answer counts as 0 where a library says nan."""
    x0, guess, target, _ = (value.numpy() for value in case)
    pairs = [
        (x0[..., k][target[..., k]], guess[..., k][target[..., k]]) for k in columns
    ]
    quiet = [np.ptp(answer) == 0 for _, answer in pairs]
    of = {
        "pearson": lambda x, y: stats.pearsonr(x, y).statistic,
        "spearman": lambda x, y: stats.spearmanr(x, y).statistic,
    }
    metrics = {
        f"{name}_{key}": np.mean(
            [
                0 if flat else figure(*pair)
                for pair, flat in zip(pairs, quiet, strict=True)
            ]
        )
        for key, figure in of.items()
    }
    metrics[f"{name}_r2"] = np.mean([r2_score(*pair) for pair in pairs])
    truth, answer = (np.concatenate(side) for side in zip(*pairs, strict=True))
    metrics[f"{name}_mse"] = mean_squared_error(truth, answer)
    if len(pairs) > 1:
        metrics[f"{name}_pearson_overall"] = of["pearson"](truth, answer)
        metrics[f"{name}_r2_overall"] = r2_score(truth, answer)
    return metrics


def expected(case):
    x0, guess, target, _ = (value.numpy() for value in case)
    counted = target.copy()
    counted[..., 2] = False  # nothing of the constant motif counts
    label, error = target[..., M], mean_squared_error(x0[counted], guess[counted])
    return {
        "masked_mse": error,
        "masked_gain": 1 - error / np.square(x0[counted] - np.float32(0.4)).mean(),
        **oracle(case, "motif", (0, 1, 3, 4)),
        **oracle(case, "accessibility", (M,)),
        **oracle(case, "expression", (M + 1, M + 2)),
        "accessibility_auc": roc_auc_score(x0[..., M][label], guess[..., M][label]),
        "accessibility_auprc": average_precision_score(
            x0[..., M][label], guess[..., M][label]
        ),
        "constant_columns": 1,
    }


def test_metrics_equal_those_of_all_target_elements_at_once(case):
    assert run(case, 5) == pytest.approx(expected(case), rel=1e-5)


def test_standardising_changes_no_metric(case):
    x0, guess, target, valid = case
    mean, std = np.linspace(-1, 1, W, dtype=np.float32), np.full(W, 0.5, np.float32)
    shifted = [
        (value - torch.from_numpy(mean)) / torch.from_numpy(std)
        for value in (x0, guess)
    ]
    metrics = run(
        (*shifted, target, valid), 3, ColumnUnits(std / std, ColumnStats(mean, std))
    )
    for name in ("motif_spearman", "constant_columns"):  # rounding breaks ties
        assert abs(metrics.pop(name) - expected(case)[name]) < 0.2
    assert metrics == pytest.approx(
        {name: expected(case)[name] for name in metrics}, rel=1e-3
    )


def test_groups_without_targets_have_no_metric(case):
    x0, guess, target, valid = case
    assert run((x0, guess, torch.zeros_like(target), valid), 2) == {}
    only = target.clone()
    only[..., :M] = only[..., M + 1 :] = False
    names = set(run((x0, guess, only, valid), 2))
    assert names == {"masked_mse", "masked_gain"} | {
        f"accessibility_{key}"
        for key in ("mse", "pearson", "spearman", "r2", "auc", "auprc")
    }
    one = torch.zeros_like(target)
    one[0, 0, 0] = True  # a single element: an error, and nothing else
    single = {"masked_mse", "masked_gain", "motif_mse", "constant_columns"}
    assert run((x0, torch.zeros_like(x0), one, valid), 1).keys() == single


def test_only_binary_accessibility_has_areas(case):
    x0, guess, target, valid = case
    x0 = x0.clone()
    x0[..., M] = torch.rand(B, L, generator=torch.Generator().manual_seed(1))
    metrics = run((x0, guess, target, valid), 2)
    assert "accessibility_auc" not in metrics
    assert "accessibility_spearman" in metrics


def test_constant_columns_are_left_out():
    """The constant accessibility column of the seed lifts a pooled correlation of means; here it counts nowhere."""
    g = np.random.default_rng(0)
    truth = np.column_stack([g.uniform(0, 0.1, 50), np.ones(50)]).astype(np.float32)
    means = np.broadcast_to(truth.mean(0), truth.shape)
    assert pearson(truth.ravel(), means.ravel()) > 0.99
    both = RegionMetrics([Group("motifs", 0, 2)], plain(2), np.zeros(2, np.float32))
    both.predictions.add(truth[None], means[None], np.ones((1, 50, 2), bool))
    metrics = both.compute()
    assert metrics["motif_pearson_overall"] == 0
    assert metrics["motif_r2_overall"] == pytest.approx(0, abs=1e-6)
    ramp, noise = (
        np.arange(20, dtype=np.float32),
        g.integers(0, 2, 20).astype(np.float32) * np.float32(3e-8),
    )
    assert (
        pearson(ramp, np.float32(0.3) + noise)
        == spearman(ramp, np.float32(0.3) + noise)
        == 0
    ), "rounding"
    assert np.isnan(spearman(ramp, np.where(ramp > ramp.min(), ramp, np.inf)))
    assert np.isnan(pearson(ramp, np.where(ramp > 3, np.nan, ramp)))


@pytest.mark.parametrize("every", [1, 2, 4])
def test_windows_kept_for_baselines_are_evenly_spaced(case, monkeypatch, every):
    """At most as many regions as the limit, however the windows arrive, and also after merging ranks."""
    count, length = case[3].shape
    monkeypatch.setattr(region_metrics, "BASELINE_REGIONS", -(-count // every) * length)
    for cuts in (1, 5, count):
        kept = np.concatenate([batch.truth for batch in accumulate(case, cuts).batches])
        np.testing.assert_array_equal(kept, case[0].numpy()[::every])
    one = accumulate(case, 5)
    one.merge(accumulate(case, 5))
    assert 1 <= sum(len(batch.truth) for batch in one.batches) <= -(-count // every)


COUNT, REGIONS, MOTIFS = 14, 12, 4
PAIR = (Group("motifs", 0, MOTIFS), Group("accessibility", MOTIFS, MOTIFS + 1))
COLUMNS = MOTIFS + 1
MEAN = np.full(COLUMNS, 0.4, np.float32)


def windows(seed=0, count=COUNT):
    """Truth, guess, target and batch; windows differ in how wrong the guess is."""
    g = torch.Generator().manual_seed(seed)
    x0 = torch.rand(count, REGIONS, COLUMNS, generator=g)
    x0[..., MOTIFS] = (torch.rand(count, REGIONS, generator=g) < 0.4).float()
    x0[..., 2] = 0.25  # never changes
    guess = x0 + torch.randn(x0.shape, generator=g) * torch.rand(
        count, 1, 1, generator=g
    )
    guess[..., MOTIFS] = (guess[..., MOTIFS] * 3).round() / 3  # ties
    target = torch.rand(x0.shape, generator=g) < 0.7
    valid = torch.ones(count, REGIONS, dtype=torch.bool)
    numbers = torch.arange(count)
    places = {
        "chromosome": numbers % 3,
        "centre": 100 * numbers[:, None] + torch.arange(REGIONS),
        "cell": numbers % 2,
    }
    return x0, guess, target, Clean.of(x0, valid, **places)


def metrics_of(case, rows, size):
    _, guess, target, clean = case
    metrics = RegionMetrics(PAIR, plain(COLUMNS), MEAN)
    for start in range(0, len(rows), size):
        part = torch.tensor(rows[start : start + size])
        update(metrics, clean[part], target[part], guess[part])
    return metrics


def by_hand(case):
    """Take the windows of each draw as often as it has them, without their places, and compute the plain metrics."""
    x0, guess, target, clean = case
    order = np.lexsort(
        [clean.cond["centre"].numpy()[:, 0], clean.cond["chromosome"].numpy()]
    )
    drawn = {}
    for times in bootstrap_weights(COUNT).astype(int):
        metrics = RegionMetrics(PAIR, plain(COLUMNS), MEAN)
        metrics.predictions.add(
            *(value.numpy()[order.repeat(times)] for value in (x0, guess, target))
        )
        for name, value in metrics.compute().items():
            drawn.setdefault(f"{name}_ci95", []).append(value)
    short = np.sqrt(
        COUNT / (COUNT - 1)
    )  # the variance of a bootstrap is too small by so much
    halves = {
        name: short * np.diff(np.quantile(values, [0.025, 0.975]))[0] / 2
        for name, values in drawn.items()
    }
    return {
        name: half
        for name, half in halves.items()
        if "spearman" not in name and "constant" not in name
    }


def test_intervals_equal_those_of_resampled_windows(monkeypatch):
    monkeypatch.setattr("dither.tasks.get_region.metrics.region_metrics.DRAWS", 20)
    case = windows()
    found = metrics_of(case, range(COUNT), 5).compute()
    halves = {name: half for name, half in found.items() if name.endswith("_ci95")}
    assert halves == pytest.approx(by_hand(case), rel=1e-4)
    assert all(
        half > 0 and name.removesuffix("_ci95") in found
        for name, half in halves.items()
    )


def test_intervals_do_not_depend_on_batches_order_or_ranks():
    case = windows(1)
    whole = metrics_of(case, range(COUNT), COUNT).compute()
    assert {name for name in whole if name.endswith("_ci95")} >= {
        "masked_mse_ci95",
        "accessibility_auc_ci95",
    }
    assert not any("spearman_ci95" in name for name in whole)
    for size in (1, 3, 8):
        assert metrics_of(case, range(COUNT), size).compute() == pytest.approx(
            whole, rel=1e-9
        )
    one, other = (
        metrics_of(case, range(0, COUNT, 2), 3),
        metrics_of(case, range(1, COUNT, 2), 2),
    )
    one.merge(other)
    assert one.compute() == pytest.approx(whole, rel=1e-9)
    assert sum(len(batch.truth) for batch in one.batches) == COUNT


def test_a_window_that_occurs_twice_counts_once():
    case = windows(2)
    twice = metrics_of(case, [*range(COUNT), *range(COUNT)], 4)
    count, each = twice.predictions.windows()
    assert count == COUNT
    assert max(map(max, each)) == COUNT - 1
    assert twice.compute() == pytest.approx(
        metrics_of(case, range(COUNT), 4).compute(), rel=1e-6
    )


def test_intervals_match_the_scatter_of_metrics():
    """Over many evaluations the error lies within its interval of the true one in about 95 % of cases."""
    found = [
        metrics_of(windows(seed, 30), range(30), 30).compute() for seed in range(30)
    ]
    true = np.mean([metrics["masked_mse"] for metrics in found])
    held = [
        abs(metrics["masked_mse"] - true) <= metrics["masked_mse_ci95"]
        for metrics in found
    ]
    assert 0.85 <= np.mean(held) <= 1


def test_no_interval_without_windows():
    case = windows()
    assert not any(
        "ci95" in name for name in metrics_of(case, range(7), 4).compute()
    ), "too few"
    assert any("ci95" in name for name in metrics_of(case, range(8), 4).compute())
    nameless = RegionMetrics(PAIR, plain(COLUMNS), MEAN)
    nameless.predictions.add(*(value.numpy() for value in case[:3]))
    assert not any("ci95" in name for name in nameless.compute())
    assert windows_of(Clean.of(case[0])) is None
    assert RegionMetrics(PAIR, plain(COLUMNS), MEAN).compute() == {}


def test_perfect_and_constant_predictions_have_no_uncertainty():
    x0, _, target, clean = windows()
    perfect = metrics_of((x0, x0, target, clean), range(COUNT), 4).compute()
    assert {
        perfect[f"{name}_ci95"] for name in ("accessibility_auc", "accessibility_auprc")
    } == {0}
    assert perfect["masked_mse_ci95"] == pytest.approx(0, abs=1e-6)
    constant = metrics_of(
        (x0, torch.full_like(x0, 0.4), target, clean), range(COUNT), 4
    ).compute()
    assert constant["accessibility_auc_ci95"] == constant["motif_pearson_ci95"] == 0
    assert constant["masked_gain_ci95"] == pytest.approx(0, abs=1e-6)
    broken = metrics_of(
        (x0, torch.full_like(x0, float("nan")), target, clean), range(COUNT), 4
    ).compute()
    assert not any("ci95" in name for name in broken)


PLACES, FEW = 6, 3
ONE_GROUP = (Group("motifs", 0, FEW),)


def like_of(*counts, seed=0):
    """Windows with random masks, each as often as it is to be drawn."""
    g = torch.Generator().manual_seed(seed)
    x0 = torch.rand(len(counts), PLACES, FEW, generator=g)
    known = torch.rand(x0.shape, generator=g) < 0.5
    times = torch.tensor(counts)
    values = x0, torch.ones(len(counts), PLACES, dtype=torch.bool), known
    cond = {"imputation": torch.arange(len(counts)).repeat_interleave(times)}
    return Clean(*(value.repeat_interleave(times, 0) for value in values), cond)


def imputed():
    return RegionMetrics(ONE_GROUP, plain(FEW), np.full(FEW, 0.5, np.float32))


def test_draws_of_one_window_are_found():
    assert draw_groups(like_of(3, 1, 2)) == [slice(0, 3), slice(3, 4), slice(4, 6)]
    assert draw_groups(like_of(1)) == [slice(0, 1)]
    assert draw_groups(like_of(2)[:0]) == []
    like = like_of(1).apply(lambda value: value.repeat_interleave(2, 0))
    like.cond["imputation"][1] = 1  # equal values do not make draws of one window
    assert draw_groups(like) == [slice(0, 1), slice(1, 2)]
    like.cond.clear()
    assert draw_groups(like) == [slice(0, 1), slice(1, 2)]


def test_sampled_mask():
    like = like_of(2, 1)
    samples = torch.where(like.known, like.x0, like.x0 + 1)
    assert torch.equal(sampled_mask(samples, like), ~like.known)
    samples[0, 2] = like.x0[0, 2]  # drawn as it was, in one draw of two: it counts
    assert torch.equal(sampled_mask(samples, like), ~like.known)
    samples[1, 2] = like.x0[1, 2]  # left in sight in both: it does not
    assert not sampled_mask(samples, like)[:2, 2].any()
    samples[..., 1] = like.x0[..., 1]  # a column that nothing acts on
    counted = sampled_mask(samples, like)
    assert not counted[..., 1].any()
    assert torch.equal(
        counted[2, :, 0], ~like.known[2, :, 0] & (~like.known[2, :, [0, 2]]).any(1)
    )
    assert not sampled_mask(like.x0, like).any()


def summary(truth, draws):
    shape = (len(draws), 1, len(truth))
    repeated = np.broadcast_to(truth, shape)
    return Draws.of(
        repeated, draws.reshape(shape), np.ones(shape, bool), [slice(0, len(draws))]
    )


def test_draw_metrics_by_hand():
    truth = np.array([[[0.0, 1.0]], [[0.0, 1.0]], [[5.0, 5.0]]])
    samples = np.array([[[1.0, 1.0]], [[3.0, 2.0]], [[9.0, 9.0]]])
    draws = Draws.of(
        truth, samples, np.ones((3, 1, 2), bool), [slice(0, 2), slice(2, 3)]
    )
    assert draws.count == 2
    np.testing.assert_allclose(draws.mean, [2, 1.5])
    np.testing.assert_allclose(draws.spread, [np.sqrt(2), np.sqrt(0.5)])
    metrics = draw_metrics(draws)
    assert "draw_coverage_90" not in metrics
    assert metrics["single_draw_mse"] == pytest.approx((1 + 9 + 0 + 1) / 4)
    assert metrics["spread_skill"] == pytest.approx(
        np.sqrt(1.25 * 1.5 / ((4 + 0.25) / 2))
    )
    assert metrics["draw_spread"] == pytest.approx(np.sqrt((2 + 0.5) / 2))
    assert half_width(2, 0.9) == pytest.approx(stats.t.ppf(0.95, 1) * np.sqrt(1.5))
    assert coverage(draws) == 1
    np.testing.assert_allclose(draws.above, [1, 1])
    other = summary(np.array([0.3, 1.0]), np.array([[1.0, 1.0], [3.0, 2.0]]))
    assert draw_metrics(other)["draw_coverage_90"] == 1
    assert Draws.of(truth, samples, np.zeros((3, 1, 2), bool), [slice(0, 2)]) is None
    assert (
        Draws.of(
            truth,
            samples,
            np.ones((3, 1, 2), bool),
            [slice(row, row + 1) for row in range(3)],
        )
        is None
    )


@pytest.mark.parametrize("count", [2, 8])
def test_the_interval_of_calibrated_draws_covers_90_percent(count):
    g = np.random.default_rng(count)
    n, scale, middle = 20_000, g.uniform(0.1, 3, 20_000), g.normal(size=20_000)
    many = middle + scale * g.normal(size=(count, n))
    truth = middle + scale * g.normal(size=n)
    draws = summary(truth, many)
    for level in (0.5, 0.9):
        assert abs(coverage(draws, level) - level) < 4 * np.sqrt(
            level * (1 - level) / n
        )
    assert abs(draw_metrics(draws)["spread_skill"] - 1) < 0.05
    sure = summary(truth, draws.mean + (many - draws.mean) / 3)
    assert coverage(sure) < 0.8
    assert draw_metrics(sure)["spread_skill"] == pytest.approx(
        draw_metrics(draws)["spread_skill"] / 3
    )


def test_metrics_are_those_of_the_mean_of_the_draws():
    like = like_of(4, 4)
    g = torch.Generator().manual_seed(1)
    samples = torch.where(
        like.known, like.x0, like.x0 + torch.randn(like.x0.shape, generator=g)
    )
    metrics = sample_metrics(imputed(), samples, like)
    means = samples.reshape(2, 4, PLACES, FEW).mean(1)
    target = ~like.known[::4]
    assert metrics["masked_mse"] == pytest.approx(
        float((means - like.x0[::4])[target].square().mean()), rel=1e-5
    )
    single = float((samples - like.x0)[~like.known].square().mean())
    assert metrics["single_draw_mse"] == pytest.approx(single, rel=1e-5)
    assert metrics["masked_mse"] < metrics["single_draw_mse"]
    assert metrics["draws"] == 4
    like = like_of(1, 1)  # single draws have no spread
    metrics = sample_metrics(imputed(), like.x0 + 0.5 * ~like.known, like)
    assert metrics["masked_mse"] == pytest.approx(0.25)
    assert not any(
        name.startswith("draw") or name.startswith("single") for name in metrics
    )
    assert sample_metrics(imputed(), like.x0, like) == {}
    assert sample_metrics(imputed(), like.x0[:0], like[:0]) == {}
