"""Schedules: the rate is the derivative, the ends are where the Specs say, and closed forms hold."""

import math

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dither.processes.schedules import alpha, sigma
from dither.processes.tokens.specs import uniform_prior_kl


@pytest.mark.parametrize("t", [1e-6, 1e-3, 0.3])
def test_closed_forms(t: float) -> None:
    at = torch.tensor([t], dtype=torch.float64)

    def signal(schedule) -> float:
        return math.exp(-schedule(at).sigma.item())

    assert signal(alpha.LogLinear(eps=0.01).build()) == pytest.approx(
        1 - 0.99 * t, rel=1e-14
    )
    assert signal(alpha.Cosine(eps=0.01).build()) == pytest.approx(
        0.01 + 0.99 * math.cos(math.pi * t / 2), rel=1e-14
    )
    squared = 0.01 + 0.99 * math.cos(math.pi * t / 2) ** 2
    assert signal(alpha.CosineSquared(eps=0.01).build()) == pytest.approx(
        squared, rel=1e-14
    )
    assert signal(alpha.Polynomial(power=3, eps=0.01).build()) == pytest.approx(
        1 - 0.99 * t**3, rel=1e-14
    )
    geometric = sigma.Geometric(sigma_min=1e-3, sigma_max=2).build()
    assert geometric(at).sigma.item() == pytest.approx(
        1e-3 ** (1 - t) * 2**t, rel=1e-12
    )
    assert sigma.LinearSigma(sigma_max=7).build()(at).sigma.item() == pytest.approx(
        7 * t, rel=1e-14
    )
    for eps in (1e-6, 0.3):  # the weight of masked cross entropy does not depend on eps
        noise = alpha.LogLinear(eps=eps).build()(at)
        assert (noise.rate / noise.sigma.expm1()).item() == pytest.approx(
            1 / t, rel=1e-9
        )


def test_sigmoid_begins_without_noise() -> None:
    """A start that underflows in one precision of two must not make sigma negative."""
    schedule = alpha.SigmoidAlpha(start=-50, end=50, tau=0.06).build()
    noise = schedule(torch.zeros(3, dtype=torch.float64))
    assert (noise.sigma == 0).all()
    assert noise.one_minus_alpha(noise.sigma).sqrt().isfinite().all()


def test_sigmoid_is_its_definition() -> None:
    t = torch.linspace(0, 1, 7, dtype=torch.float64)
    curve = torch.sigmoid((-3 + 6 * t) / 0.7)
    lost = (curve - curve[0]) / (curve[-1] - curve[0])
    sigmoid = alpha.SigmoidAlpha(tau=0.7).build()
    torch.testing.assert_close((-sigmoid(t).sigma).exp(), 1 - 0.999 * lost)


def kl(ids, sigma):
    """The definition, from the transition matrix of the chain."""
    rates = torch.full((ids, ids), 1 / ids, dtype=torch.float64) - torch.eye(
        ids, dtype=torch.float64
    )
    row = torch.linalg.matrix_exp(sigma * rates)[0]
    return (row * (row * ids).log()).sum().item()


@given(st.integers(2, 12), st.floats(1e-3, 15))
def test_uniform_prior_kl_is_a_divergence(ids, sigma):
    assert uniform_prior_kl(ids, sigma) == pytest.approx(
        kl(ids, sigma), rel=1e-6, abs=1e-12
    )
    assert uniform_prior_kl(ids, sigma) >= uniform_prior_kl(ids, sigma + 0.1) >= 0
