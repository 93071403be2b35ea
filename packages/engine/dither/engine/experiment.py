"""The experiment file: which parts, which options, and whether they fit each other. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from pydantic import Field

from dither.registry.document import Document
from dither.registry.kinds import (
    LossSpec,
    ModelSpec,
    ProcessSpec,
    SamplerSpec,
    TaskSpec,
)
from dither.registry.plugins import Plugins, load_plugins
from dither.registry.problems import Problem, Refused
from dither.registry.renames import parts_in, renamed
from dither.registry.reports import PluginError
from dither.registry.spec import Misfit, Options, Slot, below, named
from dither.registry.validation import problems_of, validate
from dither.registry.wording import SENTENCE

from .asking import misfit_asked
from .blame import PartFailed, blamed, title
from .budget import misfit_memory, warn_memory
from .named_plugins import load_named, names_in
from .run_policy import governing_policy
from .settings import Evaluate, Sample, Train
from .sweep.tables import Sweep

__all__ = [
    "Evaluate",
    "Experiment",
    "Loaded",
    "Sample",
    "Train",
    "check_experiment",
    "load_experiment",
    "open_experiment",
]


class Experiment(Options):
    """One experiment, as it stands in its TOML file."""

    name: str = Field(
        "experiment",
        pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]{0,63}$",
        json_schema_extra={SENTENCE: "at most 64 letters, digits, dots, dashes and underscores, the first no mark"},
    )
    """What runs of it are called."""
    seed: int = Field(0, ge=0, lt=2**31)
    """Every random draw of a run follows from this number."""
    plugins: list[str] = []
    """Plugins to load although no part of theirs is named: installed ones by name, files (./x.py) beside this file."""
    task: Slot[TaskSpec]
    process: Slot[ProcessSpec]
    model: Slot[ModelSpec]
    loss: Slot[LossSpec]
    sampler: Slot[SamplerSpec] = named("ancestral")
    train: Train = Field(default_factory=Train)
    evaluate: Evaluate = Field(default_factory=Evaluate)
    sample: Sample = Field(default_factory=Sample)
    sweep: Sweep | None = None
    """Values to try: what `dither sweep` makes many runs of."""

    def check(self) -> Iterator[Misfit]:
        """Yield why the parts do not fit each other. Reads data where a space depends on it, but imports no torch."""
        yield from below("train", self.train.check(self.model))
        with blamed(self.task):
            wrong = list(below("task", self.task.check()))
        yield from wrong
        if wrong:
            return
        with blamed(self.task):
            space = self.task.space()
        with blamed(self.process):
            wrong = list(below("process", self.process.check(space)))
        yield from wrong
        if wrong:
            return
        with blamed(self.process):
            process = self.process.facts(space)
            inner = process.space
        with blamed(self.model):
            wrong = list(below("model", self.model.check(inner)))
            model = self.model.facts()
        with blamed(self.loss):
            wrong += below("loss", self.loss.check(process))
        yield from wrong
        with blamed(self.sampler):
            unfit = list(below("sampler", self.sampler.check(process, model)))
        blocks = model.trained_blocks(inner)
        if blocks is not None and blocks < space.length and not self.sampler.blockwise:
            message = f'sampler "{self.sampler.name}" draws whole samples, but the model is trained block by block'
            hint = f'use sampler = {{ use = "blocks", size = {blocks}, inner = "{self.sampler.name}" }}'
            unfit.append(Misfit(message, ("sampler",), ("model", "block_size"), hint))
        unfit += misfit_asked(self.sample, inner, model)
        yield from unfit
        if not wrong:
            with blamed(self.model):  # others are asked as well, and named where they raise
                unfit = list(misfit_memory(self, space))
            yield from unfit

    def warn(self) -> Iterator[Misfit]:
        """Yield what is allowed, and should be known before a long run; only where `check` finds nothing."""
        space = self.task.space()
        process = self.process.facts(space)
        with blamed(self.task):
            found = list(below("task", self.task.warn()))
        with blamed(self.process):
            found += below("process", self.process.warn(space))
        with blamed(self.loss):
            found += below("loss", self.loss.warn(process))
        with blamed(self.sampler):
            found += below("sampler", self.sampler.warn(process, self.model.facts()))
        with blamed(self.model):
            found += warn_memory(self, space)
        yield from found


@dataclass(frozen=True)
class Loaded:
    """An experiment that is ready to be built, what it was read from, and what should be known before it runs."""

    experiment: Experiment
    document: Document
    plugins: Plugins
    warnings: tuple[Problem, ...] = ()

    @property
    def path(self) -> Path:
        """The experiment file."""
        return self.document.files[-1]


def load_experiment(
    path: Path,
    changes: Iterable[str] = (),
    removals: Iterable[str] = (),
    select: Sequence[str] | None = None,
    trust: bool = False,
) -> Loaded:
    """Read and check an experiment file.

    Args:
        path: The TOML file.
        changes: `key=value` as after --set.
        removals: Keys as after --unset.
        select: Plugins as after -p.
        trust: Whether to run plugin files that came with a run, too; see `load_named`.

    Raises:
        Refused: Everything that is wrong, each with its place.
    """
    return check_experiment(*open_experiment(path, changes, removals, select, trust))


def open_experiment(
    path: Path,
    changes: Iterable[str] = (),
    removals: Iterable[str] = (),
    select: Sequence[str] | None = None,
    trust: bool = False,
) -> tuple[Document, Plugins]:
    """Read an experiment file, and the plugins that it names; arguments as for `load_experiment`.

    Raises:
        Refused: It cannot be read, or a plugin cannot be loaded.
    """
    document = Document.load(path, changes, removals)
    plugins = load_plugins(select, policy=governing_policy(path), named=names_in(document))
    plugins.require()
    load_named(plugins, document, trust)
    return document, plugins


def check_experiment(document: Document, plugins: Plugins) -> Loaded:
    """Check what was read: names, types, bounds, and whether the parts fit.

    Raises:
        Refused: Everything that is wrong, each with its place.
    """
    experiment = validate(Experiment, document, plugins.catalog)
    try:
        misfits = list(experiment.check())
        warned = [] if misfits else list(experiment.warn())
    except PartFailed as failed:
        path = next((path for path, spec in parts_in(experiment) if spec is failed.spec), ())
        text = f"{title(failed.spec, plugins.catalog)} failed: {failed.reason}"
        raise Refused(Problem(text, path, document.origin(path))) from failed
    except Refused as refused:  # data at fault: say which part asked for it
        raise Refused([_placed(problem, document) for problem in refused.problems]) from None
    try:
        for _, found in plugins.called("check_experiment", experiment=experiment):
            misfits += found
    except PluginError as error:
        raise Refused(str(error)) from error
    if misfits:
        raise Refused(problems_of(misfits, document))
    warnings = [replace(problem, level="warning") for problem in problems_of(warned, document)]
    return Loaded(experiment, document, plugins, (*renamed(experiment, document), *warnings))


def _placed(problem: Problem, document: Document) -> Problem:
    if problem.path or problem.origin:
        return problem
    path: Any = ("task", "data") if document.at(("task", "data")) is not None else ("task",)
    return replace(problem, path=path, origin=document.origin(path))
