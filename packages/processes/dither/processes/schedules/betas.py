"""Schedules of discrete diffusion: tables of betas, and the sigma that they add up to. Read without torch.

beta_i is the share of the variance that step i of T replaces by noise; alpha after it is the
product of 1 - beta_0 .. 1 - beta_i (DDPM, Ho et al. 2020), which is exp(-sigma). sigma is that of
step i at t = (i + 1) / T, and linear between.
"""

from __future__ import annotations

import math
from abc import abstractmethod
from collections.abc import Sequence
from itertools import accumulate, pairwise
from typing import TYPE_CHECKING, Self

from pydantic import Field, model_validator

from dither.registry.kinds import ScheduleSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Schedule

__all__ = [
    "MAX_SIGMA",
    "CosineBeta",
    "LinearBeta",
    "ScaledLinearBeta",
    "SigmoidBeta",
    "linear",
    "sigmas",
    "tabulated",
]

MAX_SIGMA = 64.0
"""sigma at which no signal is left: sqrt(alpha) is 1e-14 there, which float32 cannot distinguish
from 0 next to 1."""

OFFSET = 0.008
"""Keeps the first betas of the cosine from being too small (Nichol and Dhariwal 2021)."""

REACH = 6.0
"""The sigmoid of betas runs from minus this to this."""


class Betas(ScheduleSpec):
    """A table of betas."""

    steps: int = Field(1000, ge=1, le=100_000)
    """Number of betas."""
    zero_snr: bool = False
    """Rescale alpha to 0 at t = 1, so that sampling starts from the last state of training (zero
    terminal SNR). There eps carries no information: predict velocity or x0."""

    @model_validator(mode="after")
    def _scalable(self) -> Self:
        if self.zero_snr and self.steps < 2:
            raise ValueError("zero_snr needs at least 2 steps")
        return self

    @abstractmethod
    def betas(self) -> Sequence[float]:
        """Return the share of the variance that each step replaces by noise."""

    def sigma_end(self) -> float:
        return sigmas(self.betas(), self.zero_snr)[-1]

    def build(self) -> Schedule:
        return tabulated(sigmas(self.betas(), self.zero_snr))


class LinearBeta(Betas):
    """The linear betas of DDPM, evenly spaced.

    alpha at t = (i + 1) / steps is the product of 1 - beta_0 .. 1 - beta_i; between its steps sigma
    is a straight line.
    """

    name = "linear-beta"
    rev = 2
    first: float = Field(1e-4, gt=0, lt=1)
    """beta_0."""
    last: float = Field(0.02, gt=0, lt=1)
    """The last beta."""

    def betas(self) -> Sequence[float]:
        return linear(self.first, self.last, self.steps)


def linear(first: float, last: float, steps: int) -> list[float]:
    """Return betas that are evenly spaced (Ho et al. 2020)."""
    stride = (last - first) / max(steps - 1, 1)
    return [first + i * stride for i in range(steps)]


class ScaledLinearBeta(Betas):
    """The betas of latent diffusion: their square roots are evenly spaced."""

    name = "scaled-linear-beta"
    first: float = Field(8.5e-4, gt=0, lt=1)
    """beta_0."""
    last: float = Field(0.012, gt=0, lt=1)
    """The last beta."""

    def betas(self) -> Sequence[float]:
        roots = linear(math.sqrt(self.first), math.sqrt(self.last), self.steps)
        return [root * root for root in roots]


class SigmoidBeta(Betas):
    """Betas that rise along a sigmoid (GeoDiff)."""

    name = "sigmoid-beta"
    first: float = Field(1e-4, gt=0, lt=1)
    """Lower limit of the first beta."""
    last: float = Field(0.02, gt=0, lt=1)
    """Upper limit of the last beta."""

    def betas(self) -> Sequence[float]:
        rise = self.last - self.first
        us = linear(-REACH, REACH, self.steps)
        return [self.first + rise / (1 + math.exp(-u)) for u in us]


class CosineBeta(Betas):
    """Betas under which alpha is nearly a squared cosine (improved DDPM, Nichol and Dhariwal 2021)."""

    name = "cosine-beta"
    most: float = Field(0.999, gt=0, lt=1)
    """Largest beta."""

    def betas(self) -> Sequence[float]:
        alphas = []
        for i in range(self.steps + 1):
            share = (i / self.steps + OFFSET) / (1 + OFFSET)
            alphas.append(math.cos(share * math.pi / 2) ** 2)
        # At the end alpha is 0, and the last beta would be 1.
        return [min(1 - later / alpha, self.most) for alpha, later in pairwise(alphas)]


def sigmas(betas: Sequence[float], zero_snr: bool = False) -> list[float]:
    """Return sigma after each step.

    With `zero_snr` sqrt(alpha) is shifted and scaled, so that nothing is left after the last step
    and the first one does not change (Lin et al. 2023, algorithm 1); it requires at least 2 steps.
    """
    # sigma = -log alpha, and alpha is the product of all 1 - beta.
    sums = list(accumulate(-math.log1p(-beta) for beta in betas))
    if not zero_snr or sums[-1] > MAX_SIGMA:
        return sums

    # sqrt(alpha) -> (sqrt(alpha) - its last value) * scale, which keeps the first value
    *roots, last = [math.exp(-sigma / 2) for sigma in sums]
    scale = roots[0] / (roots[0] - last)
    rescaled = [-2 * math.log(scale * (root - last)) for root in roots]
    # The last sigma would be infinite.
    return [*rescaled, max(MAX_SIGMA, rescaled[-1] + 1)]


def tabulated(sigmas: Sequence[float]) -> Schedule:
    """Return the schedule with sigma = 0 at t = 0, sigmas[i] at t = (i + 1) / len(sigmas), and linear between."""
    import torch

    from ..precision import Constant, wide_schedule

    steps = len(sigmas)
    sums = Constant(torch.tensor([0.0, *sigmas], dtype=torch.float64))

    def curve(t: Tensor) -> tuple[Tensor, Tensor]:
        position = steps * t.clamp(0, 1)
        # The step that t falls into, inside which the rate is constant
        i = position.detach().long().clamp(max=steps - 1)
        before = sums.on(t.device)
        increment = before.diff()[i]
        return before[i] + (position - i) * increment, steps * increment

    return wide_schedule(curve)
