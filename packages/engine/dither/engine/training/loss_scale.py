"""Loss scaling for float16, whose smallest number is 6e-8: without it small gradients become 0."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int
from torch import Tensor

__all__ = ["LossScale"]

FIRST = 2.0**8
"""The scale of the first step; that of `torch.amp.GradScaler`, 2^16, is for means instead of sums."""
INTERVAL = 2000
"""Steps without an overflow after which the scale is doubled."""


class LossScale:
    """Factor of the loss in the backward pass, and divisor of its gradients (Micikevicius et al., 2018).

    All of it is on the device, so that no step waits for a number. An overflow halves the scale and
    cancels the step; at a scale of 1 it is an error like any other.

    Attributes:
        scale: The factor.
        steps: Steps since the scale changed.
    """

    def __init__(self, device: torch.device) -> None:
        self.scale: Float[Tensor, ""] = torch.full((), FIRST, device=device)
        self.steps: Int[Tensor, ""] = torch.zeros((), dtype=torch.int64, device=device)

    def overflowed(
        self, loss_sum: Float[Tensor, ""], norm: Float[Tensor, ""]
    ) -> Bool[Tensor, ""]:
        """Return whether a smaller scale may make the gradients of a finite loss finite."""
        return loss_sum.isfinite() & ~norm.isfinite() & (self.scale > 1)

    def update(self, overflow: Bool[Tensor, ""]) -> None:
        """Halve the scale after an overflow, and double it after `INTERVAL` steps without one."""
        self.steps = torch.where(overflow, 0, self.steps + 1)
        doubled = self.steps == INTERVAL
        self.steps = torch.where(doubled, 0, self.steps)
        self.scale = torch.where(overflow, self.scale / 2, self.scale)
        self.scale = torch.where(doubled, self.scale * 2, self.scale).clamp_min(1.0)
