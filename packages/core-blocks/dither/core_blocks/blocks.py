"""One layer of the model. Letters: B batch, L length, K keys, D width, C condition width."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from .adaln import Modulation
from .cache import KVCache
from .halves import HalvesOptions, make_halves
from .norms import normed

__all__ = ["AdaLNZeroBlock"]


class AdaLNZeroBlock(nn.Module):
    """Self-attention and an MLP, each normed, shifted, scaled and gated by the condition (Peebles and Xie, 2023).

    It starts as the identity. The condition comes in with its nonlinearity applied, since that is the same for all
    layers: Linear(SiLU(c)) of DiT is here Linear(c).

    Args:
        width: Width of the model.
        cond: Width of the condition.
        heads: Attention heads; they divide the width.
        options: Of norms, attention and MLP, as `make_halves` takes them.

    Raises:
        ValueError: The width does not split into the heads, or a name is unknown.
    """

    def __init__(self, width: int, cond: int, heads: int, **options: Unpack[HalvesOptions]) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = make_halves(width, heads, **options)
        self.modulation = Modulation(cond, width, 6)

    def forward(
        self,
        x: Float[Tensor, "B L D"],
        c: Float[Tensor, "B *L1 C"],
        *,
        mask: Shaped[Tensor, "#B 1 #L K"] | None = None,
        cache: KVCache | None = None,
        layer: int = 0,
        keep: bool = False,
        asked: Bool[Tensor, "B L"] | None = None,
        positions: Shaped[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Return x, changed as far as the gates are open.

        Args:
            x: The sequence.
            c: One condition per sample or per position.
            mask: True where a query (first of the last two axes) may look at a key; None where it may always. Numbers
                are added to the logits: with log n a key counts as n of them.
            cache: Finished positions, which stand before x.
            layer: Number of this block in the cache.
            keep: Of no concern here: what a block writes into the cache stays once the model counts it in.
            asked: Positions where the result is wanted; elsewhere x comes out as it is. None for all.
            positions: Where each position lies, for RoPE; by default its index.
        """
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(c)
        own = None if asked is None else torch.where(asked.flatten())[0]
        attended = self.attention(normed(self.norm1, x, shift, scale), mask, cache, layer, positions, own)
        some = x
        if own is not None:
            rows = own if c.ndim == 3 else own.div(x.shape[1], rounding_mode="floor")
            parts = gate, shift2, scale2, gate2
            gate, shift2, scale2, gate2 = (part.flatten(0, 1).index_select(0, rows) for part in parts)
            some = x.flatten(0, 1).index_select(0, own)
        some = some + gate * attended
        some = some + gate2 * self.mlp(normed(self.norm2, some, shift2, scale2))
        return some if own is None else x.flatten(0, 1).index_copy(0, own, some.to(x.dtype)).view_as(x)
