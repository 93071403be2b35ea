"""The menu of this package: the adaLN-Zero block and the denoiser. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dither.registry import Misfit, Slot, Space, Spec, TokenSpace, below, hookimpl, named
from dither.registry.costs import Cost, Stage
from dither.registry.kinds import BlockSpec, ConditionSpec, EmbeddingSpec, HeadSpec, ModelFacts, ModelSpec

from .costs import beside_cost, block_cost, linear, norm_cost

if TYPE_CHECKING:
    from .blocks import AdaLNZeroBlock
    from .denoiser import Denoiser

__all__ = [
    "FEW",
    "AdaLNZero",
    "Affine",
    "DenoiserModel",
    "Implementation",
    "MLPName",
    "NormName",
    "register_components",
]

FEW = 64
"""Up to so many keys, plain matrix products beat the fused kernel on a CPU."""
MOST_LISTED = 1024
"""Up to so many heads, a message lists what is possible."""

NormName = Literal["layer", "rms"]
Affine = bool | Literal["scale"]
MLPName = Literal["gelu", "gelu-tanh", "swiglu"]
Implementation = Literal["auto", "sdpa", "math"]


class AdaLNZero(BlockSpec):
    """Self-attention and an MLP, shifted, scaled and gated by the condition (DiT); at first it changes nothing."""

    name: ClassVar[str] = "adaln-zero"
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
    qkv_bias: bool | None = None
    """Whether queries, keys and values have a bias. By default as `bias`."""
    out_bias: bool | None = None
    """Whether the map out of attention has a bias. By default as `bias`."""
    mlp_bias: bool | None = None
    """Whether the maps of the MLP have a bias. By default as `bias`."""
    rope: bool = False
    """Whether queries and keys are rotated by their position (RoPE)."""
    dropout: float = Field(0.0, ge=0, lt=1)
    """Share of what attention and MLP add that is dropped in training."""
    attention_dropout: float | None = Field(None, ge=0, lt=1)
    """Share of the attention weights that is dropped in training. By default as `dropout`."""
    attention: Implementation = "auto"
    """How attention is computed. auto: plain matrix products for up to 64 keys on a CPU, a fused kernel otherwise."""

    def traits(self) -> frozenset[str]:
        """Promise to start as the identity, to work behind a cache, to heed what is asked, and to know no positions."""
        return frozenset({"zero-init", "cache", "asked"} | (set() if self.rope else {"equivariant"}))

    def check(self, width: int, cond: int) -> Iterator[Misfit]:
        """Yield why heads or hidden width do not go with the width."""
        yield from misfit_heads(width, self.heads, rope=self.rope)
        if int(self.ratio * width) < 1:
            yield Misfit(f"a ratio of {self.ratio:g} leaves an MLP of width {width} without a hidden layer", ("ratio",))

    def cost(self, width: int, cond: int, length: int) -> Cost:
        """What the block takes."""
        return block_cost(self, width, cond, length)

    def build(self, width: int, cond: int) -> AdaLNZeroBlock:
        """Return one block."""
        from .blocks import AdaLNZeroBlock

        return AdaLNZeroBlock(width, cond, **self.model_dump())


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


def misfit_tied(embedding: EmbeddingSpec, head: HeadSpec) -> Iterator[Misfit]:
    """Yield why a head cannot read with the tables of an embedding."""
    path = ("tie_embeddings",)
    if "tables" not in embedding.traits():
        message = f'embedding "{embedding.name}" as it is set has no tables that a head could start with'
        instead = 'set embedding = { use = "tokens", init = "kaiming" }'
        yield Misfit(message, path, ("model", "embedding"), f"{instead}, or tie_embeddings = false")
    if "maps" not in head.traits():
        message = f'head "{head.name}" has no maps that could read with the tables of an embedding'
        yield Misfit(message, path, ("model", "head"), 'set head = "tokens", or tie_embeddings = false')


class DenoiserModel(ModelSpec):
    """A diffusion transformer: embedding, blocks under one condition, final norm, head."""

    name: ClassVar[str] = "denoiser"
    width: int = Field(128, ge=1)
    """Numbers per position inside the model."""
    depth: int = Field(4, ge=1)
    """Number of blocks."""
    cond: int | None = Field(None, ge=1)
    """Width of the condition. By default that of the model."""
    embedding: Slot[EmbeddingSpec] = named("tokens")
    """How a state comes in."""
    condition: Slot[ConditionSpec] = named("level")
    """How the noise level and other conditions come in."""
    block: Slot[BlockSpec] = named("adaln-zero")
    """What each layer is."""
    head: Slot[HeadSpec] = named("tokens")
    """How raw values come out."""
    tie_embeddings: bool = False
    """Whether the head reads with the tables of the embedding, which then start both: a matrix less for each field."""
    final: Literal["adaln", "norm"] = "adaln"
    """The norm before the head: shifted and scaled by the condition, or alone."""
    norm: NormName = "layer"
    """The sort of the final norm."""
    affine: Affine = False
    """Whether the final norm has a learned scale and shift; "scale" is without the shift."""
    eps: float = Field(1e-6, ge=1e-12, le=0.1)
    """Added to the variance in the final norm."""
    block_size: int | None = Field(None, ge=1)
    """Block-causal attention: a position sees its own block of so many positions and earlier ones. By default every
    position sees every other. Over tokens of a single field it is block diffusion (BD3-LM): each block is noised at a
    time of its own and predicted behind the clean blocks before it, and sampled so, with an exact cache."""
    init: Literal["torch", "trunc-normal"] = "torch"
    """How linear maps in condition and blocks start: as torch has it, or from a normal distribution of standard
    deviation 0.02 cut at +-2, with biases at 0. Maps that a part starts at zero stay at zero."""
    checkpointing: bool = False
    """Compute each block again on the way back instead of keeping what is inside it: less memory, a third more time."""

    def check(self, space: Space) -> Iterator[Misfit]:
        """Yield what does not fit in any of the parts."""
        yield from super().check(space)
        yield from self._misfit_blocks(space)
        parts: tuple[tuple[str, Iterable[Misfit]], ...] = (
            ("embedding", self.embedding.check(space, self.width)),
            ("condition", self.condition.check(self._cond)),
            ("block", self.block.check(self.width, self._cond)),
            ("head", self.head.check(space, self.width)),
        )
        for key, misfits in parts:
            yield from (replace(misfit, related=misfit.related or ("model", "width")) for misfit in below(key, misfits))
        if self.tie_embeddings:
            yield from misfit_tied(self.embedding, self.head)

    def _misfit_blocks(self, space: Space) -> Iterator[Misfit]:
        size = self.block_size
        if size is not None and size > space.length:
            message = f"block_size = {size} is more than the {space.length} positions of a sample"
            yield Misfit(message, ("block_size",), ("task",))
        if self.facts().trained_blocks(space) is not None and "cache" not in self.block.traits():
            message = f'block "{self.block.name}" does not say that it works behind a cache, as block_size asks for'
            yield Misfit(message, ("block",), ("model", "block_size"))

    def facts(self) -> ModelFacts:
        """Tell whether block by block sampling is exact."""
        return ModelFacts(self.block_size)

    def stages(self, space: Space) -> Sequence[Stage]:
        """What embedding, condition, blocks, final norm and head take."""
        extra = self.embedding.extra()
        length, state = extra + space.length, (extra + space.length) * self.width
        block = self.block.cost(self.width, self._cond, length)
        embedding, condition = self.embedding.cost(space, self.width), self.condition.cost(self._cond)
        halves, levels, last = 1, 1, None
        if self.facts().trained_blocks(space) is not None:  # the clean sample, with one level for all, and the noised
            halves, levels = 2, length
            block, last = (beside_cost(block, self.width, length, last=last) for last in (False, True))
            embedding, condition = embedding.scaled(2), condition.scaled(length + 1)
        elif self.block_size is not None:
            block += Cost(kept=length * length)  # which positions each one sees
        if self.checkpointing:
            block, last = block.recomputed(halves * state), last and last.recomputed(halves * state)
        final = norm_cost(self.norm, self.affine, self.width, length)
        if self.final == "adaln":
            final += Cost(linear(self._cond, 2 * self.width), 3 * self.width * levels)
        else:
            final = replace(final, kept=final.kept - state)  # what goes out is kept by the head
        head = self.head.cost(space, self.width)
        alone = isinstance(space, TokenSpace) and len(space.fields) == 1
        if self.tie_embeddings and isinstance(space, TokenSpace):
            head = replace(head, parameters=head.parameters - self.width * sum(field.size for field in space.fields))
        return (
            Stage("embedding", embedding),
            Stage("condition", condition),
            *([Stage("blocks", block, self.depth)] if last is None else _and_last(block, last, self.depth)),
            Stage("final", final),
            Stage("head", head, last_map=alone and "maps" in self.head.traits()),
        )

    def build(self, space: Space) -> Denoiser:
        """Return the model for a space."""
        from .adaln import Final
        from .denoiser import Denoiser, start_trunc_normal
        from .tying import tie

        model = Denoiser(
            embedding=self.embedding.build(space, self.width),
            condition=self.condition.build(self._cond),
            blocks=[self.block.build(self.width, self._cond) for _ in range(self.depth)],
            final=Final(
                self.width,
                self._cond if self.final == "adaln" else None,
                norm=self.norm,
                affine=self.affine,
                eps=self.eps,
            ),
            head=self.head.build(space, self.width),
            block_size=self.block_size,
            checkpointing=self.checkpointing,
            skip_padding="equivariant" in self.block.traits(),
            skip_unasked="asked" in self.block.traits(),
        )
        if self.init == "trunc-normal":
            start_trunc_normal(model.condition, model.blocks)
        if self.tie_embeddings:
            tie(model.embedding, model.head)
        return model

    @property
    def _cond(self) -> int:
        return self.cond or self.width


def _and_last(block: Cost, last: Cost, depth: int) -> list[Stage]:
    """Return blocks of which the last is another."""
    return [*([Stage("blocks", block, depth - 1)] if depth > 1 else []), Stage("last block", last)]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer what this package makes."""
    return [AdaLNZero, DenoiserModel]
