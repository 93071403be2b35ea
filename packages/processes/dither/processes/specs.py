"""The menu of this package: processes here, schedules and samplers from their folders. No torch at import."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import replace
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Misfit, Slot, Space, Spec, TokenSpace, hookimpl, named
from dither.registry.costs import Cost
from dither.registry.kinds import FEATURES, TOKENS, ProcessFacts, ProcessSpec, ScheduleSpec
from dither.registry.problems import nearest

from .costs import reading_cost
from .prior_cost import prior_cost_of
from .samplers.order_specs import FirstHitting, Guided, Ordered, ReMDM
from .samplers.seed_specs import SeedSampler
from .samplers.specs import Analytic, Ancestral, Blocks, Euler, PredictorCorrector
from .schedules.specs import Cosine, CosineSquared, Geometric, LinearBeta, LinearSigma, LogLinear, Polynomial

if TYPE_CHECKING:
    from dither.registry.parts import Process

    from .clock import Clock

__all__ = ["Absorbing", "Clocked", "Gaussian", "Marginal", "MaskedRegion", "Uniform", "register_components"]

Share = Annotated[float, Field(ge=0)]

MOST_DIVIDED = 30
"""Largest sigma at which x_0 may be worked out from eps: there 1 / sqrt(alpha) is 3e6, about what float32 can bear."""

MOST_POSITIONS = 12
"""Positions of a sample whose masks may all be taken; `enumeration` refuses more."""

MOST_LEFT = 0.01
"""Largest alpha at t = 1 from which a walk may start as if nothing were left."""


class Clocked(ProcessSpec):
    """Options of time that every process has."""

    schedule: Slot[ScheduleSpec] = named("log-linear")
    """How the noise grows with time."""
    level: Literal["t", "sigma", "log-sigma", "index"] = "t"
    """What the model is told of the noise: t, sigma, log sigma, or index = floor(1000 t), at most 999."""
    t_min: float = Field(1e-3, ge=0, lt=1)
    """Smallest training time."""
    stratified: bool = True
    """Draw one training time in each of batch-size equal strata, which lowers the variance of the loss."""

    def cost(self, space: Space) -> Cost:
        """What noising and reading take."""
        return reading_cost(self.facts(space))

    def clock(self) -> Clock:
        """Build what keeps the time."""
        from .clock import Clock

        return Clock(self.schedule.build(), self.level, self.t_min, self.stratified)

    def lasting(self, what: str) -> Iterable[Misfit]:
        """Yield if so much of `what` is left at t = 1 that sampling would start from the wrong state."""
        end = self.schedule.sigma_end()
        if end is None or math.exp(-end) <= MOST_LEFT:
            return
        options = type(self.schedule).model_fields
        fixes = {"sigma_max": "set schedule.sigma_max = 20", "eps": "set schedule.eps = 1e-3"}
        fix = next((text for option, text in fixes.items() if option in options), 'use schedule = "log-linear"')
        left = f"{100 * math.exp(-end):.2g} % {what}"
        message = f'schedule "{self.schedule.name}" ends at sigma = {end:.3g}, where {left} at t = 1'
        yield Misfit(message, ("schedule",), help=f"{fix}; at most {MOST_LEFT:.0%} may be left")


class Absorbing(Clocked):
    """Moved tokens become MASK (MDLM).

    A field without a MASK id gets one. Ids that clean data cannot hold have probability 0, and a token that is not
    masked stays as it is (SUBS).
    """

    name: ClassVar[str] = "absorbing"
    serves = TOKENS
    predict: Literal["posterior", "plug-in", "score"] = "posterior"
    """What the raw output means: logits of p(x_0 | x_t), of the x_0 to plug in, or log ratios p_t(y) / p_t(x_t)."""
    estimator: Literal["time", "importance", "mask-count", "exact"] = "time"
    """How noise is drawn to measure the loss, whose mean stays the same. time: at even times. importance: evenly in
    log(1 - alpha), so that all times weigh alike (MDLM; on short samples it varies more). mask-count: one token is
    masked for sure, so that k of N masked is even in 1..N and weighs N / k, which varies least. exact: evaluation takes
    every mask of at most 12 positions."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the space, or would not mask enough."""
        yield from super().check(space)
        yield from _clean_ids(space)
        yield from self.lasting("of the tokens would stay unmasked")
        if self.estimator == "importance" and self.t_min == 0:
            message = 'estimator "importance" draws log(1 - alpha), which has no end at t_min = 0'
            yield Misfit(message, ("estimator",), help="set t_min = 1e-3")
        if self.estimator == "exact" and space.length > MOST_POSITIONS:
            message = f'estimator "exact" takes every mask of at most {MOST_POSITIONS} positions, not of {space.length}'
            yield Misfit(message, ("estimator",), ("task",), 'use estimator "mask-count"')

    def facts(self, space: Space) -> ProcessFacts:
        """Tell what losses and samplers need to know."""
        return ProcessFacts(self.name, _tokens(self, space).with_mask(), self.predict, "mask")

    def build(self, space: Space) -> Process:
        """Return the process; its space has a MASK id in every field."""
        from .tokens import TokenProcess, mask_prior

        masked = _tokens(self, space).with_mask()
        return TokenProcess(masked, mask_prior(masked), self.clock(), self.predict, self.estimator)


class Uniform(Clocked):
    """Moved tokens become any clean id of their field (SEDD uniform, UDLM, DUO)."""

    name: ClassVar[str] = "uniform"
    serves = TOKENS
    schedule: Slot[ScheduleSpec] = named("geometric")
    """How the noise grows with time."""
    predict: Literal["posterior", "plug-in", "score"] = "score"
    """What the raw output means: logits of p(x_0 | x_t), of the x_0 to plug in, or log ratios p_t(y) / p_t(x_t)."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the space."""
        yield from super().check(space)
        yield from _clean_ids(space)

    def warn(self, space: Space) -> Iterable[Misfit]:
        """Yield if much is left at t = 1, and what it costs. It is allowed, as SEDD's class defaults end so."""
        for misfit in self.lasting("of the tokens would still be clean"):
            nats = prior_cost_of(_tokens(self, space), self.schedule.sigma_end() or 0.0)
            cost = f"{misfit.message}: {nats:.3g} nats per token, KL(q(x_1|x_0) || even), are added to any bound"
            yield replace(misfit, message=cost)

    def facts(self, space: Space) -> ProcessFacts:
        """Tell what losses and samplers need to know."""
        return ProcessFacts(self.name, _tokens(self, space), self.predict, "uniform")

    def build(self, space: Space) -> Process:
        """Return the process."""
        from .tokens import TokenProcess, even_prior

        tokens = _tokens(self, space)
        return TokenProcess(tokens, even_prior(tokens), self.clock(), self.predict)


class Marginal(Clocked):
    """Moved tokens become clean ids with given frequencies, such as those of the data (DiGress)."""

    name: ClassVar[str] = "marginal"
    serves = TOKENS
    predict: Literal["posterior", "plug-in", "score"] = "posterior"
    """What the raw output means: logits of p(x_0 | x_t), of the x_0 to plug in, or log ratios p_t(y) / p_t(x_t)."""
    frequencies: dict[str, list[Share]] = {}
    """By name of the field: the frequency of each clean id, in order, of any sum. A field that is not named: even."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the space, or its frequencies do not fit it."""
        yield from super().check(space)
        yield from _clean_ids(space)
        yield from self.lasting("of the tokens would still be clean")
        if not isinstance(space, TokenSpace):
            return
        counts = {field.name: len(_clean_of(field.size, field.mask, field.pad)) for field in space.fields}
        for name, odds in self.frequencies.items():
            path = ("frequencies", name)
            if name not in counts:
                message = f'no field is named "{name}"; fields: {", ".join(counts)}'
                yield Misfit(message, path, ("task",), _hint(name, counts))
            elif len(odds) != counts[name] or not sum(odds) > 0:
                message = f"expected {counts[name]} frequencies with a positive sum, got {odds}"
                yield Misfit(message, path, ("task",))

    def facts(self, space: Space) -> ProcessFacts:
        """Tell what losses and samplers need to know."""
        return ProcessFacts(self.name, _tokens(self, space), self.predict, "frequencies")

    def build(self, space: Space) -> Process:
        """Return the process."""
        from .tokens import TokenProcess, frequency_prior

        tokens = _tokens(self, space)
        return TokenProcess(tokens, frequency_prior(tokens, self.frequencies), self.clock(), self.predict)


class Gaussian(Clocked):
    """Gaussian noise: x_t = sqrt(alpha) x_0 + sqrt(1 - alpha) eps (DDPM, DDIM)."""

    name: ClassVar[str] = "gaussian"
    serves = FEATURES
    schedule: Slot[ScheduleSpec] = named("linear-beta")
    """How the noise grows with time."""
    predict: Literal["x0", "eps", "velocity"] = "x0"
    """What the raw output means; velocity is sqrt(alpha) eps - sqrt(1 - alpha) x_0."""
    eta: float = Field(1.0, ge=0, le=1)
    """Noise of a step back: 1 is DDPM, 0 is DDIM, which adds none."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the space, or would not end in noise."""
        yield from super().check(space)
        yield from self.lasting("of the variance would still be signal")
        end = self.schedule.sigma_end()
        if self.predict == "eps" and end is not None and end > MOST_DIVIDED:
            message = f'predict = "eps" divides by exp(-sigma / 2), and the schedule goes on to sigma = {end:.3g}'
            yield Misfit(message, ("schedule",), help=f'end at sigma = {MOST_DIVIDED}, or set predict = "velocity"')

    def facts(self, space: Space) -> ProcessFacts:
        """Tell what losses and samplers need to know."""
        return ProcessFacts(self.name, _features(self, space), self.predict, "gaussian")

    def build(self, space: Space) -> Process:
        """Return the process."""
        from .gaussian import GaussianProcess

        return GaussianProcess(_features(self, space), self.clock(), self.predict, self.eta)


class MaskedRegion(Clocked):
    """Features are hidden, to be filled in (GET regions): whole regions, single elements, or a group of columns."""

    name: ClassVar[str] = "masked-region"
    serves = FEATURES
    mask: Literal["region", "element", "group"] = "region"
    """What is hidden as one: all of a region, each number by itself, or the columns of a group in a region."""
    group: str | None = None
    """The group of columns that mask = "group" hides."""
    ratio: float | None = Field(None, gt=0, le=1)
    """Share that is hidden at every time, which then says nothing to the model; by default 1 - alpha."""
    exact: bool = False
    """Hide the rounded number of units in each sample, not each unit by itself."""

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the space, or its options contradict each other."""
        yield from super().check(space)
        if self.mask != "group" and self.group is not None:
            message = f'group = "{self.group}" has no effect with mask = "{self.mask}"'
            yield Misfit(message, ("group",), help='set mask = "group"')
        if isinstance(space, FeatureSpace) and self.mask == "group":
            names = [group.name for group in space.groups]
            said = f'no group is named "{self.group}"' if self.group else 'mask = "group" needs the name of a group'
            if self.group not in names:
                message = f"{said}; groups: {', '.join(names) or 'none'}"
                yield Misfit(message, ("group",) if self.group else ("mask",), ("task",), _hint(self.group, names))
        if self.ratio is None:
            yield from self.lasting("would not be hidden")

    def facts(self, space: Space) -> ProcessFacts:
        """Tell what losses and samplers need to know."""
        return ProcessFacts(self.name, _features(self, space), "x0", "hidden")

    def build(self, space: Space) -> Process:
        """Return the process."""
        from .regions import MaskedRegionProcess

        features = _features(self, space)
        return MaskedRegionProcess(features, self.clock(), self.mask, self.group, self.ratio, self.exact)


def _tokens(spec: Spec, space: Space) -> TokenSpace:
    if not isinstance(space, TokenSpace):
        raise TypeError(f'process "{spec.name}" is for tokens, but here a sample is {space}')
    return space


def _features(spec: Spec, space: Space) -> FeatureSpace:
    if not isinstance(space, FeatureSpace):
        raise TypeError(f'process "{spec.name}" is for features, but here a sample is {space}')
    return space


def _clean_of(size: int, *special: int | None) -> list[int]:
    return [i for i in range(size) if i not in special]


def _clean_ids(space: Space) -> Iterable[Misfit]:
    for field in space.fields if isinstance(space, TokenSpace) else ():
        if not _clean_of(field.size, field.mask, field.pad):
            yield Misfit(f'field "{field.name}" has no id besides MASK and PAD', related=("task",))


def _hint(word: str | None, allowed: Iterable[str]) -> str | None:
    close = nearest(word, allowed) if word else None
    return f'did you mean "{close}"?' if close else None


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer what this package makes."""
    schedules: list[type[Spec]] = [Cosine, CosineSquared, Geometric, LinearBeta, LinearSigma, LogLinear, Polynomial]
    processes: list[type[Spec]] = [Absorbing, Gaussian, Marginal, MaskedRegion, Uniform]
    samplers: list[type[Spec]] = [Analytic, Ancestral, Blocks, Euler, FirstHitting, Guided, Ordered]
    return [*schedules, *processes, *samplers, PredictorCorrector, ReMDM, SeedSampler]
