"""Options shared by samplers: number of steps, temperature, spacing of times. Read without torch."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any, ClassVar, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import (
    ModelFacts,
    ProcessFacts,
    RewardSpec,
    SamplerSpec,
)

from ..options import changed_options, no_effect

if TYPE_CHECKING:
    from jaxtyping import Float, Shaped
    from torch import Tensor

    from dither.registry.contracts.protocols import (
        GaussianProcess,
        Process,
        Sampler,
        Session,
    )
    from dither.registry.contracts.records import Clean

__all__ = [
    "GaussianSampler",
    "ProcessSampler",
    "TokenSampler",
    "TokenSteps",
    "no_reward_of_parts",
]

REQUIREMENTS = {
    "any": "a process",
    "tokens": "a process over tokens",
    "mask": "a process that masks tokens",
    "gaussian": "a process that adds Gaussian noise",
    "hidden": "a process that masks features",
}
"""Requirement of a sampler -> its words in messages."""


class ProcessSampler(SamplerSpec):
    """A sampler of some processes."""

    requires: ClassVar[Literal["any", "tokens", "mask", "gaussian", "hidden"]] = "any"
    """Kind of process that the sampler reverses; a key of `REQUIREMENTS`."""
    sample: ClassVar[Callable[..., Iterator[Shaped[Tensor, "B L *M"]]]]
    """Given process, model and template, yields every state, the clean sample last."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a process that the sampler can reverse."""
        yield from super().check(process, model)
        serves = self.requires in ("any", process.prior)
        if self.requires == "tokens":
            serves = process.space.data == "tokens"
        if not serves:
            message = (
                f'sampler "{self.name}" requires {REQUIREMENTS[self.requires]}, '
                f'not process "{process.name}"'
            )
            yield Misfit(
                message,
                (),
                ("process",),
                'use sampler "ancestral"',
                code="process-mismatch",
            )

    def build(self) -> Sampler:
        return self.run

    def run(
        self,
        process: Process,
        model: Session,
        like: Clean,
        **more: Any,
    ) -> Iterator[Shaped[Tensor, "B L *M"]]:
        """Yield from `sample`; TypeError if the built process lacks the protocol that the sampler requires."""
        from dither.registry.contracts import protocols

        required = {
            "any": protocols.Process,
            "tokens": protocols.TokenProcess,
            "mask": protocols.TokenProcess,
            "gaussian": protocols.GaussianProcess,
            "hidden": protocols.MaskedFeatureProcess,
        }[self.requires]
        if not isinstance(process, required):
            raise TypeError(
                f'sampler "{self.name}" requires a {required.__name__}, not {type(process).__name__}'
            )
        yield from self.sample(process, model, like, **more)


class TokenSampler(ProcessSampler):
    """A sampler with temperature, top-k and top-p."""

    temperature: float = Field(1.0, ge=0, le=100)
    """Divides log p: below 1 samples are likelier and less varied, 0 takes the likeliest id. Tokens
    only."""
    top_k: int | None = Field(None, ge=1)
    """Number of likeliest ids to keep; by default all. Tokens only."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the smallest set of likeliest ids with this probability (nucleus). Tokens only."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Reject options of ids under a process without tokens."""
        yield from super().check(process, model)
        if process.space.data == "tokens":
            return
        for option in changed_options(self, ("temperature", "top_k", "top_p")):
            message = (
                f'{option} applies to ids, but process "{process.name}" has no tokens'
            )
            yield Misfit(message, (option,), ("process",), code="no-effect")

    def warps(self) -> bool:
        """Whether ids are drawn with other probabilities than those of the model."""
        return (self.temperature, self.top_k, self.top_p) != (1.0, None, 1.0)


class TokenSteps(TokenSampler):
    """A sampler that takes evenly spaced steps from t = 1 to t_min."""

    steps: int = Field(128, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Time of the last state; from there the sample is drawn clean."""

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Warn about options of steps if one call fills in everything."""
        yield from super().warn(process, model)
        if not process.timeless:
            return
        for option in changed_options(self, ("steps", "t_min")):
            message = (
                f"{option} has no effect: "
                f'under a fixed process.ratio "{self.name}" takes one step'
            )
            fix = f"remove {option}, or remove process.ratio"
            yield Misfit(
                message, (option,), ("process", "ratio"), fix, code="no-effect"
            )


class GaussianSampler(ProcessSampler):
    """A sampler through Gaussian noise on a grid of times."""

    requires = "gaussian"
    steps: int = Field(50, ge=1, le=1_000_000)
    """K, the calls of the model; the last one predicts the clean sample."""
    spacing: Literal["trailing", "leading", "linspace", "log-snr"] = "trailing"
    """Times of the K calls. trailing: 1, 1 - 1/K .. 1/K. leading: ending at t_min, 1/K apart,
    without the time next to 1. linspace: even from 1 to t_min. log-snr: even in log alpha / (1 -
    alpha) from 1 to t_min."""
    t_min: float = Field(1e-3, gt=0, lt=1)
    """Time of the last call, except under trailing; from there the sample is drawn clean."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Require a process that adds Gaussian noise, and times that fit the spacing."""
        yield from super().check(process, model)
        if self.spacing == "trailing":
            yield from no_effect(self, ("t_min",), 'with spacing = "trailing"')
        if self.spacing == "leading" and self.t_min * self.steps > 1 + 1e-9:
            message = (
                f"leading requires t_min <= 1 / steps, not t_min = {self.t_min} "
                f"with steps = {self.steps}"
            )
            yield Misfit(message, ("t_min",), help=f"set t_min = {1 / self.steps:.2g}")

    def times(self, process: GaussianProcess, like: Clean) -> Float[Tensor, "K B"]:
        """Return the times of the calls for each sample, in the precision of the sample."""
        from ..timestep_sampling import spaced_times

        # K -> K B
        times = spaced_times(
            process.schedule, self.steps, self.spacing, self.t_min, like.valid.device
        )
        return times.to(like.x0.dtype)[:, None].expand(-1, len(like.valid))


def no_reward_of_parts(inner: SamplerSpec) -> Iterator[Misfit]:
    """Reject an inner sampler with a reward, which is a function of whole samples."""
    if any(isinstance(value, RewardSpec) for _, value in inner):
        message = f'sampler "{inner.name}" would measure the reward of single blocks'
        yield Misfit(message, ("inner",), help="draw blocks without a reward")
