"""Plugins named by an experiment file, trust in plugin files of runs, and the policy that governs them.

A plugin file inside a run, an export or a sweep, which are shared as a whole, never runs unless it
ran on this machine before with the same content, or is named on the command line.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import sha256_of
from dither.registry.files.limits import read_text
from dither.registry.plugins.discovery import PluginStatus
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.policy import Policy, policy_file, read_policy

__all__ = [
    "came_with_run",
    "governing_policy",
    "governing_policy_file",
    "load_named",
    "names_in",
    "unrecorded_plugins",
]

MARKERS = (
    ("manifest.json", "resolved.toml"),
    ("MANIFEST.json", "weights.safetensors"),
    ("sweep.json",),
)
"""Files that identify a run, an export and a sweep."""


def names_in(document: Document) -> list[str]:
    """Return `plugins = [...]`, or [] if it is invalid, which validation reports."""
    names = document.at(("plugins",)) or []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def load_named(plugins: Plugins, document: Document, trust: bool = False) -> None:
    """Load the plugins of `plugins = [...]`: files relative to the experiment file that names them, others by name.

    A plugin file must be in the folder of the experiment file or below. One that came with a run
    must have run here before, unless `trust` is set. Both can be overridden with -p. Refused with
    each plugin that cannot be loaded.
    """
    problems: list[Problem] = []
    cause: Exception | None = None
    is_shared = cache(came_with_run)
    for index, name in enumerate(names_in(document)):
        origin = document.origin(("plugins", index))
        file = None if origin is None or origin.file.startswith("--") else Path(origin.file)
        try:
            foreign = not trust and any(
                is_shared(path) for path in (document.files[-1], file) if path is not None
            )
            _load(plugins, name, file and file.parent, foreign)
        except Refused as refused:
            problems.append(replace(refused.problems[0], path=("plugins", index), origin=origin))
            cause = refused
        except (
            OSError,
            ValueError,
            RuntimeError,
        ) as error:  # a zero byte in the name, or a cycle of links
            message = f"plugin file {name!r} cannot be read: {error}"
            problems.append(Problem(message, ("plugins", index), origin, code="unreadable-file"))
            cause = error
    if problems:
        raise Refused(problems) from cause
    _remember(report.sha256 for report in plugins.files.values())


def _load(
    plugins: Plugins,
    name: str,
    folder: Path | None,
    foreign: bool,
) -> None:
    if not name.endswith(".py"):
        plugins.request(name)
        return
    path = (folder or Path()) / name
    if folder is not None and not path.resolve().is_relative_to(folder.resolve()):
        hint = f"to trust it, name it on the command line: -p {path}"
        message = f"plugin file {name} is outside the folder of the experiment file"
        raise Refused(Problem(message, help=hint, code="untrusted-plugin"))
    copies = [report.sha256 for file, report in plugins.files.items() if file.name == path.name]
    if path.resolve() in plugins.files or (copies and path.is_file() and sha256_of(path) in copies):
        return  # the second is the copy in a run of a file that is loaded
    if foreign and not _ran_before(path):
        hint = f"read it; to run it, name it on the command line: -p {path}"
        message = f"plugin file {path} came with a run and has not run on this machine before"
        raise Refused(Problem(message, help=hint, code="untrusted-plugin"))
    plugins.load_file(path)


def came_with_run(experiment: Path) -> bool:
    """Return whether an experiment file is part of a run, an export or a sweep."""
    folder = experiment.parent
    folders = (
        folder,
        folder / "..",
        folder.absolute().parent,
    )  # the last two differ if the folder is a link
    found = any(
        all(os.path.exists(path / name) for name in names) for path in folders for names in MARKERS
    )
    return found or experiment.name == "resolved.toml"


def _ran_before(plugin: Path) -> bool:
    try:
        return plugin.is_file() and (_known_plugins_folder() / sha256_of(plugin)).exists()
    except (OSError, RuntimeError):  # no home directory
        return False


def _remember(contents: Iterable[str]) -> bool:
    """Record the sha256 of plugin files that ran; return whether it could be written."""
    try:
        for content in contents:
            record = _known_plugins_folder() / content
            if not record.exists():
                record.parent.mkdir(parents=True, exist_ok=True)
                record.touch()
    except (OSError, RuntimeError):
        return False
    return True


def unrecorded_plugins(files: Mapping[Path, PluginStatus]) -> list[str]:
    """Return a warning if it cannot be recorded that plugin files ran here."""
    if _remember(report.sha256 for report in files.values()):
        return []
    options = " ".join(f"-p {path}" for path in files)
    return [f"the state folder is not writable; to resume, name the plugin files: {options}"]


def _known_plugins_folder() -> Path:
    """Return the folder of records; not the cache, which may be shared."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "dither" / "plugins"


def governing_policy(experiment: Path) -> Policy:
    """Read the registry.toml that governs an experiment file; without one, every plugin is allowed."""
    path = governing_policy_file(experiment)
    return Policy() if path is None else read_policy(path)


def governing_policy_file(experiment: Path) -> Path | None:
    """Return the registry.toml under which a run or sweep was started, if it still exists, else the nearest one.

    A file inside the run or sweep is ignored, as it may have come with it.
    """
    folder = experiment.parent
    manifest = "manifest.json"
    if (
        experiment.name == "experiment.toml" and (folder.parent / "sweep.json").is_file()
    ):  # a point of a sweep
        folder = folder.parent
        manifest = "sweep.json"
    elif experiment.name != "resolved.toml":
        return policy_file(folder)
    try:
        recorded = Path(json.loads(read_text(folder / manifest))["registry"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return policy_file(folder.parent)
    inside = folder.resolve() in recorded.resolve().parents
    if recorded.name == "registry.toml" and recorded.is_file() and not inside:
        return recorded
    return policy_file(folder.parent)
