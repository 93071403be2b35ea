"""The menu of samplers. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry import Misfit, Slot, TokenSpace, below, named
from dither.registry.kinds import ModelFacts, ProcessFacts, SamplerSpec

from .choosing import Choosing

if TYPE_CHECKING:
    from dither.registry.parts import Sampler

__all__ = ["Analytic", "Ancestral", "Blocks", "Euler", "PredictorCorrector"]


class Ancestral(Choosing):
    """Step back on an even grid of times, then go straight to clean data. For every process.

    A step draws from p(x_s | x_t) as the process has it: DDPM, the exact posterior of tokens, or filling in.
    """

    name: ClassVar[str] = "ancestral"
    steps: int = Field(64, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Time of the last state; from there the sample is drawn clean."""

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield options of a walk where there is none."""
        yield from super().warn(process, model)
        for option in ("steps", "t_min") if process.timeless else ():
            if getattr(self, option) != type(self).model_fields[option].default:
                message = f'{option} has no effect: under a fixed process.ratio "ancestral" fills in all at once'
                yield Misfit(
                    message, (option,), ("process", "ratio"), f"leave {option} out; or leave process.ratio out"
                )

    def build(self) -> Sampler:
        """Return the walk."""
        from .ancestral import Ancestral

        return Ancestral(self.steps, self.t_min, self.choice())


class Analytic(Choosing):
    """SEDD's analytic steps (Tweedie tau-leaping): the reverse of the noise of a step, applied to scores as they are.

    Where the model speaks of clean ids (predict = "posterior" or "plug-in") it is ancestral sampling.
    """

    name: ClassVar[str] = "analytic"
    steps: int = Field(128, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Time of the last state; from there the sample is drawn clean."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless there are tokens to move."""
        yield from super().check(process, model)
        if process.space.data != "tokens":
            message = f'sampler "analytic" is for tokens, but process "{process.name}" is not'
            yield Misfit(message, related=("process",), help='use sampler "ancestral"')

    def build(self) -> Sampler:
        """Return the walk."""
        from .analytic import Analytic

        return Analytic(self.steps, self.t_min, self.choice())


class Euler(Choosing):
    """Small jumps at the reverse rates of a token process (SEDD), in a form that is stable for any step."""

    name: ClassVar[str] = "euler"
    steps: int = Field(128, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end. The law of the samples is exact only for many."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Time of the last state; from there the sample is drawn clean."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless there are tokens to jump between."""
        yield from super().check(process, model)
        if process.space.data != "tokens":
            yield Misfit(f'sampler "euler" is for tokens, but process "{process.name}" is not', related=("process",))

    def build(self) -> Sampler:
        """Return the walk."""
        from .euler import Euler

        return Euler(self.steps, self.t_min, self.choice())


class PredictorCorrector(Choosing):
    """Ancestral sampling of tokens with corrections: after each step, noise part of the way back up and a step down.

    A correction leaves the law of the data as it is, more nearly the shorter it is; several mend what a step got wrong.
    """

    name: ClassVar[str] = "predictor-corrector"
    steps: int = Field(64, ge=1, le=1_000_000)
    """Steps; the model is called steps (corrections + 1) + 1 times."""
    corrections: int = Field(1, ge=0, le=1000)
    """Corrections after each step."""
    reach: float = Field(0.5, gt=0, le=1)
    """How far a correction goes back up, as a share of the step."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Time of the last state; from there the sample is drawn clean."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless there are tokens to move."""
        yield from super().check(process, model)
        if process.space.data != "tokens":
            message = f'sampler "predictor-corrector" is for tokens, but process "{process.name}" is not'
            yield Misfit(message, related=("process",), help='use sampler "ancestral"')

    def build(self) -> Sampler:
        """Return the walk."""
        from .corrector import PredictorCorrector

        return PredictorCorrector(self.steps, self.corrections, self.reach, self.t_min, self.choice())


class Blocks(SamplerSpec):
    """Block after block from left to right, each drawn by another sampler; finished blocks are remembered as context.

    A model with a block_size is trained on just that, a noised block behind clean ones (BD3-LM): what it says behind
    remembered keys and values is what it says in training. Blocks of which everything is known are not drawn.
    """

    name: ClassVar[str] = "blocks"
    blockwise = True
    size: int = Field(16, ge=1)
    """Positions per block: the model's block_size. The last block may be shorter."""
    inner: Slot[SamplerSpec] = named("ancestral")
    """How a block is drawn."""
    approximate: bool = False
    """Allow a model without block-causal attention, or blocks of another size than it was trained on."""
    stop: bool = False
    """Draw a sample until it holds the id that ends a text, and fill the rest with that id."""

    def traits(self) -> frozenset[str]:
        """Promise to be as exact as what draws a block."""
        return self.inner.traits() & {"exact-law"}

    def piecewise(self) -> bool:
        """Tell what what draws a block tells."""
        return self.inner.piecewise()

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield why sequences cannot be cut into blocks, or the memory would not be exact."""
        space = process.space
        if not isinstance(space, TokenSpace) or len(space.fields) > 1:
            yield Misfit(f'sampler "blocks" needs a single field of tokens, not {space}', related=("task",))
        elif self.stop and space.fields[0].end is None:
            message = f'stop = true needs an id that ends a text, and field "{space.fields[0].name}" has none'
            yield Misfit(message, ("stop",), ("task",))
        if not model.cache:
            yield Misfit('sampler "blocks" remembers finished blocks, and the model has no cache', related=("model",))
        elif model.block_size is None and not self.approximate:
            message = "cached sampling is exact only for block-causal attention: set model.block_size"
            yield Misfit(message, related=("model",), help="or set sampler.approximate = true")
        if model.block_size not in (None, self.size) and not self.approximate:
            message = f"the model was trained on blocks of block_size = {model.block_size}, not of size = {self.size}"
            yield Misfit(message, ("size",), ("model", "block_size"), f"set sampler.size = {model.block_size}")
        if self.inner.name == self.name:
            yield Misfit("a block cannot be drawn in blocks", ("inner",))
        yield from below("inner", self.inner.check(process, model))

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield if what is remembered is not what a full pass would give."""
        if model.block_size is None:
            message = "without model.block_size a remembered block lacks what comes after it: samples are approximate"
            yield Misfit(message, ("approximate",), ("model",))
        elif model.block_size != self.size:
            message = f"size = {self.size} is not what the model was trained on: samples are approximate"
            yield Misfit(message, ("size",), ("model", "block_size"))
        yield from below("inner", self.inner.warn(process, model))

    def build(self) -> Sampler:
        """Return the walk."""
        from .blocks import Blocks

        return Blocks(self.size, self.inner.build(), self.stop)
