"""Integrates the probability flow of Gaussian diffusion and flow matching (Song et al. 2021; Lipman et al. 2022).

With factors a of x_0 and b of eps, z = x / (a + b) follows dz/du = eps - x_0 in u = b / (a + b),
for every schedule and without a singularity; flow matching has z = x. Letters: B batch, L length, M
features, K times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from importlib.util import find_spec
from itertools import pairwise
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts
from dither.registry.plugins.install_command import install_command

from .options import ProcessSampler, no_effect

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.contracts.protocols import GaussianProcess, Session
    from dither.registry.contracts.records import Clean

__all__ = ["ODE"]

Velocity = Callable[["Tensor", "Tensor"], "Tensor"]


class ODE(ProcessSampler):
    """Follow the probability flow of process "flow-matching" or "gaussian" from noise to data, without new noise."""

    name = "ode"
    requires = "gaussian"
    solver: Literal["euler", "midpoint", "heun", "dopri5"] = "heun"
    """euler: one call of the model a step. midpoint, heun: two, of second order. dopri5: adaptive
    steps of fifth order (Dormand and Prince), which requires torchdiffeq."""
    steps: int = Field(20, ge=1, le=1_000_000)
    """Equal steps in u from 1 to its value at t_min; with dopri5 the number of states yielded."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Time of the last state; from there the predicted clean sample is taken."""
    tolerance: float = Field(1e-5, ge=1e-12, le=0.1)
    """Relative and absolute tolerance of a step of dopri5."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a process that adds Gaussian noise, and an installed solver."""
        yield from super().check(process, model)
        if self.solver != "dopri5":
            yield from no_effect(
                self,
                ("tolerance",),
                f'with solver = "{self.solver}"',
                'set solver = "dopri5"',
            )
        elif find_spec("torchdiffeq") is None:
            fix = (
                f'{install_command("dither-processes", "ode")}; or set solver = "heun"'
            )
            yield Misfit(
                'solver "dopri5" requires torchdiffeq',
                ("solver",),
                help=fix,
                code="missing-dependency",
            )
        if self.t_min == 0 and process.predict == "x0":
            message = 'the velocity at t_min = 0 does not follow from predict = "x0"'
            yield Misfit(
                message, ("t_min",), ("process", "predict"), "set t_min = 1e-3"
            )

    def sample(
        self, process: GaussianProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        import torch

        from dither.registry.contracts.records import Noise

        from ..flow_matching.process import path_norm
        from ..precision import one_minus_exp, wide_dtype
        from ..timestep_sampling import time_of

        device = like.x0.device
        dtype = wide_dtype(device)
        state = process.prior(like)
        moves = state.noisy
        if moves is None:
            moves = ~like.fixed

        def factor(u: Tensor) -> Tensor:
            """Return x / z: 1 / sqrt(u^2 + (1 - u)^2), or 1 on the straight line of flow matching."""
            if process.linear_path:
                return torch.ones_like(u)
            return 1 / (u.square() + (1 - u).square()).sqrt()

        def time(u: Tensor) -> Float[Tensor, " B"]:
            """Return t with sqrt(1 - alpha) / sqrt(alpha) = u / (1 - u)."""
            one_minus_alpha = u.square() / (u.square() + (1 - u).square())
            t = time_of(process.schedule, one_minus_alpha)
            return t.to(like.x0.dtype).expand(len(like.valid))

        def velocity(u: Tensor, z: Float[Tensor, "B L M"]) -> Float[Tensor, "B L M"]:
            """Return dz/du = eps - x_0, 0 at given values."""
            u = u.to(dtype)
            x = z * factor(u).to(z.dtype)
            pred = model(process.replace(state, x, like), time(u))
            difference: Tensor = pred.eps - pred.x0
            return difference.to(z.dtype).masked_fill(~moves, 0.0)

        # Even steps in u = b / (a + b) from t = 1 to t_min: K
        ends: Noise = process.schedule(
            torch.linspace(1.0, self.t_min, 2, dtype=dtype, device=device)
        )
        b = one_minus_exp(ends.sigma).sqrt()
        start, stop = b / path_norm(ends, ends.sigma)
        share = torch.linspace(0, 1, self.steps + 1, dtype=dtype, device=device)
        us = start + (stop - start) * share

        z_start = state.x / factor(start).to(state.x.dtype)
        for u, z in _solve(velocity, z_start, us, self):
            state = process.replace(state, z * factor(u).to(z.dtype), like)
            yield state.x
        # Under t_min = 0 the last state is clean.
        if self.t_min > 0:
            yield process.finish(state, model(state, time(us[-1])), like)


def _solve(
    velocity: Velocity,
    z: Float[Tensor, "B L M"],
    us: Float[Tensor, " K"],
    options: ODE,
) -> Iterator[tuple[Float[Tensor, ""], Float[Tensor, "B L M"]]]:
    """Yield each u after the first with the solution there."""
    if options.solver == "dopri5":
        from torchdiffeq import odeint

        path = odeint(
            velocity,
            z,
            us.to(z.dtype),
            rtol=options.tolerance,
            atol=options.tolerance,
            method="dopri5",
        )
        yield from zip(us[1:], path[1:], strict=True)
        return

    for u, v in pairwise(us):
        h = (v - u).to(z.dtype)
        first = velocity(u, z)
        if options.solver == "euler":
            z = z + h * first
        elif options.solver == "midpoint":
            z = z + h * velocity((u + v) / 2, z + h / 2 * first)
        else:
            z = z + h / 2 * (first + velocity(v, z + h * first))
        yield v, z
