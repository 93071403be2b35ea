"""Paths in experiment files and run directories: made absolute, checked for links, and found by similar names."""

from __future__ import annotations

import glob
import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Problem, Refused, nearest

__all__ = ["PATH_OPTIONS", "absolute_paths", "not_a_run", "reject_escaping_links"]

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
    with suppress(OSError):  # too long for a file name
        if key in PATH_OPTIONS:
            return (folder / value).exists() or bool(glob.glob(value, root_dir=folder, recursive=True))
        return bool(Path(value).suffix) and (folder / value).is_file()  # a word may happen to be the name of a file
    return False


def reject_escaping_links(run: Path, alternative: str) -> None:
    """Refuse to write into a run directory with symbolic links to somewhere else; `alternative` is a help text."""
    hint = f"replace it with the files themselves; or {alternative}"
    problems = [
        Problem(f"{path} links outside the run directory", help=hint, code="escaping-link")
        for folder, folders, files in os.walk(run)
        for path in (Path(folder, name) for name in (*folders, *files))
        if path.is_symlink() and not Path(os.path.realpath(path)).is_relative_to(os.path.realpath(run))
    ]
    if problems:
        raise Refused(problems)


def not_a_run(path: Path, missing: str, kind: str = "run") -> Refused:
    """Return the error for a path that is not a directory of a run or sweep because a file is missing."""
    reason, hint = "cannot be read", None
    with suppress(OSError):
        if path.is_dir():
            reason, hint = f"missing {missing}", _suggestion(path, kind)
        elif path.exists():
            reason = "it is a file"
        else:
            close = nearest(path.name, [inner.name for inner in path.parent.glob("*/")])
            reason, hint = "does not exist", f'did you mean "{path.with_name(close)}"?' if close else None
    return Refused(Problem(f"not a {kind} directory: {path} ({reason})", help=hint, code="not-a-run"))


def _suggestion(path: Path, kind: str) -> str | None:
    if (path / "sweep.json").is_file():
        return f"it is a sweep: dither sweep status {path}; its runs are two folders below"
    if (path / "resolved.toml").is_file():
        return f"it is a run: dither run --resume {path} resumes it"
    inside = sorted(file.parent for file in path.glob("*/resolved.toml" if kind == "run" else "*/sweep.json"))
    return f"it contains {len(inside)} {kind}s; the newest is {inside[-1]}" if inside else None
