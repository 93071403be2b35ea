"""Integrates the probability flow of Gaussian diffusion and flow matching from noise to data.

Letters: B batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from importlib.util import find_spec
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts
from dither.registry.plugins.install_command import install_command

from ..options import no_effect
from .options import ProcessSampler

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.contracts.protocols import GaussianProcess, Session
    from dither.registry.contracts.records import Clean

__all__ = ["ODE"]


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
        elif model.self_conditioning:
            message = (
                'solver "dopri5" requires a velocity that depends on the state alone'
            )
            fix = 'set solver = "heun"'
            yield Misfit(message, ("solver",), ("model", "self_conditioning"), fix)
        if self.t_min == 0 and process.predict == "x0":
            message = 'the velocity at t_min = 0 does not follow from predict = "x0"'
            yield Misfit(
                message, ("t_min",), ("process", "predict"), "set t_min = 1e-3"
            )

    def sample(
        self, process: GaussianProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        from ..features.probability_flow import ProbabilityFlow, solve

        flow = ProbabilityFlow(process, model, process.prior(like), like)
        state = flow.state
        us = flow.even_steps(1.0, self.t_min, self.steps)
        start = flow.z(us[0], state.x)
        for u, z in solve(flow.velocity, start, us, self.solver, self.tolerance):
            state = process.replace(state, flow.x(u, z), like)
            yield state.x
        # Under t_min = 0 the last state is clean.
        if self.t_min > 0:
            yield process.finish(state, model(state, flow.time(us[-1])), like)
