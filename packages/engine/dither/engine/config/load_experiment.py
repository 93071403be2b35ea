"""Load experiments, and find the origin of every value. No torch.

`dither.registry.config` reads the TOML (`document`) and makes options of its keys (`validation`).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from dither.registry.config.document import Document, Layer, find_experiment
from dither.registry.config.errors import Origin, Problem, Refused, dotted, nearest
from dither.registry.config.validation import problems_of, validate
from dither.registry.files.lookup import exists, is_file
from dither.registry.kinds import LossSpec, ModelSpec, ProcessSpec, SamplerSpec
from dither.registry.plugins.catalog import Catalog, bare_name
from dither.registry.plugins.manager import Plugins, load_plugins
from dither.registry.plugins.status import PluginError
from dither.registry.spec.base import Options, Slot, Spec, components_in
from dither.registry.spec.misfit import Misfit, below
from dither.registry.spec.misfit import Path as KeyPath

from ..files.installed_models import model_folder
from ..files.mirror import service_problem
from .component_errors import ComponentFailed, title
from .experiment import DEFAULTS, Experiment, misfits_without_task
from .options import Train
from .paths import not_an_experiment
from .plugins import governing_policy, load_named, names_in

__all__ = [
    "Loaded",
    "Setting",
    "check_experiment",
    "load_experiment",
    "load_for_sampling",
    "open_experiment",
    "open_for_sampling",
    "override_texts",
    "select",
    "settings",
]


@dataclass(frozen=True)
class Loaded:
    """A valid experiment, its document and plugins, and warnings."""

    experiment: Experiment
    document: Document
    plugins: Plugins
    warnings: tuple[Problem, ...] = ()

    @property
    def path(self) -> Path:
        return self.document.files[-1]

    def with_options(self, table: str, **options: Any) -> Loaded:
        """Return the experiment with other options of a table such as `train`, unchecked."""
        values = getattr(self.experiment, table).model_copy(update=options)
        experiment = self.experiment.model_copy(update={table: values})
        return replace(self, experiment=experiment)


def load_experiment(
    path: Path | str,
    overrides: Mapping[str, Any] | Iterable[str] = (),
    removals: Iterable[str] = (),
    select: Sequence[str] | None = None,
) -> Loaded:
    """Read and check an experiment file.

    Args:
        path: The TOML file.
        overrides: Values by key, such as `{"train.steps": 10}`, or `key=value` as after --set.
        removals: Keys as after --unset.
        select: Plugins as after -p.

    Raises:
        Refused: With a problem for everything that is wrong.
    """
    return check_experiment(
        *open_experiment(path, override_texts(overrides), removals, select)
    )


def override_texts(overrides: Mapping[str, Any] | Iterable[str]) -> list[str]:
    """Return overrides as after --set, given as such or as values by key."""
    if isinstance(overrides, Mapping):
        from dither.registry.plugins.describe import toml

        return [f"{key}={toml(value)}" for key, value in overrides.items()]
    return [overrides] if isinstance(overrides, str) else list(overrides)


def open_experiment(
    path: Path | str,
    changes: Iterable[str] = (),
    removals: Iterable[str] = (),
    select: Sequence[str] | None = None,
) -> tuple[Document, Plugins]:
    """Read an experiment file and load its plugins; arguments as for `load_experiment`."""
    path = find_experiment(Path(path))
    if refused := not_an_experiment(path):
        raise refused
    document = Document.load(path, changes, removals)
    # Lazy: a plugin is imported when a name that only it has is looked up.
    plugins = load_plugins(
        select, policy=governing_policy(path), named=names_in(document), lazy=True
    )
    plugins.require()
    load_named(plugins, document)
    return document, plugins


def check_experiment(document: Document, plugins: Plugins) -> Loaded:
    """Validate names, types, bounds and compatibility.

    Raises `Refused` with a problem for everything that is wrong.
    """
    try:
        experiment = validate(Experiment, document, plugins.catalog)
    except Refused as refused:
        others = _other_problems(document, plugins, refused.problems)
        raise Refused([*refused.problems, *others]) from None

    misfits: list[Misfit] = []
    warnings: list[Misfit] = []
    try:
        # One by one, so that those before an exception are reported.
        for misfit in experiment.check():
            misfits.append(misfit)
        # A run needs these only at its start; elsewhere it may be read without them.
        if not any(file.name == "resolved.toml" for file in document.files):
            misfits += _missing_weights(experiment)
            misfits += _missing_service(experiment)
        # Warnings are about combinations that are valid.
        if not misfits:
            warnings += experiment.warn()
    except ComponentFailed as failed:
        # By identity, as two components may be equal.
        path = next(
            (path for path, spec in components_in(experiment) if spec is failed.spec),
            (),
        )
        message = f"{title(failed.spec, plugins.catalog)} failed: {failed.reason}"
        problem = Problem(message, path, document.origin(path), code="plugin-failed")
        raise Refused([*problems_of(misfits, document), problem]) from failed
    except Refused as refused:
        problems = _located_in_data(refused.problems, document)
        raise Refused([*problems_of(misfits, document), *problems]) from None

    try:
        for _, found in plugins.call_each("check_experiment", experiment=experiment):
            misfits += found
    except PluginError as error:
        raise Refused(str(error), code="plugin-failed") from error
    if misfits:
        raise Refused(problems_of(misfits, document))
    notes = [
        replace(problem, level="warning") for problem in problems_of(warnings, document)
    ]
    return Loaded(experiment, document, plugins, tuple(notes))


def _located_in_data(
    problems: Iterable[Problem], document: Document
) -> Iterator[Problem]:
    """Add the place of the data to problems that have none: the task has refused them."""
    path = ("task",) if document.at(("task", "data")) is None else ("task", "data")
    origin = document.origin(path)
    for problem in problems:
        placed = problem.path or problem.origin
        yield problem if placed else replace(problem, path=path, origin=origin)


class _WithoutTask(Options):
    """The tables of an experiment that are checked without its task."""

    process: Slot[ProcessSpec] | None = None
    model: Slot[ModelSpec] | None = None
    loss: Slot[LossSpec] | None = None
    sampler: Slot[SamplerSpec] | None = None
    train: Train = DEFAULTS


def _other_problems(
    document: Document, plugins: Plugins, found: Sequence[Problem]
) -> list[Problem]:
    """Return the problems between the valid tables of an experiment of which others are invalid."""
    invalid = {problem.path[0] for problem in found if problem.path}
    # Tables with problems of their own are left out, so that no problem is reported twice.
    keys = _WithoutTask.model_fields.keys() & document.tree.keys() - invalid
    tables: dict[str, Any] = {key: document.tree[key] for key in keys}
    partial = Document(tables, document.files, document.given)
    try:
        valid = validate(_WithoutTask, partial, plugins.catalog)
        misfits = misfits_without_task(
            valid.process, valid.model, valid.loss, valid.sampler
        )
        if valid.model is not None:
            misfits += below("train", valid.train.check(valid.model))
        return problems_of(misfits, document)
    except Refused:
        # These are among the other problems.
        return []


def _missing_service(experiment: Experiment) -> Iterator[Misfit]:
    """Yield a mirror whose service is unknown or not installed."""
    address = experiment.run.mirror
    if address is not None and (problem := service_problem(address)):
        yield problem.as_misfit(("run", "mirror"))


def _missing_weights(experiment: Experiment) -> Iterator[Misfit]:
    """Yield initial weights that do not exist, or a folder without weights or an adapter."""
    lora = experiment.train.lora
    if lora is not None and lora.start_from is not None:
        config = Path(lora.start_from) / "adapter_config.json"
        if not is_file(config):
            message = f"{config} does not exist"
            place = ("train", "lora", "start_from")
            yield Misfit(message, place, code="file-not-found")
    given = experiment.train.start_from
    if given is None:
        return
    try:
        source = model_folder(given)
    except Refused as refused:
        for problem in refused.problems:
            yield problem.as_misfit(("train", "start_from"))
        return
    weights = (source / "checkpoints", source / "weights.safetensors")
    if is_file(source) or any(exists(weight) for weight in weights):
        return
    message = f"{source} is neither a run nor an export: no checkpoints, no weights.safetensors"
    hint = None
    if not exists(source):
        close = nearest(source.name, [file.name for file in source.parent.glob("*")])
        message = f"{source} does not exist"
        if close:
            hint = f'did you mean "{source.with_name(close)}"?'
    yield Misfit(message, ("train", "start_from"), help=hint, code="file-not-found")


SAMPLING_TABLES = ("sample", "sampler")
CONSTRAINTS = (("task", "constraints"), ("sampler",), ("sample", "tries"))
"""Keys allowed in a file of constraints: nothing that affects the weights."""


def load_for_sampling(
    experiment: Path,
    constraints: Path | None = None,
    changes: Iterable[str] = (),
    select: Sequence[str] | None = None,
    tables: Sequence[str] = SAMPLING_TABLES,
) -> Loaded:
    """Read and check the experiment of a run; arguments as for `open_for_sampling`."""
    return check_experiment(
        *open_for_sampling(experiment, constraints, changes, select, tables)
    )


def open_for_sampling(
    experiment: Path,
    constraints: Path | None = None,
    changes: Iterable[str] = (),
    select: Sequence[str] | None = None,
    tables: Sequence[str] = SAMPLING_TABLES,
) -> tuple[Document, Plugins]:
    """Read the experiment of a run or export with other options of sampling.

    Args:
        experiment: resolved.toml of a run, experiment.toml of an export.
        constraints: A TOML file with [task.constraints] in place of its own, and optionally
            [sampler] and sample.tries.
        changes: As after --set, of `tables`.
        select: As after -p.
        tables: Those that may change.
    """
    changes = list(changes)
    keys = [tuple(change.partition("=")[0].strip().split(".")) for change in changes]
    what = f"does not affect {'sampling' if 'sample' in tables else 'evaluation'}"
    hint = f"override {'.* or '.join(tables)}"
    # Unknown keys are reported by validation, which names similar ones.
    problems = [
        Problem(what, key, help=hint)
        for key in keys
        if key[0] not in tables and key[0] in Experiment.model_fields
    ]
    if problems:
        raise Refused(problems)
    document, plugins = open_experiment(experiment, changes, select=select)
    if constraints is not None:
        _replace_constraints(document, Layer.read(constraints))
    return document, plugins


def _replace_constraints(document: Document, layer: Layer) -> None:
    """Replace the constraints of an experiment by those of a file, which may have other options of sampling."""
    task = document.at(("task",))
    # As in the experiment file from which constraints are copied.
    named = layer.tree.get("task")
    reference = named.get("use") if isinstance(named, dict) else None
    if reference and bare_name(str(reference)) == bare_name(
        document.at(("task", "use"))
    ):
        del layer.tree["task"]["use"]
    if problems := _invalid_constraints(layer):
        raise Refused(problems)
    if isinstance(task, dict) and "constraints" in task:
        # They are not merged with those of the run.
        document.merge(Layer("", {"task": {"constraints": {}}}))
        del task["constraints"]
    document.merge(layer)


def _invalid_constraints(layer: Layer) -> list[Problem]:
    """Return a problem for every key that is not allowed, or for missing constraints."""
    hint = "a file of constraints has [task.constraints], and optionally sampler and sample.tries"
    keys: list[tuple[str, ...]] = []
    for key, value in layer.tree.items():
        inner = (key,) in CONSTRAINTS or not isinstance(value, dict)
        keys += [(key,)] if inner else [(key, below) for below in value]
    wrong = [key for key in keys if key not in CONSTRAINTS]
    if not wrong and ("task", "constraints") not in keys:
        return [
            Problem(
                "missing [task.constraints]",
                (),
                layer.origin(()),
                hint,
                code="missing-key",
            )
        ]
    message = "not allowed in a file of constraints"
    return [
        Problem(message, key, layer.origin(key), hint, code="unknown-key")
        for key in wrong
    ]


@dataclass(frozen=True)
class Setting:
    """The effective value of one option.

    Attributes:
        path: Of the option.
        value: Its value.
        places: Where it was given: the effective place, then those it overrides.
        default_of: Component or table whose default is used, if no value is given.
    """

    path: KeyPath
    value: Any
    places: tuple[Origin, ...] = ()
    default_of: str | None = None

    @property
    def story(self) -> str:
        groups = (
            ", ".join(map(str, places)) for places in (self.places[:1], self.places[1:])
        )
        places = ", over ".join(filter(None, groups))
        if self.default_of is None:
            return f"from {places}"
        if places:
            return f"default of {self.default_of} after {places}"
        return f"default of {self.default_of}"


def select(settings: list[Setting], key: str | None) -> list[Setting]:
    """Return the setting of a key, or those of a table; without a key, all."""
    if key is None:
        return settings
    prefixes = (f"{key}.", f"{key}[")
    selected = [row for row in settings if f"{dotted(row.path)}.".startswith(prefixes)]
    if selected:
        return selected
    # Every option and table, in order.
    known: dict[str, None] = {}
    for row in settings:
        for end in range(len(row.path)):
            known[dotted(row.path[: end + 1])] = None
    last_parts = (name.rpartition(".")[2] for name in known)
    close = nearest(key, known) or nearest(key.rpartition(".")[2], last_parts)
    full = next((name for name in known if f".{name}".endswith(f".{close}")), None)
    hint = f'; did you mean "{full}"?' if full else ""
    raise Refused(f'the experiment has no key "{key[:100]}"{hint}', code="unknown-key")


def settings(
    value: Any,
    document: Document,
    catalog: Catalog,
    path: KeyPath = (),
    owner: str = "the experiment",
) -> Iterator[Setting]:
    """Yield every option of validated options with its value, in order."""
    items: list[tuple[str | int, Any]] = []
    inner = owner
    if isinstance(value, Spec):
        yield _setting(catalog.pin(value), (*path, "use"), owner, document)
    if isinstance(value, Options):
        items = [(key, getattr(value, key)) for key in type(value).model_fields]
        if isinstance(value, Spec):
            inner = value.name
        elif path:
            inner = f"[{dotted(path)}]"
    elif isinstance(value, Mapping):
        items = list(value.items())
    elif isinstance(value, list | tuple) and any(
        isinstance(item, Options) for item in value
    ):
        items = list(enumerate(value))
    if not items and not isinstance(value, Options):
        yield _setting(value, path, owner, document)
    for key, item in items:
        yield from settings(item, document, catalog, (*path, key), inner)


def _setting(
    value: Any,
    path: KeyPath,
    owner: str,
    document: Document,
) -> Setting:
    bare = path[-1] == "use" and isinstance(document.at(path[:-1]), str)
    given = bare or document.at(path) is not None
    return Setting(path, value, tuple(document.history(path)), None if given else owner)
