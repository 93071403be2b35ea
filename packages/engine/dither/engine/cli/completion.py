"""What the shell is offered when somebody presses TAB: kinds, names, plugins, experiment files.

An answer that cannot be given is no answer: nothing may be printed into a half-written line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

import typer

__all__ = ["complete_experiment", "complete_form", "complete_kind", "complete_name", "complete_plugin"]


def complete_experiment(incomplete: str) -> list[str]:
    """Return experiment files, and folders to go on with; a lone folder is entered at once."""
    with contextlib.suppress(OSError):
        found = list(_entries(incomplete))
        while len(found) == 1 and found[0].endswith("/"):
            found = list(_entries(found[0]))
        return found
    return []


def _entries(start: str) -> Iterator[str]:
    folder, _, word = start.rpartition("/")
    inside = folder + "/" if "/" in start else ""
    for entry in sorted(os.scandir(Path(inside or ".").expanduser()), key=lambda entry: entry.name):
        if not entry.name.startswith(word) or (entry.name.startswith((".", "_")) and not word):
            continue
        if entry.is_dir() and _holds_toml(Path(entry.path)):
            yield f"{inside}{entry.name}/"
        elif entry.name.endswith(".toml"):
            yield inside + entry.name


def _holds_toml(folder: Path, depth: int = 2) -> bool:
    with contextlib.suppress(OSError):
        entries = list(folder.iterdir())
        if any(entry.suffix == ".toml" for entry in entries):
            return True
        folders = [entry for entry in entries if entry.is_dir() and not entry.name.startswith((".", "_"))]
        return depth > 0 and any(_holds_toml(entry, depth - 1) for entry in folders)
    return False


def complete_kind(incomplete: str) -> list[str]:
    """Return the kinds of part."""
    from dither.registry.kinds import KINDS

    return [kind for kind in KINDS if kind.startswith(incomplete)]


def complete_name(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the names of the kind that stands before."""
    with contextlib.suppress(Exception):
        from .catalogue import visible_plugins

        names = visible_plugins(None).catalog.names(str(ctx.params.get("kind")))
        return [name for name in names if name.startswith(incomplete)]
    return []


def complete_form(ctx: typer.Context, incomplete: str) -> list[str]:
    """Return the forms in which the task of a run exports samples."""
    with contextlib.suppress(Exception):
        from dither.engine.experiment import load_experiment
        from dither.engine.rundir import resolved_file

        task = load_experiment(resolved_file(Path(str(ctx.params.get("run_directory"))))).experiment.task
        return [form for form in task.exports if form.startswith(incomplete)]
    return []


def complete_plugin(incomplete: str) -> list[str]:
    """Return the names of installed plugins."""
    with contextlib.suppress(Exception):
        from .catalogue import visible_plugins

        names = [report.name for report in visible_plugins(None).reports]
        return [name for name in names if name.startswith(incomplete)]
    return []
