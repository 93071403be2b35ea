"""Every verb, in the order in which help shows them. Each imports what it needs when it is called, torch last."""

from __future__ import annotations

from typing import Any

# isort: off
from . import experiments  # noqa: F401 - importing a module registers its verbs
from . import authoring  # noqa: F401
from . import benching  # noqa: F401
from . import catalogue  # noqa: F401
from . import checking  # noqa: F401
from . import data  # noqa: F401
from . import doctor  # noqa: F401
from . import explaining  # noqa: F401
from . import registry  # noqa: F401
from . import reports  # noqa: F401
from . import run_lists  # noqa: F401
from . import runs  # noqa: F401
from . import schema  # noqa: F401
from . import sweeps  # noqa: F401
from .root import app

# isort: on

__all__ = ["PANELS", "app", "verbs"]

PANELS = {
    "experiments": ("run", "sweep", "validate", "check", "explain", "resolve", "prepare"),
    "parts and plugins": ("list", "describe", "plugins", "doctor", "registry"),
    "runs": ("runs", "report", "sample", "evaluate", "export", "diff", "bench"),
    "authoring": ("new", "test-plugin", "schema"),
}
"""The verbs as help groups and orders them."""


def _arrange() -> None:
    order = [verb for panel in PANELS.values() for verb in panel]
    panel_of = {verb: panel for panel, verbs in PANELS.items() for verb in verbs}

    def name(entry: Any) -> str:
        return str(entry.name or getattr(entry.callback, "__name__", ""))

    for entries in (app.registered_commands, app.registered_groups):
        entries.sort(key=lambda entry: order.index(name(entry)) if name(entry) in order else len(order))
        for entry in entries:
            entry.rich_help_panel = panel_of.get(name(entry), entry.rich_help_panel)


_arrange()


def verbs() -> set[str]:
    """Return the names of all commands and groups of commands."""
    commands = {str(command.name or getattr(command.callback, "__name__", "")) for command in app.registered_commands}
    return commands | {str(group.name) for group in app.registered_groups}
