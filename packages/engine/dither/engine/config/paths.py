"""Paths in experiment files and run directories: made absolute, and found by similar names."""

from __future__ import annotations

import copy
import glob
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from dither.registry.config.document import Document
from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.config.validation import path_options
from dither.registry.files.lookup import command_line, exists, is_file, is_folder
from dither.registry.plugins.catalog import Catalog

from ..files.installed_models import EXPERIMENT, installed_models
from ..files.run_folders import by_time
from .experiment import Experiment

__all__ = ["absolute_path", "absolute_paths", "not_a_run", "not_an_experiment"]


def absolute_paths(
    tree: Mapping[str, Any], folder: Path, catalog: Catalog
) -> dict[str, Any]:
    """Return the values of an experiment with every path that exists below `folder` made absolute.

    Paths are the options that components of the catalogue declare as paths. Patterns are made
    absolute too. Missing paths stay as they are; the component that reads them reports them.
    """
    absolute = copy.deepcopy(dict(tree))
    for (*place, key), _ in list(path_options(Experiment, absolute, catalog)):
        table = Document.value_of(absolute, place)
        table[key] = absolute_path(table[key], folder)
    return absolute


def absolute_path(value: str, folder: Path) -> str:
    """Return a path or pattern below `folder` as an absolute path if it exists, else as it is."""
    # Nothing to look up: glob rejects NUL, and `~` is the shell's.
    if not value or "\0" in value or value.startswith("~") or Path(value).is_absolute():
        return value
    # Too long for a file name.
    with suppress(OSError):
        if exists(folder / value) or glob.glob(value, root_dir=folder, recursive=True):
            return str(folder / value)
    return value


def not_a_run(path: Path, missing: str, kind: str = "run") -> Refused:
    """Return the error for a path that is not a directory of a run or sweep."""
    reason = "does not exist"
    hint = None
    try:
        path.stat()
        reason = "it is a file"
        if is_folder(path):
            reason = f"missing {missing}"
            hint = _suggestion(path, kind)
    except (FileNotFoundError, NotADirectoryError):
        close = nearest(path.name, [inner.name for inner in path.parent.glob("*/")])
        if close:
            hint = f'did you mean "{path.with_name(close)}"?'
        if path.as_posix() in installed_models():
            reason = "a trained model"
            hint = f"dither sample and evaluate take {path}, as does dither.load"
    except OSError as error:
        reason = error.strerror or str(error)
    except ValueError as error:
        reason = str(error)
    return Refused(
        Problem(
            f"not a {kind} directory: {path} ({reason})", help=hint, code="not-a-run"
        )
    )


def not_an_experiment(path: Path) -> Refused | None:
    """Return the error for the name of an installed model; None for any other path."""
    # Other paths need no search of the distributions.
    if len(path.parts) != 2 or exists(path):
        return None
    folder = installed_models().get(path.as_posix())
    if folder is None:
        return None
    message = f"{path} is a trained model, not an experiment"
    hint = f'its experiment is {folder / EXPERIMENT}; train.start_from = "{path}" starts from its weights'
    return Refused(Problem(message, help=hint, code="file-not-found"))


def _suggestion(path: Path, kind: str) -> str | None:
    if is_file(path / "sweep.json"):
        command = command_line("sweep", "status", path)
        return f"it is a sweep: {command}; its runs are two folders below"
    if is_file(path / "weights.safetensors"):
        return (
            f"it is an export: in Python, dither.load({str(path)!r}) returns its system"
        )
    if is_file(path / "resolved.toml"):
        return f"it is a run: {command_line('run', '--resume', path)} resumes it"
    inside = sorted(
        file.parent
        for file in path.glob("*/resolved.toml" if kind == "run" else "*/sweep.json")
    )
    # `latest` is a link to one of them.
    inside = [run for run in inside if not run.is_symlink()]
    if not inside:
        return None
    return (
        f"it contains {len(inside)} {kind}s; the newest is {max(inside, key=by_time)}"
    )
