"""The application with the command that is called, and with those of plugins."""

from __future__ import annotations

import os
import re
import sys
from collections.abc import Iterable, Sequence
from copy import copy
from importlib import import_module
from inspect import getdoc
from pathlib import Path
from typing import Any

import typer
from typer.core import TyperCommand
from typer.models import TyperInfo

from .app import PANELS, VERBS, Command, app
from .engine import RunEngine

__all__ = ["app_for", "expand_overrides"]

DOTTED = re.compile(
    r"--(?P<key>[a-z_][\w-]*(?:\.[\w-]+)+)(?:=(?P<value>.*))?", re.DOTALL
)
COMPLETION = "_DITHER_COMPLETE"
"""Environment variable that click reads: set while a shell completes a command line."""
PLUGIN_PANEL = "tasks and plugins"
ENTRIES: tuple[list[Any], list[Any]] = (app.registered_commands, app.registered_groups)


def app_for(words: Sequence[str]) -> tuple[Any, list[str]]:
    """Return the application with the command that is called, and the arguments.

    All modules of commands are imported for help only, and plugins for help or a command that is
    none of the engine.
    """
    words = list(words)
    word = words[0] if words else _completed_verb()
    # Tests and notebooks call `main` several times, each with plugins of its own.
    for entries in ENTRIES:
        entries[:] = [
            entry for entry in entries if entry.rich_help_panel != PLUGIN_PANEL
        ]
    if word in VERBS:
        return _with_one_command(word), words

    _import_commands(dict.fromkeys(VERBS.values()))
    if word == "--version":
        return app, words
    files, words = _split_plugin_files(words)
    _add_plugin_commands(files, word)
    return app, words


def _completed_verb() -> str | None:
    """Return the command whose arguments a shell completes, so that only its module is imported."""
    # bash sets the first variable, zsh and fish the second; the last word is being typed.
    line = os.environ.get("COMP_WORDS") or os.environ.get("_TYPER_COMPLETE_ARGS", "")
    words = line.split(" ")
    if COMPLETION in os.environ and len(words) > 2:
        return words[1]
    return None


def expand_overrides(words: Sequence[str]) -> list[str]:
    """Return arguments with `--train.steps 10` and `--train.steps=10` as `--set train.steps=10`."""
    expanded: list[str] = []
    queue = iter(words)
    for word in queue:
        match = DOTTED.fullmatch(word)
        value = match["value"] if match else None
        if match and value is None:
            value = next(queue, None)
        if match and value is not None:
            expanded += ["--set", f"{match['key']}={value}"]
        else:
            expanded.append(word)
    return expanded


def _with_one_command(word: str) -> Any:
    """Return the application with one command: typer takes 1 ms for the options of each."""
    _import_commands([VERBS[word]])
    called = copy(app)
    called.registered_commands = [
        c for c in app.registered_commands if _name(c) == word
    ]
    called.registered_groups = [g for g in app.registered_groups if _name(g) == word]
    return called


def _import_commands(modules: Iterable[str]) -> None:
    for module in modules:
        import_module(f".{module}", __package__)
    order = list(VERBS)
    panels: dict[str, str] = {}
    for panel, verbs in PANELS.items():
        panels |= dict.fromkeys(verbs, panel)
    for entries in ENTRIES:
        entries.sort(key=lambda entry: order.index(_name(entry)))
        for entry in entries:
            panel = panels[_name(entry)]
            entry.rich_help_panel = panel
            entry.epilog = f"Example: dither {PANELS[panel][_name(entry)][1]}"
    _prepare(*ENTRIES)


def _prepare(commands: Iterable[Any], groups: Iterable[Any]) -> None:
    """Make commands those of class `Command`, and let the terminal wrap their descriptions."""
    for group in groups:
        commands = [*commands, *group.typer_instance.registered_commands]
    for command in commands:
        if command.cls is TyperCommand:
            command.cls = Command
        # typer keeps the line breaks of a docstring after its first paragraph
        paragraphs = (command.help or getdoc(command.callback) or "").split("\n\n")
        command.help = "\n\n".join(" ".join(text.split()) for text in paragraphs)


def _name(entry: Any) -> str:
    """Return the name of a command or group; without one typer stores placeholders."""
    if isinstance(entry.name, str):
        return entry.name
    if isinstance(entry, TyperInfo):
        return str(entry.typer_instance.info.name) if entry.typer_instance else ""
    return str(entry.callback.__name__).lower().replace("_", "-")


def _split_plugin_files(words: Sequence[str]) -> tuple[list[str], list[str]]:
    """Return the plugin files after -p, which are loaded before the command, and other words."""
    files: list[str] = []
    rest: list[str] = []
    queue = iter(words)
    for word in queue:
        following = next(queue, None) if word == "-p" else None
        if following is not None and following.endswith(".py"):
            files.append(following)
            continue
        rest.append(word)
        if following is not None:
            rest.append(following)
    return files, rest


def _add_plugin_commands(files: Sequence[str], word: str | None) -> None:
    """Call `register_commands` of every plugin.

    Refused if plugins fail to load and `word` may be one of their commands.
    """
    from dither.registry.config.errors import Refused, nearest
    from dither.registry.plugins.manager import load_plugins
    from dither.registry.plugins.policy import find_policy
    from dither.registry.plugins.status import PluginError

    try:
        plugins = load_plugins(files, policy=find_policy(Path()))
        for report in plugins.reports:
            if report.state == "loaded" and "register_commands" in report.hooks:
                plugins.request(report.name)
    except Refused as refused:
        # Help and a misspelled command of the engine need no plugins.
        is_command = word is not None and not word.startswith("-")
        if is_command and (files or not nearest(word, VERBS)):
            raise
        _note(f"no commands of plugins: {refused}")
        return

    # Plugins receive an application of their own, so that none can replace a command of another.
    added = typer.Typer()
    results = plugins.call_each(
        "register_commands", yield_errors=True, app=added, engine=RunEngine()
    )
    for _, result in results:
        if isinstance(result, PluginError):
            _note(str(result))
    _merge(added.registered_commands, app.registered_commands)
    _merge(added.registered_groups, app.registered_groups)
    _prepare(*ENTRIES)


def _merge(added: Iterable[Any], entries: list[Any]) -> None:
    """Add commands or groups of plugins, except those whose name is taken."""
    taken = {*VERBS, *(_name(entry) for entry in [*ENTRIES[0], *ENTRIES[1]])}
    for entry in added:
        name = _name(entry)
        if name in taken:
            _note(f'a plugin adds the command "{name}", which exists already')
            continue
        taken.add(name)
        entry.rich_help_panel = PLUGIN_PANEL
        entries.append(entry)


def _note(text: str) -> None:
    # A shell would show it in the middle of the line that is being typed.
    if COMPLETION in os.environ:
        return
    print(f"note: {text}", file=sys.stderr)  # noqa: T201
