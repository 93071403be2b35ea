"""Several draws of a window: sampled values, mean and spread, and calibration."""

import numpy as np
import pytest
import torch
from scipy import stats

from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import Group
from dither.tasks.get_region.data.region_matrix import ColumnStats
from dither.tasks.get_region.data_specs import HumanDHS
from dither.tasks.get_region.metrics.region_metrics import RegionMetrics
from dither.tasks.get_region.metrics.sample_metrics import (
    Draws,
    coverage,
    draw_groups,
    draw_metrics,
    half_width,
    sample_metrics,
    sampled_mask,
)
from dither.tasks.get_region.specs import GetRegion

torch.set_num_threads(1)
L, M = 6, 3
GROUPS = (Group("motifs", 0, M),)


def like_of(*counts, seed=0):
    """Windows with random masks, each as often as it is to be drawn."""
    g = torch.Generator().manual_seed(seed)
    x0, known = torch.rand(len(counts), L, M, generator=g), torch.rand(len(counts), L, M, generator=g) < 0.5
    times = torch.tensor(counts)
    values = x0, torch.ones(len(counts), L, dtype=torch.bool), known
    cond = {"imputation": torch.arange(len(counts)).repeat_interleave(times)}
    return Clean(*(value.repeat_interleave(times, 0) for value in values), cond)


def fresh():
    return RegionMetrics(GROUPS, ColumnStats.none(M), np.full(M, 0.5, np.float32))


def test_draws_of_one_window_are_found():
    assert draw_groups(like_of(3, 1, 2)) == [slice(0, 3), slice(3, 4), slice(4, 6)]
    assert draw_groups(like_of(1)) == [slice(0, 1)]
    assert draw_groups(like_of(2)[:0]) == []
    like = like_of(1).apply(lambda value: value.repeat_interleave(2, 0))
    like.cond["imputation"][1] = 1  # equal values do not make draws of one window
    assert draw_groups(like) == [slice(0, 1), slice(1, 2)]
    like.cond.clear()
    assert draw_groups(like) == [slice(0, 1), slice(1, 2)]


@pytest.mark.parametrize("draws", [1, 3])
def test_windows_that_occur_again_are_other_imputations(draws):
    task = GetRegion(data=HumanDHS(subset="chr21-22"), regions=200, given="motifs", fill=1.0, draws=draws).build()
    for seed in range(9):
        like = task.like(11, seed)  # of 3 windows
        groups = draw_groups(like)
        assert [rows.stop - rows.start for rows in groups] == [draws] * (11 // draws) + [11 % draws] * (11 % draws > 0)
        assert all(len(set(like.cond["window"][rows].tolist())) == 1 for rows in groups)


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
    assert torch.equal(counted[2, :, 0], ~like.known[2, :, 0] & (~like.known[2, :, [0, 2]]).any(1))
    assert not sampled_mask(like.x0, like).any()


def summary(truth, draws):
    """Summarise K draws of n elements."""
    shape = (len(draws), 1, len(truth))
    repeated = np.broadcast_to(truth, shape)
    return Draws.of(repeated, draws.reshape(shape), np.ones(shape, bool), [slice(0, len(draws))])


def test_draw_metrics_by_hand():
    truth = np.array([[[0.0, 1.0]], [[0.0, 1.0]], [[5.0, 5.0]]])
    samples = np.array([[[1.0, 1.0]], [[3.0, 2.0]], [[9.0, 9.0]]])
    draws = Draws.of(truth, samples, np.ones((3, 1, 2), bool), [slice(0, 2), slice(2, 3)])
    assert draws.count == 2
    np.testing.assert_allclose(draws.mean, [2, 1.5])
    np.testing.assert_allclose(draws.spread, [np.sqrt(2), np.sqrt(0.5)])
    metrics = draw_metrics(draws)
    assert "draw_coverage_90" not in metrics
    assert metrics["single_draw_mse"] == pytest.approx((1 + 9 + 0 + 1) / 4)
    assert metrics["spread_skill"] == pytest.approx(np.sqrt(1.25 * 1.5 / ((4 + 0.25) / 2)))
    assert metrics["draw_spread"] == pytest.approx(np.sqrt((2 + 0.5) / 2))
    assert half_width(2, 0.9) == pytest.approx(stats.t.ppf(0.95, 1) * np.sqrt(1.5))
    assert coverage(draws) == 1
    np.testing.assert_allclose(draws.above, [1, 1])
    other = summary(np.array([0.3, 1.0]), np.array([[1.0, 1.0], [3.0, 2.0]]))
    assert draw_metrics(other)["draw_coverage_90"] == 1
    assert Draws.of(truth, samples, np.zeros((3, 1, 2), bool), [slice(0, 2)]) is None
    assert Draws.of(truth, samples, np.ones((3, 1, 2), bool), [slice(row, row + 1) for row in range(3)]) is None


@pytest.mark.parametrize("count", [2, 4, 8, 32])
def test_the_interval_of_calibrated_draws_covers_90_percent(count):
    g = np.random.default_rng(count)
    n, scale, middle = 20_000, g.uniform(0.1, 3, 20_000), g.normal(size=20_000)
    many = middle + scale * g.normal(size=(count, n))
    truth = middle + scale * g.normal(size=n)
    draws = summary(truth, many)
    for level in (0.5, 0.9):
        assert abs(coverage(draws, level) - level) < 4 * np.sqrt(level * (1 - level) / n)
    assert abs(draw_metrics(draws)["spread_skill"] - 1) < 0.05
    sure = summary(truth, draws.mean + (many - draws.mean) / 3)
    assert coverage(sure) < 0.8
    assert draw_metrics(sure)["spread_skill"] == pytest.approx(draw_metrics(draws)["spread_skill"] / 3)


def test_metrics_are_those_of_the_mean_of_the_draws():
    like = like_of(4, 4)
    g = torch.Generator().manual_seed(1)
    samples = torch.where(like.known, like.x0, like.x0 + torch.randn(like.x0.shape, generator=g))
    metrics = sample_metrics(fresh(), samples, like)
    means = samples.reshape(2, 4, L, M).mean(1)
    target = ~like.known[::4]
    assert metrics["masked_mse"] == pytest.approx(float((means - like.x0[::4])[target].square().mean()), rel=1e-5)
    assert metrics["single_draw_mse"] == pytest.approx(
        float((samples - like.x0)[~like.known].square().mean()), rel=1e-5
    )
    assert metrics["masked_mse"] < metrics["single_draw_mse"]
    assert metrics["draws"] == 4


def test_single_draws_have_no_spread_metrics():
    like = like_of(1, 1)
    metrics = sample_metrics(fresh(), like.x0 + 0.5 * ~like.known, like)
    assert metrics["masked_mse"] == pytest.approx(0.25)
    assert not any(name.startswith("draw") or name.startswith("single") for name in metrics)
    assert sample_metrics(fresh(), like.x0, like) == {}
    assert sample_metrics(fresh(), like.x0[:0], like[:0]) == {}
