"""Adaptive layer norm (adaLN): shift, scale and gate from the condition; the block is `blocks.AdaLNZeroBlock`.

Letters: B batch, L length, D width, C condition.
"""

from __future__ import annotations

from contextlib import nullcontext

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .norms import make_norm, modulate
from .options import Affine, NormName

__all__ = ["Final", "Modulation"]


class Modulation(nn.Module):
    """Linear layer from the condition to several vectors, initialised to zero (adaLN-Zero; Peebles and Xie, 2023).

    The SiLU before it is applied by the caller, once for all layers.

    Args:
        cond: Width of the condition.
        width: Width of each vector.
        parts: Number of vectors.
    """

    def __init__(self, cond: int, width: int, parts: int) -> None:
        super().__init__()
        self.parts = parts
        self.linear = nn.Linear(cond, parts * width)
        nn.init.zeros_(self.linear.weight)
        nn.init.zeros_(self.linear.bias)

    def forward(
        self, c: Float[Tensor, "B *L C"]
    ) -> tuple[Float[Tensor, "B #L D"], ...]:
        """Return the vectors per sample, or per position if `c` has a length axis."""
        # B L C -> B L D each
        if c.ndim == 3:
            return self.linear(c).chunk(self.parts, -1)  # type: ignore[no-any-return]

        # With one row per sample, casting weights and gradients for autocast costs more than it
        # saves. The meta device has no autocast.
        cast = c.device.type != "meta" and torch.is_autocast_enabled(c.device.type)
        with torch.autocast(c.device.type, enabled=False) if cast else nullcontext():
            vectors = self.linear(c.to(self.linear.bias.dtype))
        # B C -> B 1 D each, which broadcasts over positions
        return vectors[:, None].chunk(self.parts, -1)  # type: ignore[no-any-return]


class Final(nn.Module):
    """Norm before the head, modulated by the condition unless `cond` is None.

    Args:
        width: Width of the model.
        cond: Width of the condition; None for an unconditional norm.
        norm: "layer" or "rms".
        affine: Whether the norm has a learned scale and shift; "scale" has no shift.
        eps: Added to the variance.
    """

    def __init__(
        self,
        width: int,
        cond: int | None,
        *,
        norm: NormName,
        affine: Affine,
        eps: float,
    ) -> None:
        super().__init__()
        self.norm = make_norm(norm, width, affine=affine, eps=eps)
        self.modulation = None if cond is None else Modulation(cond, width, 2)

    def forward(
        self, x: Float[Tensor, "B L D"], c: Float[Tensor, "B *L C"]
    ) -> Float[Tensor, "B L D"]:
        x = self.norm(x)
        if self.modulation is None:
            return x
        # No gate: the head follows, not a residual connection.
        shift, scale = self.modulation(c)
        return modulate(x, shift, scale)
