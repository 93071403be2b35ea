"""Options of time, which every process has. No torch at import."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dither.registry import Misfit, Slot, Space, named
from dither.registry.costs import Cost
from dither.registry.kinds import ProcessSpec, ScheduleSpec

from .costs import reading_cost

if TYPE_CHECKING:
    from .clock import Clock

__all__ = ["Clocked"]

MOST_LEFT = 0.01
"""Largest alpha at t = 1 from which a walk may start as if nothing were left."""


class Clocked(ProcessSpec):
    """Options of time that every process has."""

    schedule: Slot[ScheduleSpec] = named("log-linear")
    """How the noise grows with time."""
    level: Literal["t", "sigma", "log-sigma", "index"] = "t"
    """What the model is told of the noise: t, sigma, log sigma, or index = floor(1000 t), at most 999."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Smallest training time."""
    stratified: bool = True
    """Draw one training time in each of batch-size equal strata, which lowers the variance of the loss."""

    def cost(self, space: Space) -> Cost:
        """What noising and reading take."""
        return reading_cost(self.facts(space))

    def clock(self) -> Clock:
        """Build what keeps the time."""
        from .clock import Clock

        return Clock(self.schedule.build(), self.level, self.t_min, self.stratified)

    def lasting(self, what: str) -> Iterable[Misfit]:
        """Yield if so much of `what` is left at t = 1 that sampling would start from the wrong state."""
        end = self.schedule.sigma_end()
        if end is None or math.exp(-end) <= MOST_LEFT:
            return
        options = type(self.schedule).model_fields
        fixes = {"sigma_max": "set schedule.sigma_max = 20", "eps": "set schedule.eps = 1e-3"}
        fix = next((text for option, text in fixes.items() if option in options), 'use schedule = "log-linear"')
        left = f"{100 * math.exp(-end):.2g} % {what}"
        message = f'schedule "{self.schedule.name}" ends at sigma = {end:.3g}, where {left} at t = 1'
        yield Misfit(message, ("schedule",), help=f"{fix}; at most {MOST_LEFT:.0%} may be left")
