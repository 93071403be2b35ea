"""Attention in bfloat16 on a CPU, by tiles of samples, heads and queries.

torch's fused CPU kernel is slower than plain matrix products of tiles that fit in the cache. With it
a training step of get_region/seed takes 1.21 times as long, one of language_model/seed 1.15 times,
a sampling step of that 1.26 times, and 64 texts of the autoregressive model of
benchmarks/peers.py 1.28 times (AMD EPYC with AVX-512, one thread). The precision is the same:
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

FORWARD_TILE = 1 << 19
"""Elements of a tile in the forward: of logits or keys, 2 MB in float32."""
BACKWARD_TILE = 1 << 21
"""Elements of a tile in the backward: of attention weights, 4 MB in bfloat16."""
MIN_WEIGHTS = 1 << 18
"""Least number of attention weights, over all heads and samples, for which a forward alone uses tiles."""
MIN_WEIGHTS_OF_SINGLE_QUERIES = 1 << 12
"""The same with one query a sample, for which torch's kernel takes as long as for 16."""
MAX_WEIGHTS = 1 << 24
"""Largest number of attention weights that is kept for a backward."""


def prefers_tiles(
    q: Float[Tensor, "B H L E"], k: Float[Tensor, "B H K E"], dropout: float
) -> bool:
    """Whether tiles are faster: in bfloat16 on a CPU."""
    if q.device.type != "cpu" or q.dtype != torch.bfloat16 or dropout:
        return False
    if torch.compiler.is_compiling():
        return False
    weights = q.shape[:-1].numel() * k.shape[-2]
    if torch.is_grad_enabled() and (q.requires_grad or k.requires_grad):
        return weights <= MAX_WEIGHTS
    if q.shape[-2] == 1:
        return weights >= MIN_WEIGHTS_OF_SINGLE_QUERIES
    return weights >= MIN_WEIGHTS


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
        shape = *q.shape[:3], k.shape[2]
        added = added.expand(shape)
        out = q.new_empty(q.shape)
        saved = None
        if any(ctx.needs_input_grad):
            # Each is read twice in the backward.
            q, k, v = q.contiguous(), k.contiguous(), v.contiguous()
            saved = q.new_empty(shape)

        # Logits, or keys if there are more of them: B H L K
        largest = (*q.shape[:2], max(q.shape[2:]), k.shape[2])
        scale = q.shape[-1] ** -0.5
        # Softmax needs logits in float32; their products are exact with inputs in bfloat16.
        with _products_in_bfloat16(q.dtype == torch.bfloat16):
            for heads in _heads(largest, FORWARD_TILE):
                keys = _in_float32(k[heads]).mT
                values = v[heads].flatten(0, 1)
                for rows in _slices(q.shape[2], FORWARD_TILE // k.shape[2]):
                    tile = (*heads, rows)
                    logits = _in_float32(added[tile])
                    logits.baddbmm_(_in_float32(q[tile]), keys, alpha=scale)
                    weights = torch.softmax(logits, -1, out=logits).to(q.dtype)
                    out[tile] = (weights @ values).view_as(out[tile])
                    if saved is not None:
                        saved[tile] = weights.view_as(saved[tile])
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
        for tile in _heads(weights.shape, BACKWARD_TILE):
            # B H L E @ B H E K, the gradient of the attention weights
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


def _in_float32(x: Float[Tensor, "B H R C"]) -> Float[Tensor, "BH R C"]:
    """Copy matrices to one contiguous batch."""
    return x.new_empty(x.shape, dtype=torch.float32).copy_(x).flatten(0, 1)


def _heads(shape: Sequence[int], size: int) -> Iterator[tuple[slice, slice]]:
    """Yield slices of samples and of heads with about `size` of `B H L K` logits each, at least one head."""
    samples, heads, queries, keys = shape
    of_head = max(queries * keys, 1)
    for some in _slices(samples, size // (heads * of_head)):
        for part in _slices(heads, size // of_head):
            yield some, part


def _slices(count: int, size: int) -> Iterator[slice]:
    """Yield the slices of 0 .. count with `size` indices each, at least one."""
    size = max(size, 1)
    for start in range(0, count, size):
        yield slice(start, start + size)
