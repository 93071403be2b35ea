"""What the blocks of a transformer have in common: their options, and how heads divide a width. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import ClassVar, Literal

from pydantic import Field

from dither.registry import Misfit
from dither.registry.costs import Cost, Matrix
from dither.registry.kinds import BlockSpec

from .costs import attention_cost, made_again, mlp_cost, norm_cost

__all__ = [
    "CENTRE",
    "FEW",
    "FEW_WEIGHTS",
    "WIDE",
    "Affine",
    "Implementation",
    "MLPName",
    "NormName",
    "QKVBias",
    "Rope",
    "TransformerBlock",
    "misfit_heads",
]

CENTRE = "centre"
"""The condition that says where positions lie, such as along a chromosome: one number for each (`B L`)."""
FEW = 64
"""Up to so many keys, plain matrix products beat the fused kernel on a CPU."""
FEW_WEIGHTS = 1 << 24
"""Up to so many attention weights, of all heads and samples, a CPU keeps them in bfloat16."""
WIDE = 768
"""From such a width on, a CPU keeps what norms and nonlinearities are given and computes them again on the way back."""
MOST_LISTED = 1024
"""Up to so many heads, a message lists what is possible."""

NormName = Literal["layer", "rms"]
Affine = bool | Literal["scale"]
MLPName = Literal["gelu", "gelu-tanh", "swiglu"]
Implementation = Literal["auto", "sdpa", "math"]
QKVBias = bool | Literal["qv"]
Rope = bool | Literal["centre"]


class TransformerBlock(BlockSpec):
    """Options of a block of self-attention and an MLP, each behind a norm."""

    reads_condition: ClassVar[bool] = True
    """Whether it looks at the condition."""
    heads: int = Field(4, ge=1)
    """Attention heads. They divide the width of the model."""
    ratio: float = Field(4.0, gt=0, le=64)
    """Width of the MLP's hidden layer, in widths of the model."""
    norm: NormName = "layer"
    """Layer norm, or RMS norm, which does not take the mean away."""
    affine: Affine = False
    """Whether the norms have a learned scale and shift; "scale" is without the shift, as RMS norm always is."""
    eps: float = Field(1e-6, ge=1e-12, le=0.1)
    """Added to the variance in the norms."""
    mlp: MLPName = "gelu"
    """Two maps with a GELU between them, exact or by tanh; or SwiGLU, which has three."""
    bias: bool = True
    """Whether the maps of attention and MLP have a bias; the modulation always has one."""
    qkv_bias: QKVBias | None = None
    """Whether queries, keys and values have a bias; "qv" is without that of keys (BEiT). By default as `bias`."""
    out_bias: bool | None = None
    """Whether the map out of attention has a bias. By default as `bias`."""
    mlp_bias: bool | None = None
    """Whether the maps of the MLP have a bias. By default as `bias`."""
    rope: Rope = False
    """Whether queries and keys are rotated by their position (RoPE); "centre" takes the place along the chromosome that
    the task tells as a condition of this name, instead of the index, so that attention knows distances in bases."""
    rope_unit: float = Field(1000.0, gt=0, le=1e9)
    """What these places are counted in: 1000 makes kilobases of bases. One unit turns them by 1 radian at most."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of what attention and MLP add that is dropped in training."""
    attention_dropout: float | None = Field(None, ge=0, lt=1)
    """Share of the attention weights that is dropped in training. By default as `dropout`."""
    attention: Implementation = "auto"
    """How attention is computed. auto: on a CPU plain matrix products for up to 64 keys, and in bfloat16 whole heads at
    a time while their weights are few enough to be kept; a fused kernel otherwise."""

    def traits(self) -> frozenset[str]:
        """Promise to work behind a cache and to heed what is asked; without turns, to know no positions.

        Then keys may weigh more, if nothing is dropped from them one by one, since equal ones stay equal.
        """
        promised = {"cache", "asked"} | ({"positions"} if self.rope == "centre" else set())
        if not self.rope:
            promised |= {"equivariant"} if self.dropout or self.attention_dropout else {"equivariant", "weighted-keys"}
        return frozenset(promised)

    def check(self, width: int, cond: int) -> Iterator[Misfit]:
        """Yield why heads or hidden width do not go with the width."""
        yield from misfit_heads(width, self.heads, rope=bool(self.rope))
        if int(self.ratio * width) < 1:
            yield Misfit(f"a ratio of {self.ratio:g} leaves an MLP of width {width} without a hidden layer", ("ratio",))

    def matrices(self, width: int, cond: int) -> list[Matrix]:
        """Name those of attention and MLP."""
        hidden, ups = int(self.ratio * width), ("gate", "up") if self.mlp == "swiglu" else ("up",)
        found = [Matrix("attention.qkv", 3 * width, width), Matrix("attention.out", width, width)]
        return [*found, *(Matrix(f"mlp.{up}", hidden, width) for up in ups), Matrix("mlp.down", width, hidden)]

    def cost(self, width: int, cond: int, length: int) -> Cost:
        """What two norms, attention and the MLP take."""
        norms = norm_cost(self.norm, self.affine, width, length)
        whole = norms + norms + attention_cost(self, width, length) + mlp_cost(self, width, length)
        return whole if width < WIDE else replace(whole, remade=made_again(self, width, length))


def misfit_heads(width: int, heads: int, *, rope: bool) -> Iterator[Misfit]:
    """Yield why a width cannot be split into this many heads; the message lists the numbers that are possible."""
    if width % heads == 0 and not (rope and width // heads % 2):
        return
    if rope and width % 2:
        yield Misfit(f"rotary positions turn pairs of numbers, and width {width} is odd", ("rope",))
        return
    listed = range(1, min(width, MOST_LISTED) + 1)
    possible = [n for n in listed if width % n == 0 and not (rope and width // n % 2)]
    even = " of an even width, as rotary positions need" if rope and width % heads == 0 else ""
    allowed = ", ".join(map(str, possible))
    yield Misfit(f"width {width} does not split into {heads} equal heads{even}; heads may be {allowed}", ("heads",))
