"""Ways to draw the noise that a bound is measured with. All have the same mean, the bound; they differ in variance.

    L(x_0) = integral over t of w(t) E[sum over masked l of CE_l],   w = m'(t) / m(t),   m = 1 - alpha

- time         t even in [t_min, 1], every token masked by itself with chance m.
- importance   log m even, so that w is the same at every t (MDLM, Sahoo et al. 2024, appendix).
- mask-count   m even, one token masked for sure and the others with chance m: the number k of N tokens that is masked
               is then even in 1 .. N, and the weight is N / k. At any m, w E[sum CE] = m' E[(N / k) sum CE] exactly,
               also for a model that is told the time.
- exact        drawn as time; the bound itself is a sum over all masks, by `enumeration`.

What a draw weighs beyond an even one goes into the rate, with which token losses multiply: they know nothing of it.
Letters: B batch, L length.
"""

from __future__ import annotations

from typing import Literal

import torch
from jaxtyping import Bool, Float
from torch import Tensor

from dither.registry.flow.records import Noise

from ..precision import wide
from ..timestep_sampling import TimestepSampling, time_of

__all__ = ["Estimator", "mask_at_least_one", "place_times"]

Estimator = Literal["time", "importance", "mask-count", "exact"]


def place_times(
    timesteps: TimestepSampling, estimator: Estimator | str, t: Float[Tensor, " B"]
) -> tuple[Float[Tensor, " B"], Noise]:
    """Move times that are even in [t_min, 1] to where the estimator wants them.

    Returns:
        The times, and their noise; its rate is divided by how dense they lie, relative to even ones.
    """
    if estimator not in ("importance", "mask-count"):
        return t, timesteps.schedule(t)
    u = ((wide(t) - timesteps.t_min) / (1 - timesteps.t_min)).clamp(0, 1)
    ends = torch.tensor([timesteps.t_min, 1.0], dtype=u.dtype, device=u.device)
    low, high = _one_minus_alpha(timesteps, ends)
    if estimator == "importance":
        level = low * (high / low) ** u
        derivative = level * (high / low).log()
    else:
        level = low + (high - low) * u
        derivative = (high - low).expand(u.shape)
    # d sigma = dm / (1 - m); `derivative` is dm / du, and u runs over 1 while even times run over 1 - t_min.
    rate = derivative / (1 - level) / (1 - timesteps.t_min)
    return time_of(timesteps.schedule, level).to(t.dtype), Noise((-torch.log1p(-level)).to(t.dtype), rate.to(t.dtype))


def _one_minus_alpha(timesteps: TimestepSampling, t: Float[Tensor, " K"]) -> Float[Tensor, " K"]:
    return -(-timesteps.schedule(t).sigma).expm1()


def mask_at_least_one(
    moved: Bool[Tensor, "B L"], free: Bool[Tensor, "B L"], noise: Noise
) -> tuple[Bool[Tensor, "B L"], Noise]:
    """Mask one free position of each row besides, chosen evenly, and weigh by N / k where w(t) has 1 / (1 - alpha).

    Args:
        moved: Where tokens are masked, each by itself.
        free: Where they may be; N in a row.
        noise: The level, one per row.
    """
    count = free.sum(1)
    first = torch.rand_like(wide(free)).masked_fill(~free, -1.0).argmax(1, keepdim=True)
    moved = moved | (torch.zeros_like(moved).scatter_(1, first, True) & free)
    level = -(-wide(noise.sigma)).expm1()
    weight = count * level / moved.sum(1).clamp_min(1)
    return moved, Noise(noise.sigma, (wide(noise.rate) * weight).to(noise.rate.dtype))
