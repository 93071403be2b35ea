"""Attention in bfloat16 on a CPU, by tiles of heads and queries.

torch's fused CPU kernel is slower than plain matrix products of tiles that fit in the cache. With it
a training step of get_region/seed takes 1.21 times as long, one of language_model/seed 1.15 times,
a sampling step of that 1.26 times (AMD EPYC with AVX-512, one thread). The precision is the same:
logits and softmax in float32, attention weights in bfloat16.

Letters: B batch, H heads, L queries, K keys, E head width.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

__all__ = ["prefers_tiles", "tiled_attention"]

TILE = 1 << 22
"""Bytes of a tile: logits in float32 in the forward, attention weights in bfloat16 in the backward."""
MIN_WEIGHTS = 1 << 16
"""Least number of attention weights of a sample for which a forward alone uses tiles.

Below, they are slower: 2.3 times for 64 samples of 36 positions and 4 heads.
"""
MAX_WEIGHTS = 1 << 24
"""Largest number of attention weights, over all heads and samples, that is kept for a backward."""


def prefers_tiles(
    q: Float[Tensor, "B H L E"], k: Float[Tensor, "B H K E"], dropout: float
) -> bool:
    """Whether tiles are faster: in bfloat16 on a CPU."""
    if q.device.type != "cpu" or q.dtype != torch.bfloat16 or dropout:
        return False
    if torch.compiler.is_compiling():
        return False
    weights_of_sample = q.shape[1:-1].numel() * k.shape[-2]
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return len(q) * weights_of_sample <= MAX_WEIGHTS
    return weights_of_sample >= MIN_WEIGHTS


def tiled_attention(
    q: Float[Tensor, "B H L E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K E"],
    mask: Shaped[Tensor, "#B #H #L K"] | None,
) -> Float[Tensor, "B H L E"]:
    """Return softmax(q k' / sqrt(E)) v over the keys where `mask` is True.

    A float mask is added to the logits, and gets no gradient.
    """
    # The kernel adds a mask to the logits: 0 where a query may attend, -inf elsewhere.
    if mask is None:
        mask = torch.zeros(1, 1, 1, k.shape[2])
    elif not mask.is_floating_point():
        mask = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    with torch.autocast("cpu", enabled=False):
        result: Tensor = _Tiled.apply(q, k, v, mask)  # type: ignore[no-untyped-call]
    return result


class _Tiled(torch.autograd.Function):
    """Saves the attention weights of all heads, rounded to the dtype of q, if a backward follows."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "B H L E"],
        k: Float[Tensor, "B H K E"],
        v: Float[Tensor, "B H K E"],
        added: Float[Tensor, "#B #H #L K"],
    ) -> Float[Tensor, "B H L E"]:
        q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
        shape = *q.shape[:3], k.shape[2]
        added = added.expand(*q.shape[:3], -1)
        out = torch.empty_like(q)
        saved = None
        if any(ctx.needs_input_grad):
            saved = q.new_empty(shape)

        scale = q.shape[-1] ** -0.5
        # Softmax needs logits in float32; their products are exact with inputs in bfloat16.
        with _products_in_bfloat16(q.dtype == torch.bfloat16):
            for heads in _heads(shape, TILE // 4):
                keys = k[heads].float().mT
                for rows in _slices(q.shape[2], TILE // 4 // k.shape[2]):
                    tile = (*heads, rows)
                    logits = torch.baddbmm(
                        added[tile].float(), q[tile].float(), keys, alpha=scale
                    )
                    weights = torch.softmax(logits, -1, out=logits).to(q.dtype)
                    out[tile] = weights @ v[heads]
                    if saved is not None:
                        saved[tile] = weights
        if saved is not None:
            ctx.save_for_backward(q, k, v, saved)
        return out

    @staticmethod
    @once_differentiable
    def backward(
        ctx: Any, *grads: Float[Tensor, "B H L E"]
    ) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_q = torch.empty_like(q)
        grad_k = torch.empty_like(k)
        for tile in _heads(weights.shape, TILE // 2):
            # H L E @ H E K, the gradient of the attention weights
            grad_weights = grad[tile] @ v[tile].mT
            # torch's own backward of softmax: 8 to 13 times as fast as the formula written out.
            grad_logits = torch._softmax_backward_data(
                grad_weights, weights[tile], -1, weights.dtype
            )
            grad_q[tile] = grad_logits @ k[tile]
            grad_k[tile] = grad_logits.mT @ q[tile]

        # The scale of the logits, applied once to all tiles
        scale = q.shape[-1] ** -0.5
        grad_v = weights.mT @ grad
        return grad_q.mul_(scale), grad_k.mul_(scale), grad_v, None


@contextmanager
def _products_in_bfloat16(enabled: bool) -> Iterator[None]:
    """Round the inputs of float32 products to bfloat16, which changes nothing if they are already."""
    products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
    before = products.fp32_precision
    if enabled:
        products.fp32_precision = "bf16"
    try:
        yield
    finally:
        products.fp32_precision = before


def _heads(shape: Sequence[int], size: int) -> Iterator[tuple[int, slice]]:
    """Yield (sample, slice of heads) with about `size` of `B H L K` logits each, at least one head."""
    samples, heads, queries, keys = shape
    for sample in range(samples):
        for part in _slices(heads, size // max(queries * keys, 1)):
            yield sample, part


def _slices(count: int, size: int) -> Iterator[slice]:
    """Yield the slices of 0 .. count with `size` indices each, at least one."""
    size = max(size, 1)
    for start in range(0, count, size):
        yield slice(start, start + size)
