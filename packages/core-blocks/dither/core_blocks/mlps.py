"""What a block does with each position by itself. Letters: B batch, L length, D width, M hidden."""

from __future__ import annotations

from functools import partial
from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from .cpu.dropout import Dropout
from .cpu.recompute_linear import DeferredInput, apply_linear, defer
from .options import MLPName

__all__ = ["GELUMLP", "SwiGLU", "make_mlp"]


class GELUMLP(nn.Module):
    """Two linear maps with a GELU between them (Hendrycks and Gimpel, 2016).

    Args:
        width: Width in and out.
        hidden: Width between the maps.
        bias: Whether the maps have a bias.
        approximate: "none" is x times the normal distribution function at x; "tanh" comes within 5e-4 of it.
        dropout: Share of the result that is dropped in training.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        bias: bool = True,
        approximate: Literal["none", "tanh"] = "none",
        dropout: float = 0.0,
    ) -> None:
        super().__init__()
        self.up, self.down = nn.Linear(width, hidden, bias), nn.Linear(hidden, width, bias)
        self.width, self.approximate, self.dropout = width, approximate, Dropout(dropout)

    def forward(self, x: Float[Tensor, "*B L D"] | DeferredInput) -> Float[Tensor, "*B L D"]:
        """Apply to each position."""
        gelu = partial(functional.gelu, approximate=self.approximate)
        return self.dropout(apply_linear(self.down, defer(gelu, self.width, apply_linear(self.up, x))))  # type: ignore[no-any-return]


class SwiGLU(nn.Module):
    """down(SiLU(gate(x)) * up(x)) (Shazeer, 2020).

    Args:
        width: Width in and out.
        hidden: Width of gate and up.
        bias: Whether the maps have a bias.
        dropout: Share of the result that is dropped in training.
    """

    def __init__(self, width: int, hidden: int, *, bias: bool = True, dropout: float = 0.0) -> None:
        super().__init__()
        self.gate, self.up = nn.Linear(width, hidden, bias), nn.Linear(width, hidden, bias)
        self.down = nn.Linear(hidden, width, bias)
        self.width, self.dropout = width, Dropout(dropout)

    def forward(self, x: Float[Tensor, "*B L D"] | DeferredInput) -> Float[Tensor, "*B L D"]:
        """Apply to each position."""
        gate, up = apply_linear(self.gate, x), apply_linear(self.up, x)
        return self.dropout(apply_linear(self.down, defer(_gated, self.width, gate, up)))  # type: ignore[no-any-return]


def _gated(gate: Float[Tensor, "*S M"], up: Float[Tensor, "*S M"]) -> Float[Tensor, "*S M"]:
    return functional.silu(gate) * up


def make_mlp(mlp: MLPName, width: int, hidden: int, *, bias: bool = True, dropout: float = 0.0) -> nn.Module:
    """Return an MLP by its name.

    Raises:
        ValueError: The name is unknown.
    """
    if mlp == "swiglu":
        return SwiGLU(width, hidden, bias=bias, dropout=dropout)
    if mlp in ("gelu", "gelu-tanh"):
        approximate: Literal["none", "tanh"] = "tanh" if mlp == "gelu-tanh" else "none"
        return GELUMLP(width, hidden, bias=bias, approximate=approximate, dropout=dropout)
    raise ValueError(f'mlp may be "gelu", "gelu-tanh" or "swiglu", not "{mlp}"')
