"""The menu of schedules that are tables of betas. No torch at import.

Each has the alphas of a discrete diffusion of `steps` steps at t = 1 / steps, 2 / steps .. 1, and alpha = 1 at t = 0;
in between sigma is a straight line.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Sequence
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field, model_validator

from dither.registry.kinds import ScheduleSpec

from . import betas

if TYPE_CHECKING:
    from dither.registry.parts import Schedule

__all__ = ["Betas", "CosineBeta", "LinearBeta", "ScaledLinearBeta", "SigmoidBeta"]


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
