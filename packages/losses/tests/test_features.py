"""Squared error: each reduction is its definition, and only what was taken away counts."""

from functools import partial

import pytest
import torch

from dither.losses.features import squared_error
from dither.processes.features.gaussian import GaussianProcess
from dither.processes.features.masked_features import MaskedRegionProcess
from dither.processes.schedules.alpha import log_linear
from dither.processes.schedules.betas import LinearBeta
from dither.processes.timestep_sampling import TimestepSampling
from dither.registry.flow.records import Clean, Measured, Noised
from dither.registry.flow.spaces import FeatureSpace

SPACE = FeatureSpace(5, 3)
CLOCK = TimestepSampling(log_linear(1e-3))


def clean_of(rows: int, known: float = 0.2) -> Clean:
    valid = torch.rand(rows, 5) < 0.8
    return Clean.of(torch.randn(rows, 5, 3, dtype=torch.float64), valid, torch.rand(rows, 5, 3) < known)


def masked(mask: str = "element", ratio: float | None = 0.5, rows: int = 6) -> tuple[Noised, torch.Tensor]:
    noised = MaskedRegionProcess(SPACE, CLOCK, mask, ratio=ratio).corrupt(clean_of(rows), torch.rand(rows))
    return noised, torch.randn(rows, 5, 3, dtype=torch.float64)


def loss_of(noised: Noised, raw: torch.Tensor, reduction: str) -> Measured:
    process = MaskedRegionProcess(SPACE, CLOCK)
    return partial(squared_error, reduction=reduction)(process.read(raw, noised.state, noised.noise), noised)


@pytest.mark.parametrize("mask", ["region", "element"])
def test_reductions_are_their_definitions(mask: str) -> None:
    noised, raw = masked(mask)
    squares = ((raw - noised.x0) ** 2)[noised.target_mask]
    regions = noised.target_mask.any(-1).sum()
    assert squares.numel() > 10
    expected = {
        "element-mean": squares.mean(),
        "region-sum": squares.sum() / regions,
        "zero-padded": squares.sum() / (noised.valid.sum() * 3),
    }
    for reduction, value in expected.items():
        torch.testing.assert_close(loss_of(noised, raw, reduction).mean(), value)


def test_zero_padded_is_the_code_of_the_seed() -> None:
    """MSELoss of prediction times mask and truth times mask, where nothing is padded."""
    clean = Clean.of(torch.randn(4, 5, 3))
    noised = MaskedRegionProcess(SPACE, CLOCK, ratio=0.5).corrupt(clean, torch.rand(4))
    raw, mask = torch.randn(4, 5, 3), noised.state.masked.float()
    expected = torch.nn.MSELoss()(raw * mask, clean.x0 * mask)
    torch.testing.assert_close(loss_of(noised, raw, "zero-padded").mean(), expected)
    regions = mask[..., 0].sum()
    formula = ((raw - clean.x0).square().sum(-1) * mask[..., 0]).sum() / regions
    torch.testing.assert_close(loss_of(noised, raw, "region-sum").mean(), formula)
    torch.testing.assert_close(formula, 3 * loss_of(noised, raw, "element-mean").mean())
    torch.testing.assert_close(formula / expected, 3 * 20 / regions)  # the factor between the seed's text and its code


@pytest.mark.parametrize("reduction", ["element-mean", "region-sum", "zero-padded"])
def test_nothing_masked_is_zero_and_means_add_up(reduction: str) -> None:
    noised, raw = masked(rows=8)
    whole = loss_of(noised, raw, reduction)
    parts = [loss_of(noised[rows], raw[rows], reduction) for rows in (slice(0, 3), slice(3, 8))]
    total = sum(part.total() for part in parts) / sum(part.weights.sum() for part in parts)
    torch.testing.assert_close(whole.mean(), total)
    nothing = Noised(
        noised.x0, noised.state, noised.noise, torch.zeros_like(noised.target_mask), noised.valid, noised.fixed
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
    truth = {"x0": clean.x0, "eps": noised.eps, "velocity": a * noised.eps - b * clean.x0}[meaning]
    pred = process.read(raw, noised.state, noised.noise)
    target_mask = ~clean.fixed
    torch.testing.assert_close(
        partial(squared_error, target=meaning)(pred, noised).mean(), ((raw - truth) ** 2)[target_mask].mean()
    )
    x0 = {"x0": raw, "eps": (noised.state.x - b * raw) / a, "velocity": a * noised.state.x - b * raw}[meaning]
    torch.testing.assert_close(
        partial(squared_error, target="x0")(pred, noised).mean(), ((x0 - clean.x0) ** 2)[target_mask].mean()
    )


@pytest.mark.parametrize("meaning", ["x0", "eps", "velocity"])
def test_min_snr_weighs_every_target_alike(meaning: str) -> None:
    """The weight of the error of x0 is min(snr, 5) whatever is compared (Hang et al. 2023)."""
    process = GaussianProcess(SPACE, TimestepSampling(LinearBeta().build()), meaning)
    clean = Clean.of(torch.randn(30, 5, 3, dtype=torch.float64))
    noised = process.corrupt(clean, torch.linspace(1e-3, 1, 30, dtype=torch.float64))
    pred = process.read(torch.randn(30, 5, 3, dtype=torch.float64), noised.state, noised.noise)
    snr = noised.noise.alpha(clean.x0) / noised.noise.one_minus_alpha(clean.x0)
    assert snr.min() < 1 < 50 < snr.max()
    expected = snr.clamp_max(5)[..., 0] * (pred.x0 - clean.x0).square().mean(-1)
    torch.testing.assert_close(partial(squared_error, target=meaning, min_snr=5.0)(pred, noised).values, expected)


def test_eps_requires_gaussian_noise() -> None:
    noised, raw = masked()
    pred = MaskedRegionProcess(SPACE, CLOCK).read(raw, noised.state, noised.noise)
    with pytest.raises(TypeError, match="eps"):
        squared_error(pred, noised, target="eps")
