"""Schedules: the rate is the derivative, the ends are where the Specs say, and closed forms hold."""

import math

import numpy as np
import pytest
import torch

from dither.processes.schedules import alpha, betas, sigma
from dither.processes.schedules.betas import CosineBeta, LinearBeta


@pytest.mark.parametrize("t", [1e-6, 1e-3, 0.3])
def test_closed_forms(t: float) -> None:
    at = torch.tensor([t], dtype=torch.float64)

    def signal(schedule) -> float:
        return math.exp(-schedule(at).sigma.item())

    assert signal(alpha.log_linear(0.01)) == pytest.approx(1 - 0.99 * t, rel=1e-14)
    assert signal(alpha.cosine(0.01)) == pytest.approx(0.01 + 0.99 * math.cos(math.pi * t / 2), rel=1e-14)
    assert signal(alpha.cosine_squared(0.01)) == pytest.approx(0.01 + 0.99 * math.cos(math.pi * t / 2) ** 2, rel=1e-14)
    assert signal(alpha.polynomial(3, 0.01)) == pytest.approx(1 - 0.99 * t**3, rel=1e-14)
    assert sigma.geometric(1e-3, 2)(at).sigma.item() == pytest.approx(1e-3 ** (1 - t) * 2**t, rel=1e-12)
    assert sigma.linear_sigma(7)(at).sigma.item() == pytest.approx(7 * t, rel=1e-14)
    for eps in (1e-6, 0.3):  # the weight of masked cross entropy does not depend on eps
        noise = alpha.log_linear(eps)(at)
        assert (noise.rate / noise.sigma.expm1()).item() == pytest.approx(1 / t, rel=1e-9)


@pytest.mark.parametrize("t", [1e-6, 1e-3, 0.3, 0.97])
@pytest.mark.parametrize("eps", [1e-12, 1e-3, 0.2])
def test_weights_of_masked_cross_entropy(t: float, eps: float) -> None:
    """w = -alpha' / (1 - alpha) = rate / (exp(sigma) - 1), in closed form."""
    at, half = torch.tensor([t], dtype=torch.float64), math.pi / 2
    for schedule, expected in (
        (alpha.log_linear(eps), 1 / t),
        (sigma.linear_sigma(10.0), 10 / math.expm1(10 * t)),
        (alpha.polynomial(3, eps), 3 / t),
        (alpha.cosine(eps), half * math.sin(half * t) / (2 * math.sin(half * t / 2) ** 2)),
        (alpha.cosine_squared(eps), half * math.sin(math.pi * t) / math.sin(half * t) ** 2),
    ):
        noise = schedule(at)
        assert (noise.rate / noise.sigma.expm1()).item() == pytest.approx(expected, rel=1e-9)


def test_small_sigma_survives_float32() -> None:
    """1 - alpha of a float32 time is right to float32, not lost in 1 - 0.9999999."""
    t = torch.tensor([1e-7])
    for schedule in (alpha.log_linear(1e-3), alpha.cosine(1e-3), alpha.cosine_squared(1e-3), alpha.polynomial(2)):
        exact = schedule(t.double()).sigma.item()
        assert schedule(t).sigma.item() == pytest.approx(exact, rel=1e-6)
        assert exact > 0


@pytest.mark.parametrize(("first", "last", "steps"), [(1e-4, 0.02, 1000), (0.1, 0.5, 4), (0.3, 0.3, 1)])
def test_linear_beta_has_every_step_of_ddpm(first: float, last: float, steps: int) -> None:
    product = np.cumprod(1 - np.linspace(first, last, steps))
    t = torch.arange(1, steps + 1, dtype=torch.float64) / steps
    bars = (-LinearBeta.model_construct(first=first, last=last, steps=steps).build()(t).sigma).exp().numpy()
    np.testing.assert_allclose(bars, product, rtol=1e-12)
    if steps == 1000:
        assert bars[0] == pytest.approx(0.9999)
        assert bars[-1] == pytest.approx(4.0358e-5, rel=1e-4)


def test_sigmoid_is_its_definition() -> None:
    t = torch.linspace(0, 1, 7, dtype=torch.float64)
    curve = torch.sigmoid((-3 + 6 * t) / 0.7)
    lost = (curve - curve[0]) / (curve[-1] - curve[0])
    torch.testing.assert_close((-alpha.sigmoid(-3, 3, 0.7, 1e-3)(t).sigma).exp(), 1 - 0.999 * lost)


@pytest.mark.parametrize("table", [betas.linear(1e-4, 0.02, 1000), CosineBeta().betas(), [0.9] * 60])
def test_zero_snr_moves_the_last_step_to_nothing_and_leaves_the_first(table) -> None:
    plain, moved = (np.exp(-np.array(betas.sigmas(table, zero)) / 2) for zero in (False, True))
    assert moved[-1] < 1e-13
    np.testing.assert_allclose(moved[0], plain[0], rtol=1e-12)
    if plain[-1] > 1e-14:
        np.testing.assert_allclose(
            moved, (plain - plain[-1]) * plain[0] / (plain[0] - plain[-1]), rtol=1e-6, atol=1e-13
        )
    assert (np.diff(betas.sigmas(table, True)) > 0).all()
