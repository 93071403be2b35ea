"""Export bundle: configuration and small files, with machine-specific paths removed and missing data listed."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from glob import glob
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, Refused
from dither.registry.flow.spaces import Condition, FeatureSpace, Field, Group, Space, TokenSpace

from ..checkpoints.checkpoint import Damaged
from ..config.paths import PATH_OPTIONS, absolute_paths
from ..files.checksums import MANIFEST

__all__ = [
    "AbsentTask",
    "Bundle",
    "MissingData",
    "changes_within",
    "pack",
    "read_missing_data",
    "space_as_json",
    "space_from_json",
]

MAX_FILE_BYTES = 1 << 26
"""Size of a file, such as a tokenizer, up to which it is bundled if an option names it."""
MACHINE_OPTIONS: dict[str, Any] = {"device": "auto", "threads": None, "start_from": None, "start_layout": None}
"""Options of [train] that are reset in an export."""


@dataclass(frozen=True)
class MissingData:
    """Data of an experiment that are not part of its export.

    Attributes:
        option: The option that names them.
        name: Its value in the export: a path relative to the bundle.
        files: Number of files on the original machine.
        bytes: Their size.
    """

    option: str
    name: str
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.option} = {self.name} (originally {self.files:,} files, {self.bytes:,} bytes)"


@dataclass
class Bundle:
    """An experiment without machine-specific paths.

    Attributes:
        tree: Its values.
        files: Bundled files, by their path in the bundle.
        data: Data that are not bundled.
    """

    tree: dict[str, Any]
    files: dict[str, Path] = field(default_factory=dict)
    data: list[MissingData] = field(default_factory=list)


def pack(tree: Mapping[str, Any]) -> Bundle:
    """Return the bundle of an experiment with absolute paths."""
    train = {key: value for key, value in tree["train"].items() if key not in MACHINE_OPTIONS}
    train |= {key: value for key, value in MACHINE_OPTIONS.items() if value is not None}
    bundle = Bundle({})
    bundle.tree = {key: _packed(bundle, key, value) for key, value in {**tree, "train": train}.items()}
    return bundle


def _packed(bundle: Bundle, key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _packed(bundle, f"{key}.{name}", inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_packed(bundle, key, item) for item in value]
    named = key.rpartition(".")[2] in PATH_OPTIONS
    path = _path(value, named) if key.partition(".")[0] != "plugins" else None
    if path is None:
        return value
    if not named and path.is_file() and path.stat().st_size <= MAX_FILE_BYTES:
        name = _unused(f"files/{path.name}", bundle.files)
        bundle.files[name] = path
        return name
    name = _unused(f"data/{path.name}", [entry.name for entry in bundle.data])
    bundle.data.append(MissingData(key, name, **_size(path)))
    return name


def _path(value: Any, named: bool) -> Path | None:
    """Return a value as a path: any text of a path option (`named`), elsewhere an existing absolute path."""
    if not isinstance(value, str) or "\0" in value:
        return None
    path = Path(value)
    if not named:
        return path if path.name and path.is_absolute() and os.path.exists(path) else None
    with suppress(RuntimeError):  # unknown user
        path = path.expanduser()
    return path


def _unused(name: str, used: Any) -> str:
    stem = Path(name)
    names = (name, *(str(stem.with_name(f"{number}-{stem.name}")) for number in range(2, len(used) + 3)))
    return next(name for name in names if name not in used)


def _size(path: Path) -> dict[str, int]:
    """Count files and bytes of a path or a pattern."""
    paths = [path] if path.exists() else [Path(name) for name in glob(str(path), recursive=True)]
    files = [file for one in paths for file in (one.rglob("*") if one.is_dir() else (one,)) if file.is_file()]
    return {"files": len(files), "bytes": sum(file.stat().st_size for file in files)}


def read_missing_data(folder: Path) -> tuple[list[MissingData], Space | None]:
    """Return the missing data of an export, and the space of a sample if known.

    Raises:
        Damaged: The manifest is invalid.
    """
    try:
        manifest = json.loads((folder / MANIFEST).read_text(encoding="utf-8"))
        space = manifest.get("space")
        data = [
            MissingData(str(one["option"]), str(one["name"]), int(one["files"]), int(one["bytes"]))
            for one in manifest.get("data", ())
        ]
        return data, None if space is None else space_from_json(space)
    except (OSError, ValueError, KeyError, TypeError, AttributeError, RecursionError, OverflowError) as error:
        raise Damaged(f"{folder / MANIFEST} cannot be read: {type(error).__name__}: {error}") from None


def changes_within(tree: Mapping[str, Any], folder: Path, key: str = "") -> Iterator[str]:
    """Yield overrides, as after --set, that make the paths of an experiment to files in a folder absolute."""
    for (name, before), after in zip(tree.items(), absolute_paths(tree, folder).values(), strict=True):
        full = f"{key}{name}"
        if isinstance(before, Mapping):
            yield from changes_within(before, folder, f"{full}.")
        elif after != before and (isinstance(after, str) or all(isinstance(item, str) for item in after)):
            yield f"{full}={json.dumps(after, ensure_ascii=False)}"


class AbsentTask:
    """The task of an export without data: it only has a space.

    Args:
        space: The space of a sample.
        data: The missing data.
        folder: The folder of the export.
    """

    def __init__(self, space: Space, data: list[MissingData], folder: Path) -> None:
        self.space, self._data, self._folder = space, data, folder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        hint = f"copy them into {self._folder}, or pass their path: load(..., changes=['{self._data[0].option}=...'])"
        lines = "; ".join(map(str, self._data))
        raise Refused(Problem(f"task.{name} requires data that are missing: {lines}", help=hint, code="file-not-found"))


def space_as_json(space: Space) -> dict[str, Any]:
    """Return a space as JSON values."""
    return {"data": space.data, **asdict(space)}


def space_from_json(table: Mapping[str, Any]) -> Space:
    """Return the space that `space_as_json` described.

    Raises:
        KeyError, TypeError, ValueError: The table is invalid.
    """
    conditions = tuple(Condition(**{**one, "labels": tuple(one["labels"])}) for one in table["conditions"])
    if table["data"] == "tokens":
        return TokenSpace(tuple(Field(**one) for one in table["fields"]), conditions)
    groups = tuple(Group(**one) for one in table["groups"])
    given, standardised = tuple(table.get("given", ())), table.get("standardised")
    return FeatureSpace(int(table["length"]), int(table["width"]), groups, conditions, given, standardised)
