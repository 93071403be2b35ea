"""Betas of discrete diffusion, as lists of numbers, and the sigma that they add up to. No torch here.

beta_i is the share of the variance that step i of T replaces by noise; alpha after it is the product of 1 - beta_0 ..
1 - beta_i (DDPM, Ho et al. 2020), which is exp(-sigma).
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import accumulate

__all__ = ["MAX_SIGMA", "cosine", "linear", "scaled_linear", "sigmas", "sigmoid"]

MAX_SIGMA = 64.0
"""sigma at which nothing is left: sqrt(alpha) is 1e-14 there, which float32 cannot tell from 0 beside 1."""

OFFSET = 0.008
"""Keeps the first betas of the cosine from being too small (Nichol and Dhariwal 2021)."""

REACH = 6.0
"""The sigmoid of betas runs from minus this to this."""


def linear(first: float, last: float, steps: int) -> list[float]:
    """Return betas that are evenly spaced (Ho et al. 2020)."""
    stride = (last - first) / max(steps - 1, 1)
    return [first + i * stride for i in range(steps)]


def scaled_linear(first: float, last: float, steps: int) -> list[float]:
    """Return betas whose square roots are evenly spaced (Rombach et al. 2022)."""
    return [root * root for root in linear(math.sqrt(first), math.sqrt(last), steps)]


def sigmoid(first: float, last: float, steps: int) -> list[float]:
    """Return betas that rise from `first` to `last` along a sigmoid (GeoDiff, Xu et al. 2022)."""
    return [first + (last - first) / (1 + math.exp(-u)) for u in linear(-REACH, REACH, steps)]


def cosine(most: float, steps: int) -> list[float]:
    """Return betas under which alpha is nearly a squared cosine, none above `most` (Nichol and Dhariwal 2021)."""

    def alpha(i: int) -> float:
        return math.cos((i / steps + OFFSET) / (1 + OFFSET) * math.pi / 2) ** 2

    return [min(1 - alpha(i + 1) / alpha(i), most) for i in range(steps)]


def sigmas(betas: Sequence[float], zero_snr: bool = False) -> list[float]:
    """Return sigma after each step.

    With `zero_snr` sqrt(alpha) is shifted and scaled, so that nothing is left after the last step and the first one is
    as it was (Lin et al. 2023, algorithm 1).

    Raises:
        ValueError: A beta is not between 0 and 1, or there is no step, or a single one that is to leave nothing.
    """
    if not betas or not all(0 < beta < 1 for beta in betas):
        raise ValueError(f"betas lie between 0 and 1, and there is at least one, not {list(betas[:3])} ..")
    sums = list(accumulate(-math.log1p(-beta) for beta in betas))
    if not zero_snr or sums[-1] > MAX_SIGMA:
        return sums
    if len(betas) < 2:
        raise ValueError("zero_snr needs at least 2 steps: the first is to stay as it is, the last to leave nothing")
    kept = [math.exp(-sigma / 2) for sigma in sums]
    scale = kept[0] / (kept[0] - kept[-1])
    moved = [-2 * math.log(scale * (root - kept[-1])) for root in kept[:-1]]
    return [*moved, max(MAX_SIGMA, moved[-1] + 1)]
