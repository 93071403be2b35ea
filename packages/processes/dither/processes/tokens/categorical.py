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

from dither.registry.config.errors import NonFiniteOutput

from ..precision import piece_size, wide, wide_dtype

__all__ = ["block_sums", "draw", "draw_along", "draw_log", "search_along"]

TWO_LEVEL_MIN = 4096
"""Rows with more ids are drawn in two levels."""

BLOCK = 256
"""Ids in a block."""


def draw(weights: Float[Tensor, "*N V"]) -> Int[Tensor, "*N"]:
    """Draw one id per row with odds `weights` (at least 0, of any sum); an id of weight 0 is never drawn.

    NonFiniteOutput if a row has no positive weight, or a non-finite one.
    """
    return _draw_rows(weights, logarithms=False)


def draw_log(log_weights: Float[Tensor, "*N V"]) -> Int[Tensor, "*N"]:
    """Draw one id per row with odds exp(`log_weights`), which may be off by a constant per row.

    NonFiniteOutput if a row is -inf throughout, or has another non-finite number.
    """
    return _draw_rows(log_weights, logarithms=True)


def draw_along(
    cumulative: Float[Tensor, "*B rows V"], batch: int, length: int
) -> Int[Tensor, "B L"]:
    """Draw one id per position from tables of cumulative probabilities, one row per position or one for all."""
    u = torch.rand(batch, length, dtype=cumulative.dtype, device=cumulative.device)
    return search_along(cumulative, u)


def search_along(
    cumulative: Float[Tensor, "*B rows V"], u: Float[Tensor, "B L"]
) -> Int[Tensor, "B L"]:
    """Return the ids at which the cumulative probabilities of each position exceed u times their sum."""
    batch = len(u)
    # The search takes all draws of a row of the table at once.
    if cumulative.ndim > 2:
        if cumulative.shape[1] == 1:
            return _search(cumulative[:, 0].expand(batch, -1), u)
        return _search(cumulative.expand(*u.shape, -1), u[..., None])[..., 0]
    if len(cumulative) == 1:
        ids = _search(cumulative, rearrange(u, "b l -> 1 (b l)"))
        return rearrange(ids, "1 (b l) -> b l", b=batch)
    return rearrange(_search(cumulative, rearrange(u, "b l -> l b")), "l b -> b l")


def _draw_rows(values: Float[Tensor, "*N V"], *, logarithms: bool) -> Int[Tensor, "*N"]:
    rows = values.detach().reshape(-1, values.shape[-1])
    vocab = rows.shape[1]
    dtype = wide_dtype(rows.device)

    # All random numbers first, so that results do not depend on the size of a piece.
    u = torch.rand(len(rows), 1, dtype=dtype, device=rows.device)
    size = max(1, piece_size(rows.device) // vocab)
    pieces = [u[:0].long()]
    for start in range(0, len(rows), size):
        piece = slice(start, start + size)
        weights = rows[piece]
        if logarithms:
            weights = weights.softmax(-1)
        if vocab > TWO_LEVEL_MIN:
            ids = _pick_in_two(weights, u[piece])
        else:
            ids = _pick(weights.cumsum(-1, dtype=dtype), u[piece])
        pieces.append(ids)
    return torch.cat(pieces).reshape(values.shape[:-1])


def _pick(
    cumulative: Float[Tensor, "N V"], u: Float[Tensor, "N K"]
) -> Int[Tensor, "N K"]:
    """Return the first id whose cumulative weight exceeds u times the sum; NonFiniteOutput if there is none."""
    weight_sum = cumulative[:, -1:]
    # Of a denormal number u times the sum may round up to the sum itself.
    drawable = (
        weight_sum >= torch.finfo(weight_sum.dtype).tiny
    ) & weight_sum.isfinite()
    if not bool(drawable.all()):
        raise NonFiniteOutput("a row of weights is all 0, NaN or inf")
    return _search(cumulative, u)


def _search(
    cumulative: Float[Tensor, "*N V"], u: Float[Tensor, "*N K"]
) -> Int[Tensor, "*N K"]:
    # u < 1, and of a normal number u times the sum is below the sum: some cumulative weight
    # exceeds it.
    targets = (u * cumulative[..., -1:]).contiguous()
    return torch.searchsorted(cumulative.contiguous(), targets, right=True)


def block_sums(weights: Float[Tensor, "*N V"]) -> Float[Tensor, "*N S"]:
    """Return the sums of blocks of `BLOCK` ids and of the rest; faster than a sum of float32 numbers in float64."""
    # V = S BLOCK + rest; the rest is the last block, empty or not.
    blocks = weights.shape[-1] // BLOCK
    whole, rest = weights.tensor_split([blocks * BLOCK], -1)
    sums = whole.reshape(*weights.shape[:-1], blocks, BLOCK).sum(-1)
    return torch.cat([sums, rest.sum(-1, keepdim=True)], -1)


def _pick_in_two(
    weights: Float[Tensor, "N V"], u: Float[Tensor, "N 1"]
) -> Int[Tensor, "N 1"]:
    """Return the result of `_pick` up to rounding: the block first, then the id inside it."""
    vocab = weights.shape[1]
    # N V -> N S: the block, by the sums of blocks
    sums = wide(block_sums(weights))
    cumulative = sums.cumsum(1)
    block = _pick(cumulative, u)

    # The weights inside the block; the last one may be shorter: N BLOCK
    ids = block * BLOCK + torch.arange(BLOCK, device=block.device)
    inside = weights.gather(1, ids.clamp_max(vocab - 1)).masked_fill_(ids >= vocab, 0.0)

    # The rest of u inside the block is uniform in [0, 1) again.
    block_weight = sums.gather(1, block)
    weight_before = cumulative.gather(1, block) - block_weight
    rest = (u * cumulative[:, -1:] - weight_before) / block_weight
    below_one = 1 - torch.finfo(rest.dtype).eps
    return block * BLOCK + _pick(wide(inside).cumsum(1), rest.clamp(0.0, below_one))
