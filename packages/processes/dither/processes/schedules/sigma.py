"""Schedules given by sigma(t), the accumulated noise. Read without torch.

The rate is its derivative, and the signal left is alpha = exp(-sigma); under Gaussian noise -sigma
is the log of DDPM's cumulative product. All is computed in float64 and returned in the dtype of t.
"""

from __future__ import annotations

import math
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from dither.registry.kinds import ScheduleSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Schedule

__all__ = ["Geometric", "LinearSigma"]


class Geometric(ScheduleSpec):
    """sigma grows by the same factor in every stretch of time (SEDD, Lou et al. 2023).

    sigma = sigma_min^(1-t) sigma_max^t. It is never 0, and alpha at t = 1 is exp(-sigma_max).
    """

    name = "geometric"
    sigma_min: float = Field(1e-4, gt=0, le=1000)
    """sigma at t = 0."""
    sigma_max: float = Field(20.0, gt=0, le=1000)
    """sigma at t = 1. With 1, as in some code, 37 % of the signal is left at the end."""

    @model_validator(mode="after")
    def _rises(self) -> Self:
        if not self.sigma_min < self.sigma_max:
            raise ValueError(
                f"sigma_min = {self.sigma_min:g} must be below sigma_max = {self.sigma_max:g}"
            )
        return self

    def sigma_end(self) -> float:
        return self.sigma_max

    def build(self) -> Schedule:
        from ..precision import wide_schedule

        growth = math.log(self.sigma_max / self.sigma_min)

        def curve(t: Tensor) -> tuple[Tensor, Tensor]:
            sigma = self.sigma_min * (growth * t).exp()
            return sigma, growth * sigma

        return wide_schedule(curve)


class LinearSigma(ScheduleSpec):
    """sigma grows linearly from 0: the rate is constant."""

    name = "linear-sigma"
    sigma_max: float = Field(10.0, gt=0, le=1000)
    """sigma at t = 1."""

    def sigma_end(self) -> float:
        return self.sigma_max

    def build(self) -> Schedule:
        from ..precision import wide_schedule

        return wide_schedule(
            lambda t: (self.sigma_max * t, t.new_full(t.shape, self.sigma_max))
        )
