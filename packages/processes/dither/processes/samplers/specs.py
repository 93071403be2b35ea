"""Options of every sampler of tokens: how an id is chosen from what the model believes. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dither.registry import Misfit, Slot, TokenSpace, below, named
from dither.registry.kinds import ModelFacts, ProcessFacts
from dither.registry.kinds.process import SamplerSpec

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Sampler

    from ..tokens.temperature import LogitsWarper

__all__ = [
    "DDIM",
    "Analytic",
    "Ancestral",
    "Blocks",
    "DPMSolver",
    "Euler",
    "FirstHitting",
    "Guided",
    "Ordered",
    "OrderedRegions",
    "PredictorCorrector",
    "ReMDM",
    "RePaint",
    "SeedSampler",
    "TokenSampler",
    "UnmaskingSampler",
]


class TokenSampler(SamplerSpec):
    """A sampler that may draw nearer to what is likeliest."""

    temperature: float = Field(1.0, ge=0, le=100)
    """What log p is divided by: below 1 samples are likelier and less varied, 0 takes the likeliest id. Tokens only."""
    top_k: int | None = Field(None, ge=1)
    """Keep so many of the likeliest ids; by default all. Tokens only."""
    top_p: float = Field(1.0, gt=0, le=1)
    """Keep the likeliest ids, as few as have this chance together (nucleus). Tokens only."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield where there are no ids to choose between."""
        if process.space.data == "tokens":
            return
        for option, unset in (("temperature", 1.0), ("top_k", None), ("top_p", 1.0)):
            if getattr(self, option) != unset:
                message = f'{option} is about ids, but process "{process.name}" has no tokens'
                yield Misfit(message, (option,), ("process",))

    def piecewise(self) -> bool:
        """Tell that predictions are asked for pieces."""
        return True

    def choice(self) -> LogitsWarper:
        """Build how ids are chosen."""
        from ..tokens.temperature import LogitsWarper

        return LogitsWarper(self.temperature, self.top_k, self.top_p)

    def as_said(self) -> bool:
        """Whether ids are drawn with the chances that the model says."""
        return (self.temperature, self.top_k, self.top_p) == (1.0, None, 1.0)


class UnmaskingSampler(TokenSampler):
    """A sampler that unmasks tokens."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process masks tokens."""
        yield from super().check(process, model)
        if process.prior != "mask":
            message = f'sampler "{self.name}" unmasks tokens, but process "{process.name}" does not mask them'
            yield Misfit(message, related=("process",), help='use sampler "ancestral"')


class Ancestral(TokenSampler):
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


class Analytic(TokenSampler):
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


class Euler(TokenSampler):
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


class PredictorCorrector(TokenSampler):
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
        from .predictor_corrector import PredictorCorrector

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
        return self.inner.traits() & {"exact-distribution"}

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


class FirstHitting(UnmaskingSampler):
    """One masked position per call, chosen evenly, at the time when it would be next (Zheng et al. 2024).

    It has the law of ancestral sampling with infinitely many steps, with as many calls as there are masked positions.
    """

    name: ClassVar[str] = "first-hitting"

    def traits(self) -> frozenset[str]:
        """Promise to draw from what the model says, exactly, unless told otherwise."""
        return frozenset({"exact-distribution"}) if self.as_said() else frozenset()

    def build(self) -> Sampler:
        """Return the walk."""
        from .first_hitting import FirstHitting

        return FirstHitting(self.choice())


class Guided(UnmaskingSampler):
    """First-hitting, led to what samples must fulfil: the constraints of the task. Without any it is first-hitting.

    Each id is drawn in proportion to its chance times the chance that the constraints will then be met. The particles
    of a sample correct for what one step cannot see (sequential Monte Carlo); with many the law is the conditional one.
    """

    name: ClassVar[str] = "guided"
    particles: int = Field(4, ge=1, le=1024)
    """Candidates that are drawn for each sample, one of which is kept; each costs as much as a sample."""
    order: Literal["random", "fields"] = "random"
    """Which position is next. random: any. fields: all of the first field, as the rooms, before the next, as relations;
    constraints on both are then met more often. Under a perfect model the law is the same."""

    def traits(self) -> frozenset[str]:
        """Promise to draw from what the model says, exactly, where there are no constraints."""
        return frozenset({"exact-distribution"}) if self.as_said() else frozenset()

    def piecewise(self) -> bool:
        """Tell that each particle is looked at as a whole."""
        return False

    def build(self) -> Sampler:
        """Return the walk."""
        from .guided import Guided

        return Guided(self.particles, self.order, self.choice())


class Ordered(UnmaskingSampler):
    """The surest positions first, as many per step as the schedule asks for (MaskGIT, LLaDA).

    The model is told the time at which the share that is really masked would be expected. With one position per step
    any order but "drawn" has the law of the data under a perfect model; several at once are drawn as if independent.
    """

    name: ClassVar[str] = "ordered"
    by: Literal["confidence", "drawn", "margin", "entropy", "random"] = "confidence"
    """What is sure. confidence: a high chance of the likeliest id. drawn: a high chance of the id that was drawn, which
    prefers likely ids (MaskGIT; LLaDA, where at temperature 0 both are one). margin: of the likeliest over the next."""
    steps: int = Field(64, ge=1, le=1_000_000)
    """Most calls of the model; a step in which nothing is due makes none."""
    noise: float = Field(0.0, ge=0, le=1000)
    """Gumbel noise added to the score, falling with the share still masked: more of it gives more varied samples. The
    scores are log p (confidence, drawn), p (margin), nats (entropy)."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process masks tokens, and the options make sense together."""
        yield from super().check(process, model)
        if self.by == "random" and self.noise:
            yield Misfit('noise has no effect with by = "random"', ("noise",))

    def build(self) -> Sampler:
        """Return the walk."""
        from .confidence import Ordered

        return Ordered(self.by, self.steps, self.noise, self.choice())


class ReMDM(UnmaskingSampler):
    """Ancestral sampling that masks tokens again and so may mend what it has drawn (ReMDM, Wang et al. 2025).

    Masked tokens make up for it: the expected share of tokens shown is that of the schedule, but under "conf".
    """

    name: ClassVar[str] = "remdm"
    strategy: Literal["cap", "rescale", "conf", "conf-compensated", "loop"] = "cap"
    """How sigma, the chance to be masked again, is set. cap: at most eta. rescale: eta times the most there can be.
    conf: that, dealt out to the tokens drawn with the least chance; as published, less is shown than the schedule says.
    conf-compensated: the same, made up for. loop: eta between t_on and t_off, while a share alpha_on is shown."""
    steps: int = Field(128, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Time of the last state; from there the sample is drawn clean."""
    eta: float | None = Field(None, ge=0, le=1)
    """How much is masked again; by default 0.008 (cap), 0.015 (rescale), 0.02 (loop), 1 (conf, conf-compensated)."""
    t_on: float = Field(0.55, gt=0, le=1)
    """Time at which the loop begins."""
    t_off: float = Field(0.05, gt=0, lt=1)
    """Time at which it ends."""
    alpha_on: float = Field(0.9, gt=0, lt=1)
    """Share of tokens shown in the loop."""

    @model_validator(mode="after")
    def _falls(self) -> Self:
        if not self.t_off < self.t_on:
            raise ValueError(f"t_off = {self.t_off:g} must be below t_on = {self.t_on:g}")
        return self

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process masks tokens, and the options make sense together."""
        yield from super().check(process, model)
        for option in ("t_on", "t_off", "alpha_on"):
            if self.strategy != "loop" and getattr(self, option) != type(self).model_fields[option].default:
                yield Misfit(f'{option} has no effect with strategy = "{self.strategy}"', (option,))
        if self.strategy == "loop" and self.t_min >= self.t_off:
            message = f"t_min = {self.t_min:g} leaves nothing of what comes after the loop, at t_off = {self.t_off:g}"
            yield Misfit(message, ("t_min",))

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield that the published form of conf shows fewer tokens than the model is told."""
        if self.strategy == "conf":
            message = 'strategy "conf" is kept as published: fewer tokens are shown than at the time the model is told'
            yield Misfit(message, ("strategy",), help='use "conf-compensated"')

    def build(self) -> Sampler:
        """Return the walk."""
        from .remdm import ReMDM

        loop = self.t_on, self.t_off, self.alpha_on
        return ReMDM(self.strategy, self.steps, self.t_min, self.eta, *loop, self.choice())


class GaussianSampler(SamplerSpec):
    """A walk back through Gaussian noise, at times of a grid."""

    steps: int = Field(50, ge=1, le=1_000_000)
    """K, the calls of the model; the last goes straight to clean data."""
    spacing: Literal["trailing", "leading", "linspace", "log-snr"] = "trailing"
    """Where in time the K calls are. trailing: 1, 1 - 1/K .. 1/K. leading: ending at t_min, 1/K apart, which leaves out
    the time next to 1. linspace: even from 1 to t_min. log-snr: even in log alpha / (1 - alpha) from 1 to t_min."""
    t_min: float = Field(1e-3, gt=0, lt=1)
    """Time of the last call, but under trailing; from there the sample is drawn clean."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process adds Gaussian noise."""
        yield from super().check(process, model)
        if process.prior != "gaussian":
            message = f'sampler "{self.name}" walks through Gaussian noise, but process "{process.name}" adds none'
            yield Misfit(message, related=("process",), help='use sampler "ancestral"')
        if self.spacing == "trailing" and self.t_min != type(self).model_fields["t_min"].default:
            yield Misfit('t_min has no effect with spacing = "trailing"', ("t_min",))
        if self.spacing == "leading" and self.t_min * self.steps > 1 + 1e-9:
            message = f"leading needs t_min <= 1 / steps, not t_min = {self.t_min} with steps = {self.steps}"
            yield Misfit(message, ("t_min",), help=f"t_min = {1 / self.steps:.2g}")


class DDIM(GaussianSampler):
    """Few large steps through Gaussian noise, with as much new noise as is asked for (DDIM)."""

    name: ClassVar[str] = "ddim"
    eta: float = Field(0.0, ge=0, le=1)
    """Noise of a step: 0 adds none, 1 is DDPM."""

    def build(self) -> Sampler:
        """Return the walk."""
        from .ddim import DDIM

        return DDIM(self.steps, self.eta, self.spacing, self.t_min)


class DPMSolver(GaussianSampler):
    """DPM-Solver++ 2M: a solver of second order in log-SNR time, for few calls. It adds no noise."""

    name: ClassVar[str] = "dpm-solver"
    steps: int = Field(20, ge=1, le=1_000_000)
    """K, the calls of the model; the last goes straight to clean data."""
    order: Literal[1, 2] = 2
    """1 forgets what the model said before, as DDIM does."""

    def build(self) -> Sampler:
        """Return the walk."""
        from .dpm_solver import DPMSolver

        return DPMSolver(self.steps, self.order, self.spacing, self.t_min)


class RePaint(GaussianSampler):
    """Fill in with a model trained on noise everywhere: known values are noised anew at every step (RePaint).

    A process with a mask, whose model has seen clean values beside noisy ones, needs it not: take "ddim" there.
    """

    name: ClassVar[str] = "repaint"
    steps: int = Field(50, ge=1, le=1_000_000)
    """K, the times of the grid; jumps call the model more often, in all about K visits times."""
    jump: int = Field(10, ge=1, le=1_000_000)
    """Steps of a jump back up."""
    visits: int = Field(10, ge=1, le=10_000)
    """How often each stretch of so many steps is walked; 1 for no jumps."""
    eta: float = Field(1.0, ge=0, le=1)
    """Noise of a step: 1 is DDPM, 0 adds none."""

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield that the model has never seen noise on what is known."""
        yield from super().warn(process, model)
        if process.masked:
            message = 'sampler "repaint" noises known values, which a model trained with process.mask has seen clean'
            yield Misfit(message, related=("process", "mask"), help='use sampler "ddim"; or leave process.mask out')

    def build(self) -> Sampler:
        """Return the walk."""
        from .repaint import RePaint

        return RePaint(self.steps, self.jump, self.visits, self.eta, self.spacing, self.t_min)


class OrderedRegions(SamplerSpec):
    """Fill in as many masked units per step as the schedule asks for, at random or the surest first (MaskGIT, MAR)."""

    name: ClassVar[str] = "ordered-regions"
    rev: ClassVar[int] = 2
    by: Literal["random", "spread"] = "random"
    """What is filled in first. random: any. spread: the units whose draws lie closest together. Only a head that draws,
    such as "token-diffusion", has any spread; a model that says one value for an element is never more or less sure."""
    steps: int = Field(16, ge=1, le=1_000_000)
    """Most calls of the model; a step in which nothing is due makes none."""
    draws: int = Field(8, ge=2, le=1024)
    """Draws of which the spread is taken."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process hides features."""
        yield from super().check(process, model)
        if process.prior != "hidden":
            message = f'sampler "ordered-regions" fills in hidden features, but process "{process.name}" hides none'
            yield Misfit(message, related=("process",), help='use sampler "ancestral"')
        if self.by == "random" and self.draws != type(self).model_fields["draws"].default:
            yield Misfit('draws has no effect with by = "random"', ("draws",), help='set by = "spread"')

    def build(self) -> Sampler:
        """Return the walk."""
        from .ordered_regions import OrderedRegions

        return OrderedRegions(self.by, self.steps, self.draws)


class SeedSampler(SamplerSpec):
    """The "Euler" sampler of seed 004 as its document writes it: x ~ softmax(logits) at every step. To compare with.

    Samples do not have the law of the data however good the model is: docs/seed-004.md has by how much.
    """

    name: ClassVar[str] = "seed-004"
    steps: int = Field(128, ge=1, le=1_000_000)
    """Times from 1 to 0, both ends included; the model is called once at each."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield unless the process is the seed's: uniform, with a model that gives the logarithms of scores."""
        yield from super().check(process, model)
        if (process.prior, process.predict) != ("uniform", "score"):
            message = f'sampler "seed-004" is for process "uniform" with predict = "score", not "{process.name}" with '
            told = f'{message}predict = "{process.predict}"'
            yield Misfit(told, related=("process",), help='use sampler "ancestral"')

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield what is wrong with it."""
        message = 'sampler "seed-004" draws every token anew at every step, whatever the noise between two times'
        yield Misfit(f"{message}: samples have another law than the model's", help='use sampler "ancestral"')

    def build(self) -> Sampler:
        """Return the walk."""
        from ..seed_004 import SeedWalk

        return SeedWalk(self.steps)
