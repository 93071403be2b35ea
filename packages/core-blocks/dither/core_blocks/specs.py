"""Specs of the blocks and of the denoiser. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field

from dither.registry import (
    FeatureSpace,
    Misfit,
    Slot,
    Space,
    Spec,
    TokenSpace,
    below,
    hookimpl,
    named,
)
from dither.registry.config.errors import Problem, Refused
from dither.registry.kinds import (
    BlockSpec,
    ConditionSpec,
    EmbeddingSpec,
    HeadSpec,
    ModelFacts,
    ModelSpec,
    missing_condition,
)

from .options import (
    CENTRE,
    DOCUMENT,
    Affine,
    ConvolutionalBlock,
    NormName,
    TransformerBlock,
)

if TYPE_CHECKING:
    from torch import Tensor

    from .blocks import AdaLNZeroBlock, PreNormBlock
    from .convolution import ConvBlock
    from .denoiser import Denoiser

__all__ = ["AdaLNZero", "Conv", "DenoiserModel", "PreNorm", "register_components"]


class AdaLNZero(TransformerBlock):
    """Self-attention and an MLP, shifted, scaled and gated by the condition (DiT); starts as the identity."""

    name = "adaln-zero"

    def traits(self) -> frozenset[str]:
        """Add "zero-init" to the traits of every transformer block."""
        return super().traits() | {"zero-init"}

    def build(self, width: int, cond: int) -> AdaLNZeroBlock:
        from .blocks import AdaLNZeroBlock

        return AdaLNZeroBlock(width, cond, self)


class PreNorm(TransformerBlock):
    """Self-attention and an MLP, each after a norm and added to the input: a plain transformer layer (GET, ViT).

    The condition is ignored, so the block depends neither on the noise level nor on other
    conditions.
    """

    name = "pre-norm"
    reads_condition: ClassVar[bool] = False
    affine: Affine = True
    """Whether norms have a learned scale and shift; "scale" has no shift. RMSNorm never has a
    shift."""
    drop_path: float = Field(0.0, ge=0, lt=1)
    """Stochastic depth: probability with which training drops attention, and independently the MLP,
    of a sample in the last layer. It decreases linearly to 0 in the first layer."""

    def at(self, layer: int, depth: int) -> Self:
        """Return the options of one layer, with its own `drop_path`."""
        return self.model_copy(
            update={"drop_path": self.drop_path * layer / max(depth - 1, 1)}
        )

    def build(self, width: int, cond: int) -> PreNormBlock:
        from .blocks import PreNormBlock

        return PreNormBlock(width, self, self.drop_path)


class Conv(ConvolutionalBlock):
    """A dilated depthwise-separable convolution and an MLP, modulated as in DiT; for ordered positions."""

    name = "conv"

    def build(self, width: int, cond: int) -> ConvBlock:
        from .convolution import ConvBlock

        return ConvBlock(width, cond, self)


class DenoiserModel(ModelSpec):
    """A diffusion transformer: embedding, blocks, final norm, head."""

    name = "denoiser"
    layouts: ClassVar[Mapping[str, str]] = MappingProxyType(
        {
            "sedd": "score-entropy models of Lou et al.",
            "get": "GETRegionPretrain and GETRegionFinetune",
            "get-dit": "GET with blocks of DiT",
            "mdlm": "MDLM and BD3-LM without time conditioning",
            "dit": "DiT",
            "sit": "SiT, DiT with flow matching",
            "llada": "LLaDA",
            "llama": "models of transformers with the names of Llama",
        }
    )
    width: int = Field(128, ge=1)
    """Hidden size per position."""
    depth: int = Field(4, ge=1)
    """Number of blocks."""
    cond: int | None = Field(None, ge=1)
    """Width of the condition. Defaults to the width of the model."""
    embedding: Slot[EmbeddingSpec] = named("tokens")
    """Embedding of the noised sample."""
    condition: Slot[ConditionSpec] = named("level")
    """Embedding of the noise level and other conditions."""
    block: Slot[BlockSpec] = named("adaln-zero")
    """The block of every layer."""
    blocks: list[Slot[BlockSpec]] = []
    """Blocks of the layers in turn, such as ["conv", "conv", "adaln-zero"], instead of `block`."""
    head: Slot[HeadSpec] = named("tokens")
    """Output layer."""
    tie_embeddings: bool = False
    """Whether the head shares its weights with the embedding tables."""
    final: Literal["adaln", "norm"] = "adaln"
    """Norm before the head: modulated by the condition, or unconditional."""
    norm: NormName = "layer"
    """Type of the final norm."""
    affine: Affine = False
    """Whether the final norm has a learned scale and shift; "scale" has no shift."""
    eps: float = Field(1e-6, ge=1e-12, le=0.1)
    """Added to the variance in the final norm."""
    reads: Literal["same", "previous"] = "same"
    """Where the prediction of a position is read: at the position, or at the one before it, as in
    models that continue from autoregressive weights (Dream); the first is then read in place. With
    block_size = 1, "previous" is a plain autoregressive model: its input are the ids before."""
    self_conditioning: bool = False
    """Whether the previous prediction of the clean sample is an input (Chen et al. 2022): in
    training that of a first pass for half of the samples, in sampling that of the last call. Losses
    and bounds of evaluation are those without one."""
    patch: int | None = Field(None, ge=2, le=64)
    """Rows and columns of the square patches that an image, or another grid, is divided into; each
    is one position of the blocks. By default every position is one."""
    block_size: int | None = Field(None, ge=1)
    """Positions per block with block-causal attention, where a position attends to its own and
    earlier blocks; full attention by default. For tokens of a single field this is block diffusion
    (BD3-LM): each block is noised at its own time, predicted after the clean blocks before it, and
    sampled with an exact key-value cache."""
    init: Literal["torch", "trunc-normal"] = "torch"
    """Initialisation of linear layers in condition and blocks: torch's default, or a normal
    distribution of standard deviation 0.02 truncated at +-2 with zero biases. Layers that start at
    zero stay zero."""
    checkpointing: bool = False
    """Activation checkpointing per block: less memory for a third more time."""

    def check(self, space: Space) -> Iterator[Misfit]:
        """Reject components that are incompatible with the space, the widths and each other."""
        yield from super().check(space)
        yield from self._check_patch(space)
        space = self._blocks_space(space)
        yield from self._check_blocks(space)
        yield from self._check_positions(space)
        yield from self._check_autoregressive(space)
        yield from self._check_documents(space)
        condition = self.condition.with_space(space)
        of_condition = list(condition.check(self._cond))
        of_components = [
            *below("embedding", self.embedding.check(space, self.width)),
            *below("condition", of_condition),
            *self._check_each_block(),
            *below("head", self.head.check(space, self.width)),
        ]
        for misfit in of_components:
            yield replace(misfit, related=misfit.related or ("model", "width"))
        if self.tie_embeddings:
            yield from self._check_tied()
        reads_condition = self.final == "adaln" or any(
            block.reads_condition for block in self._pattern
        )
        if (
            not reads_condition
            and not of_condition
            and "constant" not in condition.traits()
        ):
            message = (
                f'neither block "{self._pattern[0].name}" nor final = "norm" uses condition '
                f'"{condition.name}"'
            )
            fix = 'set condition = "none", or final = "adaln"'
            yield Misfit(
                message, ("condition",), ("model", "block"), fix, code="no-effect"
            )

    def _check_patch(self, space: Space) -> Iterator[Misfit]:
        if self.patch is None:
            return
        path = ("patch",)
        if not isinstance(space, FeatureSpace) or space.grid is None:
            message = (
                f"patches require samples on a grid, such as images; these are {space}"
            )
            yield Misfit(message, path, ("task",), "remove patch")
        elif any(side % self.patch for side in space.grid):
            rows, columns = space.grid
            message = f"patch = {self.patch} does not divide {rows} x {columns}"
            yield Misfit(message, path, ("task",), code="out-of-range")
        for option in ("block_size", "reads"):
            if getattr(self, option) != type(self).model_fields[option].default:
                message = f"{option} orders positions, which patches do not keep"
                yield Misfit(message, (option,), ("model", "patch"), f"remove {option}")

    def _blocks_space(self, space: Space) -> Space:
        """Return the space of the components: that of the patches, if these fit."""
        if self.patch is None or list(self._check_patch(space)):
            return space
        assert isinstance(space, FeatureSpace)
        assert space.grid is not None
        rows, columns = space.grid
        # Groups are of columns of a position, of which a patch has many.
        return replace(
            space,
            length=space.length // self.patch**2,
            width=space.width * self.patch**2,
            grid=(rows // self.patch, columns // self.patch),
            groups=(),
            given=(),
            merged=self.patch**2,
        )

    def _check_each_block(self) -> Iterator[Misfit]:
        if not self.blocks:
            yield from below("block", self.block.check(self.width, self._cond))
        for number, block in enumerate(self.blocks):
            misfits = block.check(self.width, self._cond)
            yield from below("blocks", below(number, misfits))

    def _check_tied(self) -> Iterator[Misfit]:
        path = ("tie_embeddings",)
        if "tables" not in self.embedding.traits():
            message = (
                f'embedding "{self.embedding.name}" with these options has no tables that a head '
                "can share"
            )
            fix = 'set embedding = { use = "tokens", init = "kaiming" }, or tie_embeddings = false'
            yield Misfit(message, path, ("model", "embedding"), fix)
        if "maps" not in self.head.traits():
            message = f'head "{self.head.name}" has no weights that can be shared with an embedding'
            yield Misfit(
                message,
                path,
                ("model", "head"),
                'set head = "tokens", or tie_embeddings = false',
            )

    def _check_blocks(self, space: Space) -> Iterator[Misfit]:
        size = self.block_size
        if size is not None and size > space.length:
            message = (
                f"block_size = {size} exceeds the {space.length} positions of a sample"
            )
            yield Misfit(message, ("block_size",), ("task",), code="out-of-range")
        # The default is another instance, for which all plugins are loaded again: .04 CPU s of a check.
        is_given = "block" in self.model_fields_set
        if self.blocks and is_given and self.block != type(self)().block:
            message = f'block "{self.block.name}" has no effect next to blocks'
            fix = "set model.blocks = [], or remove block"
            yield Misfit(
                message, ("block",), ("model", "blocks"), fix, code="no-effect"
            )
        key = ("blocks",) if self.blocks else ("block",)
        if self.facts().trained_blocks(space) is not None:
            for name in {b.name for b in self._pattern if "cache" not in b.traits()}:
                message = (
                    f'block "{name}" does not support a key-value cache, which block_size '
                    "requires"
                )
                fix = 'set model.blocks = [] and block = "adaln-zero"'
                yield Misfit(message, key, ("model", "block_size"), fix)

    def _check_positions(self, space: Space) -> Iterator[Misfit]:
        """Require the coordinates that blocks take."""
        key = ("blocks",) if self.blocks else ("block",)
        if self._has("positions"):
            yield from missing_condition(space.conditions, CENTRE, key)
        on_grid = isinstance(space, FeatureSpace) and space.grid is not None
        if self._has("grid-positions") and not on_grid:
            message = f'rope = "grid" requires positions on a grid, not {space}'
            yield Misfit(message, key, ("task",), "set rope = true")

    def _check_documents(self, space: Space) -> Iterator[Misfit]:
        packed = any(condition.name == DOCUMENT for condition in space.conditions)
        if packed and self.embedding.extra():
            message = "packed documents exclude extra tokens, to which all of them would attend"
            hint = 'set task.documents = "separate"'
            yield Misfit(message, ("embedding",), ("task",), hint)

    def _check_autoregressive(self, space: Space) -> Iterator[Misfit]:
        """Require what a model has whose input are the ids before a position."""
        if self.reads == "same" or self.block_size is None:
            return
        key = ("reads",)
        if self.block_size != 1:
            message = (
                'reads = "previous" requires full attention or blocks of one position'
            )
            fix = "set block_size = 1, or remove block_size"
            yield Misfit(message, key, ("model", "block_size"), fix)
        elif not isinstance(space, TokenSpace) or len(space.fields) > 1:
            message = f'reads = "previous" requires a single field of ids, not {space}'
            yield Misfit(message, key, ("task",))
        elif space.fields[0].mask is None:
            message = (
                'reads = "previous" requires the id MASK before the first position'
            )
            fix = 'set process = "absorbing"'
            yield Misfit(message, key, ("process",), fix)
        if self.block_size == 1 and "level-free" not in self.condition.traits():
            message = 'reads = "previous" with block_size = 1 has no noise level'
            fix = 'set model.condition = "none"'
            yield Misfit(message, key, ("model", "condition"), fix)
        if self.self_conditioning:
            message = "self_conditioning has no noised positions to be added to"
            related = ("model", "reads")
            fix = "remove self_conditioning"
            yield Misfit(message, ("self_conditioning",), related, fix)
        if "known" in self.embedding.traits():
            message = "known tokens are not marked where all that is read is known"
            related = ("model", "reads")
            fix = "set embedding.known = false"
            path = ("embedding", "known")
            yield Misfit(message, path, related, fix, code="no-effect")

    def traits(self) -> frozenset[str]:
        """The model ignores the noise level if its condition does."""
        return self.condition.traits() & {"level-free"}

    def facts(self) -> ModelFacts:
        """Return block size, conditions that support guidance, and what the embedding distinguishes."""
        embedding = self.embedding.traits()
        position_free = (
            "position-free" in embedding & self.condition.traits()
            and "equivariant" in self._shared_traits
        )
        conditions_read = None
        if not self.embedding.reads_labels:
            conditions_read = self.condition.reads()
        return ModelFacts(
            self.block_size,
            cache=self._has_cache,
            dropped_conditions=self.condition.dropped(),
            conditions_read=conditions_read,
            reads_known="known" in embedding,
            # Blocks of one position are causal, and causal attention distinguishes positions.
            # So does the position at which an output is read.
            position_free=position_free
            and self.block_size != 1
            and self.reads == "same",
            self_conditioning=self.self_conditioning,
            reads_noised=not self._is_autoregressive,
        )

    def rename(self, layout: str, weights: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """Return weights of a layout under the names of this model."""
        from .convert.dit import DIT, SIT
        from .convert.get import GET, GET_DIT
        from .convert.llada import LLADA, LLAMA
        from .convert.sedd import MDLM, SEDD

        layouts = {
            "sedd": SEDD,
            "mdlm": MDLM,
            "get": GET,
            "get-dit": GET_DIT,
            "dit": DIT,
            "sit": SIT,
            "llada": LLADA,
            "llama": LLAMA,
        }
        if layout == "sit":
            self._require_times_as_they_are()
        return layouts[layout].rename(weights)

    def _require_times_as_they_are(self) -> None:
        """Refuse another scale of the noise level than that of SiT, which no shape of a weight shows."""
        options = self.condition.model_dump()
        level = options.get("parts", [options])[0]
        if level.get("time_scale") != 1:
            message = "SiT reads times from 0 to 1 as they are: time_scale is 1.0"
            place = ("model", "condition")
            fix = 'write the level as { use = "level", time_scale = 1.0 }'
            raise Refused(Problem(message, place, help=fix, code="misfit"))

    @classmethod
    def convert_folder(
        cls,
        folder: Path,
        out: Path,
        length: int,
        mask_id: int | None,
    ) -> Path:
        """Convert a folder of Hugging Face with LLaDA or names of Llama."""
        from .convert.load_hf import convert_folder

        return convert_folder(folder, out, length, mask_id)

    def build(self, space: Space) -> Denoiser:
        from .denoiser import Denoiser, init_trunc_normal, tie_embeddings
        from .modulation import Final
        from .patches import Patches
        from .self_conditioning import PreviousPrediction

        patches = None
        if self.patch is not None:
            assert isinstance(space, FeatureSpace)
            patches = Patches.of(space, self.patch)
        space = self._blocks_space(space)
        period = len(self._pattern)
        repetitions = -(-self.depth // period)
        layers = [
            self._pattern[n % period].at(n // period, repetitions)
            for n in range(self.depth)
        ]
        block = self._shared_traits
        cond = self._cond if self.final == "adaln" else None
        full = self.block_size is None
        reads_previous = self.reads == "previous" and full
        # Masked positions that no layer distinguishes are one key with a weight. With
        # self-conditioning they differ in their previous predictions.
        identical = (
            "identical-masked" in self.embedding.traits() and not self.self_conditioning
        )
        weighted = {"equivariant", "weighted-keys"} <= block
        model = Denoiser(
            embedding=self.embedding.build(space, self.width),
            condition=self.condition.with_space(space).build(self._cond),
            blocks=[layer.build(self.width, self._cond) for layer in layers],
            final=Final(
                self.width, cond, norm=self.norm, affine=self.affine, eps=self.eps
            ),
            head=self.head.build(space, self.width),
            block_size=self.block_size,
            checkpointing=self.checkpointing,
            skip_unrequested="requested" in layers[-1].traits() and not reads_previous,
            merge_masked=full and identical and weighted,
            drop_padding=full and "equivariant" in block,
            positions=[_coordinates(layer) for layer in layers],
            columns=_columns(space),
            reads_previous=reads_previous,
            id_before_first=self._id_before_first(space),
            patches=patches,
            previous=(
                PreviousPrediction(space, self.width)
                if self.self_conditioning
                else None
            ),
        )
        if self.init == "trunc-normal":
            init_trunc_normal(model.condition, model.blocks)
        if self.tie_embeddings:
            tie_embeddings(model.embedding, model.head)
        return model

    @property
    def _pattern(self) -> list[BlockSpec]:
        return self.blocks or [self.block]

    def _has(self, trait: str) -> bool:
        return any(trait in block.traits() for block in self._pattern)

    @property
    def _shared_traits(self) -> frozenset[str]:
        return frozenset.intersection(*(block.traits() for block in self._pattern))

    @property
    def _has_cache(self) -> bool:
        # A piece of a sample lacks the position before it.
        whole = self.reads == "same" or self._is_autoregressive
        return "cache" in self._shared_traits and whole and self.patch is None

    def _id_before_first(self, space: Space) -> int | None:
        """Return MASK if the input are the ids before each position."""
        if not self._is_autoregressive or not isinstance(space, TokenSpace):
            return None
        return space.fields[0].mask

    @property
    def _is_autoregressive(self) -> bool:
        return self.reads == "previous" and self.block_size == 1

    @property
    def _cond(self) -> int:
        return self.cond or self.width


def _coordinates(block: BlockSpec) -> str | None:
    """Return the trait that says which coordinates a block takes."""
    kinds = block.traits() & {"positions", "grid-positions"}
    return next(iter(kinds), None)


def _columns(space: Space) -> int:
    """Return the columns of the grid of positions; 1 without."""
    if not isinstance(space, FeatureSpace) or space.grid is None:
        return 1
    return space.grid[1]


@hookimpl
def register_components() -> list[type[Spec]]:
    """Return the specs of this package."""
    return [AdaLNZero, PreNorm, Conv, DenoiserModel]
