"""Every verb: in the order in which help shows them, each imported when it is called, or when all are to be shown."""

from __future__ import annotations

from importlib import import_module
from typing import Any

from .root import app

__all__ = ["PANELS", "VERBS", "app_for", "verbs"]

PANELS = {
    "experiments": {
        "run": "experiments",
        "sweep": "sweeps",
        "validate": "experiments",
        "check": "checking",
        "explain": "explaining",
        "resolve": "experiments",
        "prepare": "data",
    },
    "parts and plugins": {
        "list": "catalogue",
        "describe": "catalogue",
        "plugins": "catalogue",
        "doctor": "doctor",
        "registry": "registry",
    },
    "runs": {
        "runs": "run_lists",
        "report": "reports",
        "sample": "runs",
        "evaluate": "runs",
        "export": "run_lists",
        "diff": "explaining",
        "bench": "benching",
    },
    "authoring": {"new": "authoring", "test-plugin": "authoring", "schema": "schema"},
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
