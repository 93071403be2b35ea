"""The plugins that an experiment file names: installed ones, and files beside it."""

from __future__ import annotations

import hashlib
from functools import cache
from pathlib import Path

from dither.registry.document import Document
from dither.registry.plugins import Plugins
from dither.registry.problems import MOST, Problem, Refused

from .trust import is_given, refuse_unknown, remember

__all__ = ["load_named", "names_in"]


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
    came = cache(is_given)  # with a run, an export or a sweep
    for index, name in enumerate(names):
        if len(problems) == MOST:
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
            problems.append(Problem(first.message, ("plugins", index), origin, first.help))
            cause = refused
        except (OSError, ValueError, RuntimeError) as error:  # a zero byte in the name, or links in a circle
            problems.append(Problem(f"plugin file {name!r} cannot be read: {error}", ("plugins", index), origin))
            cause = error
    if problems:
        raise Refused(problems) from cause
    remember(report.sha256 for report in plugins.files.values())


def _load(plugins: Plugins, name: str, folder: Path | None, given: bool) -> None:
    if not name.endswith(".py"):
        plugins.ask(name)
        return
    path = (folder or Path()) / name
    if folder is not None and not path.resolve().is_relative_to(folder.resolve()):
        help_text = f"to trust it, name it on the command line: -p {path}"
        raise Refused(Problem(f"plugin file {name} does not lie beside the experiment file, or below", help=help_text))
    if path.resolve() not in plugins.files and not _same_file(plugins, path):
        if given:
            refuse_unknown(path)
        plugins.load_file(path)


def _same_file(plugins: Plugins, path: Path) -> bool:
    """Whether a file of this name and content is loaded already, as where -p names the one a run has kept a copy of."""
    if path.name not in {file.name for file in plugins.files} or not path.is_file():
        return False
    sha256 = hashlib.sha256(path.read_bytes()).hexdigest()
    return any((file.name, report.sha256) == (path.name, sha256) for file, report in plugins.files.items())
