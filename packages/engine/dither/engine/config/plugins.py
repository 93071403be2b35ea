"""The plugins that an experiment file names: installed ones, and files beside it."""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Iterable, Mapping
from dataclasses import replace
from functools import cache
from pathlib import Path

from dither.registry.config.document import Document
from dither.registry.config.errors import MAX_PROBLEMS, Problem, Refused
from dither.registry.files.atomic import sha256_of
from dither.registry.plugins.manager import Plugins
from dither.registry.plugins.policy import Policy, policy_file, read_policy
from dither.registry.plugins.status import PluginStatus

__all__ = [
    "came_with_run",
    "governing_policy",
    "governing_policy_file",
    "load_named",
    "names_in",
    "remember_plugins",
    "require_known_plugin",
    "unrecorded_plugins",
]


def names_in(document: Document) -> list[str]:
    """Return what `plugins = [...]` names; nothing where it is no list of names, which validation tells."""
    names = document.at(("plugins",)) or []
    return names if isinstance(names, list) and all(isinstance(name, str) for name in names) else []


def load_named(plugins: Plugins, document: Document, trust: bool = False) -> None:
    """Load what `plugins = [...]` names: files relative to the file that names them, others by their names.

    A file that was passed on shall not be able to run code from anywhere, so a plugin file must lie beside the
    experiment file that names it, or below; one that lies elsewhere is named on the command line. One inside a run, an
    export or a sweep, which are passed on as a whole, must have run here before, or is named as well, or `trust` is
    given.

    Raises:
        Refused: With a problem for each that cannot be loaded, where it is named; after many, no more are looked at.
    """
    problems: list[Problem] = []
    cause: Exception | None = None
    names, done = names_in(document), set()
    came = cache(came_with_run)  # with a run, an export or a sweep
    for index, name in enumerate(names):
        if len(problems) == MAX_PROBLEMS:
            message = f"{len(names) - index:,} more names of plugins are not looked at"
            problems.append(Problem(message, ("plugins",), document.origin(("plugins",))))
            break
        origin = document.origin(("plugins", index))
        file = None if origin is None or origin.file.startswith("--") else Path(origin.file)
        if (name, file) in done:
            continue
        try:
            given = not trust and any(came(each) for each in (document.files[-1], file) if each is not None)
            _load(plugins, name, file and file.parent, given)
            done.add((name, file))
        except Refused as refused:
            first = refused.problems[0]
            problems.append(replace(first, path=("plugins", index), origin=origin))
            cause = refused
        except (OSError, ValueError, RuntimeError) as error:  # a zero byte in the name, or links in a circle
            problems.append(Problem(f"plugin file {name!r} cannot be read: {error}", ("plugins", index), origin))
            cause = error
    if problems:
        raise Refused(problems) from cause
    remember_plugins(report.sha256 for report in plugins.files.values())


def _load(plugins: Plugins, name: str, folder: Path | None, given: bool) -> None:
    if not name.endswith(".py"):
        plugins.request(name)
        return
    path = (folder or Path()) / name
    if folder is not None and not path.resolve().is_relative_to(folder.resolve()):
        help_text = f"to trust it, name it on the command line: -p {path}"
        raise Refused(Problem(f"plugin file {name} does not lie beside the experiment file, or below", help=help_text))
    if path.resolve() not in plugins.files and not _same_file(plugins, path):
        if given:
            require_known_plugin(path)
        plugins.load_file(path)


def _same_file(plugins: Plugins, path: Path) -> bool:
    """Whether a file of this name and content is loaded already, as where -p names the one a run has kept a copy of."""
    if path.name not in {file.name for file in plugins.files} or not path.is_file():
        return False
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return any((file.name, report.sha256) == (path.name, sha256) for file, report in plugins.files.items())


MARKS = (("manifest.json", "resolved.toml"), ("MANIFEST.json", "weights.safetensors"), ("sweep.json",))
"""What lies in a run, in an export, and in a sweep; a manifest.json by itself may be anything."""


def came_with_run(experiment: Path) -> bool:
    """Tell whether an experiment file is part of what a command made, which is passed on as a whole."""
    folder = experiment.parent
    folders = (folder, folder / "..", folder.absolute().parent)  # the last two differ where the folder is a link
    whole = any(all(os.path.exists(place / name) for name in mark) for place in folders for mark in MARKS)
    return whole or experiment.name == "resolved.toml"


def require_known_plugin(plugin: Path) -> None:
    """Make sure that a plugin file which came with a run has run here before, with this content.

    Raises:
        Refused: It has not, and nothing of it was run.
    """
    try:
        known = plugin.is_file() and (_known_plugins_folder() / sha256_of(plugin)).exists()
    except (OSError, RuntimeError):  # there is no home
        known = False
    if not known:
        hint = f"read it; to run it, name it on the command line: -p {plugin}"
        raise Refused(
            Problem(f"plugin file {plugin} came with a run, and with this content it has not run here yet", help=hint)
        )


def remember_plugins(contents: Iterable[str]) -> bool:
    """Note the sha256 of plugin files that were run; tell whether that is kept, or they are named again next time."""
    try:
        for content in contents:
            mark = _known_plugins_folder() / content
            if not mark.exists():
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
    except (OSError, RuntimeError):
        return False
    return True


def unrecorded_plugins(files: Mapping[Path, PluginStatus]) -> list[str]:
    """Return a line, where it cannot be noted that these plugin files were run, that says how to go on."""
    if remember_plugins(report.sha256 for report in files.values()):
        return []
    named = " ".join(f"-p {path}" for path in files)
    return [f"that plugin files ran here cannot be noted in the state folder; to resume, name them: {named}"]


def _known_plugins_folder() -> Path:
    """Return the folder with a file for each; not that of prepared data, which may have come from others too."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "dither" / "plugins"


NAME = "registry.toml"


def governing_policy(experiment: Path) -> Policy:
    """Read the registry.toml that governs an experiment file; without one, everything is allowed.

    Raises:
        Refused: The file has mistakes; each is named with its line.
    """
    path = governing_policy_file(experiment)
    return Policy() if path is None else read_policy(path)


def governing_policy_file(experiment: Path) -> Path | None:
    """Return the registry.toml that a run or a sweep was started under, if it is still there, else the nearest one.

    One that lies within the run or the sweep itself is not taken: it may have come with it from elsewhere.
    """
    folder = experiment.parent
    if experiment.name == "resolved.toml":
        kept = _named(folder / "manifest.json")
    elif experiment.name == "experiment.toml" and (folder.parent / "sweep.json").is_file():  # of a point
        folder = folder.parent
        kept = _named(folder / "sweep.json")
    else:
        return policy_file(folder)
    if kept is not None and kept.name == NAME and kept.is_file() and folder.resolve() not in kept.resolve().parents:
        return kept
    return policy_file(folder.parent)


def _named(record: Path) -> Path | None:
    """Return the registry.toml that a file names; None for no such file, or where none governed."""
    try:
        return Path(json.loads(record.read_text(encoding="utf-8"))["registry"])
    except (OSError, ValueError, KeyError, TypeError, RecursionError):
        return None
