"""Flow matching: linear paths of features, and kappa(t) = (1 - t)^n of tokens. Read without torch."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dither.registry import Slot, Space, named
from dither.registry.kinds import ProcessFacts, ScheduleSpec

from ..features.specs import Gaussian
from ..schedules.alpha import AlphaSchedule

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Process, Schedule

__all__ = ["FlowMatching", "Kappa", "RectifiedFlow"]


class FlowMatching(Gaussian):
    """Flow matching (rectified flow): x_t = (1 - u) x_0 + u eps on a straight line from each sample to noise.

    u is t under schedule "rectified-flow"; another schedule gives u = b / (a + b) with a, b the
    factors of x_0 and eps under process "gaussian". Sampler "ode" follows the velocity.
    """

    name = "flow-matching"
    rev = 1
    schedule: Slot[ScheduleSpec] = named("rectified-flow")
    """Noise as a function of time."""
    predict: Literal["velocity", "x0"] = "velocity"
    """Meaning of the raw output: the velocity eps - x_0, or x_0."""
    zero_snr: Literal[True] = True
    """The line ends in noise alone: sqrt(alpha) of any schedule is shifted and scaled to 0 at t = 1."""

    def facts(self, space: Space) -> ProcessFacts:
        # Losses distinguish eps - x_0 from the velocity of diffusion.
        predict = "flow-velocity" if self.predict == "velocity" else self.predict
        facts = super().facts(space)
        return replace(facts, predict=predict, linear_path=True)

    def build(self, space: Space) -> Process:
        from .process import FlowMatchingProcess

        return FlowMatchingProcess(
            self.features(space), self.timesteps(), self.predict, **self.mask_options()
        )


TINY = 1e-14
"""Least 1 - t: sigma(1) is 64, where float32 cannot distinguish the signal from 0."""


class RectifiedFlow(ScheduleSpec):
    """sqrt(1 - alpha) / sqrt(alpha) = shift t / (1 - t): under process "flow-matching", x_t = (1 - t) x_0 + t eps."""

    name = "rectified-flow"
    shift: float = Field(1.0, gt=0, le=100)
    """Noise-to-signal ratio relative to that of straight time: above 1 more steps are noisy, as
    samples of more dimensions require (Esser et al. 2024, eq. 23)."""

    def sigma_end(self) -> float:
        return 2 * math.log(self.shift / TINY)

    def build(self) -> Schedule:
        from ..precision import wide_schedule

        def curve(t: Tensor) -> tuple[Tensor, Tensor]:
            # sigma = -log alpha = log(1 + ratio^2) with the ratio shift t / (1 - t)
            left = (1 - t).clamp_min(TINY)
            shift = self.shift
            sigma = (shift * t / left).square().log1p()
            # d sigma / dt = 2 shift^2 t / ((1 - t) ((1 - t)^2 + (shift t)^2))
            squares = left.square() + (shift * t).square()
            return sigma, 2 * shift**2 * t / (left * squares)

        return wide_schedule(curve)


class Kappa(AlphaSchedule):
    """alpha = (1 - t)^power, down to eps: the polynomial mixture path of discrete flow matching (Gat et al. 2024)."""

    name = "kappa"
    power: float = Field(2.0, ge=1, le=16)
    """1 is log-linear; above, tokens are replaced early."""

    def curve(self, t: Tensor) -> tuple[Tensor, Tensor]:
        value = 1 - (1 - t) ** self.power
        return value, self.power * (1 - t) ** (self.power - 1)
