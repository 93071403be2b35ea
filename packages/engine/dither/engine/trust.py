"""Which plugin files have run here before.

One inside a run, an export or a sweep is code that somebody may have given you: it runs where its content has run
already, from beside an experiment file, or where the command line names it.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping
from pathlib import Path

from dither.registry.problems import Problem, Refused
from dither.registry.reports import PluginReport
from dither.registry.storage import sha256_of

__all__ = ["is_given", "not_kept", "refuse_unknown", "remember"]

MARKS = (("manifest.json", "resolved.toml"), ("MANIFEST.json", "weights.safetensors"), ("sweep.json",))
"""What lies in a run, in an export, and in a sweep; a manifest.json by itself may be anything."""


def is_given(experiment: Path) -> bool:
    """Tell whether an experiment file is part of what a command made, which is passed on as a whole."""
    folder = experiment.parent
    folders = (folder, folder / "..", folder.absolute().parent)  # the last two differ where the folder is a link
    whole = any(all(os.path.exists(place / name) for name in mark) for place in folders for mark in MARKS)
    return whole or experiment.name == "resolved.toml"


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


def remember(contents: Iterable[str]) -> bool:
    """Note the sha256 of plugin files that were run; tell whether that is kept, or they are named again next time."""
    try:
        for content in contents:
            mark = _known() / content
            if not mark.exists():
                mark.parent.mkdir(parents=True, exist_ok=True)
                mark.touch()
    except (OSError, RuntimeError):
        return False
    return True


def not_kept(files: Mapping[Path, PluginReport]) -> list[str]:
    """Return a line, where it cannot be noted that these plugin files were run, that says how to go on."""
    if remember(report.sha256 for report in files.values()):
        return []
    named = " ".join(f"-p {path}" for path in files)
    return [f"that plugin files ran here cannot be noted in the state folder; to resume, name them: {named}"]


def _known() -> Path:
    """Return the folder with a file for each; not that of prepared data, which may have come from others too."""
    base = Path(os.environ.get("XDG_STATE_HOME", ""))
    return (base if base.is_absolute() else Path.home() / ".local" / "state") / "dither" / "plugins"
