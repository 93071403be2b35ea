"""Bundles: weights and experiment in a folder, without paths of its machine."""

from __future__ import annotations

import copy
import shutil
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import asdict
from itertools import count, takewhile
from pathlib import Path
from typing import Any, NamedTuple, cast

import tomlkit
from pydantic import TypeAdapter

from dither.registry.config.document import Document
from dither.registry.config.validation import path_options
from dither.registry.contracts.protocols import Task
from dither.registry.contracts.spaces import FeatureSpace, Space, TokenSpace
from dither.registry.files.atomic import atomic_folder
from dither.registry.files.lookup import exists, is_file, is_folder
from dither.registry.files.write_errors import unwritable
from dither.registry.kinds import TaskSpec
from dither.registry.plugins.catalog import Catalog

from ..config.experiment import Experiment
from ..files.checksums import MANIFEST, write_manifest
from ..files.installed_models import EXPERIMENT, WEIGHTS
from .request_checks import require_absent
from .run_directory import ASSETS

__all__ = [
    "Bundle",
    "has_assets",
    "pack",
    "space_as_json",
    "space_from_json",
    "write_assets",
    "write_bundle",
]

MAX_FILE_BYTES = 1 << 26
"""Size of a file, such as a tokenizer, up to which it is bundled if an option names it."""
MACHINE_OPTIONS = frozenset(
    {"device", "threads", "start_from", "start_layout", "start_partial"}
)
"""Options of [train] that are left out of an export."""


class Bundle(NamedTuple):
    """Values of an experiment without machine-specific paths.

    `files` are bundled, by their path in the bundle; `data` are not: their options, and paths in
    the bundle.
    """

    tree: dict[str, Any]
    files: dict[str, Path]
    data: list[tuple[str, str]]


def pack(tree: Mapping[str, Any], catalog: Catalog) -> Bundle:
    """Return the bundle of an experiment with absolute paths: small files that are not data."""
    train = {
        key: value for key, value in tree["train"].items() if key not in MACHINE_OPTIONS
    }
    packed = copy.deepcopy({**tree, "train": train})
    # A path of this machine; the exported weights include the updates.
    if packed["train"].get("lora"):
        packed["train"]["lora"].pop("start_from", None)
    # The address of a mirror is private, and useless to others.
    packed.pop("run", None)
    files: dict[str, Path] = {}
    data: list[tuple[str, str]] = []
    # A list first, as the loop replaces values of the tree.
    for (*place, key), kind in list(path_options(Experiment, packed, catalog)):
        table = Document.value_of(packed, place)
        path = Path(table[key])
        if not path.name or (kind != "data" and not exists(path)):
            continue
        if kind != "data" and is_file(path) and path.stat().st_size <= MAX_FILE_BYTES:
            name = _unused_name("files", path.name, files)
            files[name] = path
        else:
            # An override replaces a list of components as a whole.
            names = takewhile(lambda part: isinstance(part, str), (*place, key))
            option = ".".join(map(str, names))
            name = _unused_name("data", path.name, [used for _, used in data])
            data.append((option, name))
        table[key] = name
    return Bundle(packed, files, data)


def _unused_name(folder: str, name: str, used: Collection[str]) -> str:
    """Return a path in the bundle, numbered if other files have the same name."""
    path = f"{folder}/{name}"
    numbers = count(2)
    while path in used:
        path = f"{folder}/{next(numbers)}-{name}"
    return path


def write_bundle(
    to: Path,
    bundle: Bundle,
    *,
    weights: Callable[[Path], object],
    assets: Callable[[Path], object],
    asset_option: str = "",
    plugins: Sequence[Path] = (),
    step: int = 0,
    space: Mapping[str, Any] | None = None,
    trained_length: int | None = None,
) -> list[Path]:
    """Write a new folder; return its files, the manifest with checksums last.

    Args:
        to: The folder.
        bundle: Experiment and small files.
        weights: Writes the weights into a file.
        assets: Writes the files that the task needs without its data into a folder.
        asset_option: The option of the task that names these.
        plugins: Plugin files.
        step: Of the checkpoint.
        space: That of a sample, as JSON; None if it is unknown.
        trained_length: Of samples in training; None if it is that of the experiment.
    """
    require_absent(to)
    try:
        with atomic_folder(to, overwrite=False) as folder:
            weights(folder / WEIGHTS)
            for name, file in bundle.files.items():
                (folder / name).parent.mkdir(exist_ok=True)
                shutil.copyfile(file, folder / name)
            assets(folder / ASSETS)
            if asset_option and is_folder(folder / ASSETS):
                _use_assets(bundle, asset_option)
            text = tomlkit.dumps(bundle.tree)
            (folder / EXPERIMENT).write_text(text, encoding="utf-8")
            for plugin in plugins:
                (folder / "plugins").mkdir(exist_ok=True)
                shutil.copyfile(plugin, folder / "plugins" / plugin.name)

            files = sorted(path for path in folder.rglob("*") if is_file(path))
            data = [{"option": option, "name": name} for option, name in bundle.data]
            write_manifest(
                folder,
                files,
                step=step,
                data=data,
                space=space,
                trained_length=trained_length,
            )
            files.append(folder / MANIFEST)
    except (OSError, ValueError) as error:
        raise unwritable(to, error) from None
    return [to / path.relative_to(folder) for path in files]


def _use_assets(bundle: Bundle, asset_option: str) -> None:
    """Let the option of the task that can name its assets do so, in place of what it names now."""
    bundle.tree["task"][asset_option] = ASSETS
    option = f"task.{asset_option}"
    bundle.data[:] = [entry for entry in bundle.data if entry[0] != option]


def has_assets(experiment: Experiment) -> bool:
    """Return whether a task can be restored without its data, from `Task.save_assets`."""
    return type(experiment.task).restore is not TaskSpec.restore


def write_assets(task: Task, folder: Path) -> None:
    """Write the files that a task needs without its data into a new folder."""
    folder.mkdir()
    task.save_assets(folder)


def space_as_json(space: Space) -> dict[str, Any]:
    """Return a space as JSON values."""
    return {"data": space.data, **asdict(space)}


def space_from_json(table: Mapping[str, Any]) -> Space:
    """Return the space of `space_as_json`; KeyError or ValueError if the table is invalid."""
    kind = TokenSpace if table["data"] == "tokens" else FeatureSpace
    return cast(Space, TypeAdapter(kind).validate_python(table))
