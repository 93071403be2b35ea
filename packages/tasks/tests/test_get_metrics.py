"""Figures against scikit-learn and numpy, over any cut into batches."""

from types import SimpleNamespace

import numpy as np
import pytest
import torch
from sklearn.metrics import average_precision_score, mean_squared_error, roc_auc_score

from dither.registry.flow import Clean, Measured, Noise, Noised, State
from dither.tasks.get_region.baselines import accessibility_baselines, mean_error, rank_figures
from dither.tasks.get_region.human import read_human
from dither.tasks.get_region.metrics import RegionMetrics
from dither.tasks.get_region.regions import Standard

torch.set_num_threads(1)
B, L, M = 12, 9, 5


def records(x0, wanted, valid):
    noise = Noise(torch.ones(len(x0)), torch.ones(len(x0)))
    noised = Noised(x0, State(x0, wanted), noise, wanted, valid, ~wanted)
    return Clean.of(x0, valid), noised, Measured(torch.zeros(x0.shape[:2]), torch.zeros(x0.shape[:2]))


@pytest.fixture
def case():
    g = torch.Generator().manual_seed(0)
    x0 = torch.rand(B, L, M + 1, generator=g)
    x0[..., M] = (torch.rand(B, L, generator=g) < 0.3).float()
    x0[..., 2] = 0.25  # a motif that never changes
    guess = x0 + torch.randn(x0.shape, generator=g) * 0.6
    guess[..., 3] = 0.5  # a motif that is answered by a constant
    valid = torch.arange(L) < torch.randint(3, L + 1, (B, 1), generator=g)
    wanted = (torch.rand(x0.shape, generator=g) < 0.5) & valid[..., None]
    guess[~wanted] = float("nan")  # what was not asked for must not matter
    return x0, guess, wanted, valid


def run(case, cuts, standard=None):
    x0, guess, wanted, valid = case
    metrics = RegionMetrics(M, standard or Standard.none(M + 1), torch.full((M + 1,), 0.4))
    for rows in torch.arange(len(x0)).tensor_split(cuts):
        part = slice(int(rows[0]), int(rows[-1]) + 1)
        clean, noised, measured = records(x0[part], wanted[part], valid[part])
        metrics.update(clean, noised, SimpleNamespace(x0=guess[part]), measured)
    return metrics.compute()


def expected(case):
    x0, guess, wanted, _ = (value.numpy() for value in case)
    motifs, label = wanted[..., :M], wanted[..., M]
    r = [np.corrcoef(x0[..., k][wanted[..., k]], guess[..., k][wanted[..., k]])[0, 1] for k in (0, 1, 4)]
    error = mean_squared_error(x0[wanted], guess[wanted])
    return {
        "masked_mse": error,
        "masked_gain": 1 - error / np.square(x0[wanted] - np.float32(0.4)).mean(),
        "motif_mse": mean_squared_error(x0[..., :M][motifs], guess[..., :M][motifs]),
        "motif_pearson": (sum(r) + 0) / 4,  # the constant answer counts as 0, the constant truth not at all
        "accessibility_mse": mean_squared_error(x0[..., M][label], guess[..., M][label]),
        "accessibility_auc": roc_auc_score(x0[..., M][label], guess[..., M][label]),
        "accessibility_auprc": average_precision_score(x0[..., M][label], guess[..., M][label]),
    }


@pytest.mark.parametrize("cuts", [1, 2, 5, 12])
def test_figures_equal_those_of_all_wanted_elements_at_once(case, cuts):
    assert run(case, cuts) == pytest.approx(expected(case), rel=1e-5)


def test_standardising_changes_no_figure(case):
    x0, guess, wanted, valid = case
    mean, std = np.linspace(-1, 1, M + 1, dtype=np.float32), np.linspace(0.1, 2, M + 1, dtype=np.float32)
    shifted = (
        (x0 - torch.from_numpy(mean)) / torch.from_numpy(std),
        (guess - torch.from_numpy(mean)) / torch.from_numpy(std),
    )
    assert run((*shifted, wanted, valid), 3, Standard(mean, std)) == pytest.approx(expected(case), rel=1e-4)


def test_a_perfect_guess_and_the_mean(case):
    x0, _, wanted, valid = case
    figures = run((x0, x0, wanted, valid), 2)
    assert figures["masked_mse"] == pytest.approx(0, abs=1e-12)
    assert [figures[name] for name in ("masked_gain", "motif_pearson", "accessibility_auc")] == pytest.approx([1, 1, 1])
    figures = run((x0, torch.full_like(x0, 0.4), wanted, valid), 2)
    assert figures["masked_gain"] == pytest.approx(0, abs=1e-6)
    assert figures["motif_pearson"] == 0
    assert figures["accessibility_auc"] == 0.5


def test_what_nobody_asked_for_has_no_figure(case):
    x0, guess, wanted, valid = case
    assert run((x0, guess, torch.zeros_like(wanted), valid), 2) == {}
    only = wanted.clone()
    only[..., :M] = False
    assert set(run((x0, guess, only, valid), 2)) == {
        "masked_mse", "masked_gain", "accessibility_mse", "accessibility_auc", "accessibility_auprc",
    }  # fmt: skip
    assert rank_figures(np.ones(3, bool), np.arange(3.0)) == {}
    assert rank_figures(np.array([True, False]), np.array([1.0, np.nan])) == {}


def test_padding_is_not_counted(case):
    x0, _, wanted, valid = case
    everything = torch.ones_like(wanted)
    assert run((x0, torch.where(valid[..., None], x0, 99.0), everything, valid), 2)["masked_mse"] == pytest.approx(
        0, abs=1e-12
    )


def test_logistic_regression_reads_accessibility_from_motifs():
    matrix = read_human("whole")
    figures = accessibility_baselines(matrix, "K562", "test")
    assert figures["accessibility_auc/chance"] == 0.5
    assert figures["accessibility_auprc/chance"] == pytest.approx(matrix.labels("K562")[matrix.rows("test")].mean())
    assert figures["accessibility_auc/logistic"] == pytest.approx(0.864, abs=0.003)  # the public bar is 0.855
    assert figures["accessibility_auprc/logistic"] > 2 * figures["accessibility_auprc/chance"]


def test_the_logistic_regression_never_sees_what_is_held_out():
    matrix = read_human("chr21-22")
    held = matrix.rows("valid")
    before = accessibility_baselines(matrix, "K562")
    matrix.open[held] = ~matrix.open[held]
    after = accessibility_baselines(matrix, "K562")
    assert after["accessibility_auc/logistic"] == pytest.approx(1 - before["accessibility_auc/logistic"])
    assert before["accessibility_auc/logistic"] > 0.6


def test_mean_error_is_that_of_the_training_mean():
    columns = np.array([[0, 1], [2, 3], [5, 5]], np.float32)
    train, held = np.array([True, True, False]), np.array([False, False, True])
    assert mean_error(columns, train, held) == ((5 - 1) ** 2 + (5 - 2) ** 2) / 2
