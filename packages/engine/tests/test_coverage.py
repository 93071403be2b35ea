"""Intervals of likelihoods have the true value of an exact model as often as they say."""

import importlib.util
import math
from pathlib import Path

import pytest
import torch

from dither.engine import Diffusion
from dither.engine.training.likelihood import (
    log_likelihood,
    paired_half_widths,
    tight_log_likelihood,
)
from dither.losses.tokens import masked_ce
from dither.processes.tokens.specs import Absorbing, Uniform
from dither.registry import Field, TokenSpace
from dither.registry.contracts.records import Clean
from dither.testing.exact_denoiser import ExactDenoiser, random_joint

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
    assert {"prior", "reconstruction"} == bound.parts.keys()
    nats = bound.values.sum(1).view(800, 5)
    error = nats.mean(0) + joint[tuple(texts[:5].T)].log()
    assert (error.abs() < 4 * nats.std(0) / math.sqrt(800) + 0.005).all()
    assert nats.std(0).max() < 4


def test_a_likelihood_has_the_ends_of_the_bound_once(coverage) -> None:
    """Whatever the number of its strata; much noise at first and little at last make the ends large."""
    torch.manual_seed(0)
    joint = random_joint(coverage.IDS, coverage.LENGTH)
    schedule = {"use": "geometric", "sigma_min": 0.3, "sigma_max": 1.5}
    process = Uniform(predict="posterior", schedule=schedule)
    system = coverage.system_of(process, joint).eval()
    texts = coverage.draw_texts(joint, 4)
    times = system.times(1200)[torch.randperm(1200)]
    bound = system.draw_bound(Clean.of(texts.repeat(300, 1)), times)
    nats = bound.values.sum(1).view(300, 4)
    ends = sum(part.sum(1).view(300, 4).mean(0) for part in bound.parts.values())
    assert ends.min() > 0.5
    for samples in (2, 16):
        found = log_likelihood(
            system, texts.repeat(100, 1), samples=samples, batch_size=8192
        )
        values = -found.values.view(100, 4)
        error = (nats.var(0) / 300 + values.var(0) / 100).sqrt()
        assert ((values.mean(0) - nats.mean(0)).abs() < 4.5 * error).all(), samples
        assert (error < 0.1).all(), samples


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
        clean = Clean.of(text, known=mask)
        found = refusal(tight_log_likelihood, system, clean, 2)
        assert found.codes == ["known-behind-gap"]


class Inconsistent(ExactDenoiser):
    """A wrong model, whose log-likelihood depends on the order in which positions are revealed."""

    def forward(self, state, level, valid, cond):
        generator = torch.Generator().manual_seed(1)
        table = torch.randn(64, 3, 4, generator=generator, dtype=torch.float64)
        return 1.5 * table[(state.x * torch.tensor([16, 4, 1])).sum(1)]


@pytest.mark.parametrize("laws", [2, pytest.param(50, marks=pytest.mark.slow)])
def test_orders_of_a_wrong_model_tighten_to_its_likelihood(coverage, laws) -> None:
    """Bound < mean over eight orders < log p over all orders, which are six."""
    torch.manual_seed(0)
    space = TokenSpace((Field("text", 3, coverage.IDS),))
    process = Absorbing().build(space)
    tightened = []
    for seed in range(laws):
        joint = random_joint(coverage.IDS, 3, seed)
        model = Inconsistent(process, joint)
        system = Diffusion(None, process, model, masked_ce, None, bound=True)
        clean = Clean.of(coverage.draw_texts(joint, 1).repeat(50, 1))
        plain = log_likelihood(system, clean, samples=16, seed=seed, batch_size=9999)
        tight = tight_log_likelihood(system, clean, 8, seed, 9999)
        truth = tight_log_likelihood(system, clean[:1], 1000, seed, 9999)
        # The standard errors of 50 repetitions.
        slack = 4 * float(tight.values.std() + plain.values.std()) / 50**0.5
        assert plain.values.mean() <= tight.values.mean() + slack, seed
        assert tight.values.mean() <= truth.values + truth.half_widths + slack, seed
        left = truth.values - tight.values.mean()
        tightened.append(float(left / (truth.values - plain.values.mean())))
    assert 0 < sum(tightened) / laws < 0.5


@pytest.mark.parametrize("name", ["uniform, log-linear", "hybrid", "blocks, absorbing"])
def test_weights_of_trajectories_have_the_likelihood(coverage, name) -> None:
    """Of an exact model, up to the steps of the sampler; a wrong factor is off by far more."""
    torch.manual_seed(0)
    joint = random_joint(coverage.IDS, coverage.LENGTH)
    system = dict(coverage.systems(joint))[name].eval()
    texts = coverage.draw_texts(joint, 4)
    tight = tight_log_likelihood(system, Clean.of(texts), 400, 0, 9999)
    error = (tight.values - joint[tuple(texts.T)].log()).abs()
    assert (error < 2 * tight.half_widths + 0.05).all()
    assert tight.half_widths.max() < 0.5
    # Nothing is left to draw.
    known = torch.ones_like(texts).bool()
    whole = tight_log_likelihood(system, Clean.of(texts, known=known), 2)
    assert whole.values.abs().max() == 0


def test_pairs_give_the_interval_of_stratified_draws() -> None:
    """Differences between strata are no part of it; a constant has none."""
    torch.manual_seed(0)
    draws = torch.randn(4000, 16, 2).double() + 100 * torch.arange(16)[:, None]
    error = (draws.mean((1, 2)) - 750).abs()
    inside = (error <= paired_half_widths(draws)).double().mean()
    assert 0.93 <= float(inside) <= 0.97
    assert paired_half_widths(torch.ones(1, 4, 2).double()) == 0


@pytest.mark.slow
@pytest.mark.parametrize(("draws", "repeats"), [(32, 200), (128, 100)])
def test_coverage_of_every_process(coverage, draws, repeats) -> None:
    """More draws take longer, and differ only where the interval of few is right by chance."""
    torch.manual_seed(0)
    joint = random_joint(coverage.IDS, coverage.LENGTH)
    systems = dict(coverage.systems(joint))
    names = systems if draws == 32 else NAMES
    # The standard error of as many intervals, at .95
    error = math.sqrt(0.95 * 0.05 / repeats)
    for name in names:
        inside = coverage.of_rows(systems[name], joint, draws, repeats)
        assert abs(inside - 0.95) <= max(0.02, 3 * error / math.sqrt(6)), name
        inside = coverage.of_evaluation(systems[name], joint, draws, repeats)
        assert abs(inside - 0.95) <= 3 * error, name
