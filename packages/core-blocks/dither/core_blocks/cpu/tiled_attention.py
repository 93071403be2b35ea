"""Attention in bfloat16 on a CPU, a few heads at a time. Letters: B batch, H heads, L queries, K keys, E head width.

The backward of torch's fused CPU kernel is slower than plain matrix products of whole heads, as
long as a tile of logits fits in the cache. The precision is the same: logits and softmax in
float32, attention weights in bfloat16.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from . import ENABLED

__all__ = ["prefers_tiles", "tiled_attention"]

TILE = 1 << 21
"""Logits per tile."""
MAX_WEIGHTS = 1 << 24
"""Largest number of attention weights, over all heads and samples, that is kept in memory."""
FUSED_SOFTMAX_BACKWARD = getattr(torch, "_softmax_backward_data", None)
"""(grad, weights, dimension, dtype) -> gradient of the logits."""


def prefers_tiles(q: Float[Tensor, "B H L E"], k: Float[Tensor, "B H K E"]) -> bool:
    """Whether tiles are faster: in bfloat16 on a CPU, where a backward follows and the weights fit in memory."""
    if (
        not ENABLED
        or q.dtype != torch.bfloat16
        or q.device.type != "cpu"
        or torch.compiler.is_compiling()
    ):
        return False
    weights = q.shape[:-1].numel() * k.shape[-2]
    return (
        weights <= MAX_WEIGHTS and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)
    )


def tiled_attention(
    q: Float[Tensor, "B H L E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K E"],
    mask: Shaped[Tensor, "#B #H #L K"] | None = None,
) -> Float[Tensor, "B H L E"]:
    """Return softmax(q k' / sqrt(E)) v over the keys where `mask` is True; a float mask is added to the logits.

    A float mask gets no gradient.
    """
    if mask is not None and not mask.is_floating_point():
        mask = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    with torch.autocast("cpu", enabled=False):
        result: Tensor = _Tiled.apply(q, k, v, mask)  # type: ignore[no-untyped-call]
    return result


def _tiles(weights: Float[Tensor, "B H L K"]) -> Iterator[tuple[int, slice]]:
    """Yield (sample, slice of heads) with about `TILE` logits each."""
    heads = max(TILE // max(weights[0, 0].numel(), 1), 1)
    for sample in range(weights.shape[0]):
        for start in range(0, weights.shape[1], heads):
            yield sample, slice(start, start + heads)


class _Tiled(torch.autograd.Function):
    """Saves the attention weights of all heads, rounded to the dtype of q."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "B H L E"],
        k: Float[Tensor, "B H K E"],
        v: Float[Tensor, "B H K E"],
        added: Float[Tensor, "#B #H #L K"] | None,
    ) -> Float[Tensor, "B H L E"]:
        q, k, v = (part.contiguous() for part in (q, k, v))
        weights = q.new_empty(*q.shape[:3], k.shape[2])
        if added is not None:
            added = added.expand(*q.shape[:2], -1, -1)
        products = torch.backends.mkldnn.matmul  # type: ignore[attr-defined]
        scale = q.shape[-1] ** -0.5
        before = products.fp32_precision
        try:
            if q.dtype == torch.bfloat16:
                products.fp32_precision = (
                    "bf16"  # rounds only the inputs, which are rounded already
                )
            for tile in _tiles(weights):
                start, beta = (torch.zeros(1), 0) if added is None else (added[tile], 1)
                logits = torch.baddbmm(
                    start, q[tile].float(), k[tile].float().mT, beta=beta, alpha=scale
                )
                weights[tile] = torch.softmax(logits, -1, out=logits)
        finally:
            products.fp32_precision = before
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *grads: Float[Tensor, "B H L E"]) -> tuple[Tensor, Tensor, Tensor, None]:
        q, k, v, weights = ctx.saved_tensors
        grad = grads[0].contiguous()
        grad_q = torch.empty_like(q)
        grad_k = torch.empty_like(k)
        for tile in _tiles(weights):
            grad_logits = _softmax_backward(grad[tile] @ v[tile].mT, weights[tile])
            grad_q[tile] = grad_logits @ k[tile]
            grad_k[tile] = grad_logits.mT @ q[tile]
        scale = q.shape[-1] ** -0.5
        return grad_q.mul_(scale), grad_k.mul_(scale), weights.mT @ grad, None


def _softmax_backward(
    grad: Float[Tensor, "h L K"], weights: Float[Tensor, "h L K"]
) -> Float[Tensor, "h L K"]:
    """Return (grad - sum(grad * weights)) * weights, by torch's private kernel if it exists: 8 to 13 times faster."""
    if FUSED_SOFTMAX_BACKWARD is not None:
        return FUSED_SOFTMAX_BACKWARD(grad, weights, -1, weights.dtype)  # type: ignore[no-any-return]
    product = grad.float() * weights
    return product.sub_(product.sum(-1, keepdim=True) * weights).to(weights.dtype)
