"""Dropout that draws four decisions from each random number, which on a CPU is most of what dropout costs."""

from __future__ import annotations

from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor, nn
from torch.nn import functional

__all__ = ["Dropout", "drop"]

STEPS = 1 << 16
"""A share is rounded to a multiple of 1 / 65,536; what is kept is scaled by exactly that."""


class Dropout(nn.Module):
    """In training, set a share of the values to 0 and scale the others up (Srivastava et al., 2014).

    Args:
        p: The share.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "*S"]) -> Float[Tensor, "*S"]:
        """Drop in training, else return x."""
        return drop(x, self.p) if self.training else x

    def extra_repr(self) -> str:
        """Show the share."""
        return f"p={self.p}"


def drop(x: Float[Tensor, "*S"], p: float) -> Float[Tensor, "*S"]:
    """Set a share of the values to 0 and scale the others up, so that the mean stays."""
    if not p:
        return x
    if x.device.type != "cpu" or torch.compiler.is_compiling():
        return functional.dropout(x, p)
    dropped = round(p * STEPS)
    result: Tensor = _Kept.apply(x, _draw(x, dropped), STEPS / (STEPS - dropped))  # type: ignore[no-untyped-call]
    return result


def _draw(like: Float[Tensor, "*S"], dropped: int) -> Int[Tensor, "*S"]:
    """Draw 1 where a value is kept and 0 elsewhere.

    Each draw of the generator gives four whole numbers, evenly spread over -32,768 .. 32,767. Small integers rather
    than bool: on a CPU, comparing into them takes a quarter of the time, and multiplying with them a third.
    """
    draws = torch.empty((like.numel() + 3) // 4, dtype=torch.int64).random_(-(1 << 63), None)
    kept = draws.view(torch.int16).ge_(dropped - STEPS // 2)
    return kept[: like.numel()].view(like.shape).to(torch.int8)


class _Kept(torch.autograd.Function):
    """x * kept * scale, which keeps one byte per value for the way back."""

    @staticmethod
    def forward(ctx: Any, x: Float[Tensor, "*S"], kept: Int[Tensor, "*S"], scale: float) -> Float[Tensor, "*S"]:
        ctx.save_for_backward(kept)
        ctx.scale = scale
        return (x * kept).mul_(scale)

    @staticmethod
    def backward(ctx: Any, *gradients: Float[Tensor, "*S"]) -> tuple[Tensor, None, None]:
        (kept,) = ctx.saved_tensors
        return (gradients[0] * kept).mul_(ctx.scale), None, None
