"""Dropout: its law, its gradient, and that it follows from the seed."""

import pytest
import torch

from dither.core_blocks.cpu.dropout import STEPS, Dropout, drop


@pytest.mark.parametrize("share", [0.1, 0.5, 0.937])
def test_it_keeps_the_mean_and_drops_the_share_at_every_place(share):
    torch.manual_seed(0)
    many = torch.stack([drop(torch.ones(50, 7), share) for _ in range(2000)])
    exact = 1 - round(share * STEPS) / STEPS
    assert set(many.unique().tolist()) <= {0.0, torch.tensor(1 / exact).item()}
    seen = (many > 0).double().mean(0)
    deviation = (exact * (1 - exact) / 2000) ** 0.5
    assert (seen - exact).abs().max() < 5 * deviation
    assert abs(seen.mean() - exact) < 5 * deviation / 350**0.5
    pairs = ((many[:, 0, 0] > 0) & (many[:, 0, 1] > 0)).double().mean()  # from one draw of the generator
    assert abs(pairs - exact**2) < 5 * (exact**2 * (1 - exact**2) / 2000) ** 0.5


def test_the_gradient_is_what_was_kept():
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


def test_it_does_nothing_in_evaluation_and_without_a_share():
    x = torch.randn(9)
    assert Dropout(0.5).eval()(x) is x
    assert drop(x, 0.0) is x
    assert torch.equal(drop(torch.ones(0, 3), 0.5), torch.ones(0, 3))
