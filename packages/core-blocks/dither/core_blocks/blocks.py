"""One layer of the model. Letters: B batch, L length, K keys, D width, C condition width."""

from __future__ import annotations

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from .adaln import Modulation, modulate
from .attention import Attention
from .block_options import Affine, Implementation, MLPName, NormName, QKVBias, Rope
from .cache import KVCache
from .mlps import make_mlp
from .norms import make_norm

__all__ = ["AdaLNZeroBlock"]


class AdaLNZeroBlock(nn.Module):
    """Self-attention and an MLP, each normed, shifted, scaled and gated by the condition (Peebles and Xie, 2023).

    It starts as the identity. The condition comes in with its nonlinearity applied, since that is the same for all
    layers: Linear(SiLU(c)) of DiT is here Linear(c).

    Args:
        width: Width of the model.
        cond: Width of the condition.
        heads: Attention heads; they divide the width.
        ratio: Hidden width of the MLP in widths of the model.
        norm: "layer" or "rms".
        affine: Whether the norms have a learned scale and shift; "scale" is without the shift.
        eps: Added under the root of the norms.
        mlp: "gelu", "gelu-tanh" or "swiglu".
        bias: Whether the linear maps have a bias; the modulation always has one.
        qkv_bias: The same of queries, keys and values alone, where it is given; "qv" is without that of keys.
        out_bias: The same of the map out of attention alone.
        mlp_bias: The same of the MLP alone.
        rope: Whether queries and keys are turned by their position; "centre" by the positions that are given.
        rope_unit: What positions that are given are counted in.
        dropout: Share of what attention and MLP add that is dropped in training.
        attention_dropout: Share of the attention weights that is dropped in training; by default as `dropout`.
        attention: "auto", "sdpa" or "math".

    Raises:
        ValueError: The width does not split into the heads, or a name is unknown.
    """

    def __init__(
        self,
        width: int,
        cond: int,
        heads: int,
        *,
        ratio: float = 4.0,
        norm: NormName = "layer",
        affine: Affine = False,
        eps: float = 1e-6,
        mlp: MLPName = "gelu",
        bias: bool = True,
        qkv_bias: QKVBias | None = None,
        out_bias: bool | None = None,
        mlp_bias: bool | None = None,
        rope: Rope = False,
        rope_unit: float = 1000.0,
        dropout: float = 0.0,
        attention_dropout: float | None = None,
        attention: Implementation = "auto",
    ) -> None:
        super().__init__()
        self.norm1 = make_norm(norm, width, affine=affine, eps=eps)
        self.attention = Attention(
            width,
            heads,
            qkv_bias=bias if qkv_bias is None else qkv_bias,
            out_bias=bias if out_bias is None else out_bias,
            rope=bool(rope),
            rope_unit=rope_unit,
            weight_dropout=dropout if attention_dropout is None else attention_dropout,
            dropout=dropout,
            implementation=attention,
        )
        self.norm2 = make_norm(norm, width, affine=affine, eps=eps)
        bias = bias if mlp_bias is None else mlp_bias
        self.mlp = make_mlp(mlp, width, int(ratio * width), bias=bias, dropout=dropout)
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
            asked: Positions where the MLP is wanted; elsewhere it is left out. None for all.
            positions: Where each position lies, for RoPE; by default its index.
        """
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(c)
        x = x + gate * self.attention(modulate(self.norm1(x), shift, scale), mask, cache, layer, positions)
        if asked is None:
            more: Tensor = gate2 * self.mlp(modulate(self.norm2(x), shift2, scale2))
            return x + more
        own = torch.where(asked.flatten())[0]
        rows = own if c.ndim == 3 else own.div(x.shape[1], rounding_mode="floor")
        shift2, scale2, gate2 = (part.flatten(0, 1).index_select(0, rows) for part in (shift2, scale2, gate2))
        some = x.flatten(0, 1).index_select(0, own)
        more = gate2 * self.mlp(modulate(self.norm2(some), shift2, scale2))
        return x.flatten(0, 1).index_add(0, own, more.to(x.dtype)).view_as(x)
