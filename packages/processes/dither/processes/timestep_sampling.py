"""Training timesteps, the level passed to the model, and the times at which samplers call it."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dither.registry.contracts.protocols import Process, Schedule
from dither.registry.contracts.records import Clean

from .precision import one_minus_exp, wide, wide_dtype

if TYPE_CHECKING:
    from .options import Level

__all__ = [
    "TimestepSampling",
    "even_times",
    "reveal_counts",
    "spaced_times",
    "time_of",
    "time_rows",
]

PARTS = 64
"""Parts into which a step of the search for a time divides its interval."""

SEARCH_STEPS = 9
"""Steps of the search: 64^-9 = 2^-54 of the unit interval, enough for float64."""

TINY_SIGMA = 1e-6
"""Lower bound of sigma under its logarithm; clean context has sigma = 0."""


@dataclass(frozen=True)
class TimestepSampling:
    """Training times, and the noise level passed to the model.

    Attributes:
        schedule: Time -> Noise.
        kind: The level: t, sigma, log sigma, or floor(1000 t), at most 999.
        t_min: Smallest training time.
        stratified: Draw one time in each of n equal strata, which lowers the variance of the loss;
            else independently.
    """

    schedule: Schedule
    kind: Level = "t"
    t_min: float = 1e-3
    stratified: bool = True

    def times(self, n: int, device: Any = None) -> Float[Tensor, " n"]:
        """Draw n training times between t_min and 1; each is uniform by itself if rows come in random order."""
        u = torch.rand(n, device=device)
        # One number in each of [0, 1/n), [1/n, 2/n), ... (low-discrepancy sampler of MDLM)
        if self.stratified:
            u = (torch.arange(n, device=device) + u) / n
        return self.t_min + (1 - self.t_min) * u

    def level(self, t: Float[Tensor, "B *L"]) -> Float[Tensor, "B *L"]:
        """Return the noise level at t that the model is given."""
        if self.kind == "t":
            return t
        if self.kind == "index":
            # Of a grid of thousandths in float32 a tenth is rounded down, below its index.
            return (1000 * t + 1e-3).floor().clamp(max=999)
        sigma = self.schedule(t).sigma
        return sigma if self.kind == "sigma" else sigma.clamp_min(TINY_SIGMA).log()


def time_of(
    schedule: Schedule, one_minus_alpha: Float[Tensor, " *B"]
) -> Float[Tensor, " *B"]:
    """Return the time in [0, 1] at which 1 - alpha has the given value; else the nearer end.

    Each search step divides the interval by 64, with one call of the schedule: few kernels, no
    synchronisation.
    """
    target = one_minus_alpha[..., None]
    inner = torch.arange(1, PARTS, dtype=target.dtype, device=target.device) / PARTS
    low = torch.zeros_like(one_minus_alpha)
    width = 1.0
    for _ in range(SEARCH_STEPS):
        # 63 times inside the interval, of which those before the searched one are counted
        level = one_minus_exp(schedule(low[..., None] + width * inner).sigma)
        early = level < target
        width /= PARTS
        low = low + width * early.sum(-1)
    return (low + width).clamp_max(1.0)


MIN_LOG_SNR = -30.0
"""Least log-SNR of a grid: below, sigmoid rounds to 1 in float64 and times would coincide."""


def even_times(steps: int, t_min: float, device: torch.device) -> Float[Tensor, " K"]:
    """Return K = steps + 1 times from 1 down to t_min."""
    return torch.linspace(1, t_min, steps + 1, device=device)


def time_rows(steps: int, t_min: float, like: Clean) -> Float[Tensor, "K B"]:
    """Return K = steps + 1 times from 1 down to t_min, for each sample."""
    # K -> K B
    times = even_times(steps, t_min, like.valid.device)
    return times[:, None].expand(-1, len(like.valid))


def reveal_counts(
    process: Process, units: Int[Tensor, " B"], steps: int
) -> Iterator[tuple[Int[Tensor, " B"], Float[Tensor, " B"]]]:
    """Yield, for each step that reveals any of the units, how many, and the share masked before."""
    # 1 - alpha at each time, the share that is still masked: K
    times = wide(even_times(steps, 0.0, units.device))
    shares = one_minus_exp(process.schedule(times).sigma)
    # Some schedules have noise at t = 0.
    shares[-1] = 0.0

    # How many of each sample are masked at each time, which rounding never lets rise: K B
    later = (units * shares[1:, None]).round().long()
    masked = torch.cat([units[None], later]).cummin(0).values
    counts = -masked.diff(dim=0)

    # Read once, for reading waits for the device.
    reveals = counts.any(1).tolist()
    for due, left, any_due in zip(counts, masked, reveals, strict=False):
        if any_due:
            yield due, wide(left) / units.clamp_min(1)


def spaced_times(
    schedule: Schedule,
    steps: int,
    spacing: str = "trailing",
    t_min: float = 1e-3,
    device: torch.device | None = None,
) -> Float[Tensor, " K"]:
    """Return K times from late to early, in float64 where the device has it; after the last one x_0 is taken.

    With t_min = 1 / T, a `steps` that divides T and a schedule of T betas, these are the time steps
    of discrete diffusion under the same names (Lin et al. 2023, table 2): time step i of T is t =
    (i + 1) / T.

    Args:
        schedule: Time -> noise.
        steps: K, the calls of the model.
        spacing: trailing: 1, 1 - 1/K .. 1/K. leading: the same less 1/K - t_min, so that it ends at
            t_min and begins below 1. linspace: even from 1 to t_min. log-snr: even in log alpha /
            (1 - alpha) from 1 to t_min.
        t_min: The last time, except under trailing.
        device: Of the result.
    """
    dtype = wide_dtype(torch.device(device or "cpu"))
    # K, K - 1 .. 1
    falling = torch.arange(steps, 0, -1, device=device, dtype=dtype)
    if spacing == "trailing":
        return falling / steps
    if spacing == "leading":
        return t_min + (falling - 1) / steps

    # 0 .. 1, from the first time to the last
    share = (steps - falling) / max(steps - 1, 1)
    ends = torch.linspace(1.0, t_min, 2, device=device, dtype=dtype)
    if spacing == "linspace":
        return ends[0] + share * (ends[1] - ends[0])

    # log-SNR = log alpha - log(1 - alpha), whose inverse is 1 - alpha = sigmoid(-log-SNR)
    sigma = schedule(ends).sigma
    log_snr = (-sigma - one_minus_exp(sigma).log()).clamp_min(MIN_LOG_SNR)
    low, high = log_snr
    times = time_of(schedule, (low + share * (high - low)).neg().sigmoid())
    # 1 - alpha may be 1 before t is.
    times[0] = 1.0
    times[1:] = times[1:].clamp(t_min, 1.0)
    return times
