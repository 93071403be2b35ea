"""Shared steps of samplers of tokens. Letters: B batch, L length, N chosen positions, V vocabulary."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Clean, TokenPrediction
from dither.registry.contracts.tensors import at_ids, lookup

from ..precision import wide, wide_dtype
from .categorical import draw_along, draw_log

__all__ = [
    "draw_prior",
    "fill",
    "fully_masked",
    "gumbel",
    "log_prob",
    "top_positions",
    "uncertain",
]


def uncertain(
    process: TokenProcess, x: Int[Tensor, "B L"], like: Clean
) -> Bool[Tensor, "B L"]:
    """Return where the clean id may differ from x: positions that the prior can have produced."""
    return ~like.fixed & (lookup(process.prior_probs(x.device), x) > 0)


def draw_prior(
    process: TokenProcess, t: Float[Tensor, " B"], like: Clean
) -> Int[Tensor, "B L"]:
    """Draw ids from the distribution of the tokens that noise has replaced until t."""
    cumulative = wide(process.prior_at(process.schedule(t))).cumsum(-1)
    return draw_along(cumulative, *like.x0.shape)


def fully_masked(
    process: TokenProcess, like: Clean, sampler: str
) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """Return the state at t = 1 and the mask of positions to unmask: all except padding and known ids.

    TypeError if the process does not mask tokens.
    """
    if not process.absorbing:
        raise TypeError(f'sampler "{sampler}" requires an absorbing TokenProcess')
    x = process.prior(like).x
    return x, uncertain(process, x, like)


def fill(
    x: Int[Tensor, "B L"], where: Bool[Tensor, "B L"], rows: TokenPrediction
) -> Int[Tensor, "B L"]:
    """Return x with ids drawn from p(x_0 | x_t) at the chosen positions, given their prediction."""
    return x.masked_scatter(where, draw_log(rows.log_clean()))


def log_prob(rows: TokenPrediction, ids: Int[Tensor, " N"]) -> Float[Tensor, " N"]:
    """Return log p(x_0 = id | x_t) at the chosen positions, given their prediction."""
    return wide(at_ids(rows.log_clean()[0], ids))


def top_positions(
    score: Float[Tensor, "B L"], among: Bool[Tensor, "B L"], count: Int[Tensor, " B"]
) -> Bool[Tensor, "B L"]:
    """Return the `count` positions of highest score in each row, among those in `among`; ties are broken at random."""
    # Scores of -inf, such as log 0, still come before positions that are not in `among`.
    score = score.clamp_min(torch.finfo(score.dtype).min)
    score = score.masked_fill(~among, -torch.inf)

    # A stable sort of shuffled positions leaves ties in random order.
    shuffled = torch.rand(score.shape, device=score.device).argsort(1)
    order = score.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    falling = shuffled.gather(1, order)

    # The first `count` of each row, put back to their positions
    chosen = torch.arange(score.shape[1], device=score.device) < count[:, None]
    return torch.zeros_like(among).scatter_(1, falling, chosen) & among


def gumbel(like: Tensor) -> Float[Tensor, "..."]:
    """Draw from the standard Gumbel distribution in float64; float32 would cut its tail."""
    # Inverse of the cumulative distribution exp(-exp(-x))
    u = torch.rand(like.shape, dtype=wide_dtype(like.device), device=like.device)
    return -(-u.log()).log()
