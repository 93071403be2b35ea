"""Importance weights w of one sampling trajectory, with E w = p(x_0) of the sampler: log mean w tightens with draws.

Absorbing processes reveal the free positions in a uniform order, one by one (any-order
autoregression; Uria et al. 2014, Hoogeboom et al. 2022), so that

    w = product over positions of p(x_0 | the positions revealed before)

Of other processes, a trajectory is drawn from q(x_t | x_0) at `STEPS` + 1 times, and the ancestral
sampler of these times has (importance weighted autoencoder; Burda et al. 2016)

    w = prior(x_1) product over steps of p_s(x_s) / p_t(x_t)  p(x_0 | x_t_min) / q(x_t_min | x_0)

with p_s(y) = alpha_s m(y) + (1 - alpha_s) prior_s(y) of the context m predicted at x_t: each step has
p(x_s | x_t) = p_s(x_s) q(x_t | x_s) / p_t(x_t). Letters: B batch, L length, V vocabulary.
"""

from __future__ import annotations

import torch
from jaxtyping import Float, Float64, Int
from torch import Tensor

from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Clean, Noise, State, over
from dither.registry.contracts.spaces import TokenSpace
from dither.registry.contracts.tensors import at_ids, lookup

from ..precision import one_minus_exp, wide
from ..timestep_sampling import TimestepSampling, time_of
from .nelbo import Denoise
from .posterior import Posterior
from .prediction import log_context

__all__ = ["draw_log_weight"]

STEPS = 64
"""Steps of a trajectory of a process that is not absorbing."""


@torch.no_grad()
def draw_log_weight(
    process: TokenProcess,
    timesteps: TimestepSampling,
    clean: Clean,
    denoise: Denoise,
) -> Float64[Tensor, " B"]:
    """Return log w of one trajectory of each sample, given its known values."""
    if process.absorbing:
        return _of_order(process, clean, denoise)
    return _of_trajectory(process, timesteps, clean, denoise)


def _of_order(
    process: TokenProcess, clean: Clean, denoise: Denoise
) -> Float64[Tensor, " B"]:
    """Return the log-probability of the free positions in a random order."""
    free = ~clean.fixed
    count = free.sum(1, keepdim=True)
    # Free positions get the ranks 0 to N - 1.
    order = torch.rand_like(wide(free)).masked_fill(~free, 2.0).argsort(1)
    rank = order.argsort(1)
    all_masked = process.prior(clean).x
    total = wide(torch.zeros(len(free), device=free.device))
    for step in range(int(count.max()) if len(free) else 0):
        masked = free & (rank >= step)
        # The mean share of noise with that many of N positions masked
        share = wide(count[:, 0] - step).clamp_min(1) / (count[:, 0] + 1)
        t = time_of(process.schedule, share).to(torch.get_default_dtype())
        x = torch.where(masked, all_masked, clean.x0)
        log_p = wide(at_ids(denoise(State.of(x), t).log_clean(), clean.x0))
        total += log_p.where(free & (rank == step), 0.0).sum(1)
    return total


def _of_trajectory(
    process: TokenProcess,
    timesteps: TimestepSampling,
    clean: Clean,
    denoise: Denoise,
) -> Float64[Tensor, " B"]:
    """Return the log-weight of a trajectory drawn from t_min to 1."""
    x0 = clean.x0
    assert isinstance(process.space, TokenSpace)
    clean_ids = process.space.clean().to(x0.device)
    rows = len(x0)

    def at(t: Float[Tensor, ""]) -> tuple[Float[Tensor, " B"], Noise]:
        times = t.expand(rows)
        return times, process.schedule(times)

    def log_marginal(
        log_m: Float[Tensor, "B L V"], x: Int[Tensor, "B L"], noise: Noise
    ) -> Float64[Tensor, "B L"]:
        level = one_minus_exp(wide(over(noise.sigma, x)))
        m = wide(at_ids(log_m, x)).exp()
        return ((1 - level) * m + level * lookup(process.prior_at(noise), x)).log()

    times, noise = at(_grid(timesteps, x0.device)[0])
    state = process.corrupt(clean, times).state
    level = one_minus_exp(wide(over(noise.sigma, x0)))
    drawn = lookup(process.prior_at(noise), state.x)
    start = (1 - level) * (state.x == x0) + level * drawn
    log_p = wide(at_ids(denoise(state, times).log_clean(), x0))
    nats = log_p - start.log()
    for t in _grid(timesteps, x0.device)[1:]:
        times, later_noise = at(t)
        later = process.renoise(state, later_noise, noise, clean)
        prior = process.prior_at(later_noise)
        posterior = Posterior(later.x, later_noise, prior, clean_ids)
        log_m = log_context(denoise(later, times), posterior)
        nats += log_marginal(log_m, state.x, noise)
        nats -= log_marginal(log_m, later.x, later_noise)
        state = later
        noise = later_noise
    nats += lookup(process.prior_probs(x0.device), state.x).log()
    return nats.where(~clean.fixed, 0.0).sum(1)


def _grid(timesteps: TimestepSampling, device: torch.device) -> Float[Tensor, " K"]:
    """Return times from t_min to 1, dense where little is noise."""
    ends = torch.linspace(timesteps.t_min, 1.0, 2, dtype=torch.float64, device=device)
    low, high = one_minus_exp(timesteps.schedule(ends).sigma)
    share = torch.linspace(0, 1, STEPS + 1, dtype=torch.float64, device=device)
    levels = low + (high - low) * share.square()
    times = time_of(timesteps.schedule, levels).to(torch.get_default_dtype())
    times[0] = timesteps.t_min
    times[-1] = 1.0
    return times
