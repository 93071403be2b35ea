"""Exact draws of ids. Letters: N rows, K draws per row, V vocabulary, B batch, L length.

Inverse of the cumulative sum, in float64. The usual race of float32 Gumbel numbers cuts the tails of the distribution
and so sharpens it (arXiv 2409.02908).
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from .precision import wide_dtype

__all__ = ["draw", "draw_along"]

CHUNK = 1 << 22
"""Most numbers held in float64 at once."""


def draw(weights: Float[Tensor, "*N V"]) -> Int[Tensor, "*N"]:
    """Draw one id per row with odds `weights` (at least 0, of any sum); an id of weight 0 never comes.

    Raises:
        ValueError: A row has no positive weight, or one that is not finite.
    """
    rows = weights.detach().reshape(-1, weights.shape[-1])
    dtype = wide_dtype(rows.device)
    u = torch.rand(len(rows), 1, dtype=dtype, device=rows.device)
    size = max(1, CHUNK // rows.shape[1])
    starts = range(0, len(rows), size)
    drawn = [_pick(rows[i : i + size].cumsum(-1, dtype=dtype), u[i : i + size]) for i in starts]
    return torch.cat([*drawn, u[:0].long()]).reshape(weights.shape[:-1])


def draw_along(cumulative: Float[Tensor, "rows V"], batch: int, length: int) -> Int[Tensor, "B L"]:
    """Draw one id per position from tables of cumulative weights, one row per position or one for all."""
    u = torch.rand(batch, length, dtype=cumulative.dtype, device=cumulative.device)
    if len(cumulative) == 1:
        return rearrange(_pick(cumulative, rearrange(u, "b l -> 1 (b l)")), "1 (b l) -> b l", b=batch)
    return rearrange(_pick(cumulative, rearrange(u, "b l -> l b")), "l b -> b l")


def _pick(cumulative: Float[Tensor, "N V"], u: Float[Tensor, "N K"]) -> Int[Tensor, "N K"]:
    """Return the first id whose cumulative weight exceeds u times the total."""
    total = cumulative[:, -1:]
    # u < 1, and of a normal number u times the total is below the total: some cumulative weight exceeds it.
    if not bool(((total >= torch.finfo(total.dtype).tiny) & total.isfinite()).all()):
        raise ValueError("cannot draw: a row of weights is all 0, or holds a number that is not finite")
    return torch.searchsorted(cumulative.contiguous(), (u * total).contiguous(), right=True)
