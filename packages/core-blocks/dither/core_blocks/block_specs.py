"""What the blocks of a transformer have in common: their options, and how heads divide a width. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Self

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import BlockSpec
from dither.registry.kinds.costs import Cost, Matrix

from .options import RECOMPUTE_MIN_WIDTH, Affine, Implementation, MLPName, NormName, QKVBias, Rope, misfit_heads

if TYPE_CHECKING:
    from .blocks import AdaLNZeroBlock, PreNormBlock

__all__ = [
    "AdaLNZero",
    "PreNorm",
    "TransformerBlock",
    "attention_cost",
    "clean_and_noised_cost",
    "linear_parameters",
    "made_again",
    "mlp_cost",
    "norm_cost",
]


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
        promised = {"cache", "requested"} | ({"positions"} if self.rope == "centre" else set())
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
        return whole if width < RECOMPUTE_MIN_WIDTH else replace(whole, remade=made_again(self, width, length))


def linear_parameters(width: int, out: int, bias: bool = True) -> int:
    """Weights of a linear map."""
    return width * out + out * bias


def norm_cost(norm: NormName, affine: Affine, width: int, length: int) -> Cost:
    """A norm keeps what comes in and what goes out; RMS norm also what its learned scale is multiplied with."""
    vectors = bool(affine) + (affine is True and norm == "layer")
    tensors = 3 if norm == "rms" and affine else 2
    return Cost(vectors * width, tensors * length * width + 2 * length)


def clean_and_noised_cost(block: Cost, width: int, length: int, *, last: bool = False) -> Cost:
    """A block over a noised sample and the clean one beside it, which pass through it one after the other.

    The noised half has a modulation per position, and keys and values of both, under a mask; twice the weights of
    attention, where they are kept, are not counted. The last block makes only keys and values of the clean half: that
    keeps its norm, what is read, and queries, keys and values.
    """
    from .options import RECOMPUTE_MIN_WIDTH

    state = length * width
    clean, remade = (6 * state, 2 * state * (width >= RECOMPUTE_MIN_WIDTH)) if last else (block.kept, block.remade)
    kept = block.kept + clean + 12 * state + length * length
    return replace(block, kept=kept, passing=block.passing + 4 * state, remade=block.remade + remade)


def attention_cost(block: TransformerBlock, width: int, length: int) -> Cost:
    """Input, queries, keys, values, what is gathered, what goes out; and weights `H L L` unless a kernel is fused."""
    from .options import FEW, TILED_MAX_WEIGHTS

    qkv_bias = block.bias if block.qkv_bias is None else block.qkv_bias
    out_bias = block.bias if block.out_bias is None else block.out_bias
    biased = 2 if qkv_bias == "qv" else 3 * qkv_bias
    parameters = linear_parameters(width, 3 * width, False) + biased * width + linear_parameters(width, width, out_bias)
    rate = block.dropout if block.attention_dropout is None else block.attention_dropout
    plain = block.attention == "math" or (block.attention == "auto" and length <= FEW)
    state, weights, rounded = length * width, block.heads * length * length, 0
    if plain or rate:  # the fused kernel of the CPU knows no dropout
        masks = 0 if not rate else weights + (weights // 4 if plain else weights)  # ours takes a byte for each
        kept, passing = 6 * state + weights + masks, 5 * state + 2 * weights
    else:
        kept, passing = (9 if block.rope else 7) * state + block.heads * length, 7 * state
        rounded = weights if block.attention == "auto" else 0
    angles = 2 * state // block.heads if block.rope == "centre" else 0  # of an index they are one table for all
    cost = Cost(parameters, kept + angles + (state // 4 if block.dropout else 0), passing)
    return replace(cost, rounded=rounded, most_rounded=TILED_MAX_WEIGHTS)


def mlp_cost(block: TransformerBlock, width: int, length: int) -> Cost:
    """Input, hidden values before and after the nonlinearity, what goes out."""
    hidden, gated = int(block.ratio * width), block.mlp == "swiglu"
    bias = block.bias if block.mlp_bias is None else block.mlp_bias
    parameters = linear_parameters(width, hidden, bias) * (2 if gated else 1) + linear_parameters(hidden, width, bias)
    inner, state = (4 if gated else 2) * hidden * length, length * width
    return Cost(parameters, inner + 2 * state + (state // 4 if block.dropout else 0), inner + 2 * state)


def made_again(block: TransformerBlock, width: int, length: int) -> int:
    """What of it a wide block computes again on a CPU: what norms give, modulated or not, and the nonlinearity."""
    norm = norm_cost(block.norm, block.affine, width, length)
    hidden = int(block.ratio * width) * length
    return 2 * norm.kept + (2 if block.mlp == "swiglu" else 1) * hidden


class AdaLNZero(TransformerBlock):
    """Self-attention and an MLP, shifted, scaled and gated by the condition (DiT); at first it changes nothing."""

    name: ClassVar[str] = "adaln-zero"

    def traits(self) -> frozenset[str]:
        """Promise to start as the identity, and what every block does."""
        return super().traits() | {"zero-init"}

    def matrices(self, width: int, cond: int) -> list[Matrix]:
        """Name those of every block, and that of the modulation."""
        return [*super().matrices(width, cond), Matrix("modulation.linear", 6 * width, cond)]

    def cost(self, width: int, cond: int, length: int) -> Cost:
        """What the layer and its modulation take."""
        return super().cost(width, cond, length) + Cost(linear_parameters(cond, 6 * width), 8 * width)

    def build(self, width: int, cond: int) -> AdaLNZeroBlock:
        """Return one block."""
        from .blocks import AdaLNZeroBlock

        return AdaLNZeroBlock(width, cond, **self.model_dump())


class PreNorm(TransformerBlock):
    """Self-attention and an MLP behind a norm each, added to what comes in: a plain transformer layer (GET, ViT).

    It does not look at the condition, and so it knows neither the noise level nor what else the model is told.
    """

    name: ClassVar[str] = "pre-norm"
    reads_condition: ClassVar[bool] = False
    affine: Affine = True
    """Whether the norms have a learned scale and shift; "scale" is without the shift, as RMS norm always is."""
    drop_path: float = Field(0.0, ge=0, lt=1)
    """Stochastic depth: share of the samples for which, in training, the last layer leaves out attention, and the MLP
    by another draw. It falls evenly to 0 at the first layer."""

    def at(self, layer: int, depth: int) -> Self:
        """Have the share of its place in the model."""
        return self.model_copy(update={"drop_path": self.drop_path * layer / max(depth - 1, 1)})

    def cost(self, width: int, cond: int, length: int) -> Cost:
        """What the layer takes: behind norms and maps out nothing is multiplied, so that less is kept."""
        whole = super().cost(width, cond, length)
        state = length * width
        return replace(
            whole, kept=whole.kept - 4 * state, remade=whole.remade - 2 * state * (width >= RECOMPUTE_MIN_WIDTH)
        )

    def build(self, width: int, cond: int) -> PreNormBlock:
        """Return one layer."""
        from .blocks import PreNormBlock

        return PreNormBlock(width, **self.model_dump())
