"""Heun's method at the noise levels of EDM (Karras et al. 2022, algorithm 1 and eq. 5).

In the coordinates y = x / sqrt(alpha) = x_0 + s eps, with s^2 = (1 - alpha) / alpha, the probability
flow is dy/ds = (y - x_0(y, s)) / s. Letters: B batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from .options import ProcessSampler

if TYPE_CHECKING:
    from jaxtyping import Float
    from torch import Tensor

    from dither.registry.contracts.protocols import GaussianProcess, Session
    from dither.registry.contracts.records import Clean

__all__ = ["Heun"]


class Heun(ProcessSampler):
    """Heun's method for the probability flow, on the noise levels of EDM, which are dense near the data."""

    name = "heun"
    requires = "gaussian"
    steps: int = Field(18, ge=2, le=1_000_000)
    """K, the noise levels; the model is called 2 K - 1 times."""
    rho: float = Field(7.0, ge=1, le=100)
    """Roots of this order of the levels are evenly spaced; 1 spaces the levels themselves."""
    level_min: float = Field(0.002, gt=0, lt=1)
    """The last level sqrt((1 - alpha) / alpha) before clean data."""
    level_max: float = Field(80.0, gt=1, le=1e4)
    """The first level, at most that of t = 1."""

    def sample(
        self, process: GaussianProcess, model: Session, like: Clean
    ) -> Iterator[Float[Tensor, "B L M"]]:
        state = process.prior(like)
        times = self._times(process, like)
        for t, s in pairwise(times):
            pred = model(state, t)
            level_t, scale_t = _level_and_scale(process, t, state.x)
            level_s, scale_s = _level_and_scale(process, s, state.x)
            width = level_s - level_t

            # Euler's step, then the mean of the derivatives at both ends
            y = state.x / scale_t
            slope = (y - pred.x0) / level_t
            there = process.replace(state, (y + width * slope) * scale_s, like)
            x0 = model(there, s).x0
            y_there = there.x / scale_s
            slope = (slope + (y_there - x0) / level_s) / 2
            state = process.replace(state, (y + width * slope) * scale_s, like)
            yield state.x
        # From the last level Euler's step leads to the predicted x_0.
        yield process.finish(state, model(state, times[-1]), like)

    def _times(self, process: GaussianProcess, like: Clean) -> Float[Tensor, "K B"]:
        """Return the times of the noise levels for each sample."""
        import torch

        from ..precision import wide_dtype
        from ..timestep_sampling import time_of

        device = like.valid.device
        dtype = wide_dtype(device)
        # Levels beyond that of t = 1 would repeat it.
        end = torch.ones(1, device=device, dtype=dtype)
        largest = process.schedule(end).sigma.expm1().sqrt()

        share = torch.linspace(0, 1, self.steps, device=device, dtype=dtype)
        first = largest.clamp_max(self.level_max) ** (1 / self.rho)
        last = self.level_min ** (1 / self.rho)
        levels = (first + share * (last - first)) ** self.rho

        # 1 - alpha = level^2 / (1 + level^2)
        times = time_of(process.schedule, levels**2 / (1 + levels**2))
        return times.to(like.x0.dtype)[:, None].expand(-1, len(like.valid))


def _level_and_scale(
    process: GaussianProcess, t: Float[Tensor, " B"], like: Float[Tensor, "B L M"]
) -> tuple[Float[Tensor, "B 1 1"], Float[Tensor, "B 1 1"]]:
    """Return the level sqrt((1 - alpha) / alpha), and x / y."""
    from ..precision import wide

    noise = process.schedule(wide(t))
    a = noise.alpha(like).sqrt()
    b = noise.one_minus_alpha(like).sqrt()
    # On the straight line of flow matching x is that of diffusion, divided by a + b.
    scale = a / (a + b) if process.linear_path else a
    return (b / a).to(like.dtype), scale.to(like.dtype)
