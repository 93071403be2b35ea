"""A plain transformer layer, and stochastic depth. Letters: B batch, L length, K keys, D width, C condition width."""

from __future__ import annotations

from typing import Unpack

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from .cache import KVCache
from .halves import HalvesOptions, make_halves
from .norms import normed

__all__ = ["DropPath", "PreNormBlock"]


class DropPath(nn.Module):
    """In training, leave out all that is added, for a share of the samples; scale the others up (Huang et al., 2016).

    Args:
        p: The share.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "B *S"]) -> Float[Tensor, "B *S"]:
        """Drop whole samples in training, else return x."""
        if not (self.training and self.p):
            return x
        kept = torch.rand(len(x), device=x.device) >= self.p
        return x * (kept / (1 - self.p)).to(x.dtype).view(-1, *[1] * (x.ndim - 1))

    def extra_repr(self) -> str:
        """Show the share."""
        return f"p={self.p}"


class PreNormBlock(nn.Module):
    """Self-attention and an MLP, each behind a norm and added to what comes in (pre-LN; Xiong et al., 2020).

    The condition is not looked at.

    Args:
        width: Width of the model.
        heads: Attention heads; they divide the width.
        drop_path: Share of the samples for which attention is left out in training, and so the MLP.
        options: Of norms, attention and MLP, as `make_halves` takes them; `affine` is True by default.

    Raises:
        ValueError: The width does not split into the heads, or a name is unknown.
    """

    def __init__(self, width: int, heads: int, *, drop_path: float = 0.0, **options: Unpack[HalvesOptions]) -> None:
        super().__init__()
        given: HalvesOptions = {"affine": True, **options}
        self.norm1, self.attention, self.norm2, self.mlp = make_halves(width, heads, **given)
        self.drop_path = DropPath(drop_path)

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
        """Return x and what attention and MLP add to it.

        Args:
            x: The sequence.
            c: Not looked at.
            mask: True where a query (first of the last two axes) may look at a key; None where it may always. Numbers
                are added to the logits: with log n a key counts as n of them.
            cache: Finished positions, which stand before x.
            layer: Number of this block in the cache.
            keep: Of no concern here: what a block writes into the cache stays once the model counts it in.
            asked: Positions where the result is wanted; elsewhere x comes out as it is. None for all.
            positions: Where each position lies, for RoPE; by default its index.
        """
        if asked is None or (self.training and self.drop_path.p):  # which samples go is drawn for whole samples
            x = x + self.drop_path(self.attention(normed(self.norm1, x), mask, cache, layer, positions))
            more: Tensor = x + self.drop_path(self.mlp(normed(self.norm2, x)))
            return more
        own = torch.where(asked.flatten())[0]
        some = x.flatten(0, 1).index_select(0, own)
        some = some + self.attention(normed(self.norm1, x), mask, cache, layer, positions, own)
        some = some + self.mlp(normed(self.norm2, some))
        return x.flatten(0, 1).index_copy(0, own, some.to(x.dtype)).view_as(x)
