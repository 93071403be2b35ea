"""Files that an experiment names: made absolute, so that a run goes on from anywhere; told where they lie outside."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from dither.registry.problems import Problem, Refused

from .experiment import Loaded

__all__ = ["anchored", "outside", "refuse_links"]

NAMES = frozenset({"path", "paths", "start_from", "judge"})
"""Options that name files or folders, whatever their ending."""


def anchored(tree: Mapping[str, Any], here: Path) -> dict[str, Any]:
    """Return the values of an experiment with every path that leads to something from `here` made absolute.

    A value is a path where its option is called so, or where it has an ending and there is a file of that name.
    Patterns are made absolute too. What leads nowhere stays as it is, to be told by the part that reads it.
    """
    return {key: _anchored(key, value, here) for key, value in tree.items()}


def _anchored(key: str, value: Any, here: Path) -> Any:
    if key in ("plugins", "name", "use"):
        return value
    if isinstance(value, Mapping):
        return anchored(value, here)
    if isinstance(value, list):
        return [_anchored(key, item, here) for item in value]
    if isinstance(value, str) and not Path(value).is_absolute() and _leads(key, value, here):
        return str(here / value)
    return value


def _leads(key: str, value: str, here: Path) -> bool:
    if not value or "\0" in value or value.startswith("~"):
        return False
    try:
        if key in NAMES:
            return (here / value).exists() or bool(glob.glob(value, root_dir=here, recursive=True))
        path = Path(value)  # a word may be the name of a file by chance, unless it has an ending or is absolute
        return bool(path.suffix or path.is_absolute()) and (here / path).is_file()
    except OSError:  # too long to be the name of a file
        return False


def outside(loaded: Loaded, training: bool = True) -> list[str]:
    """Return a line for each file that is read from outside the folder of an experiment and the working folder.

    Args:
        loaded: The experiment.
        training: Whether it is trained, which reads the weights that it starts from.
    """
    near = (loaded.path.parent.resolve(), Path.cwd().resolve())

    def far(path: Path) -> bool:
        whole = path.resolve()
        return not any(whole.is_relative_to(folder) for folder in near)

    found = [f"extends: {path}" for path in loaded.document.files[:-1] if far(path)]
    named = _named(loaded.experiment.model_dump(mode="json"), Path.cwd())
    found += [f"{key} = {path}" for key, path in named if far(path) and (training or key != "train.start_from")]
    return [f"a file outside the folder of the experiment is read: {line}" for line in found]


def refuse_links(run: Path, otherwise: str) -> None:
    """Look whether what is written into a run would land elsewhere: somebody may have given it to you.

    Args:
        run: The run directory.
        otherwise: What to do where the link is wanted.

    Raises:
        Refused: A link in it leads out of it; every one is named.
    """
    whole = run.resolve()
    problems = []
    for place, folders, files in os.walk(run):
        for path in (Path(place, name) for name in (*folders, *files)):
            if path.is_symlink() and not _resolved(path).is_relative_to(whole):
                hint = f"put the files themselves there; or {otherwise}"
                problems.append(Problem(f"{path} is a link that leads out of the run", help=hint))
    if problems:
        raise Refused(problems)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # links in a circle
        return Path(os.sep)


def _named(value: Any, here: Path, key: str = "") -> Iterator[tuple[str, Path]]:
    """Yield every value that leads to a file, or names a folder where one is meant, with its key; ~ is the home."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _named(inner, here, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _named(inner, here, key)
    elif isinstance(value, str) and "\0" not in value:
        whole = os.path.expanduser(value)
        if _leads(key.rpartition(".")[2], whole, here):
            yield key, Path(whole)
