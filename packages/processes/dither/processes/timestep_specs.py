"""Options of schedule and training timesteps, which every process has. Read without torch."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Misfit, Slot, named
from dither.registry.config.errors import Problem, Refused
from dither.registry.kinds import ProcessSpec, ScheduleSpec

from .options import Level

if TYPE_CHECKING:
    from .timestep_sampling import TimestepSampling

__all__ = ["ScheduledProcess"]

MAX_SIGNAL_AT_END = 0.01
"""Largest alpha at t = 1 with which sampling may start from the prior."""


class ScheduledProcess(ProcessSpec):
    """Schedule, noise level and training timesteps."""

    schedule: Slot[ScheduleSpec] = named("log-linear")
    """Noise as a function of time."""
    level: Level = "t"
    """Noise level passed to the model: t, sigma, log sigma, or index = floor(1000 t), at most
    999."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Smallest training time."""
    stratified: bool = True
    """Draw one training time in each of batch-size equal strata, which lowers the variance of the
    loss."""

    def timesteps(self, max_signal: float | None = None) -> TimestepSampling:
        """Build the schedule and the sampling of timesteps.

        A schedule that does not state `sigma_end` is evaluated at t = 1; Refused if more than
        `max_signal`, by default `MAX_SIGNAL_AT_END`, is left there.
        """
        from .timestep_sampling import TimestepSampling

        schedule = self.schedule.build()
        max_signal = MAX_SIGNAL_AT_END if max_signal is None else max_signal
        if self.schedule.sigma_end() is None:
            sigma = self.schedule.built_sigma_end()
            if not math.exp(-sigma) <= max_signal:
                name = self.schedule.name
                left = _percent(sigma)
                message = f'schedule "{name}" ends at sigma = {sigma:.3g}: {left} of the signal'
                fix = f"at most {max_signal:.0%} may be left for sampling to start from the prior"
                path = ("process", "schedule")
                raise Refused(
                    Problem(
                        f"{message} is left at t = 1",
                        path,
                        help=fix,
                        code="signal-left-at-end",
                    )
                )
        return TimestepSampling(schedule, self.level, self.t_min, self.stratified)

    def check_signal_at_end(self, what: str) -> Iterable[Misfit]:
        """Yield if so much of `what` is left at t = 1 that sampling would start from the wrong state."""
        end = self.schedule.sigma_end()
        if end is None or math.exp(-end) <= MAX_SIGNAL_AT_END:
            return
        options = type(self.schedule).model_fields
        fixes = {
            "sigma_max": "set schedule.sigma_max = 20",
            "eps": "set schedule.eps = 1e-3",
        }
        fix = next(
            (text for option, text in fixes.items() if option in options),
            'use schedule = "log-linear"',
        )
        message = f'schedule "{self.schedule.name}" ends at sigma = {end:.3g}, where {_percent(end)} {what} at t = 1'
        fix = f"{fix}; at most {MAX_SIGNAL_AT_END:.0%} may be left"
        yield Misfit(message, ("schedule",), help=fix, code="signal-left-at-end")


def _percent(sigma: float) -> str:
    return f"{100 * math.exp(-sigma):.2g} %"
