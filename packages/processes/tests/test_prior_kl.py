"""The KL divergence between q(x_1 | x_0) and the prior, for schedules that end early."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dither.processes.tokens.specs import prior_kl
from dither.registry.flow.spaces import Field, TokenSpace

TEXT = TokenSpace((Field("text", 1024, 50_257),))


def kl(ids, sigma):
    """The definition, from the transition matrix of the chain."""
    rates = torch.full((ids, ids), 1 / ids, dtype=torch.float64) - torch.eye(ids, dtype=torch.float64)
    row = torch.linalg.matrix_exp(sigma * rates)[0]
    return (row * (row * ids).log()).sum().item()


@given(st.integers(2, 12), st.floats(1e-3, 15))
def test_prior_kl_is_a_divergence(ids, sigma):
    assert prior_kl(ids, sigma) == pytest.approx(kl(ids, sigma), rel=1e-6, abs=1e-12)
    assert prior_kl(ids, sigma) >= prior_kl(ids, sigma + 0.1) >= 0


@pytest.mark.parametrize(("sigma", "nats"), [(1, 3.32), (2, 1.07), (5, 0.033), (10, 3.2e-5)])
def test_prior_kl_of_a_large_vocabulary(sigma, nats):
    assert prior_kl(50_257, sigma) == pytest.approx(nats, rel=0.05)


def test_warning_states_the_prior_kl(part):
    short = part("process", "uniform", schedule={"use": "geometric", "sigma_min": 1e-3, "sigma_max": 1.0})
    (warning,) = short.warn(TEXT)
    assert "37 % of the tokens" in warning.message
    assert "3.32 nats per token" in warning.message
    assert "sigma_max = 20" in warning.help
    assert not list(short.check(TEXT))
    default = part("process", "uniform")
    assert not list(default.warn(TEXT))
    assert (default.schedule.sigma_min, default.schedule.sigma_max) == (1e-4, 20.0)
    assert prior_kl(50_257, default.schedule.sigma_end()) < 1e-8
