"""Bootstrap intervals: equal to resampling by hand, independent of batches, calibrated."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch

from dither.registry.flow.records import Clean, Measured, Noise, Noised, State
from dither.registry.flow.spaces import Group
from dither.tasks.get_region.data.region_matrix import ColumnStats
from dither.tasks.get_region.metrics.column_metrics import Predictions, group_metrics, rank_metrics, windows_of
from dither.tasks.get_region.metrics.region_metrics import RegionMetrics, bootstrap_weights

torch.set_num_threads(1)
B, L, M = 14, 12, 4
GROUPS = (Group("motifs", 0, M), Group("accessibility", M, M + 1))
W = M + 1
MEAN = np.full(W, 0.4, np.float32)


def windows(seed=0, count=B):
    """Truth, guess, target and batch; windows differ in how wrong the guess is."""
    g = torch.Generator().manual_seed(seed)
    x0 = torch.rand(count, L, W, generator=g)
    x0[..., M] = (torch.rand(count, L, generator=g) < 0.4).float()
    x0[..., 2] = 0.25  # never changes
    guess = x0 + torch.randn(x0.shape, generator=g) * torch.rand(count, 1, 1, generator=g)
    guess[..., M] = (guess[..., M] * 3).round() / 3  # ties
    target = torch.rand(x0.shape, generator=g) < 0.7
    valid = torch.ones(count, L, dtype=torch.bool)
    clean = Clean.of(
        x0,
        valid,
        chromosome=torch.arange(count) % 3,
        centre=100 * torch.arange(count)[:, None] + torch.arange(L),
        cell=torch.arange(count) % 2,
    )
    return x0, guess, target, clean


def metrics_of(case, rows, size):
    x0, guess, target, clean = case
    metrics = RegionMetrics(GROUPS, ColumnStats.none(W), MEAN)
    for start in range(0, len(rows), size):
        part = torch.tensor(rows[start : start + size])
        noise = Noise(torch.ones(len(part)), torch.ones(len(part)))
        some = Clean(x0[part], clean.valid[part], clean.known[part], {k: v[part] for k, v in clean.cond.items()})
        noised = Noised(some.x0, State(some.x0, target[part]), noise, target[part], some.valid, ~target[part])
        metrics.update(some, noised, SimpleNamespace(x0=guess[part]), Measured(torch.zeros(1), torch.zeros(1)))
    return metrics


def by_hand(case):
    """Take the windows of each draw as often as it has them, and ask for the plain metrics."""
    x0, guess, target, clean = case
    order = np.lexsort([clean.cond["centre"].numpy()[:, 0], clean.cond["chromosome"].numpy()])
    drawn = {}
    for times in bootstrap_weights(B).astype(int):
        rows = order.repeat(times)
        t, y, k = x0.numpy()[rows], guess.numpy()[rows], target.numpy()[rows]
        pairs = [(t[..., c][k[..., c]], y[..., c][k[..., c]]) for c in range(W)]
        counted = [np.concatenate([pairs[c][side] for c in (0, 1, 3, 4)]) for side in (0, 1)]
        error = np.square(counted[0] - counted[1]).mean()
        metrics = {"masked_mse": error, "masked_gain": 1 - error / np.square(counted[0] - MEAN[0]).mean()}
        metrics |= group_metrics("motif", pairs[:M]) | group_metrics("accessibility", pairs[M:])
        for name, value in (metrics | rank_metrics(pairs[M][0] > 0.5, pairs[M][1])).items():
            drawn.setdefault(f"{name}_ci95", []).append(value)
    short = np.sqrt(B / (B - 1))  # the variance of a bootstrap is too small by so much
    halves = {name: short * np.diff(np.quantile(values, [0.025, 0.975]))[0] / 2 for name, values in drawn.items()}
    return {name: half for name, half in halves.items() if "spearman" not in name}


def test_intervals_equal_those_of_resampled_windows(monkeypatch):
    monkeypatch.setattr("dither.tasks.get_region.metrics.region_metrics.DRAWS", 60)
    case = windows()
    found = metrics_of(case, range(B), 5).compute()
    assert {name: half for name, half in found.items() if name.endswith("_ci95")} == pytest.approx(
        by_hand(case), rel=1e-4
    )
    assert all(found[name] > 0 and name.removesuffix("_ci95") in found for name in by_hand(case))


def test_intervals_do_not_depend_on_batches_order_or_ranks():
    case = windows(1)
    whole = metrics_of(case, range(B), B).compute()
    assert {name for name in whole if name.endswith("_ci95")} >= {"masked_mse_ci95", "accessibility_auc_ci95"}
    assert not any("spearman_ci95" in name for name in whole)
    for size in (1, 3, 8):
        assert metrics_of(case, range(B), size).compute() == pytest.approx(whole, rel=1e-9)
    one, other = metrics_of(case, range(0, B, 2), 3), metrics_of(case, range(1, B, 2), 2)
    one.merge(other)
    assert one.compute() == pytest.approx(whole, rel=1e-9)


def test_a_window_that_occurs_twice_counts_once():
    case = windows(2)
    twice = metrics_of(case, [*range(B), *range(B)], 4)
    count, each = twice.predictions.windows()
    assert count == B
    assert max(map(max, each)) == B - 1
    assert twice.compute() == pytest.approx(metrics_of(case, range(B), 4).compute(), rel=1e-6)


def test_intervals_match_the_scatter_of_metrics():
    """Over many evaluations the error lies within its interval of the true one in about 95 % of cases."""
    found = [metrics_of(windows(seed, 40), range(40), 40).compute() for seed in range(40)]
    true = np.mean([metrics["masked_mse"] for metrics in found])
    held = [abs(metrics["masked_mse"] - true) <= metrics["masked_mse_ci95"] for metrics in found]
    assert 0.85 <= np.mean(held) <= 1


def test_no_interval_without_windows():
    case = windows()
    assert not any("ci95" in name for name in metrics_of(case, range(7), 4).compute()), "too few"
    assert any("ci95" in name for name in metrics_of(case, range(8), 4).compute())
    nameless = RegionMetrics(GROUPS, ColumnStats.none(W), MEAN)
    nameless.predictions.add(*(value.numpy() for value in case[:3]))
    assert not any("ci95" in name for name in nameless.compute())
    assert windows_of(Clean.of(case[0])) is None
    empty = RegionMetrics(GROUPS, ColumnStats.none(W), MEAN)
    pairs = (value.numpy() for value in (case[0], case[1], torch.zeros_like(case[2])))
    empty.predictions.add(*pairs, windows_of(case[3]))
    assert empty.compute() == {}
    assert Predictions(W).windows() is None
    assert RegionMetrics(GROUPS, ColumnStats.none(W), MEAN).compute() == {}


def test_perfect_and_constant_predictions_have_no_uncertainty():
    x0, _, target, clean = windows()
    perfect = metrics_of((x0, x0, target, clean), range(B), 4).compute()
    assert {perfect[f"{name}_ci95"] for name in ("accessibility_auc", "accessibility_auprc")} == {0}
    assert perfect["masked_mse_ci95"] == pytest.approx(0, abs=1e-6)
    constant = metrics_of((x0, torch.full_like(x0, 0.4), target, clean), range(B), 4).compute()
    assert constant["accessibility_auc_ci95"] == constant["motif_pearson_ci95"] == 0
    assert constant["masked_gain_ci95"] == pytest.approx(0, abs=1e-6)
    broken = metrics_of((x0, torch.full_like(x0, float("nan")), target, clean), range(B), 4).compute()
    assert not any("ci95" in name for name in broken)
