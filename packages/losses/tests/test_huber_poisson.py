"""Huber and Poisson losses equal torch's, over what is wanted alone."""

from functools import partial

import pytest
import torch
from torch.nn import functional

from dither.losses.features import huber, poisson_nll
from dither.processes.features.masked_features import MaskedRegionProcess
from dither.processes.schedules.alpha import log_linear
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
