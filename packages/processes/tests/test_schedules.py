"""Schedules: the rate is the derivative, the ends are where the Specs say, and closed forms hold."""

import math

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from dither.processes.schedules import alpha, betas, sigma
from dither.processes.schedules.alpha import Cosine, CosineSquared, LogLinear, Polynomial, SigmoidAlpha
from dither.processes.schedules.betas import CosineBeta, LinearBeta, ScaledLinearBeta, SigmoidBeta
from dither.processes.schedules.sigma import Geometric, LinearSigma
from dither.registry.kinds.process import ScheduleSpec

EPS = st.floats(1e-9, 0.5)
TABLE = {"first": st.floats(1e-5, 0.1), "last": st.floats(1e-5, 0.5), "steps": st.integers(2, 50)}
SPECS = st.one_of(
    st.builds(Geometric, sigma_min=st.floats(1e-6, 0.1), sigma_max=st.floats(0.5, 100)),
    st.builds(LogLinear, eps=EPS),
    st.builds(Cosine, eps=EPS),
    st.builds(CosineSquared, eps=EPS),
    st.builds(LinearSigma, sigma_max=st.floats(0.1, 50)),
    st.builds(Polynomial, power=st.floats(1, 8), eps=EPS),
    st.builds(SigmoidAlpha, start=st.floats(-6, -1), end=st.floats(0, 6), tau=st.floats(0.3, 3), eps=EPS),
    st.builds(LinearBeta, **TABLE, zero_snr=st.booleans()),
    st.builds(ScaledLinearBeta, **TABLE, zero_snr=st.booleans()),
    st.builds(SigmoidBeta, **TABLE, zero_snr=st.booleans()),
    st.builds(CosineBeta, steps=st.integers(2, 50), zero_snr=st.booleans()),
)


@given(SPECS, st.lists(st.floats(0.001, 0.999), min_size=1, max_size=5))
def test_rate_is_the_derivative_of_sigma(spec: ScheduleSpec, times: list[float]) -> None:
    t = torch.tensor(times, dtype=torch.float64, requires_grad=True)
    noise = spec.build()(t)
    (slope,) = torch.autograd.grad(noise.sigma.sum(), t)
    torch.testing.assert_close(noise.rate, slope, rtol=1e-9, atol=1e-12)
    assert (noise.rate >= 0).all()


@given(SPECS)
def test_ends_and_growth(spec: ScheduleSpec) -> None:
    t = torch.linspace(0, 1, 101, dtype=torch.float64)
    noise = spec.build()(t)
    assert noise.sigma.isfinite().all()
    assert noise.rate.isfinite().all()
    assert (noise.sigma.diff() > 0).all()
    start = spec.sigma_min if isinstance(spec, Geometric) else 0.0
    assert noise.sigma[0].item() == pytest.approx(start, rel=1e-12)
    assert noise.sigma[-1].item() == pytest.approx(spec.sigma_end(), rel=1e-6)


@given(SPECS, st.sampled_from([torch.float32, torch.float64]), st.sampled_from([(3,), (2, 4)]))
def test_shape_and_dtype_are_those_of_t(spec: ScheduleSpec, dtype: torch.dtype, shape: tuple[int, ...]) -> None:
    noise = spec.build()(torch.rand(shape, dtype=dtype))
    assert noise.sigma.shape == noise.rate.shape == shape
    assert noise.sigma.dtype == noise.rate.dtype == dtype


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


@pytest.mark.parametrize(
    "call",
    [
        lambda: Geometric(sigma_min=2.0, sigma_max=1.0),
        lambda: LogLinear(eps=0.0),
        lambda: Cosine(eps=1.0),
        lambda: Polynomial(power=0.5),
        lambda: LinearSigma(sigma_max=0.0),
        lambda: LinearBeta(first=0.0),
        lambda: LinearBeta(steps=1, zero_snr=True),
        lambda: SigmoidAlpha(start=1.0, end=0.5),
        lambda: SigmoidAlpha(start=40.0, end=50.0),
    ],
)
def test_impossible_options_are_refused(call) -> None:
    with pytest.raises(ValueError):
        call()


def test_sigmoid_is_its_definition() -> None:
    t = torch.linspace(0, 1, 7, dtype=torch.float64)
    curve = torch.sigmoid((-3 + 6 * t) / 0.7)
    lost = (curve - curve[0]) / (curve[-1] - curve[0])
    torch.testing.assert_close((-alpha.sigmoid(-3, 3, 0.7, 1e-3)(t).sigma).exp(), 1 - 0.999 * lost)


def test_tables_are_their_definitions() -> None:
    roots = np.linspace(1e-4**0.5, 0.02**0.5, 9)
    np.testing.assert_allclose(betas.scaled_linear(1e-4, 0.02, 9), roots**2)
    sigmoid = 1 / (1 + np.exp(-np.linspace(-6, 6, 9)))
    np.testing.assert_allclose(betas.sigmoid(1e-4, 0.02, 9), 1e-4 + (0.02 - 1e-4) * sigmoid)
    alpha = np.cos((np.linspace(0, 1, 10) + 0.008) / 1.008 * np.pi / 2) ** 2
    np.testing.assert_allclose(betas.cosine(0.999, 9), np.minimum(1 - alpha[1:] / alpha[:-1], 0.999))


@pytest.mark.parametrize("table", [betas.linear(1e-4, 0.02, 1000), betas.cosine(0.999, 1000), [0.9] * 60])
def test_zero_snr_moves_the_last_step_to_nothing_and_leaves_the_first(table) -> None:
    plain, moved = (np.exp(-np.array(betas.sigmas(table, zero)) / 2) for zero in (False, True))
    assert moved[-1] < 1e-13
    np.testing.assert_allclose(moved[0], plain[0], rtol=1e-12)
    if plain[-1] > 1e-14:
        np.testing.assert_allclose(
            moved, (plain - plain[-1]) * plain[0] / (plain[0] - plain[-1]), rtol=1e-6, atol=1e-13
        )
    assert (np.diff(betas.sigmas(table, True)) > 0).all()
