"""Paths in experiment files and run directories: made absolute, checked for links, and found by similar names."""

from __future__ import annotations

import glob
import os
from collections.abc import Iterator, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, Refused, nearest

from .load_experiment import Loaded

__all__ = ["PATH_OPTIONS", "absolute_paths", "external_files", "not_a_run", "not_a_sweep", "reject_escaping_links"]

PATH_OPTIONS = frozenset({"path", "paths", "start_from", "judge"})
"""Options that name files or folders."""


def absolute_paths(tree: Mapping[str, Any], folder: Path) -> dict[str, Any]:
    """Return the values of an experiment with every path that exists below `folder` made absolute.

    A value is a path if its option is one of `PATH_OPTIONS`, or if it has a suffix and names a file. Patterns are made
    absolute too. Missing paths stay as they are; the component that reads them reports them.
    """
    return {key: _absolute_path(key, value, folder) for key, value in tree.items()}


def _absolute_path(key: str, value: Any, folder: Path) -> Any:
    if key in ("plugins", "name", "use"):
        return value
    if isinstance(value, Mapping):
        return absolute_paths(value, folder)
    if isinstance(value, list):
        return [_absolute_path(key, item, folder) for item in value]
    if isinstance(value, str) and not Path(value).is_absolute() and _is_path(key, value, folder):
        return str(folder / value)
    return value


def _is_path(key: str, value: str, folder: Path) -> bool:
    if not value or "\0" in value or value.startswith("~"):
        return False
    try:
        if key in PATH_OPTIONS:
            return (folder / value).exists() or bool(glob.glob(value, root_dir=folder, recursive=True))
        path = Path(value)  # an ordinary word may happen to be the name of a file, hence the suffix
        return bool(path.suffix or path.is_absolute()) and (folder / path).is_file()
    except OSError:  # too long for a file name
        return False


def external_files(loaded: Loaded, training: bool = True) -> list[str]:
    """Return a warning for each file read from outside the folder of the experiment and the working directory.

    Args:
        loaded: The experiment.
        training: Whether the weights of `train.start_from` are read.
    """
    inside = (loaded.path.parent.resolve(), Path.cwd().resolve())

    def is_external(path: Path) -> bool:
        return not any(path.resolve().is_relative_to(folder) for folder in inside)

    named = [("extends", ": ", path) for path in loaded.document.files[:-1]]
    options = _iter_paths(loaded.experiment.model_dump(mode="json"), Path.cwd())
    named += [(key, " = ", path) for key, path in options if training or key != "train.start_from"]
    return [
        f"reads a file outside the folder of the experiment: {key}{sign}{path}"
        for key, sign, path in named
        if is_external(path)
    ]


def _iter_paths(value: Any, folder: Path, key: str = "") -> Iterator[tuple[str, Path]]:
    """Yield the key and the path of every value that is an existing path; ~ is expanded."""
    if isinstance(value, Mapping):
        for name, inner in value.items():
            yield from _iter_paths(inner, folder, f"{key}.{name}" if key else name)
    elif isinstance(value, list):
        for inner in value:
            yield from _iter_paths(inner, folder, key)
    elif isinstance(value, str) and "\0" not in value:
        expanded = os.path.expanduser(value)
        if _is_path(key.rpartition(".")[2], expanded, folder):
            yield key, Path(expanded)


def reject_escaping_links(run: Path, alternative: str) -> None:
    """Refuse to write into a run directory that contains symbolic links to somewhere else.

    Args:
        run: The run directory, perhaps from another machine.
        alternative: Help text for users who want the link.

    Raises:
        Refused: With a problem for every such link.
    """
    root = run.resolve()
    problems = []
    for folder, folders, files in os.walk(run):
        for path in (Path(folder, name) for name in (*folders, *files)):
            if path.is_symlink() and not _resolved(path).is_relative_to(root):
                hint = f"replace it with the files themselves; or {alternative}"
                problems.append(Problem(f"{path} links outside the run directory", help=hint, code="escaping-link"))
    if problems:
        raise Refused(problems)


def _resolved(path: Path) -> Path:
    try:
        return path.resolve()
    except (OSError, RuntimeError):  # a cycle of links
        return Path(os.sep)


def not_a_run(path: Path, missing: str) -> Refused:
    """Return the error for a path that is not a run directory because a file is missing."""
    return _not_a("run", path, missing)


def not_a_sweep(path: Path, missing: str) -> Refused:
    """Return the error for a path that is not a sweep directory because a file is missing."""
    return _not_a("sweep", path, missing)


def _not_a(kind: str, path: Path, missing: str) -> Refused:
    reason, hint = "cannot be read", None
    with suppress(OSError):
        if path.is_dir():
            reason, hint = f"missing {missing}", _suggestion(path, kind)
        elif path.exists():
            reason = "it is a file"
        else:
            names = [inner.name for inner in path.parent.iterdir() if inner.is_dir()] if path.parent.is_dir() else []
            close = nearest(path.name, names)
            reason, hint = "does not exist", f'did you mean "{path.with_name(close)}"?' if close else None
    return Refused(Problem(f"not a {kind} directory: {path} ({reason})", help=hint, code="not-a-run"))


def _suggestion(path: Path, kind: str) -> str | None:
    if (path / "sweep.json").is_file():
        return f"it is a sweep: dither sweep status {path}; its runs are two folders below"
    if (path / "resolved.toml").is_file():
        return f"it is a run: dither run --resume {path} resumes it"
    mark = "resolved.toml" if kind == "run" else "sweep.json"
    inside = sorted(file.parent for file in path.glob(f"*/{mark}"))
    if len(inside) > 1:
        return f"it contains {len(inside)} {kind}s; the newest is {inside[-1]}"
    return f"it contains the {kind} {inside[0]}" if inside else None
