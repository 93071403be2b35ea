"""Which plugin files have run here before.

One inside a run, an export or a sweep is code that somebody may have given you: it runs where its content has run
already, from beside an experiment file, or where the command line names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from dither.registry.problems import Problem, Refused
from dither.registry.storage import sha256_of

__all__ = ["is_given", "refuse_unknown", "remember"]

MARKS = ("manifest.json", "MANIFEST.json", "../sweep.json")
"""What lies beside an experiment file that was written into a run, an export, or a sweep."""


def is_given(experiment: Path) -> bool:
    """Tell whether an experiment file is part of what a command made, which is passed on as a whole."""
    return experiment.name == "resolved.toml" or any((experiment.parent / mark).exists() for mark in MARKS)


def refuse_unknown(plugin: Path) -> None:
    """Make sure that a plugin file which came with a run has run here before, with this content.

    Raises:
        Refused: It has not, and nothing of it was run.
    """
    try:
        known = plugin.is_file() and (_known() / sha256_of(plugin)).exists()
    except (OSError, RuntimeError):  # there is no home
        known = False
    if not known:
        hint = f"read it; to run it, name it on the command line: -p {plugin}"
        raise Refused(
            Problem(f"plugin file {plugin} came with a run, and with this content it has not run here yet", help=hint)
        )


def remember(contents: Iterable[str]) -> None:
    """Note the sha256 of plugin files that were run; where nothing can be written, they are named again next time."""
    with suppress(OSError, RuntimeError):
        for content in contents:
            mark = _known() / content
            if not mark.exists():
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()


def _known() -> Path:
    """Return the folder with a file for each; not that of prepared data, which may have come from others too."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "dither" / "plugins"
