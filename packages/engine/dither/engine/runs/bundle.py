"""A run without its machine: what others need to use its weights, and what is said of the data that they do not get."""

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

LARGEST = 1 << 26
"""Bytes of a file, such as a tokenizer, that goes along where an option names it; data do not."""
OF_THE_MACHINE: dict[str, Any] = {"device": "auto", "threads": None, "start_from": None, "start_layout": None}
"""Options of [train] that mean nothing elsewhere: the weights that it began with are in those that are given."""


@dataclass(frozen=True)
class MissingData:
    """Data that an experiment names, and that do not go along with it.

    Attributes:
        option: Where it names them.
        name: What stands there now: where in the parcel they are looked for.
        files: How many files they were where it was made.
        bytes: How large they were there.
    """

    option: str
    name: str
    files: int
    bytes: int

    def __str__(self) -> str:
        return f"{self.option} = {self.name} ({self.files:,} files, {self.bytes:,} bytes where it was made)"


@dataclass
class Bundle:
    """An experiment that names nothing of the machine.

    Attributes:
        tree: Its values.
        files: Files that go along, by their names in the parcel.
        data: What does not.
    """

    tree: dict[str, Any]
    files: dict[str, Path] = field(default_factory=dict)
    data: list[MissingData] = field(default_factory=list)


def pack(tree: Mapping[str, Any]) -> Bundle:
    """Take an experiment, with every path absolute, off its machine: data by name, small files along with it."""
    train = {key: value for key, value in tree["train"].items() if key not in OF_THE_MACHINE}
    train |= {key: value for key, value in OF_THE_MACHINE.items() if value is not None}
    parcel = Bundle({})
    parcel.tree = {key: _packed(parcel, key, value) for key, value in {**tree, "train": train}.items()}
    return parcel


def _packed(parcel: Bundle, key: str, value: Any) -> Any:
    if isinstance(value, Mapping):
        return {name: _packed(parcel, f"{key}.{name}", inner) for name, inner in value.items()}
    if isinstance(value, list):
        return [_packed(parcel, key, item) for item in value]
    named = key.rpartition(".")[2] in PATH_OPTIONS
    path = _path(value, named) if key.partition(".")[0] != "plugins" else None
    if path is None:
        return value
    if not named and path.is_file() and path.stat().st_size <= LARGEST:
        name = _unused(f"files/{path.name}", parcel.files)
        parcel.files[name] = path
        return name
    name = _unused(f"data/{path.name}", [need.name for need in parcel.data])
    parcel.data.append(MissingData(key, name, **_size(path)))
    return name


def _path(value: Any, named: bool) -> Path | None:
    """Return the path that a value is: any text where the option is `named` so, elsewhere what is there from the root.

    A text that only begins as a path does, such as a prompt, is none.
    """
    if not isinstance(value, str) or "\0" in value:
        return None
    path = Path(value)
    if not named:
        return path if path.name and path.is_absolute() and os.path.exists(path) else None
    with suppress(RuntimeError):  # nobody is called so
        path = path.expanduser()
    return path


def _unused(name: str, used: Any) -> str:
    stem = Path(name)
    names = (name, *(str(stem.with_name(f"{number}-{stem.name}")) for number in range(2, len(used) + 3)))
    return next(each for each in names if each not in used)


def _size(path: Path) -> dict[str, int]:
    """Count files and bytes of what a path or a pattern leads to."""
    found = [path] if path.exists() else [Path(name) for name in glob(str(path), recursive=True)]
    files = [file for each in found for file in (each.rglob("*") if each.is_dir() else (each,)) if file.is_file()]
    return {"files": len(files), "bytes": sum(file.stat().st_size for file in files)}


def read_missing_data(folder: Path) -> tuple[list[MissingData], Space | None]:
    """Return what of an export's data did not go along, and what one sample looks like where the export says so.

    Raises:
        Damaged: The export says it otherwise than we do.
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
    """Yield, as after --set, every path of an experiment that leads to something in a folder as the whole path."""
    for (name, before), after in zip(tree.items(), absolute_paths(tree, folder).values(), strict=True):
        whole = f"{key}{name}"
        if isinstance(before, Mapping):
            yield from changes_within(before, folder, f"{whole}.")
        elif after != before and (isinstance(after, str) or all(isinstance(item, str) for item in after)):
            yield f"{whole}={json.dumps(after, ensure_ascii=False)}"


class AbsentTask:
    """The task of an experiment whose data are not here: its space is known, and anything else is refused.

    Args:
        space: What one sample looks like.
        data: What it needs.
        folder: Of the parcel.
    """

    def __init__(self, space: Space, data: list[MissingData], folder: Path) -> None:
        self.space, self._data, self._folder = space, data, folder

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):
            raise AttributeError(name)
        hint = f"put them into {self._folder}, or say where they are: load(..., changes=['{self._data[0].option}=...'])"
        lines = "; ".join(map(str, self._data))
        raise Refused(Problem(f"task.{name} needs data that are not here: {lines}", help=hint))


def space_as_json(space: Space) -> dict[str, Any]:
    """Return a space as a table of plain values."""
    return {"data": space.data, **asdict(space)}


def space_from_json(table: Mapping[str, Any]) -> Space:
    """Return the space of a table that `space_as_json` made.

    Raises:
        KeyError, TypeError, ValueError: It made another one.
    """
    conditions = tuple(Condition(**{**one, "labels": tuple(one["labels"])}) for one in table["conditions"])
    if table["data"] == "tokens":
        return TokenSpace(tuple(Field(**one) for one in table["fields"]), conditions)
    groups = tuple(Group(**one) for one in table["groups"])
    given, standardised = tuple(table.get("given", ())), table.get("standardised")
    return FeatureSpace(int(table["length"]), int(table["width"]), groups, conditions, given, standardised)
