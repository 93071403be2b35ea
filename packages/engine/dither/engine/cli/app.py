"""The typer application: common options, commands by module, commands from plugins, completion of file names.

Nothing heavy is imported here: help and completion must be fast.
"""

from __future__ import annotations

import contextlib
import os
import sys
from collections.abc import Collection, Iterable, Iterator, Sequence
from importlib import import_module
from importlib.metadata import entry_points
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

if TYPE_CHECKING:
    from ..config.load_experiment import Loaded

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
    "load",
    "parse_checkpoint",
    "verbs",
]


def complete_experiment(incomplete: str) -> list[str]:
    """Complete the name of an experiment file; a single matching folder is opened."""
    with contextlib.suppress(OSError):
        matches = list(_entries(incomplete))
        while len(matches) == 1 and matches[0].endswith("/"):
            matches = list(_entries(matches[0]))
        return matches
    return []


def _entries(start: str) -> Iterator[str]:
    folder, _, word = start.rpartition("/")
    prefix = folder + "/" if "/" in start else ""
    for entry in sorted(os.scandir(Path(prefix or ".").expanduser()), key=lambda entry: entry.name):
        if not entry.name.startswith(word) or (entry.name.startswith((".", "_")) and not word):
            continue
        if entry.is_dir() and _contains_toml(Path(entry.path)):
            yield f"{prefix}{entry.name}/"
        elif entry.name.endswith(".toml"):
            yield prefix + entry.name


def _contains_toml(folder: Path, depth: int = 2) -> bool:
    with contextlib.suppress(OSError):
        entries = list(folder.iterdir())
        if any(entry.suffix == ".toml" for entry in entries):
            return True
        folders = [entry for entry in entries if entry.is_dir() and not entry.name.startswith((".", "_"))]
        return depth > 0 and any(_contains_toml(entry, depth - 1) for entry in folders)
    return False


app = typer.Typer(
    name="dither",
    help="Diffusion transformers assembled from named components.",
    no_args_is_help=True,
    add_completion=True,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
"""The application; call `main` to run it."""

Experiment = Annotated[
    Path,
    typer.Argument(help="The experiment file (TOML).", show_default=False, autocompletion=complete_experiment),
]
Overrides = Annotated[
    list[str] | None,
    typer.Option("--set", metavar="KEY=VALUE", help="Override a value (repeatable); VALUE is TOML or a string."),
]
Removals = Annotated[
    list[str] | None, typer.Option("--unset", metavar="KEY", help="Remove a value of the file (repeatable).")
]
PluginOption = Annotated[
    list[str] | None,
    typer.Option("-p", metavar="NAME", help="Load a plugin by name or file; no:NAME blocks one (repeatable)."),
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Runs = Annotated[Path, typer.Option("--runs", help="Parent folder of run directories.")]
RunDirectory = Annotated[Path, typer.Argument(help="A run directory.", show_default=False)]
CheckpointOption = Annotated[
    str, typer.Option("--checkpoint", metavar="WHICH", help="Checkpoint: newest, best, or a step.")
]


def load(
    path: Path, overrides: Sequence[str] | None, removals: Sequence[str] | None, plugins: Sequence[str] | None
) -> Loaded:
    """Load an experiment with the options of the command line."""
    from ..config.load_experiment import load_experiment

    return load_experiment(path, overrides or (), removals or (), plugins)


def parse_checkpoint(word: str) -> Any:
    """Return "newest", "best" or the number of a step.

    Raises:
        Refused: It is none of them.
    """
    from dither.registry.config.errors import Refused

    if word in ("newest", "best"):
        return word
    if not (word.isascii() and word.isdigit() and len(word) <= 12):
        raise Refused(f'--checkpoint: expected newest, best or a step, got "{word}"', code="usage")
    return int(word)


PANELS = {
    "experiments": {
        "run": "experiments",
        "sweep": "sweeps",
        "validate": "experiments",
        "explain": "experiments",
        "resolve": "experiments",
        "prepare": "data",
    },
    "components and plugins": {
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
    "development": {"new": "plugins", "test-plugin": "plugins", "schema": "components"},
}
"""Commands in the order of the help, each with the module that defines it."""
HIDDEN = {"check": "experiments"}
"""Former names, which still work."""
VERBS = {verb: module for panel in (*PANELS.values(), HIDDEN) for verb, module in panel.items()}
"""Every built-in command and its module; some are groups of commands, such as `runs list`."""
OURS = frozenset({"core-blocks", "embeddings", "engine", "losses", "processes", "tasks"})
"""Plugins of this repository, which add no commands."""
PLUGIN_PANEL = "plugins"


def app_for(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the application with the command that is called, and the arguments.

    All commands are imported for help, and those of plugins only for help or an unknown command.
    """
    words = list(words)
    word = words[0] if words else None
    for entries in (app.registered_commands, app.registered_groups):  # of an earlier call in this process
        entries[:] = [entry for entry in entries if entry.rich_help_panel != PLUGIN_PANEL]  # type: ignore[misc]
    _import_verbs([VERBS[word]] if word in VERBS else dict.fromkeys(VERBS.values()))
    if word not in VERBS:
        if "_DITHER_COMPLETE" in os.environ or word == "--version":
            return app, words
        installed = _installed_names()
        called = word is not None and not word.startswith("-")
        selected, words = _split_plugins(words, installed) if called else ([], words)
        if selected or not installed <= OURS:
            _try_plugin_commands(selected, word if called else None)
    return app, words


def _installed_names() -> set[str]:
    """Return the names of the installed plugins; pydantic is imported only if some package has damaged metadata."""
    try:
        return {point.name for point in entry_points(group="dither.plugins")}
    except Exception:  # one unreadable entry_points.txt of any package fails the whole call
        from dither.registry.plugins.discovery import installed_plugins

        return set(installed_plugins())


def _split_plugins(words: Sequence[str], installed: Collection[str]) -> tuple[list[str], list[str]]:
    """Split off every `-p X` before `--` where X is a plugin; any other belongs to the command."""
    end = words.index("--") if "--" in words else len(words)
    selected: list[str] = []
    rest: list[str] = []
    position = 0
    while position < len(words):
        value = words[position + 1] if words[position] == "-p" and position + 1 < end else ""
        if value in installed or value.startswith("no:") or value.endswith(".py"):
            selected.append(value)
            position += 2
        else:
            rest.append(words[position])
            position += 1
    return selected, rest


def _try_plugin_commands(selected: Sequence[str], word: str | None) -> None:
    """Add the commands of plugins; without them, help and the correction of a mistyped command still work.

    Raises:
        Refused: Plugins cannot be loaded, and the command may be one of theirs.
    """
    from dither.registry.config.errors import Refused, nearest

    try:
        _add_plugin_commands(selected)
    except Refused as refused:
        if word is not None and (selected or not nearest(word, VERBS)):
            raise
        print(f"note: no commands of plugins: {refused}", file=sys.stderr)  # noqa: T201


def _import_verbs(modules: Iterable[str]) -> None:
    for module in modules:
        import_module(f".{module}", __package__)
    panel_of = {verb: panel for panel, verbs in PANELS.items() for verb in verbs}
    for entries in (app.registered_commands, app.registered_groups):
        entries.sort(key=lambda entry: list(VERBS).index(_name(entry)) if _name(entry) in VERBS else len(VERBS))
        for entry in entries:
            entry.rich_help_panel = panel_of.get(_name(entry), entry.rich_help_panel)


def _add_plugin_commands(selected: Sequence[str]) -> None:
    """Call the hook `register_commands` of every plugin; failures and name clashes are reported and skipped."""
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import find_policy
    from dither.registry.plugins.status import PluginError

    lists: tuple[list[Any], list[Any]] = (app.registered_commands, app.registered_groups)
    plugins = load_plugins(selected, policy=find_policy(Path()))
    for report in plugins.reports:
        if report.state == "loaded" and "register_commands" in report.hooks:
            plugins.request(report.name)
    taken = set(VERBS)
    counts = [len(entries) for entries in lists]
    for plugin, result in plugins.call_each("register_commands", yield_errors=True, app=app):
        failed = isinstance(result, PluginError)
        if failed:
            print(f"note: {result}", file=sys.stderr)  # noqa: T201
        for entries, count in zip(lists, counts, strict=True):
            added = entries[count:]
            entries[count:] = [entry for entry in added if not failed and _name(entry) not in taken]
            for entry in added if not failed else ():
                if _name(entry) in taken:
                    note = f'note: plugin "{plugin}" adds the command "{_name(entry)}", which exists already'
                    print(note, file=sys.stderr)  # noqa: T201
                entry.rich_help_panel = PLUGIN_PANEL
                taken.add(_name(entry))
        counts = [len(entries) for entries in lists]


def verbs() -> set[str]:
    """Return the names of all built-in commands as registered, without the hidden ones."""
    _import_verbs(dict.fromkeys(VERBS.values()))
    entries: list[Any] = [*app.registered_commands, *app.registered_groups]
    return {_name(entry) for entry in entries if not entry.hidden and entry.rich_help_panel != PLUGIN_PANEL}


def _name(entry: Any) -> str:
    return str(entry.name or getattr(entry.callback, "__name__", ""))
