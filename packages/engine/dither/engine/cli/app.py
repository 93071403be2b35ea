"""Every verb, in the order in which help shows them. Each imports what it needs when it is called, torch last."""

from __future__ import annotations

# isort: off
from . import experiments  # noqa: F401 - importing a module registers its verbs
from . import catalogue  # noqa: F401
from . import data  # noqa: F401
from . import runs  # noqa: F401
from .root import app

# isort: on

__all__ = ["app", "verbs"]


def verbs() -> set[str]:
    """Return the names of all commands and groups of commands."""
    commands = {str(command.name or getattr(command.callback, "__name__", "")) for command in app.registered_commands}
    return commands | {str(group.name) for group in app.registered_groups}
