"""Likelihoods of Gaussian diffusion and flow matching: the variational bound, and that of the probability flow.

Both are densities of continuous columns, in the units of the samples. A column of few values, such
as 0 and 1 or pixels, has no density: with the width of its bins it is the probability of a value.
Letters: B batch, L length, M features, K probes.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import replace
from typing import Any

import torch
from jaxtyping import Bool, Float, Float64
from torch import Tensor
from torch.special import log_ndtr

from dither.registry.contracts.protocols import GaussianProcess
from dither.registry.contracts.records import Clean, State, over

from ..precision import one_minus_exp, wide
from ..timestep_sampling import time_of
from .probability_flow import ProbabilityFlow, solve
from .signal import path_norm

__all__ = [
    "START",
    "Bins",
    "Denoise",
    "bin_nats",
    "draw_value_bounds",
    "flow_log_density",
]

Denoise = Callable[[State, Float[Tensor, " B"]], Any]
"""State and time -> prediction."""

Bins = Float[Tensor, " M"] | None

START = 1e-3
"""The end of the process at the data if training times begin at 0."""


@torch.no_grad()
def draw_value_bounds(
    process: GaussianProcess,
    clean: Clean,
    where: Bool[Tensor, "B L M"],
    t: Float[Tensor, " B"],
    denoise: Denoise,
    *,
    t_min: float,
    bins: Bins = None,
) -> Float64[Tensor, "B L M"]:
    """Draw a bound on -log p of each value where `where`, given the others, in nats; 0 elsewhere.

    The variational bound of Kingma et al. 2021 (eq. 11 to 15): prior, diffusion from t = 1 to
    `t_min`, and reconstruction from there by a normal distribution around the prediction (Hoogeboom
    et al. 2022, eq. 18), or by its mass in the bin of a value. It holds for any denoiser, and for
    flow matching, which has the same reverse process in other coordinates.

    Args:
        process: Whose bound it is.
        clean: The batch.
        where: Values with noise.
        t: Uniform times in [0, 1].
        denoise: State and time -> prediction.
        t_min: End of the diffusion part.
        bins: Distance of the values of each column, 0 where it is continuous; None for all.
    """
    x0 = wide(clean.x0)
    widths = _widths(bins, x0)
    continuous = widths == 0
    t_min = _end_time(process, widths, where, t_min)
    times = torch.tensor([t_min, 1.0], dtype=t.dtype, device=t.device)
    low, high = one_minus_exp(wide(process.schedule(times).sigma))

    def errors(time: Float[Tensor, " B"]) -> tuple[Tensor, Tensor]:
        """Return the error of x_0, and 1 - eps^2, whose mean is 0."""
        time = time.to(clean.x0.dtype)
        state, eps = process.add_noise(clean.x0, process.schedule(time), where)
        return wide(denoise(state, time).x0) - x0, 1 - wide(eps).square()

    # Diffusion: half the integral of |error|^2 over snr = (1 - m) / m, m = 1 - alpha. With even
    # log m the terms of a standard normal distribution are all equal.
    m = low * (high / low) ** wide(t)
    error, control = errors(time_of(process.schedule, m))
    m = over(m, error)
    # At little noise the error is nearly that of eps, whose variance the second term removes; that
    # of quantised values vanishes there.
    shares = error.square() / m + torch.where(continuous, (1 - m) * control, 0.0)
    diffusion = (high / low).log() / 2 * shares

    # Reconstruction: x_0 is normal around the prediction with the noise-to-signal ratio of t_min.
    variance = low / (1 - low)
    error, control = errors(times[:1].expand(len(t)))
    log_volume = (2 * math.pi * variance).log()
    density = (error.square() / variance + control + log_volume) / 2
    mass = bin_nats(error, variance.sqrt(), widths)
    reconstruction = torch.where(continuous, density, mass)

    # Prior: KL(N(a x_0, m) || N(0, 1)) at t = 1
    prior = ((1 - high) * x0.square() + high - 1 - high.log()) / 2
    return torch.where(where, prior + diffusion + reconstruction, 0.0).double()


def _widths(bins: Bins, x0: Float[Tensor, "B L M"]) -> Float[Tensor, " M"]:
    """Return the widths of bins, 0 where a column is continuous."""
    return x0.new_zeros(x0.shape[-1]) if bins is None else bins.to(x0)


def _end_time(
    process: GaussianProcess,
    widths: Float[Tensor, " M"],
    where: Bool[Tensor, "B L M"],
    t_min: float,
) -> float:
    """Return the time of an eighth of the narrowest bin in noise; `t_min` if it is later, or for continuous values.

    Less noise says nothing about quantised values, but the errors of a model cost the more there.
    """
    noisy = widths[where.flatten(0, 1).any(0)]
    if not len(noisy) or not noisy.all():
        return t_min
    # 1 - alpha of the noise-to-signal ratio
    level = (noisy.amin() / 8).square()
    return max(t_min, float(time_of(process.schedule, level / (1 + level))))


def bin_nats(
    error: Float[Tensor, "B L M"],
    deviation: Float[Tensor, ""],
    widths: Float[Tensor, " M"],
) -> Float[Tensor, "B L M"]:
    """Return -log of the mass of N(error, deviation^2) within half a width of 0."""
    # By symmetry in the lower tail, where logarithms of the distribution function are exact.
    upper = log_ndtr((widths / 2 - error.abs()) / deviation)
    lower = log_ndtr((-widths / 2 - error.abs()) / deviation)
    log_mass: Tensor = upper + torch.log1p(-(lower - upper).exp())
    return -log_mass


def flow_log_density(
    process: GaussianProcess,
    clean: Clean,
    where: Bool[Tensor, "B L M"],
    denoise: Denoise,
    *,
    t_min: float,
    steps: int,
    probes: int,
    bins: Bins = None,
) -> Float64[Tensor, "B K"]:
    """Return log p of the values where `where`, given the others, under the probability flow, in nats.

    log p(x_0) = log N(x_1; 0, 1) plus the integral of the divergence of the flow (Song et al. 2021,
    eq. 39), which starts from the data at time `t_min`: p(x_0) has noise of that level. The error
    of Heun's method falls with the square of `steps`.

    Args:
        process: Whose flow it is.
        clean: The batch.
        where: Values that flow.
        denoise: State and time -> prediction, through which gradients flow.
        t_min: Time of the data.
        steps: Equal steps of Heun's method.
        probes: Random signs for estimates of the divergence (Hutchinson); from the number of values
            of a sample on it is exact, with one column instead of `probes`.
        bins: As of `draw_value_bounds`. Quantised values get uniform noise of this width, whose
            expected log p bounds their log-probability (Theis et al. 2016).
    """
    counts = where.flatten(1).sum(1, keepdim=True)
    x0 = wide(clean.x0)
    widths = _widths(bins, x0)
    x0 = x0 + (torch.rand_like(x0) - 0.5) * widths
    t_min = _end_time(process, widths, where, t_min)
    quantised = where & (widths > 0)
    volumes = torch.where(quantised, widths, 1.0).log()
    log_volume = volumes.flatten(1).sum(1, keepdim=True)

    values = x0[0].numel()
    exact = probes >= values
    if exact:
        vectors = torch.eye(values, dtype=clean.x0.dtype, device=x0.device)
        vectors = vectors.view(values, 1, *x0.shape[1:]).expand(-1, *x0.shape)
    else:
        signs = torch.rand(probes, *x0.shape, device=x0.device, dtype=clean.x0.dtype)
        vectors = (signs < 0.5).to(clean.x0.dtype) * 2 - 1

    state = replace(State.of(clean.x0), noisy=where)
    flow = ProbabilityFlow(process, denoise, state, clean)

    def field(u: Tensor, packed: Tensor) -> Tensor:
        """Return the velocity of z, and behind it the divergence of each probe."""
        z = packed[:, :values].view_as(x0).to(clean.x0.dtype).requires_grad_()
        with torch.enable_grad():
            velocity = flow.velocity(u, z)
        divergences = [_divergence(velocity, z, vector) for vector in vectors]
        divergence = torch.stack(divergences, 1).to(packed.dtype)
        if exact:
            divergence = divergence.sum(1, keepdim=True)
        return torch.cat([velocity.detach().flatten(1).to(packed.dtype), divergence], 1)

    us = flow.even_steps(t_min, 1.0, steps)
    # z at t_min of the data without noise
    scale = 1 - us[0]
    start = (x0 * scale).flatten(1)
    columns = 1 if exact else probes
    packed = torch.cat([start, start.new_zeros(len(start), columns)], 1)
    *_, (_, end) = solve(field, packed, us)
    z = end[:, :values].view_as(x0)
    divergence = end[:, values:]

    # The normal distribution of x at t = 1 in the coordinates of the flow, and of z at the data
    noise = process.schedule(us.new_ones(1))
    norm = path_norm(noise, noise.sigma)
    log_normal = -((z * norm).square() + math.log(2 * math.pi)) / 2
    log_base = torch.where(where, log_normal, 0.0).flatten(1).sum(1, keepdim=True)
    log_scale = counts * (norm.log() + scale.log())
    return (log_base + log_scale + divergence + log_volume).double()


def _divergence(
    velocity: Float[Tensor, "B L M"],
    z: Float[Tensor, "B L M"],
    vector: Float[Tensor, "B L M"],
) -> Float[Tensor, " B"]:
    """Return vector . J vector of each sample; samples do not depend on each other."""
    (row,) = torch.autograd.grad(velocity, z, vector, retain_graph=True)
    return (row * vector).flatten(1).sum(1)
