"""Estimators of the bound. All have the same mean, the bound; they differ in variance.

    L(x_0) = integral over t of w(t) E[sum over masked l of CE_l],   w = m'(t) / m(t),   m = 1 - alpha

- time         t even in [t_min, 1], every token masked independently with probability m.
- importance   log m even, so that w is the same at every t (MDLM, Sahoo et al. 2024, appendix).
- mask-count   m even, one token always masked and the others with probability m: the number k of N masked tokens
               is then uniform in 1 .. N, with weight N / k. At any m, w E[sum CE] = m' E[(N / k) sum CE] exactly,
               also for a model that is given the time.
- exact        drawn as time; the bound itself is a sum over all masks (`nelbo.exact_nelbo`).

Importance weights go into the rate, which token losses multiply with.
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
    """Map times that are uniform in [t_min, 1] to those of the estimator.

    Returns:
        The times, and their noise; its rate is divided by their density relative to uniform times.
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
    """Mask one more free position of each row, chosen uniformly, with weight N / k in place of 1 / (1 - alpha).

    Args:
        moved: Tokens that are masked, each independently.
        free: Tokens that may be masked; N in a row.
        noise: The noise, one per row.
    """
    count = free.sum(1)
    first = torch.rand_like(wide(free)).masked_fill(~free, -1.0).argmax(1, keepdim=True)
    moved = moved | (torch.zeros_like(moved).scatter_(1, first, True) & free)
    level = -(-wide(noise.sigma)).expm1()
    weight = count * level / moved.sum(1).clamp_min(1)
    return moved, Noise(noise.sigma, (wide(noise.rate) * weight).to(noise.rate.dtype))
