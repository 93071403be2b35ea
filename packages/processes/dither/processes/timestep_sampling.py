"""Time as a process keeps it: which times training draws, and what the model is told of them.

Letters: n number of times, B batch, L length.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.protocols import Schedule

__all__ = ["Level", "TimestepSampling", "time_of"]

Level = Literal["t", "sigma", "log-sigma", "index"]

HALVINGS = 50
"""Steps of bisection: enough for float64."""

TINY_SIGMA = 1e-6
"""log-sigma says this much where sigma is 0, as on clean context."""


@dataclass(frozen=True)
class TimestepSampling:
    """Training times, and the level.

    Attributes:
        schedule: Time -> Noise.
        kind: What the model is told: t, sigma, log sigma, or floor(1000 t), at most 999.
        t_min: Smallest training time.
        stratified: Draw one time in each of n equal strata, which lowers the variance of the loss; else independently.
    """

    schedule: Schedule
    kind: Level = "t"
    t_min: float = 1e-3
    stratified: bool = True

    def __post_init__(self) -> None:
        if self.kind not in get_args(Level):
            raise ValueError(f"level must be one of {', '.join(get_args(Level))}, not {self.kind!r}")
        if not 0 <= self.t_min < 1:
            raise ValueError(f"t_min must be at least 0 and below 1, not {self.t_min}")

    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        """Draw n training times between t_min and 1; each is uniform by itself if rows come in random order."""
        u = torch.rand(n, device=device)
        if self.stratified:
            u = (torch.arange(n, device=device) + u) / n
        return self.t_min + (1 - self.t_min) * u

    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        """What the model is told of the noise at t."""
        if self.kind == "t":
            return t
        if self.kind == "index":
            return (1000 * t).floor().clamp(max=999)
        sigma = self.schedule(t).sigma
        return sigma if self.kind == "sigma" else sigma.clamp_min(TINY_SIGMA).log()


def time_of(schedule: Schedule, lost: Float[Tensor, " *B"]) -> Float[Tensor, " *B"]:
    """Return the time in [0, 1] at which 1 - alpha is `lost`, by bisection; an end of the range if none is."""
    low, high = torch.zeros_like(lost), torch.ones_like(lost)
    for _ in range(HALVINGS):
        middle = (low + high) / 2
        early = -(-schedule(middle).sigma).expm1() < lost
        low, high = torch.where(early, middle, low), torch.where(early, high, middle)
    return high
