"""The menu of samplers. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry import Misfit, Slot, TokenSpace, below, named
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

if TYPE_CHECKING:
    from dither.registry.parts import Sampler

__all__ = ["Ancestral", "Blocks", "Euler", "FirstHitting"]


class Ancestral(SamplerSpec):
    """Step back on an even grid of times, then go straight to clean data. For every process.

    A step draws from p(x_s | x_t) as the process has it: DDPM or DDIM, the exact posterior of tokens, or filling in.
    """

    name: ClassVar[str] = "ancestral"
    steps: int = Field(64, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Time of the last state; from there the sample is drawn clean."""

    def build(self) -> Sampler:
        """Return the walk."""
        from .ancestral import Ancestral

        return Ancestral(self.steps, self.t_min)


class Euler(SamplerSpec):
    """Small jumps at the reverse rates of a token process (SEDD), in a form that is stable for any step."""

    name: ClassVar[str] = "euler"
    steps: int = Field(128, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end. The law of the samples is exact only for many."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Time of the last state; from there the sample is drawn clean."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless there are tokens to jump between."""
        if process.space.data != "tokens":
            yield Misfit(f'sampler "euler" is for tokens, but process "{process.name}" is not', related=("process",))

    def build(self) -> Sampler:
        """Return the walk."""
        from .euler import Euler

        return Euler(self.steps, self.t_min)


class FirstHitting(SamplerSpec):
    """One masked position per call, chosen evenly, at the time when it would be next (Zheng et al. 2024).

    It has the law of ancestral sampling with infinitely many steps, with as many calls as there are masked positions.
    """

    name: ClassVar[str] = "first-hitting"

    def traits(self) -> frozenset[str]:
        """Promise to draw from what the model says, exactly."""
        return frozenset({"exact-law"})

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless positions are unmasked once and for all."""
        if process.prior != "mask":
            message = f'sampler "first-hitting" unmasks tokens, but process "{process.name}" does not mask them'
            yield Misfit(message, related=("process",), help='use sampler "ancestral"')

    def build(self) -> Sampler:
        """Return the walk."""
        from .first_hitting import FirstHitting

        return FirstHitting()


class Blocks(SamplerSpec):
    """Block after block from left to right, each drawn by another sampler; finished blocks are remembered as context.

    With a model under block-causal attention (BD3-LM) remembered keys and values equal those of a full pass. Training
    noises all blocks of a sample alike, so a clean context is not what the model was trained on.
    """

    name: ClassVar[str] = "blocks"
    size: int = Field(16, ge=1)
    """Positions per block; a multiple of the model's block_size. The last block may be shorter."""
    inner: Slot[SamplerSpec] = named("ancestral")
    """How a block is drawn."""
    approximate: bool = False
    """Allow a model without block-causal attention: what is remembered of a block then lacks the later ones."""

    def traits(self) -> frozenset[str]:
        """Promise to be as exact as what draws a block."""
        return self.inner.traits() & {"exact-law"}

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield why sequences cannot be cut into blocks, or the memory would not be exact."""
        space = process.space
        if not isinstance(space, TokenSpace) or len(space.fields) > 1:
            yield Misfit(f'sampler "blocks" needs a single field of tokens, not {space}', related=("task",))
        if model.block_size is None and not self.approximate:
            message = "cached sampling is exact only for block-causal attention: set model.block_size"
            yield Misfit(message, related=("model",), help="or set sampler.approximate = true")
        if model.block_size is not None and self.size % model.block_size:
            message = f"size = {self.size} is no multiple of the model's block_size = {model.block_size}"
            yield Misfit(message, ("size",), ("model",))
        if self.inner.name == self.name:
            yield Misfit("a block cannot be drawn in blocks", ("inner",))
        yield from below("inner", self.inner.check(process, model))

    def build(self) -> Sampler:
        """Return the walk."""
        from .blocks import Blocks

        return Blocks(self.size, self.inner.build())
