"""Schedules: sigma(t), the noise added up from 0 to t, and its derivative, the rate.

The signal left is alpha = exp(-sigma): the share of tokens not moved, of regions not hidden, or the squared scale of x0
under Gaussian noise (there -sigma is the log of DDPM's cumulative product). Each function on this page returns a
schedule: time `B` or `B L` -> Noise of the same shape. Inside, all is float64; outside, it has the dtype of t.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import torch
from jaxtyping import Float
from torch import Tensor

from dither.registry.flow.protocols import Schedule
from dither.registry.flow.records import Noise

from ..precision import Constant, wide
from . import betas

__all__ = [
    "cosine",
    "cosine_squared",
    "geometric",
    "linear_beta",
    "linear_sigma",
    "log_linear",
    "polynomial",
    "sigmoid",
    "tabulated",
]

Curve = Callable[[Tensor], tuple[Tensor, Tensor]]


def geometric(sigma_min: float = 1e-4, sigma_max: float = 20.0) -> Schedule:
    """Return sigma = sigma_min^(1-t) sigma_max^t (SEDD, Lou et al. 2023)."""
    if not 0 < sigma_min < sigma_max:
        raise ValueError(f"geometric needs 0 < sigma_min < sigma_max, not {sigma_min} and {sigma_max}")
    growth = math.log(sigma_max / sigma_min)

    def curve(t: Tensor) -> tuple[Tensor, Tensor]:
        sigma = sigma_min * (growth * t).exp()
        return sigma, growth * sigma

    return _exact(curve)


def linear_sigma(sigma_max: float = 10.0) -> Schedule:
    """Return sigma = sigma_max t: the rate is constant."""
    if not sigma_max > 0:
        raise ValueError(f"linear_sigma needs sigma_max > 0, not {sigma_max}")
    return _exact(lambda t: (sigma_max * t, torch.full_like(t, sigma_max)))


def log_linear(eps: float = 1e-3) -> Schedule:
    """Return alpha = 1 - (1 - eps) t (MDLM, Sahoo et al. 2024); masked cross entropy weighs 1 / t for every eps."""
    return polynomial(1.0, eps)


def polynomial(power: float = 2.0, eps: float = 1e-3) -> Schedule:
    """Return alpha = 1 - (1 - eps) t^power: the larger the power, the later the noise."""
    if not power >= 1:
        raise ValueError(f"polynomial needs power >= 1 (below, the rate at t = 0 is infinite), not {power}")

    def lost(t: Tensor) -> tuple[Tensor, Tensor]:
        return t**power, power * t ** (power - 1)

    return _falling(lost, eps)


def cosine(eps: float = 1e-3) -> Schedule:
    """Return alpha = eps + (1 - eps) cos(pi t / 2)."""

    def lost(t: Tensor) -> tuple[Tensor, Tensor]:
        return 2 * (math.pi / 4 * t).sin().square(), math.pi / 2 * (math.pi / 2 * t).sin()

    return _falling(lost, eps)


def cosine_squared(eps: float = 1e-3) -> Schedule:
    """Return alpha = eps + (1 - eps) cos(pi t / 2)^2."""

    def lost(t: Tensor) -> tuple[Tensor, Tensor]:
        return (math.pi / 2 * t).sin().square(), math.pi / 2 * (math.pi * t).sin()

    return _falling(lost, eps)


def sigmoid(start: float = -3.0, end: float = 3.0, tau: float = 1.0, eps: float = 1e-3) -> Schedule:
    """Let alpha fall from 1 to eps along the sigmoid of -u / tau, for u from start to end.

    Jabri et al. (2022), algorithm 1.
    """
    if not start < end or not tau > 0:
        raise ValueError(f"sigmoid needs start < end and tau > 0, not {start}, {end} and {tau}")
    low, high = (1 / (1 + math.exp(-u / tau)) for u in (start, end))

    def lost(t: Tensor) -> tuple[Tensor, Tensor]:
        value = ((start + (end - start) * t) / tau).sigmoid()
        return (value - low) / (high - low), value * (1 - value) * (end - start) / tau / (high - low)

    return _falling(lost, eps)


def linear_beta(first: float = 1e-4, last: float = 0.02, steps: int = 1000) -> Schedule:
    """The betas of DDPM (Ho et al. 2020), evenly spaced from `first` to `last`, as a table."""
    return tabulated(betas.sigmas(betas.linear(first, last, steps)))


def tabulated(sigmas: Sequence[float]) -> Schedule:
    """Return the schedule with sigma = 0 at t = 0, sigmas[i] at t = (i + 1) / len(sigmas), and straight lines between.

    Every step of a discrete diffusion is then found on the schedule.
    """
    steps, sums = len(sigmas), torch.tensor([0.0, *sigmas], dtype=torch.float64)
    gain_of, sum_before = Constant(sums.diff()), Constant(sums)

    def curve(t: Tensor) -> tuple[Tensor, Tensor]:
        place = steps * t.clamp(0, 1)
        i = place.detach().long().clamp(max=steps - 1)
        gain = gain_of.on(t.device)[i]
        return sum_before.on(t.device)[i] + (place - i) * gain, steps * gain

    return _exact(curve)


def _exact(curve: Curve) -> Schedule:
    """Compute a curve in float64."""

    def schedule(t: Float[Tensor, "B *L"]) -> Noise:
        sigma, rate = curve(wide(t))
        return Noise(sigma.to(t.dtype), rate.to(t.dtype))

    return schedule


def _falling(lost: Curve, eps: float) -> Schedule:
    """Turn a curve that rises from 0 to 1, with its slope, into alpha = 1 - (1 - eps) lost(t)."""
    if not 0 < eps < 1:
        raise ValueError(f"eps, the signal left at t = 1, must lie between 0 and 1, not {eps}")

    def curve(t: Tensor) -> tuple[Tensor, Tensor]:
        share, slope = lost(t)
        alpha = 1 - (1 - eps) * share
        return -torch.log1p(-(1 - eps) * share), (1 - eps) * slope / alpha

    return _exact(curve)
