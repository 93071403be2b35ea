"""Files that an experiment names: made absolute, so that a run goes on from anywhere; told where they lie outside."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, Refused, nearest

from .load_experiment import Loaded

__all__ = ["absolute_paths", "external_files", "not_a_run", "not_a_sweep", "reject_escaping_links"]

PATH_OPTIONS = frozenset({"path", "paths", "start_from", "judge"})
"""Options that name files or folders, whatever their ending."""


def absolute_paths(tree: Mapping[str, Any], here: Path) -> dict[str, Any]:
    """Return the values of an experiment with every path that leads to something from `here` made absolute.

    A value is a path where its option is called so, or where it has an ending and there is a file of that name.
    Patterns are made absolute too. What leads nowhere stays as it is, to be told by the part that reads it.
    """
    return {key: _absolute_path(key, value, here) for key, value in tree.items()}


def _absolute_path(key: str, value: Any, here: Path) -> Any:
    if key in ("plugins", "name", "use"):
        return value
    if isinstance(value, Mapping):
        return absolute_paths(value, here)
    if isinstance(value, list):
        return [_absolute_path(key, item, here) for item in value]
    if isinstance(value, str) and not Path(value).is_absolute() and _is_path(key, value, here):
        return str(here / value)
    return value


def _is_path(key: str, value: str, here: Path) -> bool:
    if not value or "\0" in value or value.startswith("~"):
        return False
    try:
        if key in PATH_OPTIONS:
            return (here / value).exists() or bool(glob.glob(value, root_dir=here, recursive=True))
        path = Path(value)  # a word may be the name of a file by chance, unless it has an ending or is absolute
        return bool(path.suffix or path.is_absolute()) and (here / path).is_file()
    except OSError:  # too long to be the name of a file
        return False


def external_files(loaded: Loaded, training: bool = True) -> list[str]:
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
    named = _iter_paths(loaded.experiment.model_dump(mode="json"), Path.cwd())
    found += [f"{key} = {path}" for key, path in named if far(path) and (training or key != "train.start_from")]
    return [f"a file outside the folder of the experiment is read: {line}" for line in found]


def reject_escaping_links(run: Path, otherwise: str) -> None:
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


def _iter_paths(value: Any, here: Path, key: str = "") -> Iterator[tuple[str, Path]]:
    """Yield every value that leads to a file, or names a folder where one is meant, with its key; ~ is the home."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _iter_paths(inner, here, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_paths(inner, here, key)
    elif isinstance(value, str) and "\0" not in value:
        whole = os.path.expanduser(value)
        if _is_path(key.rpartition(".")[2], whole, here):
            yield key, Path(whole)


def not_a_run(path: Path, lacks: str) -> Refused:
    """Return the refusal of what is no run directory, because it lacks some files."""
    return _refusal(path, "run directory", lacks)


def not_a_sweep(path: Path, lacks: str) -> Refused:
    """Return the refusal of what is no sweep directory, because it lacks some files."""
    return _refusal(path, "sweep directory", lacks)


def _refusal(path: Path, what: str, lacks: str) -> Refused:
    with suppress(OSError):
        if not path.exists():
            close = nearest(path.name, _names(path.parent))
            hint = f'did you mean "{path.with_name(close)}"?' if close else None
            return Refused(Problem(f"{path} is no {what}: it does not exist", help=hint))
        if not path.is_dir():
            return Refused(Problem(f"{path} is no {what}: it is a file"))
        return Refused(Problem(f"{path} is no {what}: it has no {lacks}", help=_suggestion(path, what)))
    return Refused(f"{path} is no {what}: it cannot be read")


def _suggestion(path: Path, what: str) -> str | None:
    """Say what a folder is instead."""
    if (path / "sweep.json").is_file():
        return f"it is a sweep: dither sweep status {path}; the runs of its points lie two folders below"
    if (path / "resolved.toml").is_file():
        return f"it is a run: dither run --resume {path} goes on with it"
    kind, mark = ("run", "resolved.toml") if what == "run directory" else ("sweep", "sweep.json")
    inside = sorted(file.parent for file in path.glob(f"*/{mark}"))
    if len(inside) > 1:
        return f"it holds {len(inside)} {kind}s; the newest is {inside[-1]}"
    return f"its {kind} is {inside[0]}" if inside else None


def _names(folder: Path) -> list[str]:
    return [path.name for path in folder.iterdir() if path.is_dir()] if folder.is_dir() else []
