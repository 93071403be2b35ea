"""Options of time, which every process has. No torch at import."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING, Literal

from pydantic import Field

from dither.registry import Misfit, Slot, Space, named
from dither.registry.flow.spaces import TokenSpace
from dither.registry.kinds import ProcessFacts
from dither.registry.kinds.costs import Cost
from dither.registry.kinds.process import ProcessSpec, ScheduleSpec

if TYPE_CHECKING:
    from .timestep_sampling import TimestepSampling

__all__ = ["ScheduledProcess", "prediction_cost"]

MAX_SIGNAL_AT_END = 0.01
"""Largest alpha at t = 1 from which a walk may start as if nothing were left."""


class ScheduledProcess(ProcessSpec):
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
        return prediction_cost(self.facts(space))

    def clock(self) -> TimestepSampling:
        """Build what keeps the time."""
        from .timestep_sampling import TimestepSampling

        return TimestepSampling(self.schedule.build(), self.level, self.t_min, self.stratified)

    def check_signal_at_end(self, what: str) -> Iterable[Misfit]:
        """Yield if so much of `what` is left at t = 1 that sampling would start from the wrong state."""
        end = self.schedule.sigma_end()
        if end is None or math.exp(-end) <= MAX_SIGNAL_AT_END:
            return
        options = type(self.schedule).model_fields
        fixes = {"sigma_max": "set schedule.sigma_max = 20", "eps": "set schedule.eps = 1e-3"}
        fix = next((text for option, text in fixes.items() if option in options), 'use schedule = "log-linear"')
        left = f"{100 * math.exp(-end):.2g} % {what}"
        message = f'schedule "{self.schedule.name}" ends at sigma = {end:.3g}, where {left} at t = 1'
        yield Misfit(message, ("schedule",), help=f"{fix}; at most {MAX_SIGNAL_AT_END:.0%} may be left")


def prediction_cost(process: ProcessFacts) -> Cost:
    """What noising a sample and giving the raw output its meaning take.

    Tokens: a normalised reading keeps its logarithms and two masks of what cannot be; scores keep nothing of their own.
    Features: the noised sample, what is hidden or wanted, and the prediction.
    """
    space = process.space
    if not isinstance(space, TokenSpace):
        return Cost(kept=3 * space.length * space.width, passing=3 * space.length * space.width)
    table = space.length * space.vocab
    return Cost(passing=2 * table) if process.predict == "score" else Cost(kept=table * 3 // 2, passing=2 * table)
