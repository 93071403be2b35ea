"""The head that draws: its noise is what it says, it learns a law, and it draws from the law it has learned."""

import math

import pytest
import torch
from torch import Tensor, nn

from dither.embeddings.head_specs import TokenDiffusion as Spec
from dither.embeddings.token_diffusion import MAX_ANGLE, TokenDiffusion
from dither.registry.flow.distributions import DistributionHead, ValueDistribution
from dither.registry.flow.spaces import FeatureSpace


class Known(TokenDiffusion):
    """The same with a perfect MLP: given h, values are normal about (h_0, h_1) with the covariance of 0.5 and rho."""

    def __init__(self, rho: float = 0.0, **options) -> None:
        super().__init__(2, 2, hidden=4, **options)
        self.cov = 0.25 * torch.tensor([[1.0, rho], [rho, 1.0]])

    def denoise(self, x: Tensor, angle: Tensor, h: Tensor) -> Tensor:
        a, b = angle.cos()[..., None, None], angle.sin()[..., None, None]
        gain = a * self.cov @ torch.linalg.inv(a**2 * self.cov + b**2 * torch.eye(2))
        a, b = a[..., 0], b[..., 0]
        x0 = h + (gain @ (x - a * h)[..., None])[..., 0]
        eps = (x - a * x0) / b
        return eps if self.predict == "eps" else a * eps - b * x0


def test_it_is_a_head_that_tells_a_law() -> None:
    head = TokenDiffusion(3, 8, hidden=16)
    assert isinstance(head, DistributionHead)
    assert isinstance(head.law(torch.randn(2, 4, 8)), ValueDistribution)
    assert not isinstance(nn.Linear(8, 3), DistributionHead)


def test_parameters_are_those_that_the_spec_says() -> None:
    spec, space = Spec(hidden=24, depth=2), FeatureSpace(5, 3)
    head = spec.build(space, 16)
    assert sum(p.numel() for p in head.parameters()) == spec.cost(space, 16).parameters


@pytest.mark.parametrize("predict", ["velocity", "eps"])
def test_squares_are_least_for_the_truth_and_0_elsewhere(predict: str) -> None:
    """A perfect MLP leaves what noise leaves open: the variance of x_0 given x, as an error of what is said."""
    torch.manual_seed(0)
    head, n = Known(predict=predict, repeats=16), 20_000
    h = torch.randn(1, n, 2)
    x0, target_mask = h + 0.5 * torch.randn(1, n, 2), torch.rand(1, n, 2) < 0.7
    squares = head.law(h).squared_errors(x0, target_mask)
    assert squares.shape == x0.shape
    assert (squares[~target_mask] == 0).all()
    angle = torch.linspace(0, MAX_ANGLE, 10_001, dtype=torch.float64)[:-1] + MAX_ANGLE / 20_000
    a, b = angle.cos(), angle.sin()
    left = 0.25 * b**2 / (0.25 * a**2 + b**2)  # variance of x_0 given x
    weight = (a / b) ** 2 if predict == "eps" else 1 / b**2
    assert squares[target_mask].mean().item() == pytest.approx((weight * left).mean().item(), rel=0.02)
    off = Known(predict=predict, repeats=16)
    off.cov = off.cov * 2
    assert off.law(h).squared_errors(x0, target_mask)[target_mask].mean() > squares[target_mask].mean()


@pytest.mark.parametrize("predict", ["velocity", "eps"])
def test_draws_follow_the_law_and_the_mean_is_its_mean(predict: str) -> None:
    torch.manual_seed(0)
    n, head = 20_000, Known(0.8, predict=predict, steps=200)
    h = torch.tensor([1.0, -2.0]).expand(1, n, 2)
    nothing = torch.zeros(1, n, 2)
    x = head.law(h).sample(nothing, torch.ones_like(nothing, dtype=torch.bool))[0]
    torch.testing.assert_close(x.mean(0), h[0, 0], rtol=0, atol=0.02)
    torch.testing.assert_close(x.T.cov(), head.cov, rtol=0.03, atol=0.005)
    torch.testing.assert_close(
        head.law(h).mean(nothing, torch.ones_like(nothing, dtype=torch.bool)), h, rtol=0, atol=2e-3
    )


def test_what_is_seen_stays_and_is_clean_at_every_step() -> None:
    head, seen = TokenDiffusion(3, 8, hidden=16, steps=5), []
    x, hidden = torch.randn(2, 4, 3), torch.rand(2, 4, 3) < 0.5
    plain = head.denoise

    def denoise(y: Tensor, angle: Tensor, h: Tensor) -> Tensor:
        seen.append(y.clone())
        return plain(y, angle, h)

    head.denoise = denoise
    drawn = head.law(torch.randn(2, 4, 8)).sample(x, hidden)
    assert torch.equal(drawn[~hidden], x[~hidden])
    assert (drawn[hidden] != x[hidden]).all()
    assert len(seen) == 5
    rows = hidden.any(-1)
    assert all(torch.equal(y[~hidden[rows]], x[rows][~hidden[rows]]) for y in seen)
    assert not torch.equal(head.law(torch.zeros(2, 4, 8)).sample(x, hidden), drawn)
    nothing = torch.zeros_like(hidden)
    assert torch.equal(head.law(torch.randn(2, 4, 8)).sample(x, nothing), x)
    assert not head.law(torch.randn(2, 4, 8)).squared_errors(x, nothing).any()


def test_it_learns_two_points() -> None:
    """Values are +1 or -1, with odds that h decides: a mean lies between them, draws are near one of the two."""
    torch.manual_seed(0)
    head = TokenDiffusion(1, 1, hidden=48, depth=2, steps=24, repeats=4)
    optimizer = torch.optim.Adam(head.parameters(), 3e-3)
    for _ in range(300):
        h = torch.randint(2, (1, 256, 1)) * 2.0 - 1
        x0 = torch.where(torch.rand(1, 256, 1) < 0.5 + 0.3 * h, 1.0, -1.0)
        loss = head.law(h).squared_errors(x0, torch.ones_like(x0, dtype=torch.bool)).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    with torch.no_grad():
        for sign, odds in ((1.0, 0.8), (-1.0, 0.2)):
            h = torch.full((1, 2_000, 1), sign)
            x = head.law(h).sample(torch.zeros(1, 2_000, 1), torch.ones(1, 2_000, 1, dtype=torch.bool))
            assert (x > 0).double().mean().item() == pytest.approx(odds, abs=0.1)
            assert ((x.abs() - 1).abs() < 0.3).double().mean() > 0.9
            assert head(h).mean().item() == pytest.approx(2 * odds - 1, abs=0.25)


def test_the_noise_ends_where_x0_can_be_worked_out() -> None:
    assert math.cos(MAX_ANGLE) ** 2 == pytest.approx(1e-3)
    head = TokenDiffusion(2, 3, hidden=8, predict="eps")
    x, angle, h = torch.randn(5, 2), torch.rand(5) * MAX_ANGLE, torch.randn(5, 3)
    for predict in ("eps", "velocity"):
        head.predict = predict
        x0, eps = head.told(x, angle, h)
        torch.testing.assert_close(angle.cos()[:, None] * x0 + angle.sin()[:, None] * eps, x, rtol=1e-4, atol=1e-5)


def test_the_mean_of_what_is_hidden_is_given_what_is_seen() -> None:
    """Two equal columns: who sees one knows the other."""
    torch.manual_seed(0)
    head = Known(0.999)
    x = torch.tensor([[[2.0, 0.0], [-1.0, 0.0]]])
    hidden = torch.tensor([False, True]).expand(1, 2, 2)
    mean = head.law(torch.zeros(1, 2, 2)).mean(x, hidden)
    seen = head.told(x.masked_fill(hidden, 0), x.new_full((1, 2), MAX_ANGLE), torch.zeros(1, 2, 2))[0]
    assert torch.equal(mean, seen)
    blind = head(torch.zeros(1, 2, 2))
    assert not torch.equal(mean, blind)
