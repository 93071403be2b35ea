"""MLPs of a transformer block. Letters: B batch, L length, D width, M hidden width."""

from __future__ import annotations

from typing import Literal

from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from .options import ResidualBlock

__all__ = ["GELUMLP", "SwiGLU", "make_mlp"]


class GELUMLP(nn.Module):
    """Two linear layers with a GELU between them (Hendrycks and Gimpel, 2016).

    Args:
        width: Width of input and output.
        hidden: Hidden width.
        bias: Whether the linear layers have a bias.
        approximate: "none" for the exact GELU, "tanh" for its approximation.
        dropout: Dropout probability of the output.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        bias: bool,
        approximate: Literal["none", "tanh"],
        dropout: float,
    ) -> None:
        super().__init__()
        self.up = nn.Linear(width, hidden, bias)
        self.down = nn.Linear(hidden, width, bias)
        self.approximate = approximate
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        # L D -> L M -> L D
        hidden = functional.gelu(self.up(x), approximate=self.approximate)
        out: Tensor = self.dropout(self.down(hidden))
        return out


class SwiGLU(nn.Module):
    """down(SiLU(gate(x)) * up(x)) (Shazeer, 2020).

    Args:
        width: Width of input and output.
        hidden: Width of gate and up.
        bias: Whether the linear layers have a bias.
        dropout: Dropout probability of the output.
    """

    def __init__(
        self,
        width: int,
        hidden: int,
        *,
        bias: bool,
        dropout: float,
    ) -> None:
        super().__init__()
        self.gate = nn.Linear(width, hidden, bias)
        self.up = nn.Linear(width, hidden, bias)
        self.down = nn.Linear(hidden, width, bias)
        self.dropout = nn.Dropout(dropout)

    def forward(self, x: Float[Tensor, "*B L D"]) -> Float[Tensor, "*B L D"]:
        # L D -> L M -> L D
        hidden = functional.silu(self.gate(x)) * self.up(x)
        out: Tensor = self.dropout(self.down(hidden))
        return out


def make_mlp(width: int, options: ResidualBlock) -> nn.Module:
    """Return the MLP of a block."""
    hidden = int(options.ratio * width)
    bias = options.bias
    if options.mlp_bias is not None:
        bias = options.mlp_bias
    if options.mlp == "swiglu":
        return SwiGLU(width, hidden, bias=bias, dropout=options.dropout)

    # GPT-2 and SEDD were trained with the approximation, DiT and MDLM too.
    approximate: Literal["none", "tanh"] = "none"
    if options.mlp == "gelu-tanh":
        approximate = "tanh"
    return GELUMLP(
        width, hidden, bias=bias, approximate=approximate, dropout=options.dropout
    )
