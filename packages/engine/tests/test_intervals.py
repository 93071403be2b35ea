"""95 % intervals cover the true value in 95 % of cases and do not depend on batching."""

import math

import numpy as np
import pytest
import torch

from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import NORMAL_95, Intervals, evaluate, half_width
from dither.registry.flow.records import Clean, Measured


def population(rng, samples):
    """Totals correlated with weights: longer samples cost more per token. The true ratio is 2.6."""
    weights = rng.integers(1, 6, samples).astype(float)  # mean 3, mean square 11
    return weights * (1.5 + 0.3 * weights + rng.exponential(1.0, samples) - 1.0), weights


TRUE = 1.5 + 0.3 * 11 / 3


@pytest.mark.parametrize("samples", [200, 1000])
def test_coverage(samples):
    rng, repetitions = np.random.default_rng(5), 2000
    inside = 0
    for _ in range(repetitions):
        above, below = map(torch.from_numpy, population(rng, samples))
        inside += abs(float(above.sum() / below.sum()) - TRUE) <= half_width(above, below)
    # binomial standard deviation 0.5 %; few samples of a skewed distribution cover slightly less
    assert 0.935 <= inside / repetitions <= 0.965


def test_interval_accounts_for_weights():
    """The spread of totals without weights gives a much larger interval."""
    above, below = map(torch.from_numpy, population(np.random.default_rng(0), 100_000))
    assert float(above.sum() / below.sum()) == pytest.approx(TRUE, abs=half_width(above, below))
    totals = NORMAL_95 * float(above.std()) / math.sqrt(100_000) / 3
    assert half_width(above, below) < 0.7 * totals


def test_equal_weights_give_the_interval_of_a_mean():
    values = torch.randn(300, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    expected = NORMAL_95 * float(values.std()) / math.sqrt(300)
    assert half_width(values * 4, torch.full((300,), 4.0, dtype=torch.float64)) == pytest.approx(expected)


def test_interval_shrinks_with_the_square_root_of_samples():
    above, below = map(torch.from_numpy, population(np.random.default_rng(1), 64_000))
    ratios = [half_width(above[:n], below[:n]) / half_width(above[: 4 * n], below[: 4 * n]) for n in (4000, 16_000)]
    assert ratios == pytest.approx([2, 2], rel=0.05)


def test_zero_weights_and_single_samples():
    above, below = torch.tensor([1.0, 2.0, 4.0]).double(), torch.ones(3).double()
    padded = [torch.cat([x, torch.zeros(9).double()]) for x in (above, below)]
    assert half_width(*padded) == half_width(above, below)
    assert math.isnan(half_width(above[:1], below[:1]))
    assert math.isnan(half_width(torch.zeros(3).double(), torch.zeros(3).double()))


def test_repeats_of_a_sample_are_summed():
    """Repeats with equal noise do not shrink the interval."""
    above, below = map(torch.from_numpy, population(np.random.default_rng(2), 30))
    once, thrice = Intervals(30), Intervals(30)
    clean = Clean.of(torch.zeros(30, 1, dtype=torch.int64))
    measured = Measured((above / below)[:, None], below[:, None])
    once.update(range(30), Words(), clean, measured)
    for _ in range(3):
        for start in (0, 10, 20):
            part = slice(start, start + 10)
            thrice.update(range(start, start + 10), Words(), clean[part], measured[part])
    assert once.compute()["nats_ci95"] == pytest.approx(thrice.compute()["nats_ci95"], rel=1e-12)


class Words:
    """Mean loss with sums per sample."""

    def __init__(self):
        self.sums = torch.zeros(2, dtype=torch.float64)

    def update(self, clean, noised, pred, measured):
        self.sums += torch.stack([measured.total().double(), measured.weights.sum().double()])

    def per_sample(self, clean, measured):
        return {"nats": ((measured.values * measured.weights).sum(1), measured.weights.sum(1))}

    def compute(self):
        return {"nats": float(self.sums[0] / self.sums[1])}


@pytest.fixture
def system(load, monkeypatch):
    """A system whose loss depends on the sample alone."""
    system = Diffusion.build(load().experiment)
    weights = torch.arange(1.0, 7.0)

    def loss(prediction, noised):
        values = noised.x0.double().square() + 1
        return Measured(values, weights.double().expand(values.shape))

    system.loss = loss
    monkeypatch.setattr(system.task, "metrics", Words)
    return system


@pytest.mark.parametrize("repeats", [1, 3])
def test_interval_does_not_depend_on_the_batch_size(system, repeats):
    found = [evaluate(system, 13, size, repeats) for size in (1, 4, 5, 13)]
    x0 = system.task.batch("valid", range(13)).x0.double()
    nats = ((x0.square() + 1) * torch.arange(1.0, 7.0)).sum(1)
    expected = half_width(nats, torch.full((13,), 21.0, dtype=torch.float64))
    assert expected > 0
    for figures in found:
        assert figures["nats"] == pytest.approx(float(nats.sum() / 21 / 13))
        assert figures["nats_ci95"] == pytest.approx(expected)


def test_metrics_without_sums_per_sample_have_no_interval(load):
    found = evaluate(Diffusion.build(load().experiment), 13, 4)
    assert not any(name.endswith("_ci95") for name in found)
