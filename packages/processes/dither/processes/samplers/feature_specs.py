"""The menu of samplers of features. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

if TYPE_CHECKING:
    from dither.registry.parts import Sampler

__all__ = ["DDIM", "DPMSolver", "OrderedRegions", "RePaint"]


class Denoising(SamplerSpec):
    """A walk back through Gaussian noise, at times of a grid."""

    steps: int = Field(50, ge=1, le=1_000_000)
    """K, the calls of the model; the last goes straight to clean data."""
    spacing: Literal["trailing", "leading", "linspace", "log-snr"] = "trailing"
    """Where in time the K calls are. trailing: 1, 1 - 1/K .. 1/K. leading: ending at t_min, 1/K apart, which leaves out
    the time next to 1. linspace: even from 1 to t_min. log-snr: even in log alpha / (1 - alpha) from 1 to t_min."""
    t_min: float = Field(1e-3, gt=0, lt=1)
    """Time of the last call, but under trailing; from there the sample is drawn clean."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process adds Gaussian noise."""
        yield from super().check(process, model)
        if process.prior != "gaussian":
            message = f'sampler "{self.name}" walks through Gaussian noise, but process "{process.name}" adds none'
            yield Misfit(message, related=("process",), help='use sampler "ancestral"')
        if self.spacing == "trailing" and self.t_min != type(self).model_fields["t_min"].default:
            yield Misfit('t_min has no effect with spacing = "trailing"', ("t_min",))
        if self.spacing == "leading" and self.t_min * self.steps > 1 + 1e-9:
            message = f"leading needs t_min <= 1 / steps, not t_min = {self.t_min} with steps = {self.steps}"
            yield Misfit(message, ("t_min",), help=f"t_min = {1 / self.steps:.2g}")


class DDIM(Denoising):
    """Few large steps through Gaussian noise, with as much new noise as is asked for (DDIM)."""

    name: ClassVar[str] = "ddim"
    eta: float = Field(0.0, ge=0, le=1)
    """Noise of a step: 0 adds none, 1 is DDPM."""

    def build(self) -> Sampler:
        """Return the walk."""
        from .ddim import DDIM

        return DDIM(self.steps, self.eta, self.spacing, self.t_min)


class DPMSolver(Denoising):
    """DPM-Solver++ 2M: a solver of second order in log-SNR time, for few calls. It adds no noise."""

    name: ClassVar[str] = "dpm-solver"
    steps: int = Field(20, ge=1, le=1_000_000)
    """K, the calls of the model; the last goes straight to clean data."""
    order: Literal[1, 2] = 2
    """1 forgets what the model said before, as DDIM does."""

    def build(self) -> Sampler:
        """Return the walk."""
        from .dpm import DPMSolver

        return DPMSolver(self.steps, self.order, self.spacing, self.t_min)


class RePaint(Denoising):
    """Fill in with a model trained on noise everywhere: known values are noised anew at every step (RePaint).

    A process with a mask, whose model has seen clean values beside noisy ones, needs it not: take "ddim" there.
    """

    name: ClassVar[str] = "repaint"
    steps: int = Field(50, ge=1, le=1_000_000)
    """K, the times of the grid; jumps call the model more often, in all about K visits times."""
    jump: int = Field(10, ge=1, le=1_000_000)
    """Steps of a jump back up."""
    visits: int = Field(10, ge=1, le=10_000)
    """How often each stretch of so many steps is walked; 1 for no jumps."""
    eta: float = Field(1.0, ge=0, le=1)
    """Noise of a step: 1 is DDPM, 0 adds none."""

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield that the model has never seen noise on what is known."""
        yield from super().warn(process, model)
        if process.masked:
            message = 'sampler "repaint" noises known values, which a model trained with process.mask has seen clean'
            yield Misfit(message, related=("process", "mask"), help='use sampler "ddim"; or leave process.mask out')

    def build(self) -> Sampler:
        """Return the walk."""
        from .repaint import RePaint

        return RePaint(self.steps, self.jump, self.visits, self.eta, self.spacing, self.t_min)


class OrderedRegions(SamplerSpec):
    """Fill in as many masked units per step as the schedule asks for, at random or the surest first (MaskGIT, MAR)."""

    name: ClassVar[str] = "ordered-regions"
    rev: ClassVar[int] = 2
    by: Literal["random", "spread"] = "random"
    """What is filled in first. random: any. spread: the units whose draws lie closest together. Only a head that draws,
    such as "token-diffusion", has any spread; a model that says one value for an element is never more or less sure."""
    steps: int = Field(16, ge=1, le=1_000_000)
    """Most calls of the model; a step in which nothing is due makes none."""
    draws: int = Field(8, ge=2, le=1024)
    """Draws of which the spread is taken."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process hides features."""
        yield from super().check(process, model)
        if process.prior != "hidden":
            message = f'sampler "ordered-regions" fills in hidden features, but process "{process.name}" hides none'
            yield Misfit(message, related=("process",), help='use sampler "ancestral"')
        if self.by == "random" and self.draws != type(self).model_fields["draws"].default:
            yield Misfit('draws has no effect with by = "random"', ("draws",), help='set by = "spread"')

    def build(self) -> Sampler:
        """Return the walk."""
        from .ordered_regions import OrderedRegions

        return OrderedRegions(self.by, self.steps, self.draws)
