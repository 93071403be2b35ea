"""The menu of this package: blocks and the denoiser. No torch here."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dither.registry import Misfit, Slot, Space, Spec, TokenSpace, below, hookimpl, named
from dither.registry.kinds import BlockSpec, ConditionSpec, EmbeddingSpec, HeadSpec, ModelFacts, ModelSpec
from dither.registry.kinds.costs import Cost, Matrix, Stage
from dither.registry.kinds.space_compatibility import missing_condition

from .block_specs import AdaLNZero, PreNorm, clean_and_noised_cost, linear_parameters, norm_cost
from .options import CENTRE, FEW, Affine, Implementation, MLPName, NormName, QKVBias, misfit_heads

if TYPE_CHECKING:
    from torch import Tensor

    from .denoiser import Denoiser

__all__ = [
    "FEW",
    "Affine",
    "DenoiserModel",
    "Implementation",
    "MLPName",
    "NormName",
    "PreNorm",
    "QKVBias",
    "misfit_heads",
    "register_components",
]

MAX_NAMED_LAYERS = 64
"""Layers of which each matrix is named."""


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
    layouts: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "sedd": "score-entropy models of Lou et al.",
            "get": "GETRegionPretrain and GETRegionFinetune",
            "get-dit": "GET with blocks of DiT",
        }
    )
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
        condition = self.condition.over(space)
        parts: tuple[tuple[str, Iterable[Misfit]], ...] = (
            ("embedding", self.embedding.check(space, self.width)),
            ("condition", condition.check(self._cond)),
            ("block", self.block.check(self.width, self._cond)),
            ("head", self.head.check(space, self.width)),
        )
        for key, misfits in parts:
            yield from (replace(misfit, related=misfit.related or ("model", "width")) for misfit in below(key, misfits))
        if self.tie_embeddings:
            yield from misfit_tied(self.embedding, self.head)
        if not list(condition.check(self._cond)):
            yield from self._misfit_unread(condition)

    def _misfit_unread(self, condition: ConditionSpec) -> Iterator[Misfit]:
        read = self.final == "adaln" or getattr(self.block, "reads_condition", True)
        if not read and condition.cost(self._cond).parameters:
            message = f'neither block "{self.block.name}" nor final = "norm" looks at condition "{condition.name}"'
            yield Misfit(message, ("condition",), ("model", "block"), 'set condition = "none", or final = "adaln"')

    def _misfit_blocks(self, space: Space) -> Iterator[Misfit]:
        size = self.block_size
        if size is not None and size > space.length:
            message = f"block_size = {size} is more than the {space.length} positions of a sample"
            yield Misfit(message, ("block_size",), ("task",))
        if self.facts().trained_blocks(space) is not None and "cache" not in self.block.traits():
            message = f'block "{self.block.name}" does not say that it works behind a cache, as block_size asks for'
            yield Misfit(message, ("block",), ("model", "block_size"))
        if "positions" in self.block.traits():
            yield from missing_condition(space.conditions, CENTRE, ("block",))

    def traits(self) -> frozenset[str]:
        """Promise not to look at the noise level, if its condition does not."""
        return self.condition.traits() & {"level-free"}

    def facts(self) -> ModelFacts:
        """Tell whether block by block sampling is exact, and which conditions samples may be guided by."""
        return ModelFacts(self.block_size, left_out=self.condition.left_out())

    def rename(self, layout: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of a SEDD or a GET under the names of this model."""
        from .convert.get import GET, GET_DIT
        from .convert.sedd import SEDD

        return {"sedd": SEDD, "get": GET, "get-dit": GET_DIT}[layout].rename(weights)

    def stages(self, space: Space) -> Sequence[Stage]:
        """What embedding, condition, blocks, final norm and head take."""
        extra = self.embedding.extra()
        length, state = extra + space.length, (extra + space.length) * self.width
        block = self.block.cost(self.width, self._cond, length)
        embedding = self.embedding.cost(space, self.width)
        condition = self.condition.over(space).cost(self._cond)
        halves, levels, last = 1, 1, None
        if self.facts().trained_blocks(space) is not None:  # the clean sample, with one level for all, and the noised
            halves, levels = 2, length
            block, last = (clean_and_noised_cost(block, self.width, length, last=last) for last in (False, True))
            embedding, condition = embedding.scaled(2), condition.scaled(length + 1)
        elif self.block_size is not None:
            block += Cost(kept=length * length)  # which positions each one sees
        if self.checkpointing:
            block, last = block.recomputed(halves * state), last and last.recomputed(halves * state)
        final = norm_cost(self.norm, self.affine, self.width, length)
        if self.final == "adaln":
            final += Cost(linear_parameters(self._cond, 2 * self.width), 3 * self.width * levels)
        else:
            final = replace(final, kept=final.kept - state)  # what goes out is kept by the head
        head = self.head.cost(space, self.width)
        alone = isinstance(space, TokenSpace) and len(space.fields) == 1
        if self.tie_embeddings and isinstance(space, TokenSpace):
            head = replace(head, parameters=head.parameters - self.width * sum(field.size for field in space.fields))
        return (
            Stage("embedding", embedding),
            Stage("condition", condition),
            *self._layers(block, last),
            Stage("final", final),
            Stage("head", head, last_map=alone and "maps" in self.head.traits()),
        )

    def matrices(self, space: Space) -> Iterator[Matrix]:
        """Name those of the first blocks, each of which stands for as many others."""
        named = min(self.depth, MAX_NAMED_LAYERS)
        for matrix in self.block.matrices(self.width, self._cond):
            for layer in range(named):
                yield replace(matrix, name=f"blocks.{layer}.{matrix.name}", times=-(-self.depth // named))

    def build(self, space: Space) -> Denoiser:
        """Return the model for a space."""
        from .adaln import Final
        from .denoiser import Denoiser, init_trunc_normal, tie_embeddings

        model = Denoiser(
            embedding=self.embedding.build(space, self.width),
            condition=self.condition.over(space).build(self._cond),
            blocks=[self.block.at(n, self.depth).build(self.width, self._cond) for n in range(self.depth)],
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
            skip_padding="padding" in self._leaves_out(),
            skip_unrequested="requested" in self.block.traits(),
            positions="positions" in self.block.traits(),
            join_hidden="hidden" in self._leaves_out(),
        )
        if self.init == "trunc-normal":
            init_trunc_normal(model.condition, model.blocks)
        if self.tie_embeddings:
            tie_embeddings(model.embedding, model.head)
        return model

    def _layers(self, block: Cost, last: Cost | None) -> list[Stage]:
        """Return the blocks, of which the last may be another."""
        if last is None:
            return [Stage("blocks", block, self.depth, leaves_out=self._leaves_out())]
        return [*([Stage("blocks", block, self.depth - 1)] if self.depth > 1 else []), Stage("last block", last)]

    def _leaves_out(self) -> frozenset[Literal["padding", "hidden"]]:
        """Return which positions blocks can do without on a CPU, so that exactly the same comes out."""
        traits, found = self.block.traits(), set[Literal["padding", "hidden"]]()
        if self.block_size is not None:
            return frozenset()
        if "equivariant" in traits:
            found.add("padding")
        if "alike" in self.embedding.traits() and {"equivariant", "weighted-keys"} <= traits:
            found.add("hidden")
        return frozenset(found)

    @property
    def _cond(self) -> int:
        return self.cond or self.width


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer what this package makes."""
    return [AdaLNZero, PreNorm, DenoiserModel]
