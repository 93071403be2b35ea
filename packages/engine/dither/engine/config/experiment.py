"""The experiment file: components, options, and whether they are compatible. No torch."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import suppress
from typing import Any, TypeVar

from pydantic import Field

from dither.registry.config.errors import Refused
from dither.registry.config.validation import PATTERN_MESSAGE
from dither.registry.contracts.spaces import (
    FeatureSpace,
    ModelFacts,
    ProcessFacts,
    Space,
    TokenSpace,
)
from dither.registry.contracts.spaces import Field as SpaceField
from dither.registry.kinds import LossSpec, ModelSpec, ProcessSpec, SamplerSpec, TaskSpec
from dither.registry.spec.base import Options, Slot, Spec, named
from dither.registry.spec.misfit import Misfit, below

from .component_errors import attribute_errors
from .options import Evaluate, Sample, Sweep, Tracking, Train, check_conditions, duplicates

__all__ = ["Experiment", "misfits_without_task"]

T = TypeVar("T")
DEFAULTS: Any = {}
"""Default of a table: validated with the catalogue of the experiment, which an instance would not
be."""


class Experiment(Options):
    """One experiment, as written in its TOML file."""

    name: str = Field(
        "experiment",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        json_schema_extra={
            PATTERN_MESSAGE: "at most 64 letters, digits, dots, dashes and underscores, starting with a letter or digit"
        },
    )
    """Name of the experiment in lists and reports."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Seed of every random draw of a run."""
    plugins: list[str] = []
    """Plugins to load even if none of their components is used: installed ones by name, files as
    ./x.py."""
    task: Slot[TaskSpec]
    process: Slot[ProcessSpec]
    model: Slot[ModelSpec]
    loss: Slot[LossSpec]
    sampler: Slot[SamplerSpec] = named("ancestral")
    train: Train = DEFAULTS
    evaluate: Evaluate = DEFAULTS
    sample: Sample = DEFAULTS
    tracking: Tracking = DEFAULTS
    sweep: Sweep | None = None
    """Values that `dither sweep` tries, one run for each combination."""

    def check(self) -> Iterator[Misfit]:
        """Yield why the components are incompatible. May read data to know the space of a task; imports no torch."""
        yield from below("train", self.train.check(self.model))
        yield from below("tracking", self.tracking.check())
        if self.train.buckets and self.task.bucketed is False:
            message = f'task "{self.task.name}" defines no buckets of equal padding'
            yield Misfit(message, ("train", "buckets"), ("task",), "remove train.buckets")
        yield from below("evaluate", below("metrics", duplicates(self.evaluate.metrics)))
        yield from (found := _checked("task", self.task))
        space = _known(self.task, self.task.space, found)
        if space is None:
            yield from misfits_without_task(self.process, self.model, self.loss, self.sampler)
            return
        for number, metric in enumerate(self.evaluate.metrics):
            yield from below("evaluate", below("metrics", _checked(number, metric, space)))
        facts = yield from _misfits_between(
            self.process, self.model, self.loss, self.sampler, space
        )
        if facts is None:
            return
        process, model = facts
        space = process.space
        blocks = model.trained_blocks(process.space)
        if blocks is not None and blocks < space.length and not self.sampler.blockwise:
            message = f'sampler "{self.sampler.name}" draws whole samples, but the model is trained block by block'
            hint = f'use sampler = {{ use = "blocks", size = {blocks}, inner = "{self.sampler.name}" }}'
            yield Misfit(message, ("sampler",), ("model", "block_size"), hint)
        if self.train.known and not model.reads_known:
            known = self.train.known
            message = f"train.known = {known:g} requires a model that distinguishes known tokens from noised ones"
            hint = 'set model.embedding = { use = "tokens", known = true }'
            yield Misfit(message, ("train", "known"), ("model",), hint)
        yield from check_conditions(self.sample, space, model)

    def warn(self) -> Iterator[Misfit]:
        """Yield what is allowed but should be known before a long run. Call it only if `check` yields nothing."""
        space = self.task.space()
        process = self.process.facts(space)
        yield from _checked("task", self.task, method="warn")
        yield from _checked("process", self.process, space, method="warn")
        yield from _checked("loss", self.loss, process, method="warn")
        model = self.model.facts()
        yield from _checked("sampler", self.sampler, process, model, method="warn")
        if self.task.starts_known():
            yield from self.warn_known()

    def warn_known(self) -> Iterator[Misfit]:
        """Yield that samples given known tokens are biased, if they are."""
        process = self.process.facts(self.task.space())
        model = self.model.facts()
        told = model.reads_known and (self.train.known > 0 or self.task.trains_known())
        whole = (
            process.prior in ("uniform", "frequencies")
            and model.trained_blocks(process.space) is None
        )
        if whole and not told and not self.sampler.corrects_known:
            message = f'under process "{process.name}" the model takes known tokens for noised ones: samples are biased'
            hint = 'set train.known = 0.5 and model.embedding.known, sampler = "particle-gibbs", or model.block_size'
            yield Misfit(message, ("sampler",), ("process",), hint)


STAND_INS: tuple[Space, ...] = (
    TokenSpace((SpaceField("a", 12, 30),)),
    TokenSpace((SpaceField("a", 3, 5), SpaceField("b", 7, 9))),
    FeatureSpace(5, 11),
    FeatureSpace(8, 6),
)
"""Spaces in place of that of an invalid task."""


def misfits_without_task(
    process: ProcessSpec | None,
    model: ModelSpec | None,
    loss: LossSpec | None,
    sampler: SamplerSpec | None,
) -> list[Misfit]:
    """Return the misfits of valid components that do not depend on the task: those with each of several spaces."""
    found = []
    for space in [space for space in STAND_INS if process is None or space.data in process.serves]:
        with suppress(Refused):
            found.append(list(_misfits_between(process, model, loss, sampler, space)))
    common = (
        [misfit for misfit in found[0] if all(misfit in other for other in found)] if found else []
    )
    return [misfit for misfit in common if misfit.related != ("task",)]


def _misfits_between(
    process: ProcessSpec | None,
    model: ModelSpec | None,
    loss: LossSpec | None,
    sampler: SamplerSpec | None,
    space: Space,
) -> Generator[Misfit, None, tuple[ProcessFacts, ModelFacts] | None]:
    """Yield the misfits of components with a space and each other; None is invalid. Return the facts, if all exist."""
    facts = None
    if process is not None:
        yield from (found := _checked("process", process, space))
        facts = _known(process, lambda: process.facts(space), found)
    if model is not None:
        yield from _checked("model", model, space if facts is None else facts.space)
    if facts is not None and loss is not None:
        yield from _checked("loss", loss, facts)
    if facts is None or model is None:
        return None
    with attribute_errors(model):
        of_model = model.facts()
    if sampler is not None:
        yield from _checked("sampler", sampler, facts, of_model)
    return facts, of_model


def _known(component: Spec, compute: Callable[[], T], misfits: Sequence[Misfit]) -> T | None:
    """Return what a component computes for further checks; None if it fails because of its own misfits."""
    try:
        with attribute_errors(component):
            return compute()
    except Refused:
        if not misfits:
            raise
        return None


def _checked(
    key: str | int,
    component: Spec,
    *arguments: Any,
    method: str = "check",
) -> list[Misfit]:
    """Return what a method of a component yields; its exceptions are attributed to it."""
    with attribute_errors(component):
        return list(below(key, getattr(component, method)(*arguments)))
