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
from jaxtyping import Float, Int
from torch import Tensor

from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Clean, Measured, Noise, Noised, over
from dither.registry.contracts.tensors import lookup

from ..precision import one_minus_exp, wide
from ..timestep_sampling import TimestepSampling
from .categorical import search_along
from .nelbo import Denoise, cross_entropy, place_times, prior_kl

__all__ = ["draw_diffusion", "draw_ends"]


@torch.no_grad()
def draw_diffusion(
    process: TokenProcess,
    timesteps: TimestepSampling,
    clean: Clean,
    t: Float[Tensor, " B"],
    loss: Callable[[Any, Noised], Measured],
    denoise: Denoise,
) -> Measured:
    """Return an unbiased estimate of the bound over [t_min, 1] per position, in nats.

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
    for x, weight in _changed(process, clean, noise):
        weighted = Noise(noise.sigma, noise.rate * weight)
        batch = process.noised(clean, x, weighted)
        measured = loss(denoise(batch.state, times), batch)
        nats += (1 - t_min) * measured.values * measured.weights
    return Measured(nats, free.to(nats.dtype))


@torch.no_grad()
def draw_ends(
    process: TokenProcess, t_min: float, clean: Clean, denoise: Denoise
) -> dict[str, Float[Tensor, "B L"]]:
    """Return an unbiased estimate of the reconstruction at t_min, and the KL to the prior, per position in nats."""
    free = ~clean.fixed
    start = torch.full((len(clean.x0),), t_min, device=free.device)
    noise = process.schedule(start)
    reconstruction = wide(torch.zeros(free.shape, device=free.device))
    for x, weight in _changed(process, clean, noise):
        batch = process.noised(clean, x, noise)
        cost = cross_entropy(denoise(batch.state, start), clean)
        uncertain = batch.target_mask & free
        reconstruction += (over(weight, free) * cost).where(uncertain, 0.0)
    prior = prior_kl(process, clean, denoise).where(free, 0.0)
    return {"prior": prior, "reconstruction": reconstruction}


def _changed(
    process: TokenProcess, clean: Clean, noise: Noise
) -> Iterator[tuple[Int[Tensor, "B L"], Float[Tensor, " B"]]]:
    """Yield states and weights, whose weighted sum has the mean over q(x_t | x_0)."""
    x0 = clean.x0
    prior = process.prior_at(noise)
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
    yield x, weight.where(differ.any(1), 0.0).to(noise.rate.dtype)

    # Nothing differs. Under an absorbing process nothing is uncertain then.
    if not process.absorbing:
        nothing = (-m * changes).log1p().sum(1).exp()
        yield x0, nothing.to(noise.rate.dtype)


def _other_ids(
    prior: Float[Tensor, "*B rows V"], x0: Int[Tensor, "B L"]
) -> Int[Tensor, "B L"]:
    """Draw ids other than x0 from the prior."""
    # The cumulative sums without the step at x0: numbers after it skip its probability.
    cumulative = prior.cumsum(-1)
    skipped = lookup(prior, x0)
    before = lookup(cumulative, x0) - skipped
    u = torch.rand_like(skipped) * (1 - skipped)
    u = torch.where(u < before, u, u + skipped)
    # The sum of a row may be a rounding below 1.
    return search_along(cumulative, u).clamp_max(prior.shape[-1] - 1)
