"""Zero terminal signal-to-noise ratio for any schedule (Lin et al. 2023, algorithm 1, with alpha(0) = 1)."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from dither.registry.contracts.protocols import Schedule

from ..precision import one_minus_exp, wide_schedule
from .betas import MAX_SIGMA

__all__ = ["zero_terminal_snr"]

SMALLEST_ROOT = math.exp(-MAX_SIGMA / 2)
"""sqrt(alpha) at t = 1, where sigma would be infinite."""


def zero_terminal_snr(schedule: Schedule, sigma_end: float) -> Schedule:
    """Return the schedule with sqrt(alpha) -> (sqrt(alpha) - r) / (1 - r), where r is its value at t = 1."""
    lost_end = -math.expm1(-sigma_end / 2)

    def curve(t: Tensor) -> tuple[Tensor, Tensor]:
        noise = schedule(t)
        # 1 - sqrt(alpha) as a share of its value at the end, with the digits of small sigma
        lost = one_minus_exp(noise.sigma / 2) / lost_end
        root = (1 - lost).clamp_min(SMALLEST_ROOT)
        # sigma = -2 log sqrt(alpha); log1p keeps the digits of small sigma, log those of large.
        sigma = -2 * torch.where(lost < 0.5, (-lost).log1p(), root.log())
        # d sigma / dt = -2 root' / root, and sqrt(alpha)' = -sqrt(alpha) rate / 2
        rate = (-noise.sigma / 2).exp() * noise.rate / (lost_end * root)
        return sigma, rate

    return wide_schedule(curve)
