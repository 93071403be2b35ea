"""Attention in bfloat16 on a CPU, a few heads at a time. Letters: B batch, H heads, L queries, K keys, E head width.

The way back through torch's fused kernel takes longer there than products of whole heads, as long as what lies between
these stays in the cache. It is no less exact: logits and their softmax are in float32, and of a weight eight bits are
kept, which is what the fused kernel gives it in its products.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor
from torch.autograd.function import once_differentiable

from ..options import TILED_MAX_WEIGHTS

__all__ = ["prefers_tiles", "tiled_attention"]

TILE = 1 << 21
"""Logits at a time."""


def prefers_tiles(q: Float[Tensor, "B H L E"], k: Float[Tensor, "B H K E"]) -> bool:
    """Whether this is the faster way, and does not keep much: it gains on the way back."""
    if q.dtype != torch.bfloat16 or q.device.type != "cpu" or torch.compiler.is_compiling():
        return False
    weights = q.shape[:-1].numel() * k.shape[-2]
    return weights <= TILED_MAX_WEIGHTS and torch.is_grad_enabled() and (q.requires_grad or k.requires_grad)


def tiled_attention(
    q: Float[Tensor, "B H L E"],
    k: Float[Tensor, "B H K E"],
    v: Float[Tensor, "B H K E"],
    mask: Shaped[Tensor, "#B #H #L K"] | None = None,
) -> Float[Tensor, "B H L E"]:
    """Return softmax(q k' / sqrt(E)) v over the keys where `mask` is True; numbers are added to the logits.

    Numbers in a mask have no gradient here.
    """
    if mask is not None and not mask.is_floating_point():
        mask = torch.zeros(mask.shape).masked_fill_(~mask, -torch.inf)
    with torch.autocast("cpu", enabled=False):
        result: Tensor = _Tiled.apply(q, k, v, mask)  # type: ignore[no-untyped-call]
    return result


def _tiles(weights: Float[Tensor, "B H L K"]) -> Iterator[tuple[int, slice]]:
    """Yield a sample and a run of its heads, which have a tile of logits together."""
    run = max(TILE // max(weights[0, 0].numel(), 1), 1)
    for sample in range(weights.shape[0]):
        for start in range(0, weights.shape[1], run):
            yield sample, slice(start, start + run)


class _Tiled(torch.autograd.Function):
    """Keeps the rounded weights of all heads."""

    @staticmethod
    def forward(
        ctx: Any,
        q: Float[Tensor, "B H L E"],
        k: Float[Tensor, "B H K E"],
        v: Float[Tensor, "B H K E"],
        added: Float[Tensor, "#B #H #L K"] | None,
    ) -> Float[Tensor, "B H L E"]:
        """Make the weights tile by tile, then gather with all of them."""
        q, k, v = (part.contiguous() for part in (q, k, v))
        weights = q.new_empty(*q.shape[:3], k.shape[2])
        if added is not None:
            added = added.expand(*q.shape[:2], -1, -1)
        for tile in _tiles(weights):
            logits = q[tile].float().mul_(q.shape[-1] ** -0.5) @ k[tile].float().mT
            if added is not None:
                logits += added[tile]
            weights[tile] = torch.softmax(logits, -1, out=logits)
        ctx.save_for_backward(q, k, v, weights)
        return weights @ v

    @staticmethod
    @once_differentiable
    def backward(ctx: Any, *slopes: Float[Tensor, "B H L E"]) -> tuple[Tensor, Tensor, Tensor, None]:
        """Slopes of q, k and v; those of the logits are there a tile at a time."""
        q, k, v, weights = ctx.saved_tensors
        slope = slopes[0].contiguous()
        to_q, to_k = torch.empty_like(q), torch.empty_like(k)
        for tile in _tiles(weights):
            own = weights[tile]
            to_logits = torch._softmax_backward_data(slope[tile] @ v[tile].mT, own, -1, own.dtype)
            to_q[tile] = to_logits @ k[tile]
            to_k[tile] = to_logits.mT @ q[tile]
        scale = q.shape[-1] ** -0.5
        return to_q.mul_(scale), to_k.mul_(scale), weights.mT @ slope, None
