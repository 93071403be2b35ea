"""Schedules given by alpha(t), the signal left, which falls from 1 to eps. Read without torch.

alpha = exp(-sigma) is the share of tokens not replaced, of regions not masked, or the squared scale
of x_0 under Gaussian noise. Each is alpha = 1 - (1 - eps) f(t) for a curve f from 0 to 1; all is
computed in float64 and returned in the dtype of t.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from dither.registry.kinds import ScheduleSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Schedule

__all__ = [
    "AlphaSchedule",
    "Cosine",
    "CosineSquared",
    "LogLinear",
    "Polynomial",
    "SigmoidAlpha",
]

FLAT = 1e-3
"""A stretch of a sigmoid that rises by less loses too many digits."""


class AlphaSchedule(ScheduleSpec):
    """alpha = 1 - (1 - eps) f(t)."""

    eps: float = Field(1e-3, ge=1e-12, lt=1)
    """The signal left at t = 1."""

    def sigma_end(self) -> float:
        return -math.log(self.eps)

    @abstractmethod
    def curve(self, t: Tensor) -> tuple[Tensor, Tensor]:
        """Return f, which rises from 0 to 1, and its derivative."""

    def build(self) -> Schedule:
        from ..precision import wide_schedule

        def sigma_and_rate(t: Tensor) -> tuple[Tensor, Tensor]:
            value, derivative = self.curve(t)
            # sigma = -log alpha; log1p keeps the digits of small sigma.
            alpha = 1 - (1 - self.eps) * value
            sigma = -(-(1 - self.eps) * value).log1p()
            # d sigma / dt = -alpha' / alpha
            return sigma, (1 - self.eps) * derivative / alpha

        return wide_schedule(sigma_and_rate)


class LogLinear(AlphaSchedule):
    """alpha falls linearly from 1 to eps (MDLM, Sahoo et al. 2024); masked cross-entropy has weight 1 / t."""

    name = "log-linear"

    def curve(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return t, t.new_ones(t.shape)


class Polynomial(AlphaSchedule):
    """alpha = 1 - (1 - eps) t^power: the larger the power, the later the noise."""

    name = "polynomial"
    power: float = Field(2.0, ge=1, le=16)
    """1 is log-linear; below, the rate at t = 0 would be infinite."""

    def curve(self, t: Tensor) -> tuple[Tensor, Tensor]:
        return t**self.power, self.power * t ** (self.power - 1)


class Cosine(AlphaSchedule):
    """alpha = eps + (1 - eps) cos(pi t / 2): it falls along a quarter of a cosine."""

    name = "cosine"

    def curve(self, t: Tensor) -> tuple[Tensor, Tensor]:
        # 1 - cos(pi t / 2), without cancelling near t = 0
        value = 2 * (math.pi / 4 * t).sin().square()
        return value, math.pi / 2 * (math.pi / 2 * t).sin()


class CosineSquared(AlphaSchedule):
    """alpha = eps + (1 - eps) cos(pi t / 2)^2: slow at both ends."""

    name = "cosine-squared"

    def curve(self, t: Tensor) -> tuple[Tensor, Tensor]:
        # 1 - cos(pi t / 2)^2
        value = (math.pi / 2 * t).sin().square()
        return value, math.pi / 2 * (math.pi * t).sin()


class SigmoidAlpha(AlphaSchedule):
    """alpha falls along a stretch of a sigmoid: slow at both ends, the more so the longer the stretch.

    Jabri et al. (2022), algorithm 1. From start to end of sigmoid(u / tau), scaled to 1 at t = 0
    and to eps at t = 1.
    """

    name = "sigmoid-alpha"
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
        # tanh(u / 2) is 2 sigmoid(u) - 1, and cannot overflow.
        low = math.tanh(self.start / self.tau / 2)
        high = math.tanh(self.end / self.tau / 2)
        if high - low < FLAT:
            raise ValueError(
                f"the sigmoid is flat from start = {self.start:g} to end = {self.end:g}"
            )
        return self

    def curve(self, t: Tensor) -> tuple[Tensor, Tensor]:
        start = self.start
        end = self.end
        tau = self.tau
        low = _sigmoid(start / tau)
        high = _sigmoid(end / tau)

        # The stretch from start to end, scaled to run from 0 to 1
        value = ((start + (end - start) * t) / tau).sigmoid()
        # sigmoid' = sigmoid (1 - sigmoid)
        slope = value * (1 - value) * (end - start) / tau
        rise = high - low
        # Rounded below 0 it would make sigma at t = 0 negative, and sqrt(1 - alpha) NaN.
        return ((value - low) / rise).clamp_min(0.0), slope / rise


def _sigmoid(u: float) -> float:
    # exp overflows beyond 709.
    return 1 / (1 + math.exp(min(-u, 700)))
