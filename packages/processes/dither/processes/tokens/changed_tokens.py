"""Low-variance draws of the bound of any token process: at least one token differs from the clean one.

With m = 1 - alpha, token l differs from x_0 with probability m d_l, d_l = 1 - prior(x_0). The bound
is an integral over m in which a token that differs costs about CE / m, so that draws of q(x_t | x_0)
at even times, most of which change nothing where m is small, have a heavy tail. Instead, for the
set S of tokens that differ, and D = sum of d over all tokens,

    E f(x_t) = P(S empty) f(x_0) + E' [ m D / (sum of r over S) f(x_t) ]

with one token chosen with odds d that always differs (E'), and m even. Rare ids cost the most, so
half of the chosen tokens become any id that the prior has, which makes their new id r times as
likely. The first term is a smooth function of m and needs no draw; under an absorbing process it
is 0, r is 1, and the second is the estimator "mask-count".
Letters: B batch, L length, V vocabulary, rows one per position or one for all.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import (
    Clean,
    Measured,
    Noise,
    Noised,
    State,
    over,
)

from ..precision import one_minus_exp, wide
from ..timestep_sampling import TimestepSampling
from .nelbo import Denoise, cross_entropy, place_times, prior_kl
from .posterior import lookup

__all__ = ["draw_bound", "noised"]


@torch.no_grad()
def draw_bound(
    process: TokenProcess,
    timesteps: TimestepSampling,
    clean: Clean,
    t: Float[Tensor, " B"],
    loss: Callable[[Any, Noised], Measured],
    denoise: Denoise,
) -> Measured:
    """Return an unbiased estimate of the bound on -log p(x_0) per position, in nats.

    Args:
        process: Whose bound it is.
        timesteps: Its schedule and t_min.
        clean: The batch.
        t: Uniform in [t_min, 1].
        loss: Prediction and noised batch -> the diffusion part of the bound.
        denoise: State and time -> prediction.
    """
    t_min = timesteps.t_min
    free = ~clean.fixed
    nats = wide(torch.zeros(free.shape, device=free.device))
    density = torch.ones_like(t)
    # To find a wrong token among clean ones costs log 1 / m: more draws at small m.
    if not process.absorbing:
        u = (t - t_min) / (1 - t_min)
        density = 2 * u
        t = t_min + (1 - t_min) * u.square()
    times, noise = place_times(timesteps, "mask-count", t)
    noise = Noise(noise.sigma, noise.rate * density)
    for batch in _changed(process, clean, noise):
        measured = loss(denoise(batch.state, times), batch)
        nats += (1 - t_min) * measured.values * measured.weights

    # The reconstruction at t_min, with the weight of each state as the rate of its noise
    start = torch.full_like(t, t_min)
    sigma = process.schedule(start).sigma
    start_cost = torch.zeros_like(nats)
    for batch in _changed(process, clean, Noise(sigma, torch.ones_like(start))):
        reconstruction = cross_entropy(denoise(batch.state, start), clean)
        uncertain = batch.target_mask & free
        weight = over(batch.noise.rate, free)
        start_cost += (weight * reconstruction).where(uncertain, 0.0)

    prior = prior_kl(process, clean, denoise).where(free, 0.0)
    parts = {"prior": prior, "reconstruction": start_cost}
    return Measured(nats + start_cost + prior, free.to(nats.dtype), parts=parts)


def _changed(process: TokenProcess, clean: Clean, noise: Noise) -> Iterator[Noised]:
    """Yield noised batches whose sum, with their rates as weights, has the mean over q(x_t | x_0)."""
    x0 = clean.x0
    prior = process.prior_probs(x0.device)
    changes = (1 - lookup(prior, x0)).where(~clean.fixed, 0.0)
    m = one_minus_exp(wide(over(noise.sigma, x0)))

    # Odds of any id that the prior has
    even = (prior > 0).to(prior.dtype)
    even = even / even.sum(-1, keepdim=True)
    differ = torch.rand_like(changes) < m * changes
    # One position with odds `changes`: the first of exponential clocks
    clocks = torch.rand_like(changes).log().neg() / changes
    chosen = torch.zeros_like(differ).scatter(1, clocks.argmin(1, keepdim=True), True)
    differ = (differ | chosen) & (changes > 0)
    any_id = chosen & (torch.rand_like(changes[:, :1]) < 0.5)
    other = torch.where(any_id, _other_ids(even, x0), _other_ids(prior, x0))
    x = torch.where(differ, other, x0)

    # How much likelier the new id of each position is if it is the chosen one
    by_prior = lookup(prior, x) / changes
    by_even = lookup(even, x) / (1 - lookup(even, x0))
    ratio = ((1 + by_even / by_prior) / 2).where(differ, 0.0)
    weight = m[:, 0] * changes.sum(1) / ratio.sum(1)
    weight = weight.where(differ.any(1), 0.0).to(noise.rate.dtype)
    yield noised(process, clean, x, Noise(noise.sigma, noise.rate * weight))

    # Nothing differs. Under an absorbing process nothing is uncertain then.
    if not process.absorbing:
        nothing = (-m * changes).log1p().sum(1).exp()
        rate = noise.rate * nothing.to(noise.rate.dtype)
        yield noised(process, clean, x0, Noise(noise.sigma, rate))


def noised(
    process: TokenProcess, clean: Clean, x: Int[Tensor, "B L"], noise: Noise
) -> Noised:
    """Return the record of ids x at this noise."""
    # Where the prior cannot produce x_t, x_0 is x_t and nothing is to predict.
    prior = process.prior_probs(x.device)
    fixed = clean.fixed
    target_mask = ~fixed & (lookup(prior, x) > 0)
    return Noised(clean.x0, State.of(x), noise, target_mask, clean.valid, fixed, prior)


def _other_ids(prior: Float[Tensor, "rows V"], x0: Int[Tensor, "B L"]) -> Tensor:
    """Draw ids other than x0 from the prior."""
    # The cumulative sums without the step at x0: numbers after it skip its probability.
    cumulative = prior.cumsum(-1)
    skipped = lookup(prior, x0)
    before = lookup(cumulative, x0) - skipped
    u = torch.rand_like(skipped) * (1 - skipped)
    u = torch.where(u < before, u, u + skipped)
    if len(cumulative) == 1:
        ids = torch.searchsorted(cumulative, rearrange(u, "b l -> 1 (b l)"), right=True)
        ids = ids.view(x0.shape)
    else:
        columns = rearrange(u, "b l -> l b").contiguous()
        ids = torch.searchsorted(cumulative, columns, right=True).T
    # The sum of a row may be a rounding below 1.
    return ids.clamp_max(prior.shape[-1] - 1)
