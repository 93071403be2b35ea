"""Intervals of likelihoods have the true value of an exact model as often as they say."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from dither.engine.training.likelihood import log_likelihood, paired_half_widths
from dither.registry.contracts.records import Clean
from dither.testing.exact_denoiser import random_joint

FILE = Path(__file__).parents[3] / "benchmarks" / "coverage.py"
NAMES = [
    "absorbing, time",
    "uniform, log-linear",
    "marginal",
    "hybrid",
    "blocks, uniform",
]


@pytest.fixture(scope="module")
def coverage():
    spec = importlib.util.spec_from_file_location("coverage_benchmark", FILE)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.mark.parametrize("name", NAMES)
def test_a_draw_has_the_mean_of_the_bound(coverage, name) -> None:
    """Of each text; draws with a wrong weight, or without a part of the states, are off by tens of errors."""
    torch.manual_seed(0)
    joint = random_joint(coverage.IDS, coverage.LENGTH)
    system = dict(coverage.systems(joint))[name].eval()
    texts = coverage.draw_texts(joint, 5).repeat(800, 1)
    times = system.times(len(texts))[torch.randperm(len(texts))]
    bound = system.draw_bound(Clean.of(texts), times)
    nats = bound.values.sum(1).view(800, 5)
    error = nats.mean(0) + joint[tuple(texts[:5].T)].log()
    assert (error.abs() < 4 * nats.std(0) / math.sqrt(800) + 0.005).all()
    assert nats.std(0).max() < 4


def test_known_tokens_of_a_block_model(coverage, refusal) -> None:
    """Before a gap, and behind it in the last block that has one, the bound is exact; further behind it is refused."""
    torch.manual_seed(0)
    joint = random_joint(coverage.IDS, coverage.LENGTH)
    system = dict(coverage.systems(joint))["blocks, absorbing"].eval()
    text = coverage.draw_texts(joint, 1)
    for known in ([1, 1, 0, 1], [1, 0, 0, 0], [0, 0, 0, 0], [1, 1, 1, 1]):
        mask = torch.tensor([known]).bool()
        # log p(text) - log p(known)
        axes = tuple(place for place in range(4) if not known[place])
        marginal = joint.sum(axes, keepdim=True) if axes else joint
        given = marginal.expand_as(joint)[tuple(text[0])]
        truth = (joint[tuple(text[0])] / given).log()
        bound = log_likelihood(system, text, mask, samples=400, batch_size=400)
        assert (bound.values - truth).abs() < 2 * bound.half_widths + 0.005, known
    for known in ([0, 0, 0, 1], [0, 1, 1, 1], [1, 0, 1, 1]):
        mask = torch.tensor([known]).bool()
        found = refusal(log_likelihood, system, text, mask)
        assert found.codes == ["known-behind-gap"]


def test_pairs_give_the_interval_of_stratified_draws() -> None:
    """Differences between strata are no part of it; a constant has none."""
    torch.manual_seed(0)
    draws = torch.randn(4000, 16, 2).double() + 100 * torch.arange(16)[:, None]
    error = (draws.mean((1, 2)) - 750).abs()
    inside = (error <= paired_half_widths(draws)).double().mean()
    assert 0.93 <= float(inside) <= 0.97
    assert paired_half_widths(torch.ones(1, 4, 2).double()) == 0


@pytest.mark.slow
@pytest.mark.parametrize("draws", [32, 128])
def test_coverage_of_every_process(coverage, draws) -> None:
    torch.manual_seed(0)
    joint = random_joint(coverage.IDS, coverage.LENGTH)
    for name, system in coverage.systems(joint):
        # The standard error of 1,200 intervals is .006, that of 200 evaluations .015.
        inside = coverage.of_rows(system, joint, draws, 200)
        assert 0.93 <= inside <= 0.97, name
        inside = coverage.of_evaluation(system, joint, draws, 200)
        assert 0.95 - 3 * 0.015 <= inside <= 0.95 + 3 * 0.015, name
