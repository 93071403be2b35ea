"""Dropout: distribution, gradient, reproducibility."""

import pytest
import torch

from dither.core_blocks.cpu import dropout
from dither.core_blocks.cpu.dropout import STEPS, Dropout, drop


@pytest.mark.parametrize("p", [0.1, 0.5, 0.937])
def test_mean_and_probability_at_every_element(p):
    torch.manual_seed(0)
    many = torch.stack([drop(torch.ones(50, 7), p) for _ in range(2000)])
    exact = 1 - round(p * STEPS) / STEPS
    assert set(many.unique().tolist()) <= {0.0, torch.tensor(1 / exact).item()}
    seen = (many > 0).double().mean(0)
    deviation = (exact * (1 - exact) / 2000) ** 0.5
    assert (seen - exact).abs().max() < 5 * deviation
    assert abs(seen.mean() - exact) < 5 * deviation / 350**0.5
    pairs = ((many[:, 0, 0] > 0) & (many[:, 0, 1] > 0)).double().mean()  # from one draw of the generator
    assert abs(pairs - exact**2) < 5 * (exact**2 * (1 - exact**2) / 2000) ** 0.5


def test_gradient_is_the_mask():
    x = torch.randn(5, 3, dtype=torch.float64, requires_grad=True)
    torch.manual_seed(3)
    y = drop(x, 0.5)
    (gradient,) = torch.autograd.grad(y.sum(), x)
    torch.testing.assert_close(y, x * gradient)
    assert 0 < (gradient == 0).sum() < 15

    def seeded(x):
        torch.manual_seed(3)
        return drop(x, 0.5)

    assert torch.autograd.gradcheck(seeded, x)
    assert torch.equal(seeded(x), y)


def test_identity_in_evaluation_and_with_probability_zero():
    x = torch.randn(9)
    assert Dropout(0.5).eval()(x) is x
    assert drop(x, 0.0) is x
    assert torch.equal(drop(torch.ones(0, 3), 0.5), torch.ones(0, 3))


def test_switched_off_it_is_torchs(monkeypatch):
    monkeypatch.setattr(dropout, "ENABLED", False)
    x = torch.ones(100)
    torch.manual_seed(0)
    ours = drop(x, 0.5)
    torch.manual_seed(0)
    assert torch.equal(ours, torch.nn.functional.dropout(x, 0.5))
