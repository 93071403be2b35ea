"""The condition's way into the model: shift, scale and gate. Letters: B batch, L length, D width, C condition width."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn

from .cpu.recompute_linear import apply_linear
from .norms import make_norm, modulate
from .options import Affine, NormName

__all__ = ["Final", "Modulation"]


class Modulation(nn.Module):
    """Condition -> vectors of the width of the model, all zero at the start (adaLN-Zero; Peebles and Xie, 2023).

    The nonlinearity in front of the linear map is left to the caller, who applies it once for all layers.

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

    def forward(self, c: Float[Tensor, "B *L C"]) -> tuple[Float[Tensor, "B #L D"], ...]:
        """Return the vectors of each sample, or of each position where c has one condition per position."""
        if c.ndim == 3:
            vectors = self.linear(c)
        elif c.device.type == "meta":  # which knows no autocast
            vectors = self.linear(c)[:, None]
        else:  # a row for each sample: to cast the weights, as autocast would, and their gradients takes longer
            with torch.autocast(c.device.type, enabled=False):
                vectors = apply_linear(self.linear, c.to(self.linear.bias.dtype))[:, None]
        return vectors.chunk(self.parts, -1)  # type: ignore[no-any-return]


class Final(nn.Module):
    """The last norm, shifted and scaled by the condition where one is given.

    Args:
        width: Width of the model.
        cond: Width of the condition, or None for the norm alone.
        norm: "layer" or "rms".
        affine: Whether the norm has a learned scale and shift; "scale" is without the shift.
        eps: Added under the root of the norm.
    """

    def __init__(
        self, width: int, cond: int | None, *, norm: NormName = "layer", affine: Affine = False, eps: float = 1e-6
    ) -> None:
        super().__init__()
        self.norm = make_norm(norm, width, affine=affine, eps=eps)
        self.modulation = None if cond is None else Modulation(cond, width, 2)

    def forward(self, x: Float[Tensor, "B L D"], c: Float[Tensor, "B *L C"]) -> Float[Tensor, "B L D"]:
        """Return what the head reads."""
        x = self.norm(x)
        if self.modulation is None:
            return x
        shift, scale = self.modulation(c)
        return modulate(x, shift, scale)
