"""The menu of samplers that unmask tokens. No torch at import."""

from __future__ import annotations

from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar, Literal, Self

from pydantic import Field, model_validator

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

from .choosing import Unmasking

if TYPE_CHECKING:
    from dither.registry.parts import Sampler

__all__ = ["FirstHitting", "Guided", "Ordered", "ReMDM"]


class FirstHitting(Unmasking):
    """One masked position per call, chosen evenly, at the time when it would be next (Zheng et al. 2024).

    It has the law of ancestral sampling with infinitely many steps, with as many calls as there are masked positions.
    """

    name: ClassVar[str] = "first-hitting"

    def traits(self) -> frozenset[str]:
        """Promise to draw from what the model says, exactly, unless told otherwise."""
        return frozenset({"exact-law"}) if self.as_said() else frozenset()

    def build(self) -> Sampler:
        """Return the walk."""
        from .first_hitting import FirstHitting

        return FirstHitting(self.choice())


class Guided(Unmasking):
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
        return frozenset({"exact-law"}) if self.as_said() else frozenset()

    def piecewise(self) -> bool:
        """Tell that each particle is looked at as a whole."""
        return False

    def build(self) -> Sampler:
        """Return the walk."""
        from .guided import Guided

        return Guided(self.particles, self.order, self.choice())


class Ordered(Unmasking):
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
        from .ordered import Ordered

        return Ordered(self.by, self.steps, self.noise, self.choice())


class ReMDM(Unmasking):
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
