"""Walks through Gaussian noise: grids of times, laws on Gaussian data, and filling in."""

from itertools import pairwise

import pytest
import torch
from torch import Tensor

from dither.processes.features.gaussian import GaussianPrediction, GaussianProcess
from dither.processes.features.masked_features import MaskedRegionProcess
from dither.processes.samplers.dpm_solver import DPMSolver, log_snr
from dither.processes.samplers.ordered_regions import OrderedRegions
from dither.processes.samplers.repaint import RePaint
from dither.processes.schedules import betas
from dither.processes.schedules.alpha import CosineSquared, LogLinear
from dither.processes.schedules.betas import LinearBeta, tabulated
from dither.processes.specs import register_components
from dither.processes.timestep_sampling import TimestepSampling, spaced_times
from dither.registry import default_catalog
from dither.registry.contracts.records import Clean, Noise, State
from dither.registry.contracts.spaces import FeatureSpace
from dither.registry.kinds import ScheduleSpec

SPACE = FeatureSpace(3, 2)
MEAN, STD = 3.0, 0.5


def process_of(predict: str = "x0", schedule=None, **options) -> GaussianProcess:
    return GaussianProcess(
        SPACE, TimestepSampling(schedule or LinearBeta().build()), predict, **options
    )


def noise_of(sigma: float, rows: int = 1, dtype: torch.dtype = torch.float64) -> Noise:
    return Noise(torch.full((rows,), sigma, dtype=dtype), torch.ones(rows, dtype=dtype))


def test_no_noise_no_nan() -> None:
    x = torch.randn(2, 3, 2)
    for meaning in ("x0", "eps", "velocity"):
        reading = GaussianPrediction(
            x.clone(), x, noise_of(0.0, 2, torch.float32), meaning
        )
        assert reading.eps.isfinite().all()
        assert torch.equal(reading.x0, x)


@pytest.mark.parametrize(
    "schedule",
    [LinearBeta().build(), LogLinear().build(), CosineSquared(eps=1e-6).build()],
)
def test_log_snr_grid_is_even_in_log_snr(schedule) -> None:
    times = spaced_times(schedule, 9, "log-snr", 1e-3)
    assert (times[0].item(), times[-1].item()) == (1.0, pytest.approx(1e-3))
    steps = log_snr(schedule(times)).diff()
    torch.testing.assert_close(steps, steps[:1].expand(8), rtol=1e-6, atol=0)


def test_log_snr_grid_bears_a_schedule_that_goes_on_for_ever() -> None:
    for schedule in (
        tabulated([1.0, 30.0, 900.0]),
        tabulated(betas.sigmas([0.02] * 100, True)),
    ):
        times = spaced_times(schedule, 12, "log-snr", 1e-3)
        assert times.isfinite().all()
        assert (times.diff() <= 0).all()


def flow_error(sampler, normal) -> float:
    """How far a walk without noise ends from where the probability flow leads, in closed form for normal data."""
    process = process_of(schedule=CosineSquared(eps=1e-4).build())
    like = Clean.of(torch.zeros(64, 3, 2, dtype=torch.float64))
    torch.manual_seed(0)
    start = process.prior(like).x
    torch.manual_seed(0)
    *_, x = sampler(process, normal(process), like)
    end = process.schedule(torch.ones(1, dtype=torch.float64)).sigma
    alpha = (-end).exp()
    exact = (
        MEAN + STD * (start - alpha.sqrt() * MEAN) / (STD**2 * alpha + 1 - alpha).sqrt()
    )
    return float((x - exact).abs().max())


def test_order_of_convergence(normal) -> None:
    """Half the step: a quarter of the error to second order, half of it to first."""

    def errors(order: int) -> list[float]:
        samplers = (
            DPMSolver(steps=n, order=order, spacing="log-snr", t_min=1e-6).build()
            for n in (40, 80, 160)
        )
        return [flow_error(sampler, normal) for sampler in samplers]

    for order, low, high in ((1, 1.6, 2.6), (2, 3.2, 5.0)):
        found = errors(order)
        assert all(low < a / b < high for a, b in pairwise(found)), (order, found)
    assert errors(2)[0] < 0.2 * errors(1)[0]


class Pair:
    """The exact denoiser of pairs (x, y), both standard normal with correlation rho, when both are noised alike."""

    def __init__(self, process: GaussianProcess, rho: float) -> None:
        self.process, self.cov = (
            process,
            torch.tensor([[1.0, rho], [rho, 1.0]], dtype=torch.float64),
        )

    def __call__(self, state: State, t: Tensor) -> GaussianPrediction:
        noise = self.process.schedule(t)
        alpha = noise.alpha(state.x)[0].item()
        seen = alpha * self.cov + (1 - alpha) * torch.eye(2, dtype=torch.float64)
        gain = alpha**0.5 * self.cov @ torch.linalg.inv(seen)
        return self.process.read(state.x @ gain.T.to(state.x.dtype), state, noise)


def test_repaint_fills_in_from_the_conditional_law() -> None:
    """The model knows pairs that are noised alike; of each pair one value is given. Jumps mend what one pass misses."""
    space, n, rho = FeatureSpace(1, 2), 4_000, 0.9
    process = GaussianProcess(
        space, TimestepSampling(CosineSquared(eps=1e-4).build()), "x0"
    )
    known = torch.tensor([True, False]).expand(n, 1, 2)
    like = Clean.of(torch.full((n, 1, 2), 1.5), known=known)
    slopes = {}
    for times in (1, 6):
        torch.manual_seed(0)
        *_, x = RePaint(steps=60, jump=6, visits=times).build()(
            process, Pair(process, rho), like
        )
        assert (x[..., 0] == 1.5).all()
        slopes[times] = x[..., 1].mean().item() / 1.5
        spread = x[..., 1].std().item()
    assert slopes[1] < 0.7  # by itself, a pass pays too little heed to what is given
    assert slopes[6] == pytest.approx(rho, abs=0.06)
    assert spread == pytest.approx((1 - rho**2) ** 0.5, rel=0.1)


class Ladder:
    """A stand-in that tells laws: draws of unit u spread by u, so that it is the less sure the later the unit."""

    def __init__(self, process: MaskedRegionProcess, spread: bool = True) -> None:
        self.process, self.spread, self.told = process, spread, list[float]()

    def __call__(self, state: State, t: Tensor) -> "Ladder":
        self.told.append(float(t[0]))
        self.state = state
        return self

    @property
    def x0(self) -> Tensor:
        return torch.where(self.state.masked, 7.0, self.state.x)

    def draw(self) -> Tensor:
        sure = torch.arange(self.state.x.shape[1])[:, None] * float(self.spread)
        return torch.where(
            self.state.masked, 7 + sure * torch.randn_like(self.state.x), self.state.x
        )

    def squared_errors(self, x0: Tensor, target_mask: Tensor) -> Tensor:
        raise NotImplementedError


def test_the_surest_regions_come_first() -> None:
    space = FeatureSpace(8, 2)
    process = MaskedRegionProcess(
        space, TimestepSampling(LogLinear().build()), exact=True
    )
    like = Clean.of(
        torch.zeros(5, 8, 2),
        known=torch.zeros(5, 8, 2, dtype=torch.bool).index_fill(
            1, torch.tensor(3), True
        ),
    )
    session = Ladder(process)
    states = list(
        OrderedRegions(by="spread", steps=7, draws=64).build()(process, session, like)
    )
    orders = [(state != 0).any(-1).sum(1).tolist() for state in states]
    assert orders == [[k] * 5 for k in range(1, 8)]
    first = [torch.nonzero((state[0] != 0).any(-1))[:, 0].tolist() for state in states]
    assert first[:3] == [[0], [0, 1], [0, 1, 2]]
    assert first[-1] == [0, 1, 2, 4, 5, 6, 7]
    assert session.told == pytest.approx(
        [k / 7 / 0.999 for k in range(7, 0, -1)], abs=2e-3
    )


@pytest.mark.parametrize(("by", "spread"), [("random", True), ("spread", False)])
def test_without_spread_the_order_is_random(by: str, spread: bool) -> None:
    process = MaskedRegionProcess(
        FeatureSpace(8, 2), TimestepSampling(LogLinear().build())
    )
    like = Clean.of(torch.zeros(4_000, 8, 2))
    first = next(
        OrderedRegions(by=by, steps=8).build()(process, Ladder(process, spread), like)
    )
    counts = (first != 0).any(-1).float().mean(0)
    torch.testing.assert_close(counts, torch.full((8,), 1 / 8), rtol=0, atol=0.025)


def test_times_next_to_each_other_do_no_harm(normal) -> None:
    """Under zero terminal SNR the first times of a log-SNR grid may fall together."""
    specs = (
        {"use": "linear-beta", "zero_snr": True},
        {"use": "linear-sigma", "sigma_max": 100.0},
    )
    for schedule in (
        default_catalog().parse("schedule", spec).build() for spec in specs
    ):
        process = process_of(schedule=schedule)
        sampler, like = (
            DPMSolver(steps=20, spacing="log-snr").build(),
            Clean.of(torch.zeros(2, 3, 2)),
        )
        *_, last = sampler(process, normal(process), like)
        assert last.isfinite().all()


class Correlated:
    """The exact denoiser of normal pairs with mean (1, -2), unit variances and correlation .5."""

    mean = torch.tensor([1.0, -2.0], dtype=torch.float64)
    cov = torch.tensor([[1.0, 0.5], [0.5, 1.0]], dtype=torch.float64)

    def __init__(self, process: GaussianProcess) -> None:
        self.process = process

    def __call__(self, state: State, t: Tensor):
        noise = self.process.schedule(t)
        a, b = self.process.scales(noise, state.x)
        scale = a.flatten()[0]
        seen = scale**2 * self.cov + b.flatten()[0] ** 2 * torch.eye(2)
        gain = scale * self.cov @ torch.linalg.inv(seen)
        x0 = self.mean + (state.x - a * self.mean) @ gain.T
        eps = (state.x - a * x0) / b.clamp_min(1e-14)
        velocity = eps - x0 if self.process.linear_path else a * eps - b * x0
        return self.process.read(velocity, state, noise)

    def flow(self, noise: Tensor) -> Tensor:
        """mean + cov^(1/2) eps, where the probability flow leads from eps."""
        values, vectors = torch.linalg.eigh(self.cov)
        return self.mean + noise @ vectors @ torch.diag(values.sqrt()) @ vectors.T


SCHEDULES = [
    component.name
    for component in register_components()
    if issubclass(component, ScheduleSpec)
]


@pytest.mark.slow
@pytest.mark.parametrize("name", ["gaussian", "flow-matching"])
@pytest.mark.parametrize(
    ("sampler", "options", "schedules"),
    [
        ("ode", {"steps": 12}, SCHEDULES),
        ("ddim", {"steps": 400, "spacing": "linspace"}, ["cosine"]),
        ("dpm-solver", {"steps": 100, "spacing": "log-snr"}, ["cosine"]),
    ],
)
def test_samplers_keep_mean_and_covariance(
    part, name: str, sampler: str, options: dict, schedules: list[str]
) -> None:
    """From the noise of the prior to the data, under every schedule, with an exact denoiser."""
    like = Clean.of(torch.zeros(100, 1, 2, dtype=torch.float64))
    for schedule in schedules:
        spec = part("process", name, schedule=schedule, predict="velocity")
        process = spec.build(FeatureSpace(1, 2))
        torch.manual_seed(0)
        start = process.prior(like).x[:, 0]
        torch.manual_seed(0)
        *_, x = part("sampler", sampler, **options).build()(
            process, Correlated(process), like
        )
        expected = Correlated(process).flow(start)
        mean = x[:, 0].mean(0) - expected.mean(0)
        covariance = torch.cov(x[:, 0].T) - torch.cov(expected.T)
        assert mean.abs().max() < 0.002, schedule
        assert covariance.abs().max() < 0.015, schedule


def test_the_signal_of_eps_that_is_lost_is_warned_of(part) -> None:
    """No x_0 follows from eps alone: the schedule stays, and the mean that sampling loses is stated."""
    space = FeatureSpace(1, 2)
    assert not list(part("process", "gaussian", predict="eps").warn(space))
    spec = part("process", "gaussian", predict="eps", schedule="cosine")
    (misfit,) = spec.warn(space)
    assert misfit.path == ("schedule",)
    assert "3.2 %" in misfit.message
    asked = part("process", "gaussian", predict="eps", zero_snr=True)
    (misfit,) = asked.check(space)
    assert misfit.path == ("zero_snr",)


def test_a_rescaled_schedule_has_the_slope_of_its_sigma(part) -> None:
    spec = part("process", "gaussian", schedule="cosine", predict="velocity")
    t = torch.linspace(1e-6, 0.999, 50, dtype=torch.float64)
    schedule = spec.build_schedule()
    step = 1e-7
    slope = (schedule(t + step).sigma - schedule(t - step).sigma) / (2 * step)
    torch.testing.assert_close(schedule(t).rate, slope, rtol=1e-3, atol=1e-5)
    assert schedule(t[:1]).sigma.item() > 0
    end = schedule(torch.ones(1)).sigma.item()
    assert end == pytest.approx(spec.sigma_end()) == 64
