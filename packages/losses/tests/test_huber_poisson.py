"""Huber and Poisson losses equal torch's, over what is wanted alone."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from dither.losses.features import huber, poisson_nll
from dither.processes.features.gaussian import GaussianProcess
from dither.processes.features.masked_features import MaskedRegionProcess
from dither.processes.schedules.alpha import log_linear
from dither.processes.schedules.betas import LinearBeta
from dither.processes.timestep_sampling import TimestepSampling
from dither.registry.flow.records import Clean, Measured, Noised
from dither.registry.flow.spaces import FeatureSpace

SPACE = FeatureSpace(5, 3)
REDUCTIONS = ["element-mean", "region-sum", "zero-padded"]


def masked(x0: torch.Tensor) -> Noised:
    clean = Clean.of(x0, torch.rand(6, 5) < 0.8, torch.rand(6, 5, 3) < 0.2)
    return MaskedRegionProcess(SPACE, TimestepSampling(log_linear()), "element", ratio=0.5).corrupt(
        clean, torch.rand(6)
    )


def measured(loss, noised: Noised, raw: torch.Tensor) -> Measured:
    return loss(
        MaskedRegionProcess(SPACE, TimestepSampling(log_linear())).read(raw, noised.state, noised.noise), noised
    )


def expected(values: torch.Tensor, noised: Noised, reduction: str) -> torch.Tensor:
    """Each reduction by its definition."""
    regions = noised.target_mask.any(-1).sum()
    total = values[noised.target_mask].sum()
    return (
        total
        / {"element-mean": noised.target_mask.sum(), "region-sum": regions, "zero-padded": noised.valid.sum() * 3}[
            reduction
        ]
    )


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("delta", [0.3, 1.0, 10.0])
def test_huber_is_that_of_torch(delta: float, reduction: str) -> None:
    noised, raw = masked(torch.randn(6, 5, 3, dtype=torch.float64)), torch.randn(6, 5, 3, dtype=torch.float64)
    values = functional.huber_loss(raw, noised.x0, reduction="none", delta=delta)
    found = measured(partial(huber, delta=delta, reduction=reduction), noised, raw).mean()
    torch.testing.assert_close(found, expected(values, noised, reduction))


@pytest.mark.parametrize("meaning", ["x0", "eps", "velocity"])
def test_huber_compares_what_the_process_predicts(meaning: str) -> None:
    process = GaussianProcess(SPACE, TimestepSampling(LinearBeta().build()), meaning)
    noised = process.corrupt(Clean.of(torch.randn(4, 5, 3, dtype=torch.float64)), torch.linspace(0.01, 1, 4).double())
    raw = torch.randn(4, 5, 3, dtype=torch.float64)
    a, b = noised.noise.alpha(raw).sqrt(), noised.noise.one_minus_alpha(raw).sqrt()
    truth = {"x0": noised.x0, "eps": noised.eps, "velocity": a * noised.eps - b * noised.x0}[meaning]
    found = partial(huber, delta=0.7, target=meaning)(process.read(raw, noised.state, noised.noise), noised).mean()
    torch.testing.assert_close(found, functional.huber_loss(raw, truth, delta=0.7))


@pytest.mark.parametrize("reduction", REDUCTIONS)
@pytest.mark.parametrize("link", ["none", "softplus", "log"])
def test_poisson_is_that_of_torch(link: str, reduction: str) -> None:
    noised = masked(torch.poisson(torch.full((6, 5, 3), 2.0, dtype=torch.float64)))
    raw = torch.randn(6, 5, 3, dtype=torch.float64)
    raw = raw.abs() if link == "none" else raw
    rate = functional.softplus(raw) if link == "softplus" else raw
    values = functional.poisson_nll_loss(rate, noised.x0, log_input=link == "log", reduction="none")
    found = measured(partial(poisson_nll, link=link, reduction=reduction), noised, raw).mean()
    torch.testing.assert_close(found, expected(values, noised, reduction))


@pytest.mark.parametrize("link", ["none", "softplus", "log"])
def test_the_true_rate_is_best(link: str) -> None:
    """Over many counts of one rate, the loss is least where the rate is their mean."""
    counts = torch.poisson(torch.full((6, 5, 3), 4.0, dtype=torch.float64))
    clean = Clean.of(counts)
    noised = MaskedRegionProcess(SPACE, TimestepSampling(log_linear()), ratio=1.0).corrupt(clean, torch.rand(6))
    rates = counts.mean() * torch.linspace(0.5, 1.5, 101, dtype=torch.float64)
    said = {"none": rates, "softplus": rates.expm1().log(), "log": rates.log()}[link]
    losses = [measured(partial(poisson_nll, link=link), noised, torch.full_like(counts, float(x))).mean() for x in said]
    assert int(torch.stack(losses).argmin()) == 50


@pytest.mark.parametrize(
    "loss",
    [
        partial(huber, delta=0.5),
        partial(poisson_nll, link="none"),
        partial(poisson_nll, link="softplus"),
        partial(poisson_nll, link="log"),
    ],
)
def test_only_what_is_wanted_counts(loss) -> None:
    noised = masked(torch.poisson(torch.full((6, 5, 3), 2.0, dtype=torch.float64)))
    raw = (torch.rand(6, 5, 3, dtype=torch.float64) + 0.5).requires_grad_()
    (grad,) = torch.autograd.grad(measured(loss, noised, raw).mean(), raw)
    assert torch.equal(grad != 0, noised.target_mask)
    wild = torch.where(noised.target_mask, raw.detach(), torch.inf)
    torch.testing.assert_close(measured(loss, noised, wild).mean(), measured(loss, noised, raw.detach()).mean())
    assert measured(loss, noised, wild).values.isfinite().all()
    nothing = Noised(
        noised.x0, noised.state, noised.noise, torch.zeros_like(noised.target_mask), noised.valid, noised.fixed
    )
    mean = measured(loss, nothing, raw).mean()
    assert mean == 0
    assert (torch.autograd.grad(mean, raw)[0] == 0).all()
    assert torch.autograd.gradcheck(lambda raw: measured(loss, noised, raw).values, raw)
