"""Queries, keys and values in one linear map. Letters: D width."""

from __future__ import annotations

import torch
from jaxtyping import Float
from torch import Tensor, nn
from torch.nn import functional

from .options import QKVBias

__all__ = ["QVBiased", "make_qkv"]


class QVBiased(nn.Linear):
    """Queries, keys and values, of which keys have no bias (BEiT, Bao et al., 2022).

    One would add the same number to all scores of a query, which softmax takes away.

    Args:
        width: Width in; three times as much comes out.
    """

    def __init__(self, width: int) -> None:
        super().__init__(width, 3 * width, bias=False)
        self.q_bias = nn.Parameter(torch.zeros(width))
        self.v_bias = nn.Parameter(torch.zeros(width))

    def forward(self, input: Float[Tensor, "*S D"]) -> Float[Tensor, "*S 3D"]:
        """Map queries, keys and values, in this order."""
        return functional.linear(input, self.weight, self.whole_bias())

    def whole_bias(self) -> Float[Tensor, " 3D"]:
        """Return the bias of all three, 0 for keys."""
        return torch.cat([self.q_bias, torch.zeros_like(self.q_bias), self.v_bias])


def make_qkv(width: int, bias: QKVBias) -> nn.Linear:
    """Return the map to queries, keys and values; with the bias "qv", keys have none."""
    return QVBiased(width) if bias == "qv" else nn.Linear(width, 3 * width, bias)
