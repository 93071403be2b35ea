"""Manifest of a folder of prepared data: options and source, one record per array with its checksum, rejected rows.

Neither numpy nor torch is imported here, so that a Spec can read a manifest while an experiment is
validated.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import read_bytes

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

MANIFEST: Final = "manifest.json"
"""Written last: a folder that has it is complete."""


@dataclass(frozen=True)
class Kind:
    """A kind of prepared data; `name` is a plural noun for messages, and its folder in the cache.

    The version increases when the same source would be stored differently. `command` prepares such
    data, into the folder of its `option`; `files` are patterns of files besides the manifest, its
    arrays and rejected.jsonl. `earlier` are former names of the manifest; without `upgrade` of its
    content, the data must be prepared again.
    """

    name: str
    version: int
    command: str
    option: str = "out"
    files: tuple[str, ...] = ()
    earlier: tuple[str, ...] = ()
    upgrade: Callable[[Any], dict[str, Any]] | None = None


class ArrayRecord(BaseModel):
    """A .npy file, or the values of one without its header (.bin); `sha256` is that of the values."""

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    file: str = Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_.-]*\.(npy|bin)$")
    dtype: str
    shape: tuple[int, ...]
    bytes: int = Field(ge=0)
    sha256: str = Field(pattern=r"^[0-9a-f]{64}$")
    info: dict[str, Any] = Field(default_factory=dict)


class Manifest(BaseModel):
    """Content of manifest.json.

    `made` are options, and a digest of the source under "source", compared before the data are used
    or replaced; `info` is other data of the task, `rejected` the number of rejected rows by reason
    (the rows are in rejected.jsonl).
    """

    model_config = ConfigDict(extra="forbid", frozen=True, defer_build=True)
    kind: str
    version: int
    made: dict[str, Any]
    arrays: dict[str, ArrayRecord]
    info: dict[str, Any] = Field(default_factory=dict)
    rejected: dict[str, int] = Field(default_factory=dict)


def read_manifest(folder: Path, kind: Kind, command: str = "") -> Manifest:
    """Read a manifest and compare the length of every file with it; `command` prepares the data again."""
    path = folder / MANIFEST
    fix = f"run: {command or kind.command}"
    earlier = next((folder / name for name in kind.earlier if (folder / name).is_file()), path)
    upgrade = kind.upgrade if earlier != path and not path.is_file() else None
    try:
        content = json.loads(read_bytes(earlier if upgrade else path))
        if upgrade is not None:
            content = upgrade(content)
        if content["kind"] != kind.name:
            raise Refused(
                f"{folder} holds prepared {content['kind']}, expected {kind.name}",
                code="unknown-format",
            )
        if content["version"] != kind.version:
            raise Refused(
                _other_version(
                    folder, f"version {content['version']}, expected {kind.version}", fix
                )
            )
        manifest = Manifest.model_validate(content)
    except (FileNotFoundError, NotADirectoryError):
        raise Refused(_not_prepared(folder, kind, fix)) from None
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", code="unreadable-file") from None
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Refused(
            Problem(f"{path} is damaged: {describe_error(error)}", help=fix, code="damaged-file")
        ) from None
    if problems := [
        p
        for record in manifest.arrays.values()
        for p in _length_problems(folder / record.file, record, fix)
    ]:
        raise Refused(problems)
    return manifest


def describe_error(error: Exception) -> str:
    """Return the first problem of a validation error, and any other error in one line."""
    if not isinstance(error, ValidationError):
        return f"{type(error).__name__}: {error}"
    first = error.errors(include_url=False)[0]
    return "".join(f"{key}: " for key in first["loc"]) + first["msg"]


def _not_prepared(folder: Path, kind: Kind, fix: str) -> Problem:
    if any((folder / name).is_file() for name in kind.earlier):
        return _other_version(folder, "an earlier version", fix)
    if folder.is_dir():
        return Problem(
            f"{folder} holds no prepared {kind.name}: no {MANIFEST}", help=fix, code="not-prepared"
        )
    if folder.exists():
        return Problem(
            f"{folder} is a file, expected a folder with {MANIFEST}", code="not-prepared"
        )
    return Problem(
        f"{folder}: no such folder of prepared {kind.name}", help=fix, code="not-prepared"
    )


def _other_version(folder: Path, versions: str, fix: str) -> Problem:
    return Problem(
        f"{folder} was prepared by another version of dither ({versions})",
        help=fix,
        code="other-version",
    )


def _length_problems(path: Path, record: ArrayRecord, fix: str) -> Iterator[Problem]:
    try:
        size = path.stat().st_size
    except OSError:
        yield Problem(f"{path} is missing", help=fix, code="file-not-found")
    else:
        if size != record.bytes:
            message = f"{path} has {size:,} bytes, expected {record.bytes:,} as in {MANIFEST}"
            yield Problem(message, help=fix, code="damaged-file")


def changed_options(manifest: Manifest, made: Mapping[str, Any]) -> list[str]:
    """Return the keys of `made` whose values differ from those in the manifest."""
    return [key for key, value in made.items() if manifest.made.get(key) != value]


def describe_sources(files: Iterable[Path], root: Path) -> dict[str, Any]:
    """Return number, bytes and a digest of names relative to `root`, sizes and modification times of source files."""
    states = [(os.path.relpath(path, root), path.stat()) for path in files]
    lines = [f"{name} {state.st_size} {state.st_mtime_ns}" for name, state in states]
    digest = hashlib.sha256("\n".join(sorted(lines)).encode("utf-8", "surrogateescape")).hexdigest()
    return {
        "files": len(states),
        "bytes": sum(state.st_size for _, state in states),
        "digest": digest,
    }
