"""Schedules given by alpha(t), the signal left, which falls from 1 to eps. No torch at import.

alpha = exp(-sigma) is the share of tokens not replaced, of regions not masked, or the squared scale of x_0 under
Gaussian noise. Each is alpha = 1 - (1 - eps) f(t) for a curve f from 0 to 1; all is computed in float64 and returned in
the dtype of t.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from dither.registry.kinds import ScheduleSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.flow.protocols import Schedule

__all__ = [
    "AlphaSchedule", "Cosine", "CosineSquared", "LogLinear", "Polynomial", "SigmoidAlpha", "alpha_schedule", "cosine",
    "cosine_squared", "log_linear", "polynomial", "sigmoid",
]  # fmt: skip

FLAT = 1e-3
"""A stretch of a sigmoid that rises by less loses too many digits."""


class AlphaSchedule(ScheduleSpec):
    """alpha falls from 1 to eps."""

    eps: float = Field(1e-3, ge=1e-12, lt=1)
    """The signal left at t = 1."""

    def sigma_end(self) -> float:
        return -math.log(self.eps)


class LogLinear(AlphaSchedule):
    """alpha falls linearly from 1 to eps (MDLM)."""

    name: ClassVar[str] = "log-linear"

    def build(self) -> Schedule:
        return log_linear(self.eps)


def log_linear(eps: float = 1e-3) -> Schedule:
    """Return alpha = 1 - (1 - eps) t (MDLM, Sahoo et al. 2024); masked cross-entropy has weight 1 / t for every eps."""
    return polynomial(1.0, eps)


class Polynomial(AlphaSchedule):
    """alpha = 1 - (1 - eps) t^power: the larger the power, the later the noise."""

    name: ClassVar[str] = "polynomial"
    power: float = Field(2.0, ge=1, le=16)
    """1 is log-linear."""

    def build(self) -> Schedule:
        return polynomial(self.power, self.eps)


def polynomial(power: float = 2.0, eps: float = 1e-3) -> Schedule:
    """Return alpha = 1 - (1 - eps) t^power, power >= 1: below 1 the rate at t = 0 is infinite."""
    return alpha_schedule(lambda t: (t**power, power * t ** (power - 1)), eps)


class Cosine(AlphaSchedule):
    """alpha falls from 1 to eps along a quarter of a cosine."""

    name: ClassVar[str] = "cosine"

    def build(self) -> Schedule:
        return cosine(self.eps)


def cosine(eps: float = 1e-3) -> Schedule:
    """Return alpha = eps + (1 - eps) cos(pi t / 2)."""
    return alpha_schedule(lambda t: (2 * (math.pi / 4 * t).sin().square(), math.pi / 2 * (math.pi / 2 * t).sin()), eps)


class CosineSquared(AlphaSchedule):
    """alpha falls from 1 to eps along a squared cosine: slow at both ends."""

    name: ClassVar[str] = "cosine-squared"

    def build(self) -> Schedule:
        return cosine_squared(self.eps)


def cosine_squared(eps: float = 1e-3) -> Schedule:
    """Return alpha = eps + (1 - eps) cos(pi t / 2)^2."""
    return alpha_schedule(lambda t: ((math.pi / 2 * t).sin().square(), math.pi / 2 * (math.pi * t).sin()), eps)


class SigmoidAlpha(AlphaSchedule):
    """alpha falls along a stretch of a sigmoid: slow at both ends, the more so the longer the stretch.

    Jabri et al. (2022). From start to end of sigmoid(u / tau), scaled to 1 at t = 0 and to eps at t = 1.
    """

    name: ClassVar[str] = "sigmoid-alpha"
    start: float = Field(-3.0, ge=-50, le=50)
    """Where the stretch begins."""
    end: float = Field(3.0, ge=-50, le=50)
    """Where it ends."""
    tau: float = Field(1.0, gt=0.05, le=100)
    """The larger, the straighter."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.start < self.end:
            raise ValueError(f"start = {self.start:g} must be below end = {self.end:g}")
        low, high = (math.tanh(u / self.tau / 2) for u in (self.start, self.end))
        if high - low < FLAT:
            raise ValueError(f"the sigmoid is flat from start = {self.start:g} to end = {self.end:g}")
        return self

    def build(self) -> Schedule:
        return sigmoid(self.start, self.end, self.tau, self.eps)


def sigmoid(start: float = -3.0, end: float = 3.0, tau: float = 1.0, eps: float = 1e-3) -> Schedule:
    """Return alpha along the sigmoid of -u / tau, for u from start to end (Jabri et al. 2022, algorithm 1)."""
    low, high = (1 / (1 + math.exp(min(-u / tau, 700))) for u in (start, end))  # exp overflows beyond

    def curve(t: Tensor) -> tuple[Tensor, Tensor]:
        value = ((start + (end - start) * t) / tau).sigmoid()
        return (value - low) / (high - low), value * (1 - value) * (end - start) / tau / (high - low)

    return alpha_schedule(curve, eps)


def alpha_schedule(curve: Callable[[Tensor], tuple[Tensor, Tensor]], eps: float) -> Schedule:
    """Return alpha = 1 - (1 - eps) f(t) for a curve f and its derivative."""
    from ..precision import wide_schedule

    def sigma_and_rate(t: Tensor) -> tuple[Tensor, Tensor]:
        share, derivative = curve(t)
        alpha = 1 - (1 - eps) * share
        return (-(1 - eps) * share).log1p().neg(), (1 - eps) * derivative / alpha

    return wide_schedule(sigma_and_rate)
