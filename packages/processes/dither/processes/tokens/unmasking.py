"""Shared steps of samplers that unmask tokens. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

from dither.registry.contracts.protocols import TokenProcess
from dither.registry.contracts.records import Clean, put_rows, readable_rows, select_rows

from ..precision import wide, wide_dtype
from .posterior import lookup
from .prediction import clean_rows, sample_clean

__all__ = ["fill", "fully_masked", "gumbel", "log_prob", "top_positions"]


def fully_masked(
    process: TokenProcess, like: Clean, sampler: str
) -> tuple[Int[Tensor, "B L"], Bool[Tensor, "B L"]]:
    """Return the state at t = 1 and the mask of positions to unmask: all except padding and known ids.

    TypeError if the process does not mask tokens.
    """
    if not process.absorbing:
        raise TypeError(f'sampler "{sampler}" requires an absorbing TokenProcess')
    x = process.prior(like).x
    return x, (lookup(process.prior_probs(x.device), x) > 0) & ~like.fixed


def fill(x: Int[Tensor, "B L"], pred: Any, where: Bool[Tensor, "B L"]) -> Int[Tensor, "B L"]:
    """Return x with ids drawn from p(x_0 | x_t) at the chosen positions."""
    read = readable_rows(pred, where)
    return put_rows(x, where, sample_clean(pred, read), read)


def log_prob(pred: Any, x: Int[Tensor, "B L"], where: Bool[Tensor, "B L"]) -> Float[Tensor, "B L"]:
    """Return log p(x_0 = x | x_t) at the chosen positions, 0 elsewhere."""
    read = readable_rows(pred, where)
    ids = select_rows(x, read)
    rows = list[Tensor]()
    for log_p in clean_rows(pred, read):
        rows.append(log_p.gather(-1, ids[: len(log_p), None])[:, 0])
        ids = ids[len(log_p) :]
    zeros = torch.zeros(x.shape, dtype=wide_dtype(x.device), device=x.device)
    return put_rows(zeros, where, torch.cat([zeros[:0, 0], *map(wide, rows)]), read)


def top_positions(
    score: Float[Tensor, "B L"], among: Bool[Tensor, "B L"], count: Int[Tensor, " B"]
) -> Bool[Tensor, "B L"]:
    """Return the `count` positions of highest score in each row, among those in `among`; ties are broken at random."""
    score = score.clamp_min(torch.finfo(score.dtype).min).masked_fill(~among, -torch.inf)
    shuffled = torch.rand(score.shape, device=score.device).argsort(1)
    falling = shuffled.gather(
        1, score.gather(1, shuffled).argsort(dim=1, descending=True, stable=True)
    )
    first = torch.arange(score.shape[1], device=score.device) < count[:, None]
    return torch.zeros_like(among).scatter_(1, falling, first) & among


def gumbel(like: Tensor) -> Float[Tensor, "..."]:
    """Draw from the standard Gumbel distribution in float64; float32 would cut its tail."""
    u = torch.rand(like.shape, dtype=wide_dtype(like.device), device=like.device)
    return -(-u.log()).log()
