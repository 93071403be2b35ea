"""The KL divergence between q(x_1 | x_0) and the prior, for schedules that end early."""

import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dither.processes.tokens.specs import prior_kl


def kl(ids, sigma):
    """The definition, from the transition matrix of the chain."""
    rates = torch.full((ids, ids), 1 / ids, dtype=torch.float64) - torch.eye(ids, dtype=torch.float64)
    row = torch.linalg.matrix_exp(sigma * rates)[0]
    return (row * (row * ids).log()).sum().item()


@given(st.integers(2, 12), st.floats(1e-3, 15))
def test_prior_kl_is_a_divergence(ids, sigma):
    assert prior_kl(ids, sigma) == pytest.approx(kl(ids, sigma), rel=1e-6, abs=1e-12)
    assert prior_kl(ids, sigma) >= prior_kl(ids, sigma + 0.1) >= 0
