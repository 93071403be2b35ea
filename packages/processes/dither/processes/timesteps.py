"""The times at which a walk asks the model. Letters: K times."""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.config.errors import nearest
from dither.registry.flow.protocols import Schedule

from .precision import wide_dtype
from .timestep_sampling import time_of

__all__ = ["Grid", "Spacing", "check_grid", "even_times"]

Spacing = Literal["trailing", "leading", "linspace", "log-snr"]

MOST_NOISE = -30.0
"""Least log-SNR of a grid; sigmoid of less is 1 in float64 before long, and times would fall together."""


class Grid:
    """K times, from late to early; from the last of them the walk goes straight to clean data.

    With t_min = 1 / T, a `steps` that divides T and a schedule of T betas, these are the time steps of discrete
    diffusion under the same names (Lin et al. 2023, table 2): time step i of T is t = (i + 1) / T.

    Args:
        steps: K, the calls of the model.
        spacing: trailing: 1, 1 - 1/K .. 1/K. leading: the same less 1/K - t_min, so that it ends at t_min and begins
            below 1. linspace: even from 1 to t_min. log-snr: even in log alpha / (1 - alpha) from 1 to t_min.
        t_min: The last time, but under trailing.
    """

    def __init__(self, steps: int, spacing: Spacing = "trailing", t_min: float = 1e-3) -> None:
        if spacing not in get_args(Spacing):
            close = nearest(spacing, get_args(Spacing))
            hint = f'; did you mean "{close}"?' if close else ""
            raise ValueError(f"spacing must be one of {', '.join(get_args(Spacing))}, not {spacing!r}{hint}")
        if steps < 1 or not 0 < t_min < 1:
            raise ValueError(f"a walk needs at least 1 step and t_min in (0, 1), not steps = {steps}, t_min = {t_min}")
        if spacing == "leading" and t_min * steps > 1 + 1e-9:
            raise ValueError(f"leading needs t_min <= 1 / steps, not t_min = {t_min} with steps = {steps}")
        self.steps, self.spacing, self.t_min = steps, spacing, t_min

    def times(self, schedule: Schedule, device: Any = None) -> Float[Tensor, " K"]:
        """Return the times, in float64 where the device has it."""
        count, dtype = self.steps, wide_dtype(torch.device(device or "cpu"))
        falling = torch.arange(count, 0, -1, device=device, dtype=dtype)
        if self.spacing == "trailing":
            return falling / count
        if self.spacing == "leading":
            return self.t_min + (falling - 1) / count
        ends = torch.tensor([1.0, self.t_min], device=device, dtype=dtype)
        share = (count - falling) / max(count - 1, 1)
        if self.spacing == "linspace":
            return ends[0] + share * (ends[1] - ends[0])
        sigma = schedule(ends).sigma
        low, high = (-sigma - (-(-sigma).expm1()).log()).clamp_min(MOST_NOISE)
        times = time_of(schedule, (low + share * (high - low)).neg().sigmoid())
        times[0], times[1:] = 1.0, times[1:].clamp(self.t_min, 1.0)  # 1 - alpha may be 1 before t is
        return times


def check_grid(steps: int, t_min: float) -> None:
    """Refuse a grid of times that cannot be.

    Raises:
        ValueError: No step, or t_min outside [0, 1).
    """
    if steps < 1 or not 0 <= t_min < 1:
        raise ValueError(f"a walk needs at least 1 step and t_min in [0, 1), not steps = {steps}, t_min = {t_min}")


def even_times(steps: int, t_min: float, device: Any) -> Float[Tensor, " K"]:
    """Return the K = steps + 1 times from 1 down to t_min."""
    return torch.linspace(1, t_min, steps + 1, device=device)
