"""Token diffusion: its noise, its loss, and the distribution it samples."""

import math

import pytest
import torch
from torch import Tensor

from dither.embeddings.head_specs import TokenDiffusion as Spec
from dither.embeddings.token_diffusion import MAX_ANGLE, TokenDiffusion
from dither.registry.contracts.spaces import FeatureSpace


def make_head(features: int, width: int, **options) -> TokenDiffusion:
    return Spec(**{"hidden": 16, **options}).build(FeatureSpace(1, features), width)


class Exact(TokenDiffusion):
    """A perfect MLP: given h, values are normal with mean (h_0, h_1), standard deviation 0.5 and correlation rho."""

    def __init__(self, rho: float = 0.0, **options) -> None:
        super().__init__(2, 2, **Spec(hidden=4, **options).model_dump())
        self.cov = 0.25 * torch.tensor([[1.0, rho], [rho, 1.0]])

    def denoise(self, x: Tensor, angle: Tensor, h: Tensor) -> Tensor:
        a, b = angle.cos()[..., None, None], angle.sin()[..., None, None]
        gain = a * self.cov @ torch.linalg.inv(a**2 * self.cov + b**2 * torch.eye(2))
        a, b = a[..., 0], b[..., 0]
        x0 = h + (gain @ (x - a * h)[..., None])[..., 0]
        eps = (x - a * x0) / b
        return eps if self.predict == "eps" else a * eps - b * x0


@pytest.mark.parametrize("predict", ["velocity", "eps"])
def test_squared_errors_are_minimal_for_the_truth(predict: str) -> None:
    """The error of a perfect MLP is the variance of x_0 given x, in units of the prediction."""
    torch.manual_seed(0)
    head, n = Exact(predict=predict, repeats=16), 10_000
    h = torch.randn(1, n, 2)
    x0, target_mask = h + 0.5 * torch.randn(1, n, 2), torch.rand(1, n, 2) < 0.7
    squares = head.distribution(h).squared_errors(x0, target_mask)
    assert squares.shape == x0.shape
    assert (squares[~target_mask] == 0).all()
    angle = (
        torch.linspace(0, MAX_ANGLE, 10_001, dtype=torch.float64)[:-1]
        + MAX_ANGLE / 20_000
    )
    a, b = angle.cos(), angle.sin()
    variance = 0.25 * b**2 / (0.25 * a**2 + b**2)  # variance of x_0 given x
    weight = (a / b) ** 2 if predict == "eps" else 1 / b**2
    assert squares[target_mask].mean().item() == pytest.approx(
        (weight * variance).mean().item(), rel=0.02
    )
    wrong = Exact(predict=predict, repeats=16)
    wrong.cov = wrong.cov * 2
    assert (
        wrong.distribution(h).squared_errors(x0, target_mask)[target_mask].mean()
        > squares[target_mask].mean()
    )


def test_noise_levels_of_training_are_not_rounded_to_bfloat16() -> None:
    """Sampling reads angles in float32, whose sinusoids a model trained on few of them does not know."""
    torch.manual_seed(0)
    head = make_head(2, 4, repeats=2).to(torch.bfloat16)
    angles = []
    head.angle.register_forward_pre_hook(lambda _, args: angles.append(args[0]))
    h = torch.randn(8, 512, 4, dtype=torch.bfloat16)
    x0 = torch.randn(8, 512, 2)
    head.distribution(h).squared_errors(x0, torch.ones(8, 512, 2, dtype=torch.bool))
    # In bfloat16 there are about 600 between 0 and MAX_ANGLE.
    assert len(angles[0].unique()) > 8000


@pytest.mark.parametrize("predict", ["velocity", "eps"])
def test_samples_and_mean_follow_the_distribution(predict: str) -> None:
    torch.manual_seed(0)
    n, head = 20_000, Exact(0.8, predict=predict, steps=200)
    h = torch.tensor([1.0, -2.0]).expand(1, n, 2)
    zeros = torch.zeros(1, n, 2)
    x = head.distribution(h).sample(zeros, torch.ones_like(zeros, dtype=torch.bool))[0]
    torch.testing.assert_close(x.mean(0), h[0, 0], rtol=0, atol=0.02)
    torch.testing.assert_close(x.T.cov(), head.cov, rtol=0.03, atol=0.005)
    torch.testing.assert_close(
        head.distribution(h).mean(zeros, torch.ones_like(zeros, dtype=torch.bool)),
        h,
        rtol=0,
        atol=2e-3,
    )


def test_visible_values_are_clean_at_every_step() -> None:
    head, seen = make_head(3, 8, hidden=16, steps=5), []
    x, masked = torch.randn(2, 4, 3), torch.rand(2, 4, 3) < 0.5
    plain = head.denoise

    def denoise(y: Tensor, angle: Tensor, h: Tensor) -> Tensor:
        seen.append(y.clone())
        return plain(y, angle, h)

    head.denoise = denoise
    drawn = head.distribution(torch.randn(2, 4, 8)).sample(x, masked)
    assert torch.equal(drawn[~masked], x[~masked])
    assert (drawn[masked] != x[masked]).all()
    assert len(seen) == 5
    rows = masked.any(-1)
    assert all(torch.equal(y[~masked[rows]], x[rows][~masked[rows]]) for y in seen)
    assert not torch.equal(
        head.distribution(torch.zeros(2, 4, 8)).sample(x, masked), drawn
    )
    zeros = torch.zeros_like(masked)
    assert torch.equal(head.distribution(torch.randn(2, 4, 8)).sample(x, zeros), x)
    assert not head.distribution(torch.randn(2, 4, 8)).squared_errors(x, zeros).any()


def test_x0_and_eps_are_consistent() -> None:
    assert math.cos(MAX_ANGLE) ** 2 == pytest.approx(1e-3)
    head = make_head(2, 3, hidden=8, predict="eps")
    x, angle, h = torch.randn(5, 2), torch.rand(5) * MAX_ANGLE, torch.randn(5, 3)
    for predict in ("eps", "velocity"):
        head.predict = predict
        x0, eps = head.x0_and_eps(x, angle, h)
        torch.testing.assert_close(
            angle.cos()[:, None] * x0 + angle.sin()[:, None] * eps,
            x,
            rtol=1e-4,
            atol=1e-5,
        )


def test_mean_is_conditional_on_visible_values() -> None:
    """Two equal columns: one determines the other."""
    torch.manual_seed(0)
    head = Exact(0.999)
    x = torch.tensor([[[2.0, 0.0], [-1.0, 0.0]]])
    masked = torch.tensor([False, True]).expand(1, 2, 2)
    mean = head.distribution(torch.zeros(1, 2, 2)).mean(x, masked)
    seen = head.x0_and_eps(
        x.masked_fill(masked, 0), x.new_full((1, 2), MAX_ANGLE), torch.zeros(1, 2, 2)
    )[0]
    assert torch.equal(mean, seen)
    blind = head(torch.zeros(1, 2, 2))
    assert not torch.equal(mean, blind)
