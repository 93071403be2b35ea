"""Losses of features: each reduction is its definition, and only target values count."""

from dataclasses import replace
from functools import partial

import pytest
import torch
from torch.nn import functional

from dither.losses.features import (
    binary_cross_entropy,
    huber,
    poisson_nll,
    squared_error,
)
from dither.processes.features.gaussian import GaussianProcess
from dither.processes.features.masked_features import MaskedRegionProcess
from dither.processes.schedules.alpha import LogLinear
from dither.processes.schedules.betas import LinearBeta
from dither.processes.timestep_sampling import TimestepSampling
from dither.registry.contracts.records import Clean, Measured, Noised
from dither.registry.contracts.spaces import FeatureSpace

SPACE = FeatureSpace(5, 3)
CLOCK = TimestepSampling(LogLinear().build())


def clean_of(rows: int, known: float = 0.2) -> Clean:
    valid = torch.rand(rows, 5) < 0.8
    return Clean.of(
        torch.randn(rows, 5, 3, dtype=torch.float64),
        valid,
        torch.rand(rows, 5, 3) < known,
    )


def masked(mask: str = "element", rows: int = 6) -> tuple[Noised, torch.Tensor]:
    """Counts with masked elements, and a positive prediction."""
    clean = replace(
        clean_of(rows),
        x0=torch.poisson(torch.full((rows, 5, 3), 2.0, dtype=torch.float64)),
    )
    noised = MaskedRegionProcess(SPACE, CLOCK, mask, ratio=0.5).corrupt(
        clean, torch.rand(rows)
    )
    return noised, 4 * torch.rand(rows, 5, 3, dtype=torch.float64)


def loss_of(
    noised: Noised, raw: torch.Tensor, reduction: str, loss=squared_error
) -> Measured:
    process = MaskedRegionProcess(SPACE, CLOCK)
    return loss(
        process.read(raw, noised.state, noised.noise), noised, reduction=reduction
    )


COUNTS = partial(functional.poisson_nll_loss, log_input=False)
LOSSES = {
    "mse": (squared_error, functional.mse_loss),
    "huber": (partial(huber, delta=0.3), partial(functional.huber_loss, delta=0.3)),
    "wide huber": (
        partial(huber, delta=2.0),
        partial(functional.huber_loss, delta=2.0),
    ),
    "poisson": (partial(poisson_nll, link="none"), COUNTS),
    "log": (partial(poisson_nll, link="log"), functional.poisson_nll_loss),
    "softplus": (
        partial(poisson_nll, link="softplus"),
        lambda raw, x0, **o: COUNTS(functional.softplus(raw), x0, **o),
    ),
}


@pytest.mark.parametrize("mask", ["region", "element"])
@pytest.mark.parametrize(("loss", "of_torch"), LOSSES.values(), ids=LOSSES)
def test_losses_are_those_of_torch_and_reductions_their_definitions(
    loss, of_torch, mask: str
) -> None:
    noised, raw = masked(mask)
    values = of_torch(raw, noised.x0, reduction="none")[noised.target_mask]
    assert values.numel() > 10
    regions = noised.target_mask.any(-1).sum()
    counts = {
        "element-mean": values.numel(),
        "region-sum": regions,
        "zero-padded": noised.valid.sum() * 3,
    }
    for reduction, count in counts.items():
        torch.testing.assert_close(
            loss_of(noised, raw, reduction, loss).mean(), values.sum() / count
        )


def test_cross_entropy_of_zeros_and_ones() -> None:
    """That of torch over target elements, with a finite gradient at every prediction."""
    noised, _ = masked("element")
    noised = replace(noised, x0=(noised.x0 > noised.x0.mean()).double())
    p = torch.rand(noised.x0.shape, dtype=torch.float64)
    values = functional.binary_cross_entropy(p, noised.x0, reduction="none")
    loss = loss_of(noised, p, "element-mean", binary_cross_entropy)
    torch.testing.assert_close(loss.mean(), values[noised.target_mask].mean())
    for extreme in (0.0, 1.0, -3.0, 2.0):
        leaf = torch.full_like(p, extreme).requires_grad_()
        mean = loss_of(noised, leaf, "element-mean", binary_cross_entropy).mean()
        assert mean.isfinite()
        assert torch.autograd.grad(mean, leaf)[0].isfinite().all()


@pytest.mark.parametrize("reduction", ["element-mean", "region-sum", "zero-padded"])
def test_nothing_masked_is_zero_and_means_add_up(reduction: str) -> None:
    noised, raw = masked(rows=8)
    whole = loss_of(noised, raw, reduction)
    parts = [
        loss_of(noised[rows], raw[rows], reduction)
        for rows in (slice(0, 3), slice(3, 8))
    ]
    total = sum(part.total() for part in parts) / sum(
        part.weights.sum() for part in parts
    )
    torch.testing.assert_close(whole.mean(), total)
    nothing = Noised(
        noised.x0,
        noised.state,
        noised.noise,
        torch.zeros_like(noised.target_mask),
        noised.valid,
        noised.fixed,
    )
    leaf = raw.clone().requires_grad_()
    mean = loss_of(nothing, leaf, reduction).mean()
    assert mean == 0
    assert (torch.autograd.grad(mean, leaf)[0] == 0).all()


@pytest.mark.parametrize("meaning", ["x0", "eps", "velocity"])
def test_raw_is_what_the_process_predicts(meaning: str) -> None:
    """The mean squared error between raw output and x0, eps or v, whichever was asked of the model."""
    process = GaussianProcess(SPACE, TimestepSampling(LinearBeta().build()), meaning)
    clean = clean_of(7)
    noised = process.corrupt(clean, torch.linspace(0.01, 1, 7, dtype=torch.float64))
    raw = torch.randn(7, 5, 3, dtype=torch.float64)
    a, b = noised.noise.alpha(raw).sqrt(), noised.noise.one_minus_alpha(raw).sqrt()
    truth = {
        "x0": clean.x0,
        "eps": noised.eps,
        "velocity": a * noised.eps - b * clean.x0,
    }[meaning]
    pred = process.read(raw, noised.state, noised.noise)
    target_mask = ~clean.fixed
    torch.testing.assert_close(
        partial(squared_error, target=meaning)(pred, noised).mean(),
        ((raw - truth) ** 2)[target_mask].mean(),
    )
    x0 = {
        "x0": raw,
        "eps": (noised.state.x - b * raw) / a,
        "velocity": a * noised.state.x - b * raw,
    }[meaning]
    torch.testing.assert_close(
        partial(squared_error, target="x0")(pred, noised).mean(),
        ((x0 - clean.x0) ** 2)[target_mask].mean(),
    )


@pytest.mark.parametrize("meaning", ["x0", "eps", "velocity"])
def test_min_snr_weighs_every_target_alike(meaning: str) -> None:
    """The weight of the error of x0 is min(snr, 5) whatever is compared (Hang et al. 2023)."""
    process = GaussianProcess(SPACE, TimestepSampling(LinearBeta().build()), meaning)
    clean = Clean.of(torch.randn(30, 5, 3, dtype=torch.float64))
    noised = process.corrupt(clean, torch.linspace(1e-3, 1, 30, dtype=torch.float64))
    pred = process.read(
        torch.randn(30, 5, 3, dtype=torch.float64), noised.state, noised.noise
    )
    snr = noised.noise.alpha(clean.x0) / noised.noise.one_minus_alpha(clean.x0)
    assert snr.min() < 1 < 50 < snr.max()
    expected = snr.clamp_max(5)[..., 0] * (pred.x0 - clean.x0).square().mean(-1)
    torch.testing.assert_close(
        partial(squared_error, target=meaning, min_snr=5.0)(pred, noised).values,
        expected,
    )


def test_eps_requires_gaussian_noise() -> None:
    noised, raw = masked()
    pred = MaskedRegionProcess(SPACE, CLOCK).read(raw, noised.state, noised.noise)
    with pytest.raises(TypeError, match="eps"):
        squared_error(pred, noised, target="eps")
