"""Gaussian noise: marginals, conversions, and steps against the closed forms of DDPM and DDIM."""

from itertools import pairwise

import numpy as np
import pytest
import torch

from dither.processes.features.gaussian import GaussianPrediction, GaussianProcess
from dither.processes.schedules.alpha import log_linear
from dither.processes.schedules.betas import LinearBeta
from dither.processes.timestep_sampling import TimestepSampling
from dither.registry.flow.records import Clean, Noise, State
from dither.registry.flow.spaces import FeatureSpace

SPACE = FeatureSpace(3, 2)


def process_of(predict: str = "x0", schedule=None) -> GaussianProcess:
    return GaussianProcess(SPACE, TimestepSampling(schedule or log_linear(1e-3)), predict)


def noise_of(sigma: float, rows: int = 1, dtype: torch.dtype = torch.float64) -> Noise:
    return Noise(torch.full((rows,), sigma, dtype=dtype), torch.ones(rows, dtype=dtype))


@pytest.mark.parametrize("t", [0.05, 0.5, 1.0])
def test_forward_marginal(t: float) -> None:
    n = 40_000
    x0 = torch.tensor([[1.5, -2.0], [0.0, 3.0], [1.0, 1.0]]).expand(n, -1, -1)
    noised = process_of().corrupt(Clean.of(x0), torch.full((n,), t))
    alpha = 1 - 0.999 * t
    torch.testing.assert_close(noised.state.x.mean(0), alpha**0.5 * x0[0], rtol=0, atol=0.025)
    torch.testing.assert_close(noised.state.x.std(0), torch.full((3, 2), (1 - alpha) ** 0.5), rtol=0.02, atol=0)
    torch.testing.assert_close(alpha**0.5 * x0 + (1 - alpha) ** 0.5 * noised.eps, noised.state.x)
    assert noised.target_mask.all()
    assert not noised.state.masked.any()


@pytest.mark.parametrize("dtype", [torch.float32, torch.float64])
@pytest.mark.parametrize("sigma", [1e-4, 1e-2, 1.0, 9.0])
@pytest.mark.parametrize("meaning", ["x0", "eps", "velocity"])
def test_conversions_give_back_x0_and_eps(meaning: str, sigma: float, dtype: torch.dtype) -> None:
    x0, eps = torch.randn(4, 3, 2, dtype=torch.float64), torch.randn(4, 3, 2, dtype=torch.float64)
    a, b = np.exp(-sigma / 2), np.sqrt(-np.expm1(-sigma))
    said = {"x0": x0, "eps": eps, "velocity": a * eps - b * x0}[meaning]
    reading = GaussianPrediction(said.to(dtype), (a * x0 + b * eps).to(dtype), noise_of(sigma, 4, dtype), meaning)
    tight = 1e-10 if dtype == torch.float64 else 1e-6
    worse = {"x0": (0, 1 / b), "eps": (1 / a, 0), "velocity": (1, 1)}[meaning]  # what dividing by b or a must cost
    torch.testing.assert_close(reading.x0.double(), x0, rtol=0, atol=8 * tight * max(1, worse[0]))
    torch.testing.assert_close(reading.eps.double(), eps, rtol=0, atol=8 * tight * max(1, worse[1]))
    same = {"x0": reading.x0, "eps": reading.eps, "velocity": reading.raw}[meaning]
    assert torch.equal(same, said.to(dtype))


def test_no_noise_no_nan() -> None:
    x = torch.randn(2, 3, 2)
    for meaning in ("x0", "eps", "velocity"):
        reading = GaussianPrediction(x.clone(), x, noise_of(0.0, 2, torch.float32), meaning)
        assert reading.eps.isfinite().all()
        assert torch.equal(reading.x0, x)


def moments(
    eta: float, t: int, s: int, predict: str = "x0"
) -> tuple[torch.Tensor, torch.Tensor, tuple[torch.Tensor, ...]]:
    """Mean and spread of many steps from DDPM's step t to s (counted from 1), and what they started from."""
    n, process = 60_000, process_of(predict, LinearBeta(first=0.01, last=0.3, steps=10).build())
    x0 = torch.tensor([[0.5, -1.0], [2.0, 0.0], [1.0, 1.0]], dtype=torch.float64)
    eps = torch.tensor([[1.0, 0.3], [-0.5, 0.2], [0.0, 2.0]], dtype=torch.float64)
    times = [torch.full((n,), i / 10, dtype=torch.float64) for i in (t, s)]
    now, then = (process.schedule(time) for time in times)
    alpha = (-now.sigma[0]).exp()
    x = alpha.sqrt() * x0 + (1 - alpha).sqrt() * eps
    said = {"x0": x0, "eps": eps, "velocity": alpha.sqrt() * eps - (1 - alpha).sqrt() * x0}[predict]
    state, like = State.of(x.expand(n, -1, -1)), Clean.of(x0.expand(n, -1, -1))
    pred = process.read(said.expand(n, -1, -1), state, now)
    drawn = process.step(state, pred, now, then, like, eta=eta).x
    return drawn.mean(0), drawn.std(0), (x0, eps, x)


@pytest.mark.parametrize("predict", ["x0", "eps", "velocity"])
@pytest.mark.parametrize("t", [2, 6, 10])
def test_a_step_of_ddpm(t: int, predict: str) -> None:
    """Mean and variance of q(x_{t-1} | x_t, x_0) as Ho et al. write them (eq. 7), from numpy's betas."""
    beta = np.linspace(0.01, 0.3, 10)
    bar = np.cumprod(1 - beta)
    mean, spread, (x0, _, x) = moments(1.0, t, t - 1, predict)
    b, now, then = beta[t - 1], bar[t - 1], bar[t - 2]
    expected = then**0.5 * b / (1 - now) * x0 + (1 - b) ** 0.5 * (1 - then) / (1 - now) * x
    std = ((1 - then) / (1 - now) * b) ** 0.5
    torch.testing.assert_close(mean, expected, rtol=0, atol=5 * std / 60_000**0.5)
    torch.testing.assert_close(spread, torch.full_like(spread, std), rtol=0.015, atol=0)


def test_ddim_adds_no_noise_and_keeps_eps() -> None:
    mean, spread, (x0, eps, _) = moments(0.0, 8, 3)
    bar = np.cumprod(1 - np.linspace(0.01, 0.3, 10))[2]
    torch.testing.assert_close(mean, bar**0.5 * x0 + (1 - bar) ** 0.5 * eps, rtol=1e-9, atol=1e-9)
    assert spread.max() < 1e-9


def test_eta_is_the_share_of_the_spread() -> None:
    spreads = [moments(eta, 8, 3)[1].mean().item() for eta in (0.5, 1.0)]
    assert spreads[0] / spreads[1] == pytest.approx(0.5, rel=0.02)


@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
def test_a_step_keeps_the_marginal(eta: float) -> None:
    """With the true x_0, x_s is again sqrt(alpha_s) x_0 + sqrt(1 - alpha_s) noise: for every eta."""
    n, process = 60_000, process_of("x0")
    clean = Clean.of(torch.full((n, 3, 2), 2.0))
    t, s = torch.full((n,), 0.8), torch.full((n,), 0.3)
    noised = process.corrupt(clean, t)
    pred = process.read(clean.x0, noised.state, noised.noise)
    x = process.step(noised.state, pred, noised.noise, process.schedule(s), clean, eta=eta).x
    alpha = 1 - 0.999 * 0.3
    assert x.mean().item() == pytest.approx(2 * alpha**0.5, abs=0.01)
    assert x.std().item() == pytest.approx((1 - alpha) ** 0.5, rel=0.01)


def expected_std(eta: float, steps: int, t_min: float = 1e-3) -> float:
    """What a walk of `steps` makes of the standard deviation of the data, 0.5: all is linear, so in closed form."""
    bars = np.exp(-LinearBeta().build()(torch.linspace(1, t_min, steps + 1, dtype=torch.float64)).sigma.numpy())
    shrink = 0.25 * bars**0.5 / (0.25 * bars + 1 - bars)  # x_0 - 3 expected, per unit of x_t - 3 sqrt(bar)
    variance = 1.0
    for i, (now, then) in enumerate(pairwise(bars)):
        spread = eta**2 * (1 - then) / (1 - now) * (1 - now / then)
        gain = then**0.5 * shrink[i] + (1 - then - spread) ** 0.5 * (1 - now**0.5 * shrink[i]) / (1 - now) ** 0.5
        variance = gain**2 * variance + spread
    return float(shrink[-1] * variance**0.5)


@pytest.mark.parametrize(("predict", "eta"), [("x0", 1.0), ("eps", 1.0), ("velocity", 1.0), ("x0", 0.0)])
def test_ancestral_draws_the_data(part, predict: str, eta: float) -> None:
    """Data N(3, 0.5^2), and the exact denoiser E[x_0 | x_t] under each meaning."""
    process = process_of(predict, LinearBeta().build())
    like = Clean.of(torch.zeros(2_000, 3, 2))

    def session(state: State, t: torch.Tensor) -> GaussianPrediction:
        noise = process.schedule(t)
        a, b = noise.alpha(state.x).sqrt(), noise.one_minus_alpha(state.x).sqrt()
        x0 = 3 + 0.25 * a / (0.25 * a**2 + b**2) * (state.x - 3 * a)
        eps = (state.x - a * x0) / b
        return process.read({"x0": x0, "eps": eps, "velocity": a * eps - b * x0}[predict], state, noise)

    walk = {"use": "ancestral", "steps": 50} if eta == 1 else {"use": "ddim", "steps": 51, "spacing": "linspace"}
    *_, x = part("sampler", walk.pop("use"), **walk).build()(process, session, like)
    assert x.mean().item() == pytest.approx(3, abs=0.03)
    assert x.std().item() == pytest.approx(expected_std(eta, 50), rel=0.02)
    assert abs(expected_std(eta, 50) - 0.5) > 0.01
    assert expected_std(eta, 20_000) == pytest.approx(0.5, abs=1e-3)


def test_fixed_values_never_change() -> None:
    known = torch.rand(5, 3, 2) < 0.4
    valid = torch.rand(5, 3) < 0.7
    clean = Clean.of(torch.randn(5, 3, 2), valid, known)
    fixed = known | ~valid[..., None]
    for predict in ("x0", "eps", "velocity"):
        process = process_of(predict)
        noised = process.corrupt(clean, torch.rand(5, 3))  # a time for each position
        pred = process.read(torch.randn(5, 3, 2), noised.state, noised.noise)
        start = process.prior(clean)
        later = process.step(noised.state, pred, noised.noise, process.schedule(torch.full((5, 3), 1e-3)), clean)
        for x in (noised.state.x, start.x, later.x, process.finish(later, pred, clean)):
            assert torch.equal(x[fixed], clean.x0[fixed])
            assert (x[~fixed] != clean.x0[~fixed]).all()
        assert torch.equal(noised.target_mask, ~fixed)
        assert (noised.eps[fixed] == 0).all()
        assert abs(start.x[~fixed].mean().item()) < 1


def test_reading_is_at_least_float32() -> None:
    x = torch.randn(2, 3, 2)
    reading = process_of("eps").read(x.bfloat16(), State.of(x), noise_of(0.1, 2, torch.float32))
    assert reading.x0.dtype == reading.eps.dtype == torch.float32
