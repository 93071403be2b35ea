"""Transformer blocks. Letters: B batch, L length, K keys, D width, C condition width."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Int, Shaped
from torch import Tensor, nn

from .adaln import Modulation
from .attention import Attention
from .kv_cache import KVCache
from .mlps import make_mlp
from .norms import make_norm, modulate
from .options import TransformerBlock

__all__ = ["AdaLNZeroBlock", "DropPath", "PreNormBlock"]


class _Sublayers(nn.Module):
    """The layers of both blocks; `requested` may also be rows of the flattened batch, without a synchronisation."""

    accepts_rows = True

    def __init__(self, width: int, options: TransformerBlock) -> None:
        super().__init__()
        norm1, norm2 = (
            make_norm(options.norm, width, affine=options.affine, eps=options.eps) for _ in range(2)
        )
        self.norm1 = norm1
        self.attention = Attention(width, options)
        self.norm2 = norm2
        self.mlp = make_mlp(width, options)


class AdaLNZeroBlock(_Sublayers):
    """Self-attention and an MLP, each normed, shifted, scaled and gated by the condition (Peebles and Xie, 2023).

    Starts as the identity. `c` already has its SiLU applied, which is the same for all layers.

    Args:
        width: Width of the model.
        cond: Width of the condition.
        options: Options of attention, norms and MLP.
    """

    def __init__(self, width: int, cond: int, options: TransformerBlock) -> None:
        super().__init__(width, options)
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
        requested: Bool[Tensor, "B L"] | None = None,
        positions: Shaped[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Apply the block.

        Args:
            x: The sequence.
            c: One condition per sample or per position.
            mask: True where a query (second to last axis) may attend to a key. A float mask is added to the logits:
                log n makes a key count as n equal ones.
            cache: Keys and values of earlier positions.
            layer: Index of this block in the cache.
            keep: Ignored; the model decides which positions stay in the cache.
            requested: Positions whose output is needed; x is returned unchanged elsewhere. None for
                all.
            positions: Coordinates for RoPE; indices by default.
        """
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(c)
        rows = None if requested is None else _rows(requested)
        attended = self.attention(
            modulate(self.norm1(x), shift, scale), mask, cache, layer, positions, rows
        )
        h = x
        if rows is not None:
            samples = rows if c.ndim == 3 else rows.div(x.shape[1], rounding_mode="floor")
            vectors = gate, shift2, scale2, gate2
            gate, shift2, scale2, gate2 = (
                v.flatten(0, 1).index_select(0, samples) for v in vectors
            )
            h = x.flatten(0, 1).index_select(0, rows)
        h = h + gate * attended
        h = h + gate2 * self.mlp(modulate(self.norm2(h), shift2, scale2))
        return h if rows is None else x.flatten(0, 1).index_copy(0, rows, h.to(x.dtype)).view_as(x)


def _rows(requested: Shaped[Tensor, "..."]) -> Int[Tensor, " N"]:
    return torch.where(requested.flatten())[0] if requested.dtype == torch.bool else requested


class DropPath(nn.Module):
    """Stochastic depth (Huang et al., 2016): in training, drop the residual branch of whole samples.

    Args:
        p: Probability of dropping a sample.
    """

    def __init__(self, p: float) -> None:
        super().__init__()
        self.p = p

    def forward(self, x: Float[Tensor, "B *S"]) -> Float[Tensor, "B *S"]:
        if not (self.training and self.p):
            return x
        mask = torch.rand(len(x), device=x.device) >= self.p
        return x * (mask / (1 - self.p)).to(x.dtype).view(-1, *[1] * (x.ndim - 1))


class PreNormBlock(_Sublayers):
    """Unconditional self-attention and MLP, each after a norm and added to the input (pre-LN; Xiong et al., 2020).

    Args:
        width: Width of the model.
        options: Options of attention, norms and MLP.
        drop_path: Probability with which training drops attention, and independently the MLP, of a
            sample.
    """

    def __init__(self, width: int, options: TransformerBlock, drop_path: float) -> None:
        super().__init__(width, options)
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
        requested: Bool[Tensor, "B L"] | None = None,
        positions: Shaped[Tensor, "B L"] | None = None,
    ) -> Float[Tensor, "B L D"]:
        """Apply the block; `c` is ignored, the other arguments are those of `AdaLNZeroBlock`."""
        if requested is None or (self.training and self.drop_path.p):  # DropPath draws per sample
            x = x + self.drop_path(self.attention(self.norm1(x), mask, cache, layer, positions))
            out: Tensor = x + self.drop_path(self.mlp(self.norm2(x)))
            return out
        rows = _rows(requested)
        h = x.flatten(0, 1).index_select(0, rows)
        h = h + self.attention(self.norm1(x), mask, cache, layer, positions, rows)
        h = h + self.mlp(self.norm2(h))
        return x.flatten(0, 1).index_copy(0, rows, h.to(x.dtype)).view_as(x)
