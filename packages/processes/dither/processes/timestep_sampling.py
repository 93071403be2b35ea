"""Training timesteps and the noise level passed to the model. Letters: n number of times, B batch, L length."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.protocols import Schedule

if TYPE_CHECKING:
    from .options import Level

__all__ = ["TimestepSampling", "time_of"]

PARTS, SEARCH_STEPS = 64, 9
"""Parts of an interval in a search step, and steps: 2^-54 of the unit interval, enough for float64."""

TINY_SIGMA = 1e-6
"""Lower bound of sigma under its logarithm; clean context has sigma = 0."""


@dataclass(frozen=True)
class TimestepSampling:
    """Training times, and the noise level passed to the model.

    Attributes:
        schedule: Time -> Noise.
        kind: The level: t, sigma, log sigma, or floor(1000 t), at most 999.
        t_min: Smallest training time.
        stratified: Draw one time in each of n equal strata, which lowers the variance of the loss; else independently.
    """

    schedule: Schedule
    kind: Level = "t"
    t_min: float = 1e-3
    stratified: bool = True

    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        """Draw n training times between t_min and 1; each is uniform by itself if rows come in random order."""
        u = torch.rand(n, device=device)
        if self.stratified:
            u = (torch.arange(n, device=device) + u) / n
        return self.t_min + (1 - self.t_min) * u

    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        """Return the noise level at t that the model is given."""
        if self.kind == "t":
            return t
        if self.kind == "index":
            return (1000 * t).floor().clamp(max=999)
        sigma = self.schedule(t).sigma
        return sigma if self.kind == "sigma" else sigma.clamp_min(TINY_SIGMA).log()


def time_of(schedule: Schedule, one_minus_alpha: Float[Tensor, " *B"]) -> Float[Tensor, " *B"]:
    """Return the time in [0, 1] at which 1 - alpha has the given value; else the nearer end.

    Each search step divides the interval by 64, with one call of the schedule: few kernels, no synchronisation.
    """
    inner = torch.arange(1, PARTS, dtype=one_minus_alpha.dtype, device=one_minus_alpha.device) / PARTS
    low, width = torch.zeros_like(one_minus_alpha), 1.0
    for _ in range(SEARCH_STEPS):
        early = -(-schedule(low[..., None] + width * inner).sigma).expm1() < one_minus_alpha[..., None]
        width /= PARTS
        low = low + width * early.sum(-1)
    return (low + width).clamp_max(1.0)
