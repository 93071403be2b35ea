"""The two halves of every block, attention and MLP, each with the norm in front of it."""

from __future__ import annotations

from typing import NamedTuple, TypedDict

from torch import nn

from .attention import Attention
from .block_options import Affine, Implementation, MLPName, NormName, QKVBias, Rope
from .mlps import make_mlp
from .norms import make_norm

__all__ = ["Halves", "HalvesOptions", "make_halves"]


class HalvesOptions(TypedDict, total=False):
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


class Halves(NamedTuple):
    """The parts of a block."""

    norm1: nn.Module
    attention: Attention
    norm2: nn.Module
    mlp: nn.Module


def make_halves(
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
) -> Halves:
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
    return Halves(norm1, looking, norm2, make_mlp(mlp, width, int(ratio * width), bias=mlp_bias, dropout=dropout))
