"""Metrics against scipy and scikit-learn, for any cut into batches and ranks, with ties and constants."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from scipy import stats
from sklearn.metrics import average_precision_score, mean_squared_error, r2_score, roc_auc_score

from dither.registry.flow.records import Clean, Measured, Noise, Noised, State
from dither.registry.flow.spaces import Group
from dither.tasks.get_region.data.region_matrix import ColumnStats
from dither.tasks.get_region.metrics.baselines import MaskedBatch
from dither.tasks.get_region.metrics.column_metrics import group_metrics, pearson, r2, rank_metrics, spearman
from dither.tasks.get_region.metrics.region_metrics import BaselineSubset, RegionMetrics

torch.set_num_threads(1)
B, L, M = 12, 9, 5
GROUPS = (Group("motifs", 0, M), Group("accessibility", M, M + 1), Group("expression", M + 1, M + 3))
W = M + 3


def records(x0, target, valid):
    noise = Noise(torch.ones(len(x0)), torch.ones(len(x0)))
    noised = Noised(x0, State(x0, target), noise, target, valid, ~target)
    clean = Clean.of(x0, valid, centre=torch.arange(x0.shape[1]).expand(len(x0), -1))
    return clean, noised, Measured(torch.zeros(x0.shape[:2]), torch.zeros(x0.shape[:2]))


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
    metrics = RegionMetrics(GROUPS, standard or ColumnStats.none(W), np.full(W, 0.4, np.float32))
    for rows in torch.arange(len(x0)).tensor_split(cuts):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        clean, noised, measured = records(x0[part], target[part], valid[part])
        metrics.update(clean, noised, SimpleNamespace(x0=guess[part]), measured)
    return metrics


def run(case, cuts, standard=None):
    return accumulate(case, cuts, standard).compute()


def oracle(case, name, columns):
    """One group by way of scipy and scikit-learn; the constant answer counts as 0 where a library says nan."""
    x0, guess, target, _ = (value.numpy() for value in case)
    pairs = [(x0[..., k][target[..., k]], guess[..., k][target[..., k]]) for k in columns]
    quiet = [np.ptp(answer) == 0 for _, answer in pairs]
    of = {
        "pearson": lambda x, y: stats.pearsonr(x, y).statistic,
        "spearman": lambda x, y: stats.spearmanr(x, y).statistic,
    }
    metrics = {
        f"{name}_{key}": np.mean([0 if flat else figure(*pair) for pair, flat in zip(pairs, quiet, strict=True)])
        for key, figure in of.items()
    }
    metrics[f"{name}_r2"] = np.mean([r2_score(*pair) for pair in pairs])
    truth, answer = (np.concatenate(side) for side in zip(*pairs, strict=True))
    metrics[f"{name}_mse"] = mean_squared_error(truth, answer)
    if len(pairs) > 1:
        metrics |= {f"{name}_{key}_overall": figure(truth, answer) for key, figure in of.items()}
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
        "accessibility_auprc": average_precision_score(x0[..., M][label], guess[..., M][label]),
        "constant_columns": 1,
    }


@pytest.mark.parametrize("cuts", [1, 2, 5, 12])
def test_metrics_equal_those_of_all_target_elements_at_once(case, cuts):
    assert run(case, cuts) == pytest.approx(expected(case), rel=1e-5)


def test_two_ranks_have_the_metrics_of_one(case):
    halves = [accumulate(tuple(value[rows] for value in case), 2) for rows in (slice(0, 5), slice(5, None))]
    halves[0].merge(halves[1])
    assert halves[0].compute() == pytest.approx(run(case, 1), rel=1e-12)
    assert sum(len(batch.truth) for batch in halves[0].subset.batches) == B


def test_standardising_changes_no_metric(case):
    x0, guess, target, valid = case
    mean, std = np.linspace(-1, 1, W, dtype=np.float32), np.full(W, 0.5, np.float32)
    shifted = [(value - torch.from_numpy(mean)) / torch.from_numpy(std) for value in (x0, guess)]
    metrics = run((*shifted, target, valid), 3, ColumnStats(mean, std))
    for name in ("motif_spearman", "motif_spearman_overall", "constant_columns"):  # rounding breaks ties
        assert abs(metrics.pop(name) - expected(case)[name]) < 0.2
    assert metrics == pytest.approx({name: expected(case)[name] for name in metrics}, rel=1e-3)


def test_zeros_of_visible_elements_are_never_counted(case):
    """What is visible may be anything, and as many visible elements as you like change nothing."""
    x0, guess, target, valid = case
    other = torch.where(target, x0, 7.0), torch.where(target, guess, -3.0)
    assert run((*other, target, valid), 2) == pytest.approx(run(case, 2))
    doubled = [torch.cat([value, torch.zeros_like(value)], 1) for value in (x0, guess, target, valid)]
    assert run(doubled, 2) == pytest.approx(run(case, 2))


def test_groups_without_targets_have_no_metric(case):
    x0, guess, target, valid = case
    assert run((x0, guess, torch.zeros_like(target), valid), 2) == {}
    only = target.clone()
    only[..., :M] = only[..., M + 1 :] = False
    names = set(run((x0, guess, only, valid), 2))
    assert names == {"masked_mse", "masked_gain"} | {
        f"accessibility_{key}" for key in ("mse", "pearson", "spearman", "r2", "auc", "auprc")
    }
    one = torch.zeros_like(target)
    one[0, 0, 0] = True  # a single element: an error, and nothing else
    assert set(run((x0, torch.zeros_like(x0), one, valid), 1)) == {
        "masked_mse", "masked_gain", "motif_mse", "constant_columns",
    }  # fmt: skip


def test_only_binary_accessibility_has_areas(case):
    x0, guess, target, valid = case
    x0 = x0.clone()
    x0[..., M] = torch.rand(B, L, generator=torch.Generator().manual_seed(1))
    metrics = run((x0, guess, target, valid), 2)
    assert "accessibility_auc" not in metrics
    assert "accessibility_spearman" in metrics
    assert rank_metrics(np.ones(3, bool), np.arange(3.0)) == {}
    assert rank_metrics(np.array([True, False]), np.array([1.0, np.nan])) == {}


def test_constant_columns_are_left_out():
    """The constant accessibility column of the seed lifts a pooled correlation of means; here it counts nowhere."""
    g = np.random.default_rng(0)
    truth = np.column_stack([g.uniform(0, 0.1, 50), np.ones(50)]).astype(np.float32)
    means = np.broadcast_to(truth.mean(0), truth.shape)
    assert pearson(truth.ravel(), means.ravel()) > 0.99
    metrics = group_metrics("motif", [(truth[:, 0], means[:, 0]), (truth[:, 1], means[:, 1])])
    assert metrics["motif_pearson_overall"] == 0
    assert metrics["motif_r2_overall"] == pytest.approx(0, abs=1e-6)


def test_rounding_is_not_a_correlation():
    """Predictions of interchangeable regions differ in the last bits at most; that is a constant."""
    truth, g = np.arange(20, dtype=np.float32), np.random.default_rng(0)
    answer = np.float32(0.3) + g.integers(0, 2, 20).astype(np.float32) * np.float32(3e-8)
    assert pearson(truth, answer) == spearman(truth, answer) == 0
    assert r2(truth, np.full(20, truth.mean())) == 0
    assert np.isnan(pearson(truth, np.where(truth > 3, np.nan, truth)))


def test_zeros_and_bytes_keep_their_ranks_across_standardised_columns():
    """In float32 they come back as other numbers in each column, some below 0; ranks over all must not see it."""
    g = np.random.default_rng(0)
    wide = 40
    share = g.beta(0.3, 3, (400, wide)).astype(np.float32)
    truth = np.where(g.random((400, wide)) < 0.8, 0, np.ceil(share * 255) / 255).astype(np.float32)
    guess = (truth + g.normal(0, 0.1, truth.shape)).astype(np.float32)
    standard = ColumnStats.of(truth)
    x0, answer = (torch.from_numpy((value - standard.mean) / standard.std)[None] for value in (truth, guess))
    undone = x0[0].numpy() * standard.std + standard.mean
    assert len(np.unique(undone[truth == 0])) > 2, "or there is nothing to prove"
    metrics = RegionMetrics([Group("motifs", 0, wide)], standard, standard.mean)
    pairs = [metrics.in_data_units(value) for value in (x0, answer)]
    metrics.predictions.add(*pairs, np.ones((1, 400, wide), bool))
    want = stats.spearmanr(truth.ravel(), metrics.in_data_units(answer)[0].ravel()).statistic
    assert metrics.compute()["motif_spearman_overall"] == pytest.approx(want, abs=1e-12)


def test_baseline_subset_is_evenly_spaced():
    def batch(first, count):
        shape = (count, L, M)
        truth = np.broadcast_to(np.arange(first, first + count, dtype=np.float32)[:, None, None], shape)
        some = np.ones(shape, bool)
        return MaskedBatch(truth, some, some, np.zeros((count, L), int), np.zeros(count, int))

    for most, every in ((1000 * L, 1), (100 * L, 1), (99 * L, 2), (13 * L, 8), (1, 128)):
        saved = BaselineSubset(most)
        for first in range(0, 100, 8):
            saved.add(batch(first, min(8, 100 - first)))
        numbers = [int(row[0, 0]) for part in saved.batches for row in part.truth]
        assert numbers == list(range(0, 100, every))
    one, other = BaselineSubset(40 * L), BaselineSubset(40 * L)
    one.add(batch(0, 40))
    other.add(batch(40, 60))
    one.merge(other)
    assert [int(row[0, 0]) for part in one.batches for row in part.truth] == list(range(0, 100, 4))
