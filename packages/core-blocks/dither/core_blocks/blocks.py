"""One layer of the model. Letters: B batch, L length, K keys, D width, C condition width."""

from __future__ import annotations

from typing import NamedTuple, TypedDict, Unpack

import torch
from jaxtyping import Bool, Float, Shaped
from torch import Tensor, nn

from .adaln import Modulation
from .attention import Attention
from .kv_cache import KVCache
from .mlps import make_mlp
from .norms import make_norm, normed
from .options import Affine, Implementation, MLPName, NormName, QKVBias, Rope

__all__ = ["AdaLNZeroBlock", "DropPath", "PreNormBlock", "SublayerOptions", "Sublayers", "make_sublayers"]


class AdaLNZeroBlock(nn.Module):
    """Self-attention and an MLP, each normed, shifted, scaled and gated by the condition (Peebles and Xie, 2023).

    It starts as the identity. The condition comes in with its nonlinearity applied, since that is the same for all
    layers: Linear(SiLU(c)) of DiT is here Linear(c).

    Args:
        width: Width of the model.
        cond: Width of the condition.
        heads: Attention heads; they divide the width.
        options: Of norms, attention and MLP, as `make_sublayers` takes them.

    Raises:
        ValueError: The width does not split into the heads, or a name is unknown.
    """

    def __init__(self, width: int, cond: int, heads: int, **options: Unpack[SublayerOptions]) -> None:
        super().__init__()
        self.norm1, self.attention, self.norm2, self.mlp = make_sublayers(width, heads, **options)
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
        """Return x, changed as far as the gates are open.

        Args:
            x: The sequence.
            c: One condition per sample or per position.
            mask: True where a query (first of the last two axes) may look at a key; None where it may always. Numbers
                are added to the logits: with log n a key counts as n of them.
            cache: Finished positions, which stand before x.
            layer: Number of this block in the cache.
            keep: Of no concern here: what a block writes into the cache stays once the model counts it in.
            requested: Positions where the result is wanted; elsewhere x comes out as it is. None for all.
            positions: Where each position lies, for RoPE; by default its index.
        """
        shift, scale, gate, shift2, scale2, gate2 = self.modulation(c)
        own = None if requested is None else torch.where(requested.flatten())[0]
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


class SublayerOptions(TypedDict, total=False):
    """Options that may be given; those of a `TransformerBlock`, which says what each one means."""

    ratio: float
    norm: NormName
    affine: Affine
    eps: float
    mlp: MLPName
    bias: bool
    qkv_bias: QKVBias | None
    out_bias: bool | None
    mlp_bias: bool | None
    rope: Rope
    rope_unit: float
    dropout: float
    attention_dropout: float | None
    attention: Implementation


class Sublayers(NamedTuple):
    """The parts of a block."""

    norm1: nn.Module
    attention: Attention
    norm2: nn.Module
    mlp: nn.Module


def make_sublayers(
    width: int,
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
) -> Sublayers:
    """Make the parts of a block, or raise ValueError: the width does not split into the heads, or a name is unknown.

    Args:
        width: Width of the model.
        heads: Attention heads; they divide the width.
        ratio: Hidden width of the MLP in widths of the model.
        norm: "layer" or "rms".
        affine: Whether norms have a learned scale and shift; "scale" is without the shift.
        eps: Added under the root of norms.
        mlp: "gelu", "gelu-tanh" or "swiglu".
        bias: Whether the linear maps have a bias.
        qkv_bias: The same of queries, keys and values alone, where it is given; "qv" is without that of keys.
        out_bias: The same of the map out of attention alone.
        mlp_bias: The same of the MLP alone.
        rope: Whether queries and keys are turned by their position; "centre" by the positions that are given.
        rope_unit: What positions that are given are counted in.
        dropout: Share of what attention and MLP add that is dropped in training.
        attention_dropout: Share of the attention weights that is dropped in training; by default as `dropout`.
        attention: "auto", "sdpa" or "math".
    """
    looking = Attention(
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
    mlp_bias = bias if mlp_bias is None else mlp_bias
    norm1, norm2 = (make_norm(norm, width, affine=affine, eps=eps) for _ in range(2))
    return Sublayers(norm1, looking, norm2, make_mlp(mlp, width, int(ratio * width), bias=mlp_bias, dropout=dropout))


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
        options: Of norms, attention and MLP, as `make_sublayers` takes them; `affine` is True by default.

    Raises:
        ValueError: The width does not split into the heads, or a name is unknown.
    """

    def __init__(self, width: int, heads: int, *, drop_path: float = 0.0, **options: Unpack[SublayerOptions]) -> None:
        super().__init__()
        given: SublayerOptions = {"affine": True, **options}
        self.norm1, self.attention, self.norm2, self.mlp = make_sublayers(width, heads, **given)
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
        """Return x and what attention and MLP add to it.

        Args:
            x: The sequence.
            c: Not looked at.
            mask: True where a query (first of the last two axes) may look at a key; None where it may always. Numbers
                are added to the logits: with log n a key counts as n of them.
            cache: Finished positions, which stand before x.
            layer: Number of this block in the cache.
            keep: Of no concern here: what a block writes into the cache stays once the model counts it in.
            requested: Positions where the result is wanted; elsewhere x comes out as it is. None for all.
            positions: Where each position lies, for RoPE; by default its index.
        """
        if requested is None or (self.training and self.drop_path.p):  # which samples go is drawn for whole samples
            x = x + self.drop_path(self.attention(normed(self.norm1, x), mask, cache, layer, positions))
            more: Tensor = x + self.drop_path(self.mlp(normed(self.norm2, x)))
            return more
        own = torch.where(requested.flatten())[0]
        some = x.flatten(0, 1).index_select(0, own)
        some = some + self.attention(normed(self.norm1, x), mask, cache, layer, positions, own)
        some = some + self.mlp(normed(self.norm2, some))
        return x.flatten(0, 1).index_copy(0, own, some.to(x.dtype)).view_as(x)
