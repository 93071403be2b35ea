"""Predicted variances: steps equal diffusers', the loss equals the formulas of Improved DDPM."""

import math

import pytest
import torch
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler

from dither.registry import FeatureSpace, default_catalog
from dither.registry.contracts.records import Clean, State
from dither.registry.contracts.spaces import ProcessFacts

T = 1000
SPACE = FeatureSpace(5, 3)

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)


@pytest.fixture
def spec():
    table = {"use": "learned-variance", "schedule": "linear-beta"}
    return default_catalog().parse("process", table)


def test_times_are_steps_and_levels_their_numbers(spec):
    process = spec.build(SPACE)
    t = process.times(5000)
    steps = t * T
    assert torch.allclose(steps, steps.round(), atol=1e-3)
    levels = process.level(t)
    assert torch.allclose(levels, steps - 1, atol=1e-3)
    # Five draws of each step, also of the first; at a boundary float32 may round one to its neighbour
    counts = torch.bincount(levels.round().long(), minlength=T)
    assert counts.min() >= 4
    assert counts.max() <= 6


@pytest.mark.parametrize("step", [20, 500, 999])
def test_a_step_equals_diffusers(spec, step):
    scheduler = DDPMScheduler(
        beta_start=1e-4,
        beta_end=0.02,
        variance_type="learned_range",
        clip_sample=False,
    )
    process = spec.build(SPACE)
    x = torch.randn(4, 5, 3)
    raw = torch.randn(4, 5, 6)
    t = torch.full((4,), (step + 1) / T)
    now, then = process.schedule(t), process.schedule(t - 1 / T)
    pred = process.read(raw, State.of(x), now)
    like = Clean.of(torch.zeros_like(x))

    # diffusers has the channels, mean and variance, on the second axis.
    theirs = scheduler.step(
        raw.mT, step, x.mT, generator=torch.Generator().manual_seed(0)
    )
    eps = torch.randn(x.mT.shape, generator=torch.Generator().manual_seed(0)).mT
    ours = process.step(State.of(x), pred, now, then, like, eps=eps)
    assert torch.allclose(ours.x, theirs.prev_sample.mT, atol=1e-4)


def normal_cdf(x):
    return (1 + math.erf(x / math.sqrt(2))) / 2


def their_term(betas, i, x0, x, eps, v):
    """One value's term of L_vlb at step i in bits, in the formulas of the papers, as plain numbers."""
    products = [1.0]
    for beta in betas:
        products.append(products[-1] * (1 - beta))
    bar, before = products[i + 1], products[i]
    beta = betas[i]
    clipped = max(i, 1)
    posterior = betas[clipped] * (1 - products[clipped]) / (1 - products[clipped + 1])
    log_variance = v * math.log(beta) + (1 - v) * math.log(posterior)
    guess = (x - math.sqrt(1 - bar) * eps) / math.sqrt(bar)
    if i == 0:
        deviation = math.exp(log_variance / 2)
        low = normal_cdf((x0 - 1 / 255 - guess) / deviation) if x0 > -0.999 else 0
        high = normal_cdf((x0 + 1 / 255 - guess) / deviation) if x0 < 0.999 else 1
        return -math.log(max(high - low, 1e-12)) / math.log(2)

    def mean(clean):
        of_clean = math.sqrt(before) * beta / (1 - bar)
        of_noisy = math.sqrt(1 - beta) * (1 - before) / (1 - bar)
        return of_clean * clean + of_noisy * x

    variance = math.exp(log_variance)
    kl = math.log(variance / posterior) - 1 + posterior / variance
    kl += (mean(x0) - mean(guess)) ** 2 / variance
    return kl / 2 / math.log(2)


@pytest.mark.parametrize("i", [0, 1, 700])
def test_the_loss_is_that_of_improved_ddpm(spec, i):
    catalog = default_catalog()
    loss = catalog.parse("loss", "hybrid").build(spec.facts(SPACE))
    process = spec.build(SPACE)
    torch.manual_seed(i)
    clean = Clean.of(torch.randn(2, 5, 3).clamp(-1, 1).double())
    noised = process.corrupt(clean, torch.tensor([(i + 1) / T] * 2).double())
    raw = torch.cat([noised.eps + 0.05 * torch.randn(2, 5, 3), torch.randn(2, 5, 3)], 2)
    raw.requires_grad_()
    pred = process.read(raw, noised.state, noised.noise)
    measured = loss(pred, noised)

    betas = [1e-4 + n * (0.02 - 1e-4) / (T - 1) for n in range(T)]
    eps, share = raw.detach().chunk(2, -1)
    numbers = zip(
        clean.x0.flatten().tolist(),
        noised.state.x.flatten().tolist(),
        eps.flatten().tolist(),
        ((share + 1) / 2).flatten().tolist(),
        strict=True,
    )
    bits = [their_term(betas, i, *row) for row in numbers]
    expected = ((eps - noised.eps) ** 2).mean() + sum(bits) / len(bits)
    assert measured.mean().item() == pytest.approx(expected.item(), rel=1e-4)

    # The bound trains the variances alone.
    measured.mean().backward()
    simple = 2 * (raw.detach()[..., :3] - noised.eps) / raw[..., :3].numel()
    assert torch.allclose(raw.grad[..., :3], simple, rtol=1e-3, atol=1e-8)
    assert raw.grad[..., 3:].abs().min() > 0


def test_losses_and_processes_that_do_not_go_together_are_rejected(spec):
    catalog = default_catalog()
    facts: ProcessFacts = spec.facts(SPACE)
    plain = catalog.parse("process", "gaussian").facts(SPACE)
    for name, process in (("mse", facts), ("huber", facts), ("hybrid", plain)):
        misfits = list(catalog.parse("loss", name).check(process))
        assert [misfit.code for misfit in misfits] == ["process-mismatch"]
    assert not list(catalog.parse("loss", "hybrid").check(facts))
