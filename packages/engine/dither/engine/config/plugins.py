"""Plugins named by an experiment file, and the registry.toml that governs it.

A run, an export and a sweep are shared as a whole, with their plugin files. These run only if their
content is the recorded one, or they are named on the command line.
"""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import sha256_of
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import exists, is_file
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.policy import Policy, policy_file, read_policy

from ..files.mirror import mirror_cache

__all__ = [
    "governing_policy",
    "governing_policy_file",
    "load_named",
    "names_in",
    "recorded_checksums",
]

RECORDS = (
    ("resolved.toml", "manifest.json"),
    ("weights.safetensors", "MANIFEST.json"),
    ("sweep.json", "sweep.json"),
)
"""Files that identify a run, an export and a sweep, each with the file of checksums."""


def names_in(document: Document) -> list[str]:
    """Return `plugins = [...]`, or [] if it is invalid, which validation reports."""
    names = document.at(("plugins",))
    if isinstance(names, list) and all(isinstance(name, str) for name in names):
        return names
    return []


def load_named(plugins: Plugins, document: Document) -> None:
    """Load the plugins of `plugins = [...]`, or raise `Refused` with each that cannot be loaded.

    Files are relative to the experiment file that names them, and must be below its folder; inside
    a run, an export or a sweep, they must be as recorded. -p overrides both.
    """
    problems: list[Problem] = []
    cause: Exception | None = None
    for index, name in enumerate(names_in(document)):
        origin = document.origin(("plugins", index))
        try:
            if not name.endswith(".py"):
                plugins.request(name)
            elif origin is None or Path(origin.file) not in document.files:
                _load_file(plugins, Path(name), folder=None)
            else:
                folder = Path(origin.file).parent
                _load_file(plugins, folder / name, folder)
        except Refused as refused:
            problems.append(
                replace(refused.problems[0], path=("plugins", index), origin=origin)
            )
            cause = refused
        except (OSError, ValueError, RuntimeError) as error:
            # A zero byte in the name, or a cycle of links.
            message = f"plugin file {name!r} cannot be read: {error}"
            problems.append(
                Problem(message, ("plugins", index), origin, code="unreadable-file")
            )
            cause = error
    if problems:
        raise Refused(problems) from cause


def _load_file(plugins: Plugins, path: Path, folder: Path | None) -> None:
    """Load a plugin file that an experiment file in `folder`, or an override (None), names."""
    file = path.resolve()
    if file in plugins.files:
        return
    sha256 = sha256_of(path) if is_file(path) else None
    for loaded, status in plugins.files.items():
        # A run holds a copy of a file that -p names.
        if loaded.name == path.name and status.sha256 == sha256:
            return

    if folder is not None and (reason := _distrust(file, sha256, folder)):
        hint = f"read it; to run it, name it on the command line: -p {shlex.quote(str(path))}"
        text = f"plugin file {path} {reason}"
        raise Refused(Problem(text, help=hint, code="untrusted-plugin"))
    plugins.load_file(path)


def _distrust(file: Path, sha256: str | None, folder: Path) -> str:
    """Return why an experiment file in `folder` may not load a plugin file; "" if it may."""
    if not file.is_relative_to(folder.resolve()):
        return "is outside the folder of the experiment file"
    recorded = recorded_checksums(folder)
    # A missing file is named when it is loaded.
    if recorded is None or sha256 is None or sha256 in recorded:
        return ""
    reason = "is not as recorded by the run, export or sweep that it is part of"
    missing = [str(record) for record in _records(folder) if not exists(record)]
    if missing:
        reason += f": {', '.join(missing)} is missing"
    return reason


def recorded_checksums(folder: Path) -> set[str] | None:
    """Return the sha256 of the files of a run, export or sweep; None for another folder."""
    # A download may have recorded any checksum.
    if folder.absolute().is_relative_to(mirror_cache()):
        return set()
    records = list(_records(folder))
    checksums: set[str] = set()
    for record in records:
        # Without its record, nothing in the folder counts as recorded.
        if not exists(record):
            continue
        try:
            content = json.loads(read_text(record))
            checksums.update(_checksums_in(content))
        except (OSError, ValueError, RecursionError) as error:
            message = f"{record} cannot be read: {error}"
            raise Refused(message, code="unreadable-file") from None
    return checksums if records else None


def _records(folder: Path) -> Iterator[Path]:
    """Yield the files of checksums that the runs, exports and sweeps have whose files are in a folder."""
    # Experiment files are in the folder itself, in `extends`, or in the folder of a point.
    for place in (folder, folder.absolute().parent):
        for mark, record in RECORDS:
            if exists(place / mark):
                yield place / record


def _checksums_in(value: Any) -> Iterator[str]:
    if isinstance(value, list):
        for item in value:
            yield from _checksums_in(item)
    elif isinstance(value, dict):
        for key, item in value.items():
            if key == "sha256" and isinstance(item, str):
                yield item
            else:
                yield from _checksums_in(item)


def governing_policy(experiment: Path) -> Policy:
    """Read the registry.toml that governs an experiment file; without one, all is allowed."""
    path = governing_policy_file(experiment)
    return Policy() if path is None else read_policy(path)


def governing_policy_file(experiment: Path) -> Path | None:
    """Return the registry.toml under which a run or sweep was started, else the nearest one.

    A file inside the run or sweep is ignored, as it may have come with it.
    """
    folder = experiment.parent
    record = "manifest.json"
    if experiment.name == "experiment.toml" and is_file(folder.parent / "sweep.json"):
        folder = folder.parent
        record = "sweep.json"
    elif experiment.name != "resolved.toml":
        return policy_file(folder)
    try:
        recorded = Path(json.loads(read_text(folder / record))["registry"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return policy_file(folder.parent)
    # What came with a run must not decide which of its plugins may run.
    inside = folder.resolve() in recorded.resolve().parents
    usable = recorded.name == "registry.toml" and recorded.is_absolute()
    if usable and is_file(recorded) and not inside:
        return recorded
    return policy_file(folder.parent)
