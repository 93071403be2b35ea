"""The plugins that an experiment file names: installed ones, and files beside it."""

from __future__ import annotations

from pathlib import Path

from dither.registry.document import Document
from dither.registry.plugins import Plugins
from dither.registry.problems import Problem, Refused

__all__ = ["load_named"]


def load_named(plugins: Plugins, document: Document) -> None:
    """Load what `plugins = [...]` names: files relative to the file that names them, others by their names.

    A file that was passed on shall not be able to run code from anywhere, so a plugin file must lie beside the
    experiment file that names it, or below; one that lies elsewhere is named on the command line.

    Raises:
        Refused: With a problem for each that cannot be loaded, where it is named.
    """
    names = document.at(("plugins",)) or []
    if not isinstance(names, list) or not all(isinstance(name, str) for name in names):
        return  # validation says what is wrong with it
    problems: list[Problem] = []
    cause: Exception | None = None
    for index, name in enumerate(names):
        origin = document.origin(("plugins", index))
        folder = None if origin is None or origin.file.startswith("--") else Path(origin.file).parent
        try:
            _load(plugins, name, folder)
        except Refused as refused:
            first = refused.problems[0]
            problems.append(Problem(first.message, ("plugins", index), origin, first.help))
            cause = refused
        except (OSError, ValueError, RuntimeError) as error:  # a zero byte in the name, or links in a circle
            problems.append(Problem(f"plugin file {name!r} cannot be read: {error}", ("plugins", index), origin))
            cause = error
    if problems:
        raise Refused(problems) from cause


def _load(plugins: Plugins, name: str, folder: Path | None) -> None:
    if not name.endswith(".py"):
        plugins.ask(name)
        return
    path = (folder or Path()) / name
    if folder is not None and not path.resolve().is_relative_to(folder.resolve()):
        help_text = f"to trust it, name it on the command line: -p {path}"
        raise Refused(Problem(f"plugin file {name} does not lie beside the experiment file, or below", help=help_text))
    if path.resolve() not in plugins.files:
        plugins.load_file(path)
