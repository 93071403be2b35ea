"""What the shell is offered when somebody presses TAB: kinds, names, plugins, experiment files.

An answer that cannot be given is no answer: nothing may be printed into a half-written line.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from importlib import import_module
from pathlib import Path
from typing import Annotated, Any

import typer

__all__ = [
    "PANELS",
    "VERBS",
    "CheckpointOption",
    "Experiment",
    "Json",
    "Overrides",
    "PluginOption",
    "Removals",
    "RunDirectory",
    "Runs",
    "app",
    "app_for",
    "complete_experiment",
    "parse_checkpoint",
    "verbs",
]


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


app = typer.Typer(
    name="dither",
    help="Diffusion transformers assembled from named parts.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The command line as typer has it; `main` is what to call."""

Experiment = Annotated[
    Path,
    typer.Argument(help="The experiment file (TOML).", show_default=False, autocompletion=complete_experiment),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Change a value; VALUE is TOML, or else a string."),
]
Removals = Annotated[list[str] | None, typer.Option("--unset", metavar="KEY", help="Drop a value that the file gives.")]
PluginOption = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME", help="Load this plugin too, by name or file (repeat); no:NAME: without it."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Runs = Annotated[Path, typer.Option("--runs", help="The folder in which run directories are made.")]
RunDirectory = Annotated[Path, typer.Argument(help="The directory of a run.", show_default=False)]
CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", metavar="WHICH", help="Which checkpoint: newest, best, or the number of a step.")
]


def parse_checkpoint(word: str) -> Any:
    """Return the checkpoint that is meant: a word, or the number of a step.

    Raises:
        Refused: It is neither.
    """
    from dither.registry.config.errors import Refused

    if word in ("newest", "best"):
        return word
    if not (word.isascii() and word.isdigit() and len(word) <= 12):
        raise Refused(f'--checkpoint is "newest", "best" or the number of a step, not "{word}"')
    return int(word)


PANELS = {
    "experiments": {
        "run": "experiments",
        "sweep": "sweeps",
        "validate": "experiments",
        "check": "experiments",
        "explain": "experiments",
        "resolve": "experiments",
        "prepare": "data",
    },
    "parts and plugins": {
        "list": "components",
        "describe": "components",
        "plugins": "components",
        "doctor": "plugins",
        "registry": "components",
    },
    "runs": {
        "runs": "runs",
        "report": "runs",
        "sample": "runs",
        "evaluate": "runs",
        "export": "runs",
        "diff": "experiments",
        "bench": "experiments",
    },
    "authoring": {"new": "plugins", "test-plugin": "plugins", "schema": "schema"},
}
"""The verbs as help groups and orders them, each with the module whose import registers it."""
VERBS = {verb: module for panel in PANELS.values() for verb, module in panel.items()}
"""Every verb and its module; some are groups of verbs, such as `runs list`."""


def app_for(word: str | None) -> Any:
    """Return the command line with the verb that is called; with every verb where the word is none, as for help."""
    for module in [VERBS[word]] if word in VERBS else dict.fromkeys(VERBS.values()):
        import_module(f".{module}", __package__)
    order = list(VERBS)
    panel_of = {verb: panel for panel, verbs in PANELS.items() for verb in verbs}
    for entries in (app.registered_commands, app.registered_groups):
        entries.sort(key=lambda entry: order.index(_name(entry)) if _name(entry) in order else len(order))
        for entry in entries:
            entry.rich_help_panel = panel_of.get(_name(entry), entry.rich_help_panel)
    return app


def verbs() -> set[str]:
    """Return the names of all commands and groups of commands, as they are registered."""
    all_of_them = app_for(None)
    return {_name(entry) for entry in (*all_of_them.registered_commands, *all_of_them.registered_groups)}


def _name(entry: Any) -> str:
    return str(entry.name or getattr(entry.callback, "__name__", ""))
