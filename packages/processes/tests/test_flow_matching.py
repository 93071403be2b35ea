"""Flow matching against closed forms, flow_matching (Lipman et al. 2024), diffusers and exact denoisers."""

from typing import Any

import pytest
import torch
from diffusers.schedulers.scheduling_flow_match_euler_discrete import (
    FlowMatchEulerDiscreteScheduler,
)
from torch import Tensor

from dither.losses.tokens import flow_kl
from dither.processes.features.gaussian import GaussianProcess
from dither.processes.flow_matching.process import FlowMatchingProcess
from dither.processes.flow_matching.specs import Kappa, RectifiedFlow
from dither.processes.samplers.discrete_flow import DiscreteFlow
from dither.processes.schedules.betas import LinearBeta
from dither.processes.timestep_sampling import TimestepSampling
from dither.processes.tokens.prediction import CategoricalPrediction
from dither.registry.contracts.records import Clean, State
from dither.registry.contracts.spaces import FeatureSpace, Field, TokenSpace

SPACE = FeatureSpace(3, 2)
MEAN, STD = 3.0, 0.5


def flow(
    predict: Any = "velocity", shift: float = 1.0, **options: Any
) -> FlowMatchingProcess:
    return FlowMatchingProcess(
        SPACE, TimestepSampling(RectifiedFlow(shift=shift).build()), predict, **options
    )


def diffusion(predict: Any) -> GaussianProcess:
    return GaussianProcess(SPACE, TimestepSampling(LinearBeta().build()), predict)


def curved(x: Tensor, t: Tensor) -> Tensor:
    """A velocity that is neither linear nor symmetric."""
    return torch.tanh(x * (1 + t) + 0.3 * t) - 0.5 * x.flip(1)


def last(sampler: Any, process: Any, session: Any, like: Clean) -> Tensor:
    torch.manual_seed(1)
    (*_, x) = sampler(process, session, like)
    return x


def start(process: Any, like: Clean) -> Tensor:
    torch.manual_seed(1)
    return process.prior(like).x


def velocity_session(process: Any) -> Any:
    def session(state: State, t: Tensor) -> Any:
        return process.read(
            curved(state.x, t[:, None, None]), state, process.schedule(t)
        )

    return session


@pytest.mark.parametrize(
    ("solver", "method"),
    [("euler", "euler"), ("midpoint", "midpoint"), ("heun", "heun2")],
)
def test_solvers_equal_flow_matching(part, solver: str, method: str) -> None:
    from flow_matching import solver as library

    process = flow()
    like = Clean.of(torch.zeros(4, 3, 2, dtype=torch.float64))
    sampler = part("sampler", "ode", solver=solver, steps=8, t_min=0.0).build()
    ours = last(sampler, process, velocity_session(process), like)

    def model(x: Tensor, t: Tensor) -> Tensor:  # their time runs from noise to data
        return -curved(x, 1 - t)

    theirs = library.ODESolver(model).sample(
        start(process, like), step_size=1 / 8, method=method
    )
    torch.testing.assert_close(
        ours, theirs, rtol=1e-6, atol=1e-7
    )  # their grid is in float32


def test_dopri5_is_the_limit_of_heun(part) -> None:
    process, like = flow(), Clean.of(torch.zeros(4, 3, 2, dtype=torch.float64))
    fine, adaptive = (
        last(
            part("sampler", "ode", t_min=0.0, **options).build(),
            process,
            velocity_session(process),
            like,
        )
        for options in (
            {"steps": 300},
            {"steps": 2, "solver": "dopri5", "tolerance": 1e-7},
        )
    )
    torch.testing.assert_close(adaptive, fine, rtol=0, atol=1e-5)


@pytest.mark.parametrize("shift", [1.0, 3.0])
def test_euler_equals_diffusers(part, shift: float) -> None:
    """One more call at the last time, which the sampler makes for its clean sample, is an Euler step to 0."""
    steps, process, like = 10, flow(shift=shift), Clean.of(torch.zeros(4, 3, 2))
    scheduler = FlowMatchEulerDiscreteScheduler(num_train_timesteps=1000, shift=shift)
    scheduler.set_timesteps(sigmas=[1 - i / steps for i in range(steps)])
    x = start(process, like)
    for t, u in zip(scheduler.timesteps, scheduler.sigmas, strict=False):
        x = scheduler.step(curved(x, u), t, x).prev_sample

    def session(state: State, t: Tensor) -> Any:
        u = shift * t / (1 + (shift - 1) * t)
        return process.read(
            curved(state.x, u[:, None, None]), state, process.schedule(t)
        )

    ours = last(part("sampler", "ddim", steps=steps).build(), process, session, like)
    torch.testing.assert_close(ours, x, rtol=1e-4, atol=1e-5)


@pytest.mark.parametrize("t", [0.0, 1e-3, 0.4, 0.999, 1.0])
@pytest.mark.parametrize("predict", ["velocity", "x0"])
def test_the_path_is_a_straight_line(predict: str, t: float) -> None:
    process, clean = flow(predict), Clean.of(torch.randn(5, 3, 2, dtype=torch.float64))
    noised = process.corrupt(clean, torch.full((5,), t, dtype=torch.float64))
    torch.testing.assert_close(
        noised.state.x, (1 - t) * clean.x0 + t * noised.eps, rtol=0, atol=1e-13
    )
    raw = {"velocity": noised.eps - clean.x0, "x0": clean.x0}[predict]
    pred = process.read(raw, noised.state, noised.noise)
    torch.testing.assert_close(pred.x0, clean.x0, rtol=0, atol=1e-12)
    if predict == "velocity" or t > 0:
        torch.testing.assert_close(pred.eps, noised.eps, rtol=0, atol=1e-9)


@pytest.mark.slow
@pytest.mark.parametrize(
    ("sampler", "options"),
    [
        ("ode", {"steps": 100}),
        ("ode", {"steps": 200, "solver": "midpoint"}),
        ("ddim", {"steps": 500, "spacing": "linspace"}),
        ("dpm-solver", {"steps": 100, "spacing": "log-snr"}),
    ],
)
@pytest.mark.parametrize(
    "process", [flow("velocity"), flow("x0", shift=3.0), diffusion("eps")]
)
def test_flows_move_each_value_to_its_quantile(
    part, normal, process: GaussianProcess, sampler: str, options: dict
) -> None:
    """The probability flow of normal data maps eps to mean + std eps; also next to known values."""
    known = torch.zeros(50, 3, 2, dtype=torch.bool)
    known[:, 0] = True
    like = Clean.of(torch.full((50, 3, 2), 7.0, dtype=torch.float64), known=known)
    x, noise = (
        last(
            part("sampler", sampler, **options).build(), process, normal(process), like
        ),
        start(process, like),
    )
    expected = torch.where(known, 7.0, MEAN + STD * noise)
    slack = {"ddim": 0.02, "dpm-solver": 0.008, "ode": 0.004}[sampler]
    if process.schedule(torch.ones(1)).sigma < 30:  # the signal left at t = 1
        slack += 0.03
    torch.testing.assert_close(x, expected, rtol=0, atol=slack)


@pytest.mark.parametrize("corrector", [0.0, 1.5])
def test_a_step_jumps_with_the_integrated_rates(
    likely, process_of, monkeypatch, corrector: float
) -> None:
    """From x_t = 1 with p(x_0 | x_t) given: to y at the rates of the module, over one step from t = 1 to .5."""
    n, process = 20_000, process_of("marginal", TokenSpace((Field("text", 1, 3),)))
    p, prior = torch.tensor([0.5, 0.2, 0.3]), process.prior_probs()[0]
    now, then = (process.schedule(torch.full((n,), t)) for t in (1.0, 0.5))

    def session(state: State, t: Tensor, at: Tensor) -> CategoricalPrediction:
        return process.read(p.log().expand(n, 1, 3), state, process.schedule(t)).at(at)

    like = Clean.of(torch.zeros(n, 1).long())
    start = State.of(torch.ones(n, 1).long())
    monkeypatch.setattr(process, "prior", prior_once(process.prior, start))
    x, _ = DiscreteFlow(corrector=corrector, steps=1, t_min=0.5).build()(
        process, session, like
    )
    lost = [1 - float((-noise.sigma[0]).exp()) for noise in (now, then)]
    forward = (1 + corrector) * torch.tensor(lost[0] / lost[1]).log()
    back = corrector * (now.sigma[0] - then.sigma[0])
    jumps = (
        (1 - (-forward - back).exp()) * (forward * p + back * prior) / (forward + back)
    )
    jumps[1] += 1 - jumps.sum()
    assert likely(x, jumps) > 1e-3


def prior_once(prior, start: State):
    """Return a prior whose first state is `start`."""
    starts = [start]
    return lambda like: starts.pop() if starts else prior(like)


@pytest.mark.parametrize("power", [1.0, 2.0, 3.0])
def test_mixture_paths_equal_flow_matching(process_of, power: float) -> None:
    """kappa with its derivative, the velocity, and the generalised KL loss, on the same model."""
    from flow_matching import loss as losses
    from flow_matching import path as paths
    from flow_matching.path import scheduler as schedulers

    path = paths.MixtureDiscreteProbPath(schedulers.PolynomialConvexScheduler(n=power))
    process = process_of(
        "uniform",
        TokenSpace((Field("text", 4, 5),)),
        schedule=Kappa(power=power, eps=1e-12).build(),
    )
    clean, raw = (
        Clean.of(torch.randint(0, 5, (6, 4))),
        torch.randn(6, 4, 5, dtype=torch.float64),
    )
    t = torch.rand(6, dtype=torch.float64) * 0.8 + 0.1
    noised = process.corrupt(clean, t)
    theirs = path.scheduler(1 - t)
    alpha = (-noised.noise.sigma).exp()
    rate = noised.noise.rate * alpha / (1 - alpha)
    torch.testing.assert_close(alpha, theirs.alpha_t, rtol=1e-9, atol=1e-11)
    torch.testing.assert_close(
        rate, theirs.d_alpha_t / (1 - theirs.alpha_t), rtol=1e-9, atol=0
    )
    pred, x = process.read(raw, noised.state, noised.noise), noised.state.x
    ours = rate[:, None, None] * (
        pred.log_clean().exp() - torch.nn.functional.one_hot(x, 5)
    )
    torch.testing.assert_close(
        ours, path.posterior_to_velocity(raw, x, 1 - t), rtol=1e-9, atol=1e-11
    )
    expected = losses.MixturePathGeneralizedKL(path, reduction="none")(
        raw, clean.x0, x, 1 - t
    )
    torch.testing.assert_close(
        flow_kl(pred, noised).values, expected, rtol=1e-9, atol=1e-11
    )
