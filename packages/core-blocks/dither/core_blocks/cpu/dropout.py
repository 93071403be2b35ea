"""Dropout that takes four decisions from each 64-bit random number; drawing them is most of its cost on a CPU."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

from . import ENABLED

__all__ = ["Dropout", "drop"]

FEW = 1 << 16
"""Numbers up to which a mask of floats, whose product autograd differentiates, is faster than one
of int8."""
STEPS = 1 << 16
"""The probability is rounded to a multiple of 1 / 65,536, and kept values are scaled by exactly
that."""


class Dropout(nn.Module):
    """Dropout (Srivastava et al., 2014), applied in training only.

    Args:
        p: Probability of dropping a value.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        return drop(x, self.p) if self.training else x


def drop(x: Float[Tensor, "*S"], p: float) -> Float[Tensor, "*S"]:
    """Zero each value with probability `p` and scale the others by 1 / (1 - p)."""
    if not p:
        return x
    if not ENABLED or x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(x, p)
    dropped = round(p * STEPS)
    mask = _draw_mask(x, dropped)
    scale = STEPS / (STEPS - dropped)
    if x.numel() <= FEW and x.dtype == torch.float32:  # in bfloat16 the scale would be rounded
        return x * (mask * scale)
    result: Tensor = _Drop.apply(x, mask, scale)  # type: ignore[no-untyped-call]
    return result


def _draw_mask(like: Float[Tensor, "*S"], dropped: int) -> Int[Tensor, "*S"]:
    """Draw 1 where a value is kept and 0 elsewhere.

    Each 64-bit draw gives four uniform 16-bit integers. int8 rather than bool: on a CPU, comparing
    into integers takes a quarter of the time and multiplying by them a third.
    """
    draws = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    mask = draws.view(torch.int16).ge_(dropped - STEPS // 2)
    return mask[: like.numel()].view(like.shape).to(torch.int8)


class _Drop(torch.autograd.Function):
    """x * mask * scale; saves one byte per value for the backward."""

    @staticmethod
    def forward(
        ctx: Any,
        x: Float[Tensor, "*S"],
        mask: Int[Tensor, "*S"],
        scale: float,
    ) -> Float[Tensor, "*S"]:
        ctx.save_for_backward(mask)
        ctx.scale = scale
        return (x * mask).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *grads: Float[Tensor, "*S"]) -> tuple[Tensor, None, None]:
        (mask,) = ctx.saved_tensors
        return (grads[0] * mask).mul_(ctx.scale), None, None
