"""Exports: weights and experiment of a run without paths of its machine; `load` reads them."""

from __future__ import annotations

import glob
import json
import re
import shutil
from collections.abc import Collection, Iterable, Mapping, Sequence
from copy import copy
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any, Protocol, cast, runtime_checkable

from rich.console import Console

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.config.validation import path_options, validate
from dither.registry.contracts.commands import RunOptions
from dither.registry.contracts.protocols import Task
from dither.registry.contracts.spaces import Space
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import exists, is_folder
from dither.registry.files.write_errors import is_full, unwritable
from dither.registry.plugins.catalog import Catalog
from dither.registry.plugins.install_command import optional_import
from dither.registry.plugins.manager import default_catalog

from ..checkpoints.checkpoint import Damaged, load_weights, weights_of
from ..config.experiment import Experiment
from ..config.load_experiment import (
    SAMPLING_TABLES,
    Loaded,
    check_experiment,
    load_for_sampling,
    open_experiment,
    open_for_sampling,
    override_texts,
)
from ..config.paths import absolute_path
from ..config.plugins import names_in
from ..files.checksums import MANIFEST, verify
from ..files.damage import UNREADABLE, damage_of
from ..files.installed_models import EXPERIMENT, WEIGHTS, model_folder
from ..training.device import choose_device
from ..training.lora import add_lora, write_merged
from ..training.peft_adapter import write_adapter
from ..training.randomness import preserved_generators
from .bundle import (
    has_assets,
    pack,
    space_as_json,
    space_from_json,
    write_assets,
    write_bundle,
)
from .loading import build, find_checkpoint, load_run, on_device
from .progress import Screen, say
from .request_checks import (
    DEFAULTS,
    Which,
    is_export,
    parse_checkpoint,
    require_absent,
    require_newest,
)
from .run_directory import ASSETS, resolved_file
from .system import System

__all__ = [
    "anchor",
    "download",
    "export_adapter",
    "export_run",
    "first_line",
    "import_hub",
    "is_hub_name",
    "load",
    "load_trained",
    "read_export_manifest",
    "trained_folder",
]

MISSING_DATA = frozenset({"file-not-found", "download-failed"})
"""Codes of problems with which an export is still usable, without its data."""


def is_hub_name(path: str | Path) -> bool:
    """Return whether a path that does not exist may name a repository, such as org/name."""
    path = Path(path)
    # With an existing parent, it is a mistyped local path.
    return (
        not exists(path)
        and not exists(path.parent)
        and bool(re.fullmatch(r"[\w.-]+/[\w.-]+", path.as_posix()))
    )


def import_hub(action: str) -> Any:
    """Return the module huggingface_hub; Refused without it."""
    with optional_import(f"{action} requires huggingface_hub", "dither-engine", "hub"):
        import huggingface_hub
    return huggingface_hub


def download(name: str, revision: str | None = None) -> Path:
    """Return the folder of a model repository, downloaded into the cache of huggingface_hub."""
    hub = import_hub(f"loading {name}")
    try:
        return Path(hub.snapshot_download(name, revision=revision))
    # The base classes of its errors.
    except (OSError, ValueError) as error:
        if is_full(error):
            raise unwritable(f"the download of {name}", error) from None
        hint = "check the name, the network, HF_ENDPOINT and HF_TOKEN"
        message = f"{name} is neither a file nor a folder, and could not be downloaded: {first_line(error)}"
        raise Refused(Problem(message, help=hint, code="download-failed")) from None


def first_line(error: BaseException) -> str:
    """Return the first line of the message of an error, or else its type."""
    return next(iter(str(error).strip().splitlines()), type(error).__name__)


def load(
    path: str | Path,
    checkpoint: Which = "newest",
    device: str = "auto",
    overrides: Mapping[str, Any] | Iterable[str] = (),
    plugins: Sequence[str] | None = None,
) -> System:
    """Return a trained system in evaluation mode.

    If the data of an export are missing, its task only knows the space of a sample.

    Args:
        path: A run directory, a folder that `dither export` wrote, an installed model such as
            zoo/bubble-small, or a repository of the Hugging Face hub: org/name.
        checkpoint: The checkpoint of a run.
        device: auto, cpu or cuda.
        overrides: As of `load_experiment`: options of sampling, and for an export also paths of its
            data.
        plugins: As after -p. A plugin file of a repository only runs if a copy is named here, one
            of a run or export only as it was recorded, or if it is named here.

    Raises:
        Refused: The path is neither a run nor an export. Damaged: Files do not match their
            checksums.
    """
    path = trained_folder(path, plugins)
    options = RunOptions(str(checkpoint), override_texts(overrides), plugins)
    # Initial weights are drawn before those of the file replace them.
    with preserved_generators(choose_device(device)):
        _, system, _ = load_trained(path, options, device=device)
    return system


def trained_folder(path: str | Path, plugins: Sequence[str] | None = None) -> Path:
    """Return the folder of a run, an export, an installed model or a repository of the hub."""
    path = model_folder(path)
    if is_hub_name(path):
        path = download(str(path))
        _require_named(path, plugins or ())
    return path


def load_trained(
    path: Path,
    options: RunOptions = DEFAULTS,
    *,
    console: Console | None = None,
    constraints: Path | None = None,
    device: str | None = None,
    tables: Sequence[str] = SAMPLING_TABLES,
) -> tuple[Loaded, System, int]:
    """Return experiment, system and step of a run, an export or an installed model.

    Arguments and errors are those of `load_run`; the paths of the data of an export may change, too.
    """
    path = model_folder(path)
    if not is_export(path):
        return load_run(path, options, console, constraints, device, tables)
    require_newest(path, parse_checkpoint(options.checkpoint))
    return _load_export(path, options, constraints, device, tables)


def _load_export(
    folder: Path,
    options: RunOptions,
    constraints: Path | None,
    device: str | None,
    tables: Sequence[str],
) -> tuple[Loaded, System, int]:
    changes = options.changes
    assets = folder / ASSETS
    names = [f"{ASSETS}/{file.name}" for file in assets.glob("*")]
    # Every asset must be listed, so that none can be added.
    if reason := verify(folder, {WEIGHTS, EXPERIMENT, *names}):
        raise Damaged(f"{folder} is damaged: {reason}")
    data, space, step, length = read_export_manifest(folder)
    # Paths of data are options of the task.
    document, found = open_for_sampling(
        folder / EXPERIMENT, constraints, changes, options.plugins, (*tables, "task")
    )
    anchor(document, folder, found.catalog)

    def placed(loaded: Loaded) -> Loaded:
        return loaded if device is None else on_device(loaded, device)

    def with_space(problem: Problem) -> tuple[Loaded, System]:
        """Build with a task that only knows the space of a sample, and what its assets allow."""
        assert space is not None
        # Not checked, as that may read the data.
        loaded = Loaded(validate(Experiment, document, found.catalog), document, found)
        task = AbsentTask(space, problem, assets)
        if is_folder(assets):
            task.adopt(loaded.experiment.task.restore(assets, space))
        return loaded, build(placed(loaded), task=cast(Task, task))[0]

    overridden = {change.partition("=")[0].strip() for change in changes}
    missing = _missing_data(folder, data, overridden)
    if missing and space is not None:
        loaded, system = with_space(_describe_missing(folder, missing))
    else:
        try:
            loaded = check_experiment(document, found)
            system, _ = build(placed(loaded))
        except Refused as refused:
            # Data may also be downloaded by the task; data that the user names must be there.
            codes = {problem.code for problem in refused.problems}
            named = any(option.startswith("task") for option in overridden)
            if space is None or named or not codes <= MISSING_DATA:
                raise
            loaded, system = with_space(refused.problems[0])
    load_weights(folder / WEIGHTS, system.model)
    system.trained_length = length
    return loaded, system.eval(), step


def _missing_data(
    folder: Path, data: Sequence[tuple[str, str]], overridden: Collection[str]
) -> list[tuple[str, str]]:
    """Return option and path of data that are neither in an export nor named by an override."""
    missing = []
    for option, name in data:
        there = exists(folder / name) or glob.glob(name, root_dir=folder)
        if not there and option not in overridden:
            missing.append((option, name))
    return missing


def _describe_missing(folder: Path, missing: Sequence[tuple[str, str]]) -> Problem:
    option, _ = missing[0]
    hint = f"copy them into {folder}, or pass their path: load(..., overrides=['{option}=...'])"
    lines = [f"{option} = {name}" for option, name in missing]
    return Problem("; ".join(lines), help=hint, code="file-not-found")


def _require_named(folder: Path, plugins: Sequence[str]) -> None:
    """Refuse plugin files of a download, which recorded its own checksums, unless they are named."""
    named = {Path(plugin).name for plugin in plugins}
    for plugin in names_in(Document.load(folder / EXPERIMENT)):
        if plugin.endswith(".py") and Path(plugin).name not in named:
            file = folder / plugin
            hint = f"read it; to run it, pass load(..., plugins=['{file}'])"
            message = f"the plugin file {file} was downloaded"
            raise Refused(Problem(message, help=hint, code="untrusted-plugin"))


def anchor(document: Document, folder: Path, catalog: Catalog) -> None:
    """Make the paths that an export gives to its own files absolute, but not those of overrides."""
    # A list first, as the loop replaces values of the tree.
    for (*place, key), _ in list(path_options(Experiment, document.tree, catalog)):
        option = (*place, key)
        # An element of a list was given with the list.
        while option and option not in document.given:
            option = option[:-1]
        if document.given[option][-1].file is not None:
            table = document.at(tuple(place))
            table[key] = absolute_path(table[key], folder)


def read_export_manifest(
    folder: Path,
) -> tuple[list[tuple[str, str]], Space | None, int, int | None]:
    """Return what an export says besides its experiment.

    Option and path of data outside of it, the space of a sample if known, the step, and the length
    of samples in training if it is not that of the experiment.
    """
    try:
        manifest = json.loads(read_text(folder / MANIFEST))
        # A damaged manifest may be any JSON; an Infinity in it overflows as an integer.
        space = manifest.get("space")
        data = [
            (str(one["option"]), str(one["name"])) for one in manifest.get("data", ())
        ]
        known = None if space is None else space_from_json(space)
        length = manifest.get("trained_length")
        if length is not None:
            length = int(length)
        return data, known, int(manifest["step"]), length
    except UNREADABLE as error:
        raise Damaged(f"{folder / MANIFEST}: {damage_of(error).reason}") from None


@runtime_checkable
class AnyLength(Protocol):
    """Assets for samples of any length."""

    def with_length(self, length: int) -> object:
        """Return those for samples of this length."""


class AbsentTask:
    """The task of an export without data: the space of a sample, and what its assets allow."""

    # Optional methods do nothing unless the assets have them; any other names the missing data.
    buckets = Task.buckets
    mixture = Task.mixture
    decode = Task.decode
    valid_positions = Task.valid_positions
    data_warnings = Task.data_warnings
    export = Task.export
    unit_counts = Task.unit_counts
    predict_values = Task.predict_values
    prompted = Task.prompted
    trajectory_plots = Task.trajectory_plots

    def __init__(self, space: Space, missing: Problem, folder: Path) -> None:
        self._assets: object = None
        self._folder = folder
        self.space = space
        self._missing = missing

    def adopt(self, assets: object) -> AbsentTask:
        """Take the public attributes of an object."""
        self._assets = assets
        for name in dir(assets):
            if not name.startswith("_") and name != "with_length":
                setattr(self, name, getattr(assets, name))
        return self

    def save_assets(self, folder: Path) -> None:
        """Copy the files of the export."""
        if is_folder(self._folder):
            shutil.copytree(self._folder, folder, dirs_exist_ok=True)

    def with_length(self, length: int) -> AbsentTask:
        """Return this task with assets for samples of another length."""
        if not isinstance(self._assets, AnyLength):
            return cast(AbsentTask, Task.with_length(cast(Task, self), length))
        return copy(self).adopt(self._assets.with_length(length))

    def __getattr__(self, name: str) -> Any:
        # copy and pickle probe for private methods.
        if name.startswith("_"):
            raise AttributeError(name)
        raise Refused(
            replace(
                self._missing,
                message=f"task.{name} requires data that are missing: {self._missing.message}",
            )
        )


def export_run(
    run_directory: str | Path,
    to: str | Path,
    checkpoint: Which = "newest",
    select: Sequence[str] | None = None,
    changes: Sequence[str] = (),
) -> list[Path]:
    """Write a new folder with everything needed to use the weights of a run elsewhere.

    These are the weights, the resolved experiment, plugin files, small files that it names such as
    a tokenizer, and a manifest with checksums. Data are not copied; the manifest lists them, with
    the space of a sample. For the space, plugin files of the run are executed only if they are as
    recorded or named in `select`, as after -p; otherwise stderr shows a warning. `changes` override
    options of sampling in the exported experiment.

    Returns:
        The files of the folder.

    Raises:
        Refused: The folder exists. Damaged: No checkpoint is intact.
    """
    run_directory = Path(run_directory)
    to = Path(to)
    experiment = resolved_file(run_directory)
    found = find_checkpoint(run_directory, checkpoint)
    loaded, reason, catalog = _load(experiment, select)
    space = None if loaded is None else space_as_json(loaded.experiment.task.space())
    document = Document.read(experiment)
    if changes:
        document = load_for_sampling(
            experiment, changes=changes, select=select
        ).document
    bundle = pack(document.tree, catalog)
    if bundle.data and reason:
        message = f"the space of a sample is unknown, so the export only loads with its data: {reason}"
        say(Screen(stderr=True), message, "yellow")
    plugins = run_directory / "plugins"

    def assets(folder: Path) -> None:
        if loaded is not None:
            _write_assets(run_directory, loaded.experiment, folder)

    return write_bundle(
        to,
        bundle,
        weights=partial(write_merged, weights_of(found)),
        assets=assets,
        asset_option=loaded.experiment.task.asset_option if loaded is not None else "",
        plugins=sorted(plugins.rglob("*.py")),
        step=int(found.name.removeprefix("step-")),
        space=space,
    )


def export_adapter(
    run_directory: Path,
    to: Path,
    checkpoint: Which = "newest",
    select: Sequence[str] | None = None,
) -> list[Path]:
    """Write the LoRA updates of a run into a new folder, in peft's format; return its files.

    Raises:
        Refused: The run has no `train.lora`, or the folder exists. Damaged: There is no intact
            checkpoint.
    """
    found = find_checkpoint(run_directory, checkpoint)
    loaded = load_for_sampling(resolved_file(run_directory), select=select)
    options = loaded.experiment.train.lora
    if options is None:
        message = f"{run_directory} has no train.lora"
        raise Refused(message, ("train", "lora"), code="misfit")
    # Nothing is computed, so that a GPU is not needed.
    system, _ = build(on_device(loaded, "cpu"))
    # The weights follow from the checkpoint.
    add_lora(system.model, options.model_copy(update={"start_from": None}))
    load_weights(weights_of(found), system.model)
    require_absent(to)
    write_adapter(system.model, options, to)
    return sorted(to.iterdir())


def _write_assets(run_directory: Path, experiment: Experiment, folder: Path) -> None:
    """Write the files that the task needs without its data, those of the run if it has them."""
    if is_folder(run_directory / ASSETS):
        shutil.copytree(run_directory / ASSETS, folder)
    elif has_assets(experiment):
        write_assets(experiment.task.build(), folder)


def _load(
    experiment: Path, select: Sequence[str] | None
) -> tuple[Loaded | None, str, Catalog]:
    """Return the experiment of a run, or None and the reason, and a catalog of executable plugins."""
    catalog = default_catalog()
    try:
        document, plugins = open_experiment(experiment, select=select)
        catalog = plugins.catalog
        loaded = check_experiment(document, plugins)
        # A task that fails here leaves the space unknown, too.
        loaded.experiment.task.space()
        return loaded, "", catalog
    except Refused as refused:
        problem = refused.problems[0]
        return None, "; ".join(filter(None, (problem.message, problem.help))), catalog
