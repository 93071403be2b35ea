"""The menu of schedules. No torch at import."""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from dither.registry.kinds.process import ScheduleSpec

from . import betas

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Schedule

__all__ = [
    "Betas",
    "Cosine",
    "CosineBeta",
    "CosineSquared",
    "Geometric",
    "LinearBeta",
    "LinearSigma",
    "LogLinear",
    "Polynomial",
    "ScaledLinearBeta",
    "SigmoidAlpha",
    "SigmoidBeta",
]

FLAT = 1e-3
"""A stretch of a sigmoid that rises by less is taken for flat: too few digits of it would be left."""


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


class SigmoidAlpha(ScheduleSpec):
    """alpha falls along a stretch of a sigmoid: slow at both ends, the more so the longer the stretch.

    Jabri et al. (2022). From start to end of sigmoid(u / tau), brought to 1 at t = 0 and to eps at t = 1.
    """

    name: ClassVar[str] = "sigmoid-alpha"
    start: float = Field(-3.0, ge=-50, le=50)
    """Where the stretch begins."""
    end: float = Field(3.0, ge=-50, le=50)
    """Where it ends."""
    tau: float = Field(1.0, gt=0.05, le=100)
    """The larger, the straighter."""
    eps: float = Field(1e-3, ge=1e-12, lt=1)
    """The signal left at t = 1."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.start < self.end:
            raise ValueError(f"start = {self.start:g} must be below end = {self.end:g}")
        low, high = (math.tanh(u / self.tau / 2) for u in (self.start, self.end))
        if high - low < FLAT:
            raise ValueError(f"the sigmoid is flat from start = {self.start:g} to end = {self.end:g}")
        return self

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        return -math.log(self.eps)

    def build(self) -> Schedule:
        """Return t -> Noise."""
        from .curves import sigmoid

        return sigmoid(self.start, self.end, self.tau, self.eps)


class Betas(ScheduleSpec):
    """What tables of betas have in common."""

    steps: int = Field(1000, ge=1, le=100_000)
    """Number of betas."""
    zero_snr: bool = False
    """Bring alpha to 0 at t = 1, so that sampling starts from what training ends with (zero terminal SNR). Model and
    noise are then not told apart by eps: predict velocity or x0."""

    @model_validator(mode="after")
    def _scalable(self) -> Self:
        if self.zero_snr and self.steps < 2:
            raise ValueError("zero_snr needs at least 2 steps")
        return self

    @abstractmethod
    def betas(self) -> Sequence[float]:
        """Return the share of the variance that each step replaces by noise."""

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        return betas.sigmas(self.betas(), self.zero_snr)[-1]

    def build(self) -> Schedule:
        """Return t -> Noise."""
        from .curves import tabulated

        return tabulated(betas.sigmas(self.betas(), self.zero_snr))


class LinearBeta(Betas):
    """The linear betas of DDPM, evenly spaced.

    alpha at t = (i + 1) / steps is the product of 1 - beta_0 .. 1 - beta_i; between its steps sigma is a straight line.
    """

    name: ClassVar[str] = "linear-beta"
    rev: ClassVar[int] = 2
    first: float = Field(1e-4, gt=0, lt=1)
    """beta_0."""
    last: float = Field(0.02, gt=0, lt=1)
    """The last beta."""

    def betas(self) -> Sequence[float]:
        """Return the betas."""
        return betas.linear(self.first, self.last, self.steps)


class ScaledLinearBeta(Betas):
    """The betas of latent diffusion: their square roots are evenly spaced."""

    name: ClassVar[str] = "scaled-linear-beta"
    first: float = Field(8.5e-4, gt=0, lt=1)
    """beta_0."""
    last: float = Field(0.012, gt=0, lt=1)
    """The last beta."""

    def betas(self) -> Sequence[float]:
        """Return the betas."""
        return betas.scaled_linear(self.first, self.last, self.steps)


class SigmoidBeta(Betas):
    """Betas that rise along a sigmoid (GeoDiff)."""

    name: ClassVar[str] = "sigmoid-beta"
    first: float = Field(1e-4, gt=0, lt=1)
    """What the first beta is just above."""
    last: float = Field(0.02, gt=0, lt=1)
    """What the last beta is just below."""

    def betas(self) -> Sequence[float]:
        """Return the betas."""
        return betas.sigmoid(self.first, self.last, self.steps)


class CosineBeta(Betas):
    """Betas under which alpha is nearly a squared cosine (improved DDPM)."""

    name: ClassVar[str] = "cosine-beta"
    most: float = Field(0.999, gt=0, lt=1)
    """No beta is larger."""

    def betas(self) -> Sequence[float]:
        """Return the betas."""
        return betas.cosine(self.most, self.steps)
