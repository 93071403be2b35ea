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
    from dither.registry.contracts.protocols import Schedule

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

    def level_end(self) -> float | None:
        """Return the largest noise level; None if unknown, or if levels are also negative."""
        ends = {"t": 1.0, "index": 999.0, "sigma": self.sigma_end()}
        return ends.get(self.level)

    def sigma_end(self) -> float | None:
        """Return sigma at t = 1; None if the schedule does not state it."""
        return self.schedule.sigma_end()

    def build_schedule(self) -> Schedule:
        return self.schedule.build()

    def timesteps(self, max_signal: float | None = None) -> TimestepSampling:
        """Build the schedule and the sampling of timesteps.

        A schedule that does not state `sigma_end` is evaluated at t = 1; Refused if more than
        `max_signal`, by default `MAX_SIGNAL_AT_END`, is left there.
        """
        from .timestep_sampling import TimestepSampling

        schedule = self.build_schedule()
        if max_signal is None:
            max_signal = MAX_SIGNAL_AT_END
        # A schedule that states its end is checked before torch is imported.
        if self.schedule.sigma_end() is None:
            self._check_built_end(max_signal)
        return TimestepSampling(schedule, self.level, self.t_min, self.stratified)

    def _check_built_end(self, max_signal: float) -> None:
        """Raise Refused if the built schedule leaves more than `max_signal` at t = 1."""
        sigma = self.schedule.built_sigma_end()
        # Written so that NaN is refused, too.
        if not math.exp(-sigma) <= max_signal:
            message = (
                f'schedule "{self.schedule.name}" ends at sigma = {sigma:.3g}: '
                f"{_percent(sigma)} of the signal is left at t = 1"
            )
            raise Refused(
                Problem(
                    message,
                    ("process", "schedule"),
                    help=f"at most {max_signal:.0%} may be left for sampling to start "
                    "from the prior",
                    code="signal-left-at-end",
                )
            )

    def check_signal_at_end(self, remains: str) -> Iterable[Misfit]:
        """Reject a schedule that leaves so much signal at t = 1 that sampling starts from a wrong state.

        `remains` says in the message what the share is of, and that it remains.
        """
        end = self.schedule.sigma_end()
        if end is None or math.exp(-end) <= MAX_SIGNAL_AT_END:
            return

        options = type(self.schedule).model_fields
        if "sigma_max" in options:
            fix = "set schedule.sigma_max = 20"
        elif "eps" in options:
            fix = "set schedule.eps = 1e-3"
        else:
            fix = 'use schedule = "log-linear"'
        message = (
            f'schedule "{self.schedule.name}" ends at sigma = {end:.3g}, '
            f"where {_percent(end)} {remains} at t = 1"
        )
        fix = f"{fix}; at most {MAX_SIGNAL_AT_END:.0%} may be left"
        yield Misfit(message, ("schedule",), help=fix, code="signal-left-at-end")


def _percent(sigma: float) -> str:
    return f"{100 * math.exp(-sigma):.2g} %"
