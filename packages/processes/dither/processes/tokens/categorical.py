"""Exact categorical draws. Letters: N rows, K draws per row, V vocabulary, B batch, L length, S blocks of a row.

Inverse of the cumulative sum, with one random number per row. The usual race of float32 Gumbel
numbers cuts the tails of the distribution and so sharpens it (arXiv 2409.02908); so would a
cumulative sum over 50,000 ids in float32. Long rows are drawn in two levels: a block by the sums of
blocks, then an id inside it. Both searches are in float64, after roundings that are relative to
each number, however small.
"""

from __future__ import annotations

import torch
from einops import rearrange
from jaxtyping import Float, Int
from torch import Tensor

from ..precision import wide, wide_dtype

__all__ = ["block_sums", "draw", "draw_along", "draw_log"]

CHUNK = 1 << 20
"""Numbers of a piece of rows that is drawn at a time, so that it stays in the caches of a CPU."""

TWO_LEVEL_MIN = 4096
"""Rows with more ids are drawn in two levels."""

BLOCK = 256
"""Ids in a block."""


def draw(weights: Float[Tensor, "*N V"]) -> Int[Tensor, "*N"]:
    """Draw one id per row with odds `weights` (at least 0, of any sum); an id of weight 0 is never drawn.

    ValueError if a row has no positive weight, or a non-finite one.
    """
    return _drawn(weights, logarithms=False)


def draw_log(log_weights: Float[Tensor, "*N V"]) -> Int[Tensor, "*N"]:
    """Draw one id per row with odds exp(`log_weights`), which may be off by a constant per row.

    ValueError if a row is -inf throughout, or has another non-finite number.
    """
    return _drawn(log_weights, logarithms=True)


def draw_along(
    cumulative: Float[Tensor, "rows V"], batch: int, length: int
) -> Int[Tensor, "B L"]:
    """Draw one id per position from tables of cumulative probabilities, one row per position or one for all."""
    u = torch.rand(batch, length, dtype=cumulative.dtype, device=cumulative.device)
    if len(cumulative) == 1:
        return rearrange(
            _search(cumulative, rearrange(u, "b l -> 1 (b l)")),
            "1 (b l) -> b l",
            b=batch,
        )
    return rearrange(_search(cumulative, rearrange(u, "b l -> l b")), "l b -> b l")


def _drawn(values: Float[Tensor, "*N V"], *, logarithms: bool) -> Int[Tensor, "*N"]:
    rows = values.detach().reshape(-1, values.shape[-1])
    vocab = rows.shape[1]
    dtype = wide_dtype(rows.device)
    u = torch.rand(len(rows), 1, dtype=dtype, device=rows.device)
    size = max(1, CHUNK // vocab)
    drawn = [u[:0].long()]
    for i in range(0, len(rows), size):
        weights = rows[i : i + size]
        if logarithms:
            weights = weights.softmax(-1)
        if vocab > TWO_LEVEL_MIN:
            drawn.append(_pick_in_two(weights, u[i : i + size]))
        else:
            drawn.append(_pick(weights.cumsum(-1, dtype=dtype), u[i : i + size]))
    return torch.cat(drawn).reshape(values.shape[:-1])


def _pick(
    cumulative: Float[Tensor, "N V"], u: Float[Tensor, "N K"]
) -> Int[Tensor, "N K"]:
    """Return the first id whose cumulative weight exceeds u times the total; ValueError if there is none."""
    total = cumulative[:, -1:]
    if not bool(((total >= torch.finfo(total.dtype).tiny) & total.isfinite()).all()):
        raise ValueError("cannot draw: a row of weights is all 0 or non-finite")
    return _search(cumulative, u)


def _search(
    cumulative: Float[Tensor, "N V"], u: Float[Tensor, "N K"]
) -> Int[Tensor, "N K"]:
    # u < 1, and of a normal number u times the total is below the total: some cumulative weight
    # exceeds it.
    targets = (u * cumulative[:, -1:]).contiguous()
    return torch.searchsorted(cumulative.contiguous(), targets, right=True)


def block_sums(weights: Float[Tensor, "*N V"]) -> Float[Tensor, "*N S"]:
    """Return the sums of blocks of `BLOCK` ids and of the rest; faster than a sum of float32 numbers in float64."""
    whole = weights.shape[-1] // BLOCK * BLOCK
    sums = (
        weights[..., :whole].reshape(*weights.shape[:-1], whole // BLOCK, BLOCK).sum(-1)
    )
    return torch.cat([sums, weights[..., whole:].sum(-1, keepdim=True)], -1)


def _pick_in_two(
    weights: Float[Tensor, "N V"], u: Float[Tensor, "N 1"]
) -> Int[Tensor, "N 1"]:
    """Return the result of `_pick` up to rounding: the block first, then the id inside it."""
    vocab = weights.shape[1]
    blocks = block_sums(weights)
    ahead = wide(blocks).cumsum(1)
    block = _pick(ahead, u)
    ids = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = weights.gather(1, ids.clamp_max(vocab - 1)).masked_fill_(ids >= vocab, 0.0)
    # The rest of u inside the block is uniform in [0, 1) again.
    block_weight = wide(blocks).gather(1, block)
    rest = (u * ahead[:, -1:] - (ahead.gather(1, block) - block_weight)) / block_weight
    below_one = 1 - torch.finfo(rest.dtype).eps
    return block * BLOCK + _pick(wide(inside).cumsum(1), rest.clamp(0.0, below_one))
