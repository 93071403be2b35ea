"""Reading and validating experiment files. No torch."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from dither.registry.config.document import Document, Layer
from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.config.experiment_files import find_experiment
from dither.registry.config.validation import alias_warnings, problems_of, validate
from dither.registry.plugins.manager import Plugins, load_plugins
from dither.registry.plugins.status import PluginError
from dither.registry.spec.base import components_in

from .component_errors import ComponentFailed, title
from .experiment import Experiment
from .plugins import governing_policy, load_named, names_in

__all__ = ["Loaded", "check_experiment", "load_experiment", "load_for_sampling", "open_experiment", "require_start"]


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
    """Read an experiment file and load its plugins, or raise `Refused`; arguments as for `load_experiment`."""
    path = find_experiment(Path(path))
    document = Document.load(path, changes, removals)
    plugins = load_plugins(select, policy=governing_policy(path), named=names_in(document), lazy=True)
    plugins.require()
    load_named(plugins, document, trust)
    return document, plugins


def check_experiment(document: Document, plugins: Plugins) -> Loaded:
    """Validate names, types, bounds and compatibility; `Refused` with a problem for everything that is wrong."""
    experiment = validate(Experiment, document, plugins.catalog)
    try:
        misfits = list(experiment.check())
        warned = [] if misfits else list(experiment.warn())
    except ComponentFailed as failed:
        path = next((path for path, spec in components_in(experiment) if spec is failed.spec), ())
        message = f"{title(failed.spec, plugins.catalog)} failed: {failed.reason}"
        raise Refused(Problem(message, path, document.origin(path), code="plugin-failed")) from failed
    except Refused as refused:  # invalid data
        path = ("task",) if document.at(("task", "data")) is None else ("task", "data")
        origin = document.origin(path)
        placed = [p if p.path or p.origin else replace(p, path=path, origin=origin) for p in refused.problems]
        raise Refused(placed) from None
    try:
        for _, found in plugins.call_each("check_experiment", experiment=experiment):
            misfits += found
    except PluginError as error:
        raise Refused(str(error), code="plugin-failed") from error
    if misfits:
        raise Refused(problems_of(misfits, document))
    warnings = [replace(problem, level="warning") for problem in problems_of(warned, document)]
    return Loaded(experiment, document, plugins, (*alias_warnings(experiment, document), *warnings))


def require_start(loaded: Loaded) -> None:
    """Refuse `train.start_from` that does not exist, or is a folder without weights. Its content is read later."""
    path = ("train", "start_from")
    if (given := loaded.experiment.train.start_from) is None:
        return
    source = Path(given)
    weights = (source / "checkpoints", source / "weights.safetensors")
    if source.is_file() or any(weight.exists() for weight in weights):
        return
    message, hint = f"{source} is neither a run nor an export: no checkpoints, no weights.safetensors", None
    if not source.exists():
        close = nearest(source.name, [file.name for file in source.parent.glob("*")])
        message, hint = f"{source} does not exist", f'did you mean "{source.with_name(close)}"?' if close else None
    raise Refused(Problem(message, path, loaded.document.origin(path, value=True), hint, code="file-not-found"))


SAMPLING_TABLES = ("sample", "sampler")
CONSTRAINTS = (("task", "constraints"), ("sampler",), ("sample", "tries"))
"""Keys allowed in a file of constraints: nothing that affects the weights."""


def load_for_sampling(
    experiment: Path,
    constraints: Path | None = None,
    changes: Iterable[str] = (),
    select: Sequence[str] | None = None,
) -> Loaded:
    """Read the experiment of a run, with the constraints of a file in place of its own, and other sampling options.

    Args:
        experiment: resolved.toml of the run.
        constraints: A TOML file with [task.constraints], and optionally [sampler] and sample.tries.
        changes: `key=value` as after --set, of the tables sample and sampler.
        select: Plugins as after -p.

    Raises:
        Refused: With a problem for everything that is wrong.
    """
    changes = list(changes)
    keys = [tuple(change.partition("=")[0].strip().split(".")) for change in changes]
    hint = "override sample.* or sampler"
    problems = [Problem("does not affect sampling", key, help=hint) for key in keys if key[0] not in SAMPLING_TABLES]
    if problems:
        raise Refused(problems)
    document, plugins = open_experiment(experiment, changes, select=select)
    if constraints is not None:
        layer = Layer.read(constraints)
        if problems := _invalid_constraints(layer):
            raise Refused(problems)
        task = document.at(("task",))
        if isinstance(task, dict) and "constraints" in task:
            document.merge(Layer("", {"task": {"constraints": {}}}))
            del task["constraints"]
        document.merge(layer)
    return check_experiment(document, plugins)


def _invalid_constraints(layer: Layer) -> list[Problem]:
    """Return a problem for every key that is not allowed, or for missing constraints."""
    hint = "a file of constraints has [task.constraints], and optionally sampler and sample.tries"
    keys: list[tuple[str, ...]] = []
    for key, value in layer.tree.items():
        inner = (key,) in CONSTRAINTS or not isinstance(value, dict)
        keys += [(key,)] if inner else [(key, below) for below in value]
    wrong = [key for key in keys if key not in CONSTRAINTS]
    if not wrong and ("task", "constraints") not in keys:
        return [Problem("missing [task.constraints]", (), layer.origin(()), hint, code="missing-key")]
    message = "not allowed in a file of constraints"
    return [Problem(message, key, layer.origin(key), hint, code="unknown-key") for key in wrong]
