"""SDE-DPM-Solver++ and EDM's Heun equal those of diffusers, given the same noise and times."""

import pytest
import torch
from diffusers.schedulers.scheduling_dpmsolver_multistep import (
    DPMSolverMultistepScheduler,
)
from diffusers.schedulers.scheduling_heun_discrete import HeunDiscreteScheduler
from diffusers.schedulers.scheduling_unipc_multistep import UniPCMultistepScheduler

from dither.registry import FeatureSpace, default_catalog
from dither.registry.contracts.records import Clean, State
from dither.registry.contracts.spaces import ModelFacts

T = 1000
SPACE = FeatureSpace(5, 3)
LIKE = Clean.of(torch.zeros(4, 5, 3))
BETAS = {"beta_start": 1e-4, "beta_end": 0.02, "beta_schedule": "linear"}
PREDICT = {"x0": "sample", "eps": "epsilon", "velocity": "v_prediction"}

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)


def build(kind, use, *args, **options):
    return default_catalog().parse(kind, {"use": use, **options}).build(*args)


def process_of(predict, use="gaussian", **options):
    schedule = options.pop("schedule", "linear-beta")
    if use == "gaussian":
        options["zero_snr"] = False
    return build("process", use, SPACE, schedule=schedule, predict=predict, **options)


def model_output(x, t):
    return torch.sin(2 * x + 3 * t) + 0.1 * x


def walk(sampler, process):
    def session(state: State, t):
        raw = model_output(state.x, t[:, None, None])
        return process.read(raw, state, process.schedule(t))

    torch.manual_seed(0)
    return list(sampler(process, session, LIKE))


def assert_steps_equal(states, scheduler, predict):
    """Compare with a scheduler whose random numbers are those of `walk`."""
    torch.manual_seed(0)
    x = torch.randn(4, 5, 3)
    for index, state in zip(scheduler.timesteps, states, strict=True):
        output = model_output(x, (index.item() + 1) / T)
        x = scheduler.step(output, index, x).prev_sample
        # The division of eps by small signals loses a digit of float32.
        tolerance = 1e-3 if predict == "eps" else 1e-4
        assert torch.allclose(
            state, x, atol=tolerance * x.abs().max().item(), rtol=tolerance
        )


@pytest.mark.parametrize("predict", PREDICT)
def test_dpm_solver_sde_equals_diffusers(predict):
    scheduler = DPMSolverMultistepScheduler(
        **BETAS,
        prediction_type=PREDICT[predict],
        algorithm_type="sde-dpmsolver++",
        timestep_spacing="trailing",
    )
    scheduler.set_timesteps(20)
    states = walk(build("sampler", "dpm-solver-sde", steps=20), process_of(predict))
    assert len(states) == 20
    assert_steps_equal(states, scheduler, predict)


@pytest.mark.parametrize("order", [1, 2, 3])
@pytest.mark.parametrize("predict", PREDICT)
def test_unipc_equals_diffusers(predict, order):
    scheduler = UniPCMultistepScheduler(
        **BETAS,
        prediction_type=PREDICT[predict],
        solver_order=order,
        timestep_spacing="trailing",
    )
    scheduler.set_timesteps(10)
    sampler = build("sampler", "unipc", steps=10, order=order)
    states = walk(sampler, process_of(predict))
    assert len(states) == 10
    assert_steps_equal(states, scheduler, predict)


def test_heun_equals_diffusers():
    scheduler = HeunDiscreteScheduler(
        **BETAS, prediction_type="sample", use_karras_sigmas=True
    )
    scheduler.set_timesteps(12)
    levels = scheduler.sigmas[scheduler.sigmas > 0].double()
    process = process_of("x0")
    ends = {"level_max": levels[0].item(), "level_min": levels[-1].item()}
    states = walk(build("sampler", "heun", steps=12, **ends), process)

    torch.manual_seed(0)
    y = torch.randn(4, 5, 3) * (1 + levels[0].float() ** 2).sqrt()
    found = []
    for index, level in zip(scheduler.timesteps, scheduler.sigmas, strict=False):
        # x = y / sqrt(1 + level^2) at the time of the level
        noise = level.double() ** 2 / (1 + level.double() ** 2)
        t = time_of_noise(process, noise)
        # At a second call the level is that of the end of the step.
        x = scheduler.scale_model_input(y, index)
        output = model_output(x, t)
        y = scheduler.step(output, index, y).prev_sample
        if scheduler.state_in_first_order:
            after = levels[2 * len(found) + 1].float()
            found.append(y / (1 + after**2).sqrt())
    # The last step is that of Euler, to clean data.
    found.append(y)
    assert len(found) == len(states) == 12
    for theirs, ours in zip(found, states, strict=True):
        assert torch.allclose(ours, theirs, atol=1e-4)


def test_levels_of_heun_do_not_repeat_that_of_t_1():
    process = process_of("x0")
    times = []

    def session(state: State, t):
        times.append(t[0].item())
        return process.read(model_output(state.x, 0), state, process.schedule(t))

    list(build("sampler", "heun", steps=6, level_max=1e4)(process, session, LIKE))
    assert len(set(times)) == 6
    assert times[0] == pytest.approx(1)


def time_of_noise(process, noise):
    low, high = 0.0, 1.0
    for _ in range(60):
        middle = (low + high) / 2
        sigma = process.schedule(torch.tensor([middle], dtype=torch.float64)).sigma
        if 1 - (-sigma).exp() < noise:
            low = middle
        else:
            high = middle
    return low


def normal_session(process):
    """The exact model of values of mean 2 and deviation 0.5."""

    def session(state: State, t):
        noise = process.schedule(t)
        a, b = process.scales(noise, state.x)
        gain = a * 0.25 / (a**2 * 0.25 + b**2)
        return process.read(2 + gain * (state.x - 2 * a), state, noise)

    return session


@pytest.mark.parametrize("order", [2, 3])
@pytest.mark.parametrize("use", ["gaussian", "flow-matching"])
def test_unipc_passes_times_of_equal_noise(use, order):
    """Even log-SNR has several times next to 1 that are one number in float32."""
    process = build("process", use, SPACE, schedule="polynomial", predict="x0")
    sampler = build("sampler", "unipc", order=order, steps=40, spacing="log-snr")
    torch.manual_seed(0)
    like = Clean.of(torch.zeros(4000, 5, 3))
    *_, x = sampler(process, normal_session(process), like)
    assert x.mean().item() == pytest.approx(2, abs=0.02)
    assert x.std().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", ["heun", "dpm-solver-sde", "unipc"])
@pytest.mark.parametrize("use", ["gaussian", "flow-matching"])
def test_exact_model_of_a_normal_distribution(name, use):
    """Data of mean 2 and deviation 0.5 come back, also along straight lines."""
    options = {"predict": "x0"}
    if use == "gaussian":
        options["schedule"] = "cosine"
    process = build("process", use, SPACE, **options)
    like = Clean.of(torch.zeros(4000, 5, 3))
    session = normal_session(process)
    torch.manual_seed(0)
    sampler = build("sampler", name, steps=40)
    *_, x = sampler(process, session, like)
    assert x.mean().item() == pytest.approx(2, abs=0.02)
    assert x.std().item() == pytest.approx(0.5, abs=0.02)


@pytest.mark.parametrize("name", ["heun", "dpm-solver-sde", "unipc"])
def test_other_processes_are_rejected(name):
    spec = default_catalog().parse("sampler", name)
    masked = default_catalog().parse("process", "masked-region").facts(SPACE)
    (misfit,) = spec.check(masked, ModelFacts())
    assert misfit.code == "process-mismatch"
