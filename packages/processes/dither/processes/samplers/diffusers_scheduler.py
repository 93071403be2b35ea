"""Schedulers of diffusers (Hugging Face) as samplers of Gaussian noise and flow matching.

A scheduler knows the noise of discrete time steps. It is given the noise of the process at the times
of the calls, so that it takes each of them once, in its own coordinates A x_0 + B eps:

    "diffusion"  A^2 + B^2 = 1    "levels"  A = 1    "line"  A + B = 1

Letters: B batch, L length, M features, K times, N calls.
"""

from __future__ import annotations

import warnings
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts
from dither.registry.plugins.install_command import install_command, optional_import

from ..options import no_effect
from .options import GaussianSampler

if TYPE_CHECKING:
    from jaxtyping import Float, Float64
    from torch import Tensor

    from dither.registry.contracts.protocols import GaussianProcess, Session
    from dither.registry.contracts.records import Clean

__all__ = ["SCHEDULERS", "DiffusersScheduler", "SchedulerClass"]

Name = Literal[
    "DDIMScheduler",
    "DDPMScheduler",
    "DPMSolverMultistepScheduler",
    "EulerAncestralDiscreteScheduler",
    "EulerDiscreteScheduler",
    "FlowMatchEulerDiscreteScheduler",
    "FlowMatchHeunDiscreteScheduler",
    "HeunDiscreteScheduler",
    "UniPCMultistepScheduler",
]

LEAST_ALPHA = 2.0**-24
"""Least alpha of levels B / A, which diffusers uses for zero terminal SNR, too: differences of
larger levels have no digits in float32."""


@dataclass(frozen=True)
class SchedulerClass:
    """Conventions of a class: its coordinates, the model output it expects, and the options it has.

    Attributes:
        calls: Calls of the model in a step.
        reads_alphas: Whether it has no levels. It then clips to the values of images by default.
    """

    coordinates: Literal["diffusion", "levels", "line"]
    output: Literal["sample", "epsilon", "flow"] = "sample"
    options: tuple[str, ...] = ()
    solver_types: tuple[str, ...] = ()
    calls: int = 1
    reads_alphas: bool = False


SCHEDULERS: dict[str, SchedulerClass] = {
    "DDIMScheduler": SchedulerClass("diffusion", options=("eta",), reads_alphas=True),
    "DDPMScheduler": SchedulerClass("diffusion", reads_alphas=True),
    "DPMSolverMultistepScheduler": SchedulerClass(
        coordinates="diffusion",
        options=(
            "algorithm_type",
            "solver_order",
            "solver_type",
            "use_karras_sigmas",
        ),
        solver_types=("midpoint", "heun"),
    ),
    # It has no code for "sample".
    "EulerAncestralDiscreteScheduler": SchedulerClass("levels", output="epsilon"),
    "EulerDiscreteScheduler": SchedulerClass("levels", options=("use_karras_sigmas",)),
    "FlowMatchEulerDiscreteScheduler": SchedulerClass(
        "line", output="flow", options=("stochastic_sampling",)
    ),
    "FlowMatchHeunDiscreteScheduler": SchedulerClass("line", output="flow", calls=2),
    "HeunDiscreteScheduler": SchedulerClass(
        "levels", options=("use_karras_sigmas",), calls=2
    ),
    "UniPCMultistepScheduler": SchedulerClass(
        coordinates="diffusion",
        options=("solver_order", "solver_type", "use_karras_sigmas"),
        solver_types=("bh1", "bh2"),
    ),
}
"""Schedulers whose steps are those of a process with any schedule. Others assume a thousand betas of
their own, distilled models or samples of images."""


class DiffusersScheduler(GaussianSampler):
    """A scheduler of diffusers, which requires that library: its steps, on the noise of the process."""

    name = "diffusers"
    scheduler: Name = "DPMSolverMultistepScheduler"
    """Class of diffusers. Those of flow matching serve Gaussian noise as well, and the other way
    around."""
    steps: int = Field(20, ge=1, le=1_000_000)
    """K, the times; the model is called once at each, but 2 K - 1 times under the two of Heun."""
    solver_order: Literal[1, 2, 3] | None = None
    """Order of DPM-Solver and UniPC; None, as below, is the default of diffusers."""
    algorithm_type: Literal["dpmsolver++", "sde-dpmsolver++"] | None = None
    """Of DPM-Solver: sde-dpmsolver++ adds noise in every step."""
    solver_type: Literal["midpoint", "heun", "bh1", "bh2"] | None = None
    """midpoint, heun: of DPM-Solver. bh1, bh2: of UniPC."""
    use_karras_sigmas: bool | None = None
    """Space noise levels as EDM does; the spacing sets only the first and the last time."""
    stochastic_sampling: bool | None = None
    """New noise in every step of FlowMatchEulerDiscreteScheduler."""
    eta: float | None = Field(None, ge=0, le=1)
    """Noise of a step of DDIMScheduler: 0 adds none, 1 is DDPM."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require diffusers, and options that the scheduler has."""
        yield from super().check(process, model)
        if find_spec("diffusers") is None:
            yield Misfit(
                'sampler "diffusers" requires diffusers',
                help=install_command("dither-processes", "diffusers"),
                code="missing-dependency",
            )
        available = SCHEDULERS[self.scheduler]
        options = set().union(*(kind.options for kind in SCHEDULERS.values()))
        foreign = sorted(options.difference(available.options))
        yield from no_effect(self, foreign, f'with scheduler = "{self.scheduler}"')
        kinds = available.solver_types
        if kinds and self.solver_type not in (None, *kinds):
            yield Misfit(
                f'{self.scheduler} has no solver_type "{self.solver_type}"',
                ("solver_type",),
                help=f"it has: {', '.join(kinds)}",
                code="unknown-value",
            )

    def sample(
        self, process: GaussianProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        kind = SCHEDULERS[self.scheduler]
        state = process.prior(like)
        times = self.times(process, like)
        with warnings.catch_warnings():
            # numpy deprecates how diffusers reads tensors.
            warnings.simplefilter("ignore", DeprecationWarning)
            scheduler, levels = self._prepare(process, times[:, 0])
        a, b = _factors(levels, kind.coordinates)
        options = {"eta": self.eta} if self.eta is not None else {}

        for call, t in enumerate(self._call_times(process, times, levels)):
            pred = model(state, t)
            # After the last call, the predicted x_0 is taken.
            if call + 1 == len(levels):
                yield process.finish(state, pred, like)
                return

            outputs = {
                "sample": pred.x0,
                "epsilon": pred.eps,
                "flow": pred.eps - pred.x0,
            }
            x = scheduler.step(
                outputs[kind.output],
                scheduler.timesteps[call],
                a[call].item() * pred.x0 + b[call].item() * pred.eps,
                **options,
            ).prev_sample

            # From the coordinates of the scheduler to those of the process
            after = (a[call + 1], b[call + 1])
            norm = sum(after) if process.linear_path else after[0].hypot(after[1])
            state = process.replace(state, x / float(norm), like)
            yield state.x

    def _prepare(
        self, process: GaussianProcess, times: Float[Tensor, " K"]
    ) -> tuple[Any, Float64[Tensor, " N"]]:
        """Return the scheduler with the noise of the times, and the level of each call: B / A, or B on a line."""
        import torch

        kind = SCHEDULERS[self.scheduler]
        # From early to late times, as its own tables
        alphas = (-process.schedule(times).sigma.double().cpu()).exp().flip(0)
        if kind.coordinates == "levels" or self.use_karras_sigmas:
            alphas = alphas.clamp_min(LEAST_ALPHA)
        ratios = ((1 - alphas) / alphas).sqrt().flip(0)

        scheduler = self._construct(len(times))
        scheduler.alphas_cumprod = alphas
        scheduler.set_timesteps(len(times))
        if kind.reads_alphas:
            return scheduler, ratios

        if kind.coordinates == "line":
            u = _at_calls(ratios / (1 + ratios), kind.calls)
            scheduler.sigmas = torch.cat([u, torch.zeros(1)]).float()
            scheduler.timesteps = u.float()
        # Equal time steps would be looked up otherwise.
        scheduler.set_begin_index(0)
        # A state is scaled here.
        scheduler.is_scale_input_called = True
        return scheduler, scheduler.sigmas[: len(scheduler.timesteps)].double()

    def _construct(self, steps: int) -> Any:
        """Return the scheduler with `steps` time steps, each of which it takes."""
        with optional_import(
            f'sampler "diffusers" requires diffusers with {self.scheduler}',
            "dither-processes",
            "diffusers",
        ):
            import diffusers

            scheduler_class = getattr(diffusers, self.scheduler, None)
            if scheduler_class is None:
                raise ImportError(self.scheduler)

        kind = SCHEDULERS[self.scheduler]
        options = {
            option: getattr(self, option)
            for option in kind.options
            if option != "eta" and getattr(self, option) is not None
        }
        options["num_train_timesteps"] = steps
        if kind.output != "flow":
            options["prediction_type"] = kind.output
            options["timestep_spacing"] = "trailing"
        if kind.reads_alphas:
            options["clip_sample"] = False
        return scheduler_class(**options)

    def _call_times(
        self,
        process: GaussianProcess,
        times: Float[Tensor, "K B"],
        levels: Float64[Tensor, " N"],
    ) -> Float[Tensor, "N B"]:
        """Return the time of each call: those of the spacing, or of levels that the scheduler chose."""
        from ..timestep_sampling import time_of

        if self.use_karras_sigmas:
            squares = levels.to(times.device).square()
            chosen = time_of(process.schedule, squares / (1 + squares))
            # The search rounds both ends.
            chosen = chosen.to(times.dtype).clamp(times[-1, 0], times[0, 0])
            return chosen[:, None].expand(-1, times.shape[1])
        return _at_calls(times, SCHEDULERS[self.scheduler].calls)


def _at_calls(values: Float[Tensor, "K *B"], calls: int) -> Float[Tensor, "N *B"]:
    """Return values of times at each call: the second call of a step is at the time of its end."""
    import torch

    return torch.cat([values[:1], values[1:].repeat_interleave(calls, 0)])


def _factors(
    levels: Float64[Tensor, " N"], coordinates: str
) -> tuple[Float64[Tensor, " N"], Float64[Tensor, " N"]]:
    """Return A and B of each call."""
    import torch

    if coordinates == "line":
        return 1 - levels, levels
    if coordinates == "levels":
        return torch.ones_like(levels), levels
    a = (1 + levels.square()).rsqrt()
    return a, levels * a
