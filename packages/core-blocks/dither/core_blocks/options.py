"""Options of a transformer block, shared by its Spec and its modules. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Annotated, Literal, Self

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import BlockSpec

__all__ = [
    "CENTRE",
    "DOCUMENT",
    "Affine",
    "AttentionKernel",
    "ConvolutionalBlock",
    "MLPName",
    "NormName",
    "QKVBias",
    "ResidualBlock",
    "Rope",
    "TransformerBlock",
]

CENTRE = "centre"
"""Condition that holds the coordinate of each position, such as along a chromosome (`B L`)."""
DOCUMENT = "document"
"""Condition that holds the document of each position; a token attends to its own document only (`B
L`)."""
MAX_LISTED_HEADS = 1024
"""Largest head count that an error message lists."""

NormName = Literal["layer", "rms"]
Affine = bool | Literal["scale"]
MLPName = Literal["gelu", "gelu-tanh", "swiglu"]
AttentionKernel = Literal["auto", "sdpa", "math"]
QKVBias = bool | Literal["qv"]
Rope = bool | Literal["centre", "grid"]


class ResidualBlock(BlockSpec):
    """Options of a block that ends with an MLP, each part after a norm."""

    ratio: float = Field(4.0, gt=0, le=64)
    """Hidden width of the MLP as a multiple of the model's width."""
    norm: NormName = "layer"
    """LayerNorm or RMSNorm (no mean subtraction)."""
    affine: Affine = False
    """Whether norms have a learned scale and shift; "scale" has no shift. RMSNorm never has a
    shift."""
    eps: float = Field(1e-6, ge=1e-12, le=0.1)
    """Added to the variance in the norms."""
    mlp: MLPName = "gelu"
    """Two linear layers with an exact or tanh-approximated GELU between them, or SwiGLU with
    three."""
    bias: bool = True
    """Whether linear layers have a bias; the modulation always has one."""
    mlp_bias: bool | None = None
    """Bias of the MLP. Defaults to `bias`."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Dropout of the outputs of both parts."""

    def check(self, width: int, cond: int) -> Iterator[Misfit]:
        """Require a hidden layer that is not empty."""
        if int(self.ratio * width) < 1:
            yield Misfit(
                f"ratio {self.ratio:g} makes the hidden layer of an MLP of width {width} empty",
                ("ratio",),
            )


class TransformerBlock(ResidualBlock):
    """Options of a block of self-attention and an MLP, each after a norm."""

    heads: int = Field(4, ge=1)
    """Attention heads; must divide the width of the model, unless `head_width` is given."""
    head_width: int | None = Field(None, ge=1, le=4096)
    """Width of a head. Defaults to the width of the model / `heads`."""
    kv_heads: int | None = Field(None, ge=1)
    """Heads of keys and values, each shared by `heads` / `kv_heads` heads of queries (grouped-query
    attention, GQA). Defaults to `heads`."""
    qkv_bias: QKVBias | None = None
    """Bias of queries, keys and values; "qv" has none for keys (BEiT). Defaults to `bias`."""
    qk_norm: bool = False
    """RMSNorm with a learned scale on the queries and keys of each head, before RoPE (Qwen3)."""
    out_bias: bool | None = None
    """Bias of the output projection of attention. Defaults to `bias`."""
    rope: Rope = False
    """Rotary position embedding (RoPE). "centre" rotates by the coordinate along the chromosome,
    read from the task's condition of this name, instead of by the index, so that attention depends
    on distances in bases. "grid" rotates half of each head by the column of a position, the other
    half by its row (axial RoPE)."""
    rope_theta: float = Field(10_000.0, gt=1, le=1e9)
    """Base of the frequencies of RoPE."""
    rope_unit: float = Field(1000.0, gt=0, le=1e9)
    """Unit of these coordinates: 1000 converts bases to kilobases. The fastest rotation is 1 radian
    per unit."""
    attention_dropout: float | None = Field(None, ge=0, lt=1)
    """Dropout of the attention weights. Defaults to `dropout`."""
    attention: AttentionKernel = "auto"
    """Attention kernel: torch's fused kernel (sdpa) or matrix products (math). auto is sdpa, but in
    bfloat16 on a CPU it is tiles of heads while all attention weights fit in memory."""

    def traits(self) -> frozenset[str]:
        """Without RoPE the block is permutation-equivariant; without dropout equal keys may be merged into one."""
        traits = {"cache", "requested"}
        if self.rope == "centre":
            traits.add("positions")
        if self.rope == "grid":
            traits.add("grid-positions")
        if not self.rope:
            traits.add("equivariant")
        if not (self.rope or self.dropout or self.attention_dropout):
            traits.add("weighted-keys")
        return frozenset(traits)

    def check(self, width: int, cond: int) -> Iterator[Misfit]:
        """Require a width that the heads divide, and a hidden layer that is not empty."""
        yield from self._check_heads(width)
        if self.kv_heads is not None and self.heads % self.kv_heads:
            message = (
                f"heads = {self.heads} cannot share kv_heads = {self.kv_heads} equally"
            )
            yield Misfit(message, ("kv_heads",), ("model", "block", "heads"))
        qkv_bias: QKVBias = self.bias
        if self.qkv_bias is not None:
            qkv_bias = self.qkv_bias
        if qkv_bias == "qv":
            yield from self._check_equal_projections()
        yield from super().check(width, cond)

    def _check_equal_projections(self) -> Iterator[Misfit]:
        """Reject what makes the three projections of "qv" differ in width."""
        related = ("model", "block", "qkv_bias")
        if self.kv_heads not in (None, self.heads):
            yield Misfit('kv_heads excludes qkv_bias = "qv"', ("kv_heads",), related)
        if self.head_width is not None:
            message = 'head_width excludes qkv_bias = "qv"'
            yield Misfit(message, ("head_width",), related)

    def _check_heads(self, width: int) -> Iterator[Misfit]:
        heads = self.heads
        if self.head_width is not None:
            if self.rope and self.head_width % self._rotated:
                message = (
                    f"RoPE rotates pairs of features, but head_width {self.head_width} "
                    f"is not divisible by {self._rotated}"
                )
                yield Misfit(message, ("head_width",))
            return
        if self._divides(heads, width):
            return
        if self.rope and width % self._rotated:
            message = (
                f"RoPE rotates pairs of features, but width {width} "
                f"is not divisible by {self._rotated}"
            )
            yield Misfit(message, ("rope",))
            return

        counts = range(1, min(width, MAX_LISTED_HEADS) + 1)
        allowed = [str(count) for count in counts if self._divides(count, width)]
        even = ""
        if width % heads == 0:
            even = f" of a width divisible by {self._rotated}, which RoPE requires"
        message = (
            f"width {width} is not divisible into {heads} equal heads{even}; "
            f"heads may be {', '.join(allowed)}"
        )
        yield Misfit(message, ("heads",))

    def _divides(self, heads: int, width: int) -> bool:
        """Whether a width has so many heads, each of pairs under RoPE."""
        if width % heads:
            return False
        return not self.rope or width // heads % self._rotated == 0

    @property
    def _rotated(self) -> int:
        """Features of a head that RoPE rotates together: a pair, on a grid one for each axis."""
        return 4 if self.rope == "grid" else 2


class ConvolutionalBlock(ResidualBlock):
    """Options of a block of a dilated convolution and an MLP, each after a norm."""

    kernel: int = Field(9, ge=1, le=255)
    """Positions that the convolution reads around each one, an odd number."""
    dilation: list[Annotated[int, Field(ge=1)]] = Field([1], min_length=1)
    """Distance between positions that are read; layers take the values in turn."""

    def traits(self) -> frozenset[str]:
        """A new block is the identity."""
        return frozenset({"zero-init"})

    def check(self, width: int, cond: int) -> Iterator[Misfit]:
        """Require an odd kernel, which has a centre, besides what every block requires."""
        yield from super().check(width, cond)
        if self.kernel % 2 == 0:
            yield Misfit(
                f"kernel = {self.kernel} has no centre; it must be odd",
                ("kernel",),
                help=f"set kernel = {self.kernel + 1}",
                code="out-of-range",
            )

    def at(self, layer: int, depth: int) -> Self:
        """Return the options of one layer, with its dilation."""
        dilation = self.dilation[layer % len(self.dilation)]
        return self.model_copy(update={"dilation": [dilation]})
