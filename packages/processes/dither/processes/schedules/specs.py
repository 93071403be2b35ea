"""The menu of schedules. No torch at import."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from dither.registry.kinds import ScheduleSpec

if TYPE_CHECKING:
    from dither.registry.parts import Schedule

__all__ = ["Cosine", "CosineSquared", "Geometric", "LinearBeta", "LinearSigma", "LogLinear", "Polynomial"]


class Geometric(ScheduleSpec):
    """sigma grows by the same factor in every stretch of time (SEDD).

    sigma = sigma_min^(1-t) sigma_max^t. It never is 0, and alpha at t = 1 is exp(-sigma_max).
    """

    name: ClassVar[str] = "geometric"
    sigma_min: float = Field(1e-4, gt=0, le=1000)
    """sigma at t = 0."""
    sigma_max: float = Field(20.0, gt=0, le=1000)
    """sigma at t = 1. With 1, as some code has it, 37 % of the signal is still there at the end."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.sigma_min < self.sigma_max:
            raise ValueError(f"sigma_min = {self.sigma_min:g} must be below sigma_max = {self.sigma_max:g}")
        return self

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        return self.sigma_max

    def build(self) -> Schedule:
        """Return t -> Noise."""
        from .curves import geometric

        return geometric(self.sigma_min, self.sigma_max)


class LogLinear(ScheduleSpec):
    """alpha falls in a straight line from 1 to eps (MDLM)."""

    name: ClassVar[str] = "log-linear"
    eps: float = Field(1e-3, ge=1e-12, lt=1)
    """The signal left at t = 1."""

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        return -math.log(self.eps)

    def build(self) -> Schedule:
        """Return t -> Noise."""
        from .curves import log_linear

        return log_linear(self.eps)


class Cosine(ScheduleSpec):
    """alpha falls from 1 to eps along a quarter of a cosine."""

    name: ClassVar[str] = "cosine"
    eps: float = Field(1e-3, ge=1e-12, lt=1)
    """The signal left at t = 1."""

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        return -math.log(self.eps)

    def build(self) -> Schedule:
        """Return t -> Noise."""
        from .curves import cosine

        return cosine(self.eps)


class CosineSquared(ScheduleSpec):
    """alpha falls from 1 to eps along a squared cosine: slow at both ends."""

    name: ClassVar[str] = "cosine-squared"
    eps: float = Field(1e-3, ge=1e-12, lt=1)
    """The signal left at t = 1."""

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        return -math.log(self.eps)

    def build(self) -> Schedule:
        """Return t -> Noise."""
        from .curves import cosine_squared

        return cosine_squared(self.eps)


class LinearSigma(ScheduleSpec):
    """sigma grows in a straight line from 0: the rate is constant."""

    name: ClassVar[str] = "linear-sigma"
    sigma_max: float = Field(10.0, gt=0, le=1000)
    """sigma at t = 1."""

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        return self.sigma_max

    def build(self) -> Schedule:
        """Return t -> Noise."""
        from .curves import linear_sigma

        return linear_sigma(self.sigma_max)


class Polynomial(ScheduleSpec):
    """alpha = 1 - (1 - eps) t^power: the larger the power, the later the noise."""

    name: ClassVar[str] = "polynomial"
    power: float = Field(2.0, ge=1, le=16)
    """1 is log-linear."""
    eps: float = Field(1e-3, ge=1e-12, lt=1)
    """The signal left at t = 1."""

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        return -math.log(self.eps)

    def build(self) -> Schedule:
        """Return t -> Noise."""
        from .curves import polynomial

        return polynomial(self.power, self.eps)


class LinearBeta(ScheduleSpec):
    """The linear betas of DDPM.

    alpha at t = (i + 1) / steps is the product of 1 - beta_0 .. 1 - beta_i; between its steps sigma is a straight line.
    """

    name: ClassVar[str] = "linear-beta"
    first: float = Field(1e-4, gt=0, lt=1)
    """beta_0."""
    last: float = Field(0.02, gt=0, lt=1)
    """The last beta."""
    steps: int = Field(1000, ge=1, le=1_000_000)
    """Number of betas."""

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        stride = (self.last - self.first) / max(self.steps - 1, 1)
        return -math.fsum(math.log1p(-self.first - i * stride) for i in range(self.steps))

    def build(self) -> Schedule:
        """Return t -> Noise."""
        from .curves import linear_beta

        return linear_beta(self.first, self.last, self.steps)
