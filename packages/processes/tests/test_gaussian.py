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
