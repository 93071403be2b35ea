"""Schedules, noise, targets, SNR and every step equal those of diffusers, to the precision of its float32.

Only its schedulers are imported. Its time step i of T is t = (i + 1) / T here.
"""

import math

import pytest
import torch
from diffusers.schedulers.scheduling_ddim import DDIMScheduler
from diffusers.schedulers.scheduling_ddpm import DDPMScheduler
from diffusers.schedulers.scheduling_dpmsolver_multistep import (
    DPMSolverMultistepScheduler,
)
from diffusers.schedulers.scheduling_repaint import RePaintScheduler
from torch import Tensor

from dither.processes.features.gaussian import GaussianProcess
from dither.processes.samplers.ddim import DDIM
from dither.processes.samplers.dpm_solver import DPMSolver
from dither.processes.samplers.repaint import RePaint, visits
from dither.processes.schedules.betas import (
    MAX_SIGMA,
    CosineBeta,
    LinearBeta,
    ScaledLinearBeta,
    SigmoidBeta,
)
from dither.processes.timestep_sampling import TimestepSampling, spaced_times
from dither.registry.contracts.records import Clean, State
from dither.registry.contracts.spaces import FeatureSpace

pytestmark = pytest.mark.filterwarnings(
    "ignore:__array__ implementation:DeprecationWarning"
)  # inside of diffusers

T = 1000
SPACE = FeatureSpace(5, 3)
TABLES = {
    "linear": (LinearBeta, {"first": 1e-4, "last": 0.02}),
    "scaled_linear": (ScaledLinearBeta, {"first": 8.5e-4, "last": 0.012}),
    "sigmoid": (SigmoidBeta, {"first": 1e-4, "last": 0.02}),
    "squaredcos_cap_v2": (CosineBeta, {}),
}
MEANINGS = {"x0": "sample", "eps": "epsilon", "velocity": "v_prediction"}
PRECISE = {"rtol": 1e-4, "atol": 2e-5}
"""A product of a thousand float32 numbers has lost about four digits at its end."""
LOOSE = 2e-3
"""Of walks under the cosine, whose first steps begin at an alpha of 1e-9."""


def theirs(scheduler, table: str = "linear", predict: str = "x0", **options):
    _, ends = TABLES[table]
    if ends:
        options |= {"beta_start": ends["first"], "beta_end": ends["last"]}
    if scheduler is not RePaintScheduler:
        options |= {"prediction_type": MEANINGS[predict]}
    if scheduler is not DPMSolverMultistepScheduler:
        options |= {"clip_sample": False}
    if table == "sigmoid" and scheduler not in (
        DDPMScheduler,
        RePaintScheduler,
    ):  # the others have no such table
        trained = theirs(DDPMScheduler, table).betas.numpy()
        return scheduler(num_train_timesteps=T, trained_betas=trained, **options)
    return scheduler(num_train_timesteps=T, beta_schedule=table, **options)


def ours(
    table: str = "linear", predict: str = "x0", zero_snr: bool = False
) -> GaussianProcess:
    spec, options = TABLES[table]
    return GaussianProcess(
        SPACE,
        TimestepSampling(spec(steps=T, zero_snr=zero_snr, **options).build()),
        predict,
    )


def time_of(index: Tensor) -> Tensor:
    return (index.double() + 1) / T


@pytest.mark.parametrize("zero_snr", [False, True])
@pytest.mark.parametrize("table", TABLES)
def test_alpha_bar_at_every_step(table: str, zero_snr: bool) -> None:
    expected = theirs(
        DDIMScheduler, table, rescale_betas_zero_snr=zero_snr
    ).alphas_cumprod.double()
    alpha = (
        -ours(table, zero_snr=zero_snr).schedule(time_of(torch.arange(T))).sigma
    ).exp()
    torch.testing.assert_close(
        alpha, expected, rtol=2e-3 if zero_snr else 2e-4, atol=2e-6
    )
    assert (alpha[-1] < 1e-20) == zero_snr


@pytest.mark.parametrize("table", TABLES)
def test_noise_velocity_and_snr(table: str) -> None:
    scheduler, process = theirs(DDPMScheduler, table), ours(table, "velocity")
    index = torch.tensor([0, 1, 10, 400, 998, 999])
    clean = Clean.of(torch.randn(6, 5, 3))
    noised = process.corrupt(clean, time_of(index).float())
    eps, x = noised.eps, noised.state.x
    torch.testing.assert_close(x, scheduler.add_noise(clean.x0, eps, index), **PRECISE)
    velocity = scheduler.get_velocity(clean.x0, eps, index)
    read = process.read(velocity, noised.state, noised.noise)
    torch.testing.assert_close(read.x0, clean.x0, **PRECISE)
    torch.testing.assert_close(read.eps, eps, **PRECISE)
    bar = scheduler.alphas_cumprod[index].double()
    snr = (noised.noise.alpha(x) / noised.noise.one_minus_alpha(x))[:, 0, 0].double()
    torch.testing.assert_close(
        snr, bar / (1 - bar), rtol=5e-3, atol=0
    )  # 1 - bar has lost three digits at step 0


def stand_in(state: State, t: Tensor) -> Tensor:
    """Some smooth function of a state and a time, in the place of a model."""
    return torch.sin(2 * state.x + 3 * t[:, None, None]) + 0.1 * state.x


def walk(sampler, process: GaussianProcess, like: Clean) -> list[Tensor]:
    def session(state: State, t: Tensor):
        return process.read(stand_in(state, t), state, process.schedule(t))

    torch.manual_seed(0)
    return list(sampler(process, session, like))


def their_walk(scheduler, like: Clean, **options) -> list[Tensor]:
    """Walk over the time steps that the scheduler was set to."""
    torch.manual_seed(0)
    x, states = torch.randn_like(like.x0), []
    for i in scheduler.timesteps:
        x = scheduler.step(
            stand_in(State.of(x), time_of(i).expand(len(x)).float()), i, x, **options
        ).prev_sample
        states.append(x)
    return states


def agree(found: list[Tensor], expected: list[Tensor], tight: float = 2e-4) -> None:
    """Float32 keeps seven digits of a number; a walk and a table of a thousand products lose the rest."""
    assert len(found) == len(expected)
    for mine, other in zip(found, expected, strict=True):
        torch.testing.assert_close(
            mine, other, rtol=tight, atol=tight * float(other.abs().max().clamp_min(1))
        )


@pytest.mark.parametrize(
    ("table", "predict"),
    # not the cosine table with eps, where x_0 is divided by 1e-5 at the last step, in float32
    [
        (t, p)
        for t in TABLES
        for p in MEANINGS
        if (t, p) != ("squaredcos_cap_v2", "eps")
    ],
)
@pytest.mark.parametrize("eta", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("spacing", ["trailing", "leading"])
def test_ddim(table: str, predict: str, eta: float, spacing: str) -> None:
    like = Clean.of(torch.zeros(4, 5, 3))
    scheduler = theirs(DDIMScheduler, table, predict, timestep_spacing=spacing)
    scheduler.set_timesteps(10)
    walked = walk(
        DDIM(steps=10, eta=eta, spacing=spacing, t_min=1 / T).build(),
        ours(table, predict),
        like,
    )
    agree(
        walked,
        their_walk(scheduler, like, eta=eta),
        LOOSE if table == "squaredcos_cap_v2" else 2e-4,
    )


@pytest.mark.parametrize("predict", MEANINGS)
@pytest.mark.parametrize("spacing", ["trailing", "leading", "linspace"])
def test_ddpm(predict: str, spacing: str) -> None:
    like, steps = (
        Clean.of(torch.zeros(4, 5, 3)),
        28 if spacing == "linspace" else 20,
    )  # 27 divides 999
    scheduler = theirs(DDPMScheduler, "linear", predict, timestep_spacing=spacing)
    scheduler.set_timesteps(steps)
    agree(
        walk(
            DDIM(steps=steps, eta=1.0, spacing=spacing, t_min=1 / T).build(),
            ours("linear", predict),
            like,
        ),
        their_walk(scheduler, like),
    )


@pytest.mark.parametrize("table", TABLES)
@pytest.mark.parametrize(
    ("predict", "zero_snr"),
    # no x_0 follows from eps where there is no signal
    [
        (p, zero)
        for p in MEANINGS
        for zero in (False, True)
        if not (zero and p == "eps")
    ],
)
def test_dpm_solver(table: str, predict: str, zero_snr: bool) -> None:
    """First and second order, on all grids; the last step, to clean data, is of first order in both."""
    like, process = Clean.of(torch.zeros(4, 5, 3)), ours(table, predict, zero_snr)
    for order, spacing, steps in (
        (1, "trailing", 10),
        (2, "trailing", 20),
        (2, "leading", 20),
        (2, "linspace", 28),
    ):
        options = {
            "timestep_spacing": "trailing",
            "solver_order": order,
            "rescale_betas_zero_snr": zero_snr,
        }
        scheduler = theirs(DPMSolverMultistepScheduler, table, predict, **options)
        if zero_snr:
            scheduler.alphas_cumprod[-1] = math.exp(
                -MAX_SIGMA
            )  # theirs leaves 2^-24 there
        grid = spaced_times(process.schedule, steps, spacing, 1 / T) * T - 1
        scheduler.set_timesteps(
            timesteps=grid.round().long().tolist()
        )  # its own grids lie otherwise but for trailing
        if spacing == "trailing":
            own = theirs(DPMSolverMultistepScheduler, table, predict, **options)
            own.set_timesteps(steps)
            assert torch.equal(own.timesteps, scheduler.timesteps)
        walked = walk(
            DPMSolver(steps=steps, order=order, spacing=spacing, t_min=1 / T).build(),
            process,
            like,
        )
        agree(
            walked,
            their_walk(scheduler, like),
            LOOSE if table == "squaredcos_cap_v2" else 2e-4,
        )


@pytest.mark.parametrize("predict", ["x0", "velocity"])
@pytest.mark.parametrize("table", TABLES)
def test_ddim_from_no_signal_at_all(table: str, predict: str) -> None:
    """Zero terminal SNR; with eta = 1 theirs takes the root of -1e-8 under two of the tables."""
    like = Clean.of(torch.zeros(4, 5, 3))
    for eta in (0.0, 0.5, 1.0):
        scheduler = theirs(
            DDIMScheduler,
            table,
            predict,
            timestep_spacing="trailing",
            rescale_betas_zero_snr=True,
        )
        scheduler.set_timesteps(10)
        walked = walk(
            DDIM(steps=10, eta=eta, spacing="trailing", t_min=1 / T).build(),
            ours(table, predict, True),
            like,
        )
        assert all(state.isfinite().all() for state in walked)
        if eta < 1:
            agree(walked, their_walk(scheduler, like, eta=eta))


@pytest.mark.parametrize("eta", [0.0, 1.0])
def test_repaint_steps(eta: float) -> None:
    """Without jumps: of these, diffusers adds the noise of other steps than it takes back where it skips any."""
    like = Clean.of(torch.randn(4, 5, 3), known=torch.rand(4, 5, 3) < 0.5)
    scheduler = theirs(RePaintScheduler, eta=eta)
    scheduler.set_timesteps(20, jump_length=20, jump_n_sample=1)
    scheduler.eta = eta
    known = like.known.float()
    torch.manual_seed(0)
    x, expected = torch.randn_like(like.x0), []
    for i in scheduler.timesteps:
        raw = stand_in(State.of(x), time_of(i).expand(4).float())
        x = scheduler.step(raw, i, x, like.x0, known).prev_sample
        expected.append(torch.where(like.known, like.x0, x))
    agree(
        walk(
            RePaint(
                steps=20, jump=20, visits=1, eta=eta, spacing="leading", t_min=1 / T
            ).build(),
            ours(predict="eps"),
            like,
        ),
        expected,
    )


@pytest.mark.parametrize(
    ("steps", "jump", "times"), [(250, 10, 10), (100, 7, 3), (20, 30, 2)]
)
def test_repaint_jumps(steps: int, jump: int, times: int) -> None:
    scheduler = theirs(RePaintScheduler)
    scheduler.set_timesteps(steps, jump_length=jump, jump_n_sample=times)
    assert [
        i * (T // steps) for i in visits(steps, jump, times)
    ] == scheduler.timesteps.tolist()
