"""Reading and validating experiment files. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import alias_warnings, problems_of, validate
from dither.registry.plugins.manager import Plugins, load_plugins
from dither.registry.plugins.status import PluginError
from dither.registry.spec.aliases import components_in

from .component_errors import ComponentFailed, title
from .experiment import Experiment
from .plugins import governing_policy, load_named, names_in

__all__ = ["Loaded", "check_experiment", "load_experiment", "open_experiment"]


@dataclass(frozen=True)
class Loaded:
    """A valid experiment, its document and plugins, and warnings."""

    experiment: Experiment
    document: Document
    plugins: Plugins
    warnings: tuple[Problem, ...] = ()

    @property
    def path(self) -> Path:
        """The experiment file."""
        return self.document.files[-1]


def load_experiment(
    path: Path | str,
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
        trust: Also run unknown plugin files that came with a run; see `load_named`.

    Raises:
        Refused: With a problem for everything that is wrong.
    """
    return check_experiment(*open_experiment(path, changes, removals, select, trust))


def open_experiment(
    path: Path | str,
    changes: Iterable[str] = (),
    removals: Iterable[str] = (),
    select: Sequence[str] | None = None,
    trust: bool = False,
) -> tuple[Document, Plugins]:
    """Read an experiment file and load its plugins; arguments as for `load_experiment`.

    Raises:
        Refused: It cannot be read, or a plugin cannot be loaded.
    """
    path = Path(path)
    document = Document.load(path, changes, removals)
    plugins = load_plugins(select, policy=governing_policy(path), named=names_in(document), lazy=True)
    plugins.require()
    load_named(plugins, document, trust)
    return document, plugins


def check_experiment(document: Document, plugins: Plugins) -> Loaded:
    """Validate names, types, bounds, and whether components are compatible.

    Raises:
        Refused: With a problem for everything that is wrong.
    """
    experiment = validate(Experiment, document, plugins.catalog)
    try:
        misfits = list(experiment.check())
        warned = [] if misfits else list(experiment.warn())
    except ComponentFailed as failed:
        path = next((path for path, spec in components_in(experiment) if spec is failed.spec), ())
        message = f"{title(failed.spec, plugins.catalog)} failed: {failed.reason}"
        raise Refused(Problem(message, path, document.origin(path), code="plugin-failed")) from failed
    except Refused as refused:  # invalid data
        raise Refused([_placed(problem, document) for problem in refused.problems]) from None
    try:
        for _, found in plugins.call_each("check_experiment", experiment=experiment):
            misfits += found
    except PluginError as error:
        raise Refused(str(error), code="plugin-failed") from error
    if misfits:
        raise Refused(problems_of(misfits, document))
    warnings = [replace(problem, level="warning") for problem in problems_of(warned, document)]
    return Loaded(experiment, document, plugins, (*alias_warnings(experiment, document), *warnings))


def _placed(problem: Problem, document: Document) -> Problem:
    if problem.path or problem.origin:
        return problem
    path: Any = ("task", "data") if document.at(("task", "data")) is not None else ("task",)
    return replace(problem, path=path, origin=document.origin(path))
