"""Manifest of a folder of prepared data: options, source, arrays with checksums, rejected rows.

Neither numpy nor torch is imported here, so that a Spec can read a manifest while an experiment is
validated.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from pydantic import BaseModel, ConfigDict, Field, StringConstraints, ValidationError

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import read_bytes, unreadable

__all__ = [
    "MANIFEST",
    "ArrayRecord",
    "Kind",
    "Manifest",
    "changed_options",
    "describe_error",
    "describe_sources",
    "read_manifest",
]

MANIFEST = "manifest.json"
"""Written last: a folder that has it is complete."""


@dataclass(frozen=True)
class Kind:
    """A kind of prepared data; `name` is a plural noun for messages, and its folder in the cache.

    The version increases when the same source would be stored differently. `command` prepares such
    data, into the folder of its `option`; `files` are patterns of files besides the manifest, its
    arrays and rejected.jsonl.
    """

    name: str
    version: int
    command: str
    option: str = "out"
    files: tuple[str, ...] = ()


FileName = Annotated[str, StringConstraints(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*$")]
"""A name in the folder, never a path."""


class ArrayRecord(BaseModel):
    """A .npy file; `sha256` is that of its values."""

    # Built when used: every listing of components imports this module.
    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    # A name in the folder, never a path.
    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\.npy$")
    dtype: str
    shape: tuple[int, ...]
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    info: dict[str, Any] = Field(default_factory=dict)


class Manifest(BaseModel):
    """Content of manifest.json.

    `made` are options, and a digest of the source under "source", compared before the data are used
    or replaced; `info` is other data of the task, `rejected` the number of rejected rows by reason
    (the rows are in rejected.jsonl), and `files` has the sha256 of every file that is not an array.
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    kind: str
    version: int
    made: dict[str, Any]
    arrays: dict[str, ArrayRecord]
    info: dict[str, Any] = Field(default_factory=dict)
    rejected: dict[str, int] = Field(default_factory=dict)
    files: dict[FileName, str] = Field(default_factory=dict)


def read_manifest(folder: Path, kind: Kind, command: str = "") -> Manifest:
    """Read a manifest and compare the length of every file; `command` prepares the data again."""
    path = folder / MANIFEST
    fix = f"run: {command or kind.command}"
    try:
        content = json.loads(read_bytes(path))
        if content["kind"] != kind.name:
            message = f"{folder} holds prepared {content['kind']}, expected {kind.name}"
            raise Refused(message, code="unknown-format")
        if content["version"] != kind.version:
            versions = f"version {content['version']}, expected {kind.version}"
            message = f"{folder} was prepared by another version of dither ({versions})"
            raise Refused(message, help=fix, code="other-version")
        manifest = Manifest.model_validate(content)
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(_not_prepared(folder, kind, fix)) from None
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        message = f"{path} is damaged: {describe_error(error)}"
        # A folder with such a manifest may be anybody's, and is not replaced.
        fix = f"delete {folder}, then {fix}"
        raise Refused(message, help=fix, code="damaged-file") from None

    # Lengths only, which takes no time; `verify` compares checksums.
    problems: list[Problem] = []
    for record in manifest.arrays.values():
        problems += _length_problems(folder / record.file, record, fix)
    if problems:
        raise Refused(problems)
    return manifest


def _not_prepared(folder: Path, kind: Kind, fix: str) -> Problem:
    if folder.is_dir():
        message = f"{folder} holds no prepared {kind.name}: no {MANIFEST}"
    elif folder.exists():
        message = f"{folder} is a file, expected a folder with {MANIFEST}"
    else:
        message = f"{folder}: no such folder of prepared {kind.name}"
    return Problem(message, help=fix, code="not-prepared")


def _length_problems(path: Path, record: ArrayRecord, fix: str) -> Iterator[Problem]:
    try:
        size = path.stat().st_size
    except OSError:
        yield Problem(f"{path} is missing", help=fix, code="file-not-found")
        return
    if size != record.bytes:
        message = (
            f"{path} has {size:,} bytes, expected {record.bytes:,} as in {MANIFEST}"
        )
        yield Problem(message, help=fix, code="damaged-file")


def describe_error(error: Exception) -> str:
    """Return the first problem of a validation error, and any other error in one line."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors(include_url=False)[0]
    return "".join(f"{key}: " for key in first["loc"]) + first["msg"]


def changed_options(manifest: Manifest, made: Mapping[str, Any]) -> list[str]:
    """Return the keys of `made` whose values differ from those in the manifest."""
    return [key for key, value in made.items() if manifest.made.get(key) != value]


def describe_sources(files: Iterable[Path], root: Path) -> dict[str, Any]:
    """Return number and bytes of source files, and a digest of names, sizes and times.

    Names are relative to `root`, so that a moved folder has the same digest.
    """
    size = 0
    lines = []
    for path in files:
        # Sizes and times, since reading large sources at each start would take minutes.
        status = path.stat()
        size += status.st_size
        lines.append(
            f"{os.path.relpath(path, root)} {status.st_size} {status.st_mtime_ns}"
        )
    # Names of files need not be UTF-8.
    content = "\n".join(sorted(lines)).encode("utf-8", "surrogateescape")
    return {
        "files": len(lines),
        "bytes": size,
        "digest": hashlib.sha256(content).hexdigest(),
    }
