"""Which installed plugins may be used: what registry.toml, the environment and the command line say."""

from __future__ import annotations

import os
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path

from .policy import Policy
from .problems import Problem, Refused, nearest

__all__ = ["ALLOWED", "STRICT", "Selection", "select_plugins"]

ALLOWED = "DITHER_PLUGINS"
"""The environment variable that lists the only plugins that may be used, split at commas; empty for none."""
STRICT = "DITHER_STRICT_PLUGINS"
"""The environment variable under which one plugin that cannot be loaded stops everything."""


@dataclass(frozen=True)
class Selection:
    """The word that was spoken on each plugin.

    Attributes:
        blocked: Plugins that may not be imported, each with who says so.
        asked: Plugins that are loaded although no part of theirs is named.
        files: One-file plugins that were asked for.
    """

    blocked: dict[str, str]
    asked: tuple[str, ...]
    files: tuple[Path, ...]


def select_plugins(
    given: Sequence[str], known: Collection[str], policy: Policy, required: Collection[str]
) -> Selection:
    """Decide which plugins may be used.

    Args:
        given: As after -p: NAME asks for a plugin, `no:NAME` blocks it, a path that ends in .py is a one-file plugin.
        known: Names of the installed plugins.
        policy: What registry.toml says.
        required: The installed plugins that registry.toml requires.

    Raises:
        Refused: A name is that of no installed plugin.
    """
    files = tuple(Path(name) for name in given if name.endswith(".py"))
    asked, refused = _split(name for name in given if not name.endswith(".py"))
    listed = os.environ.get(ALLOWED)
    allowed, disallowed = _split(name.strip() for name in (listed or "").split(",") if name.strip())
    problems = _unknown("-p", {*asked, *refused}, known) + _unknown(ALLOWED, {*allowed, *disallowed}, known)
    if problems:
        raise Refused(problems)
    blocked = dict.fromkeys(disallowed, f"{ALLOWED}={listed}") | {name: f"-p no:{name}" for name in refused}
    only = None if listed is None or (disallowed and not allowed) else allowed
    for name in known:
        if name in policy.block:
            blocked[name] = "registry.toml"
        elif only is not None and name not in only and name not in asked:
            blocked.setdefault(name, f"not in {ALLOWED}")
        elif not policy.plugins.autoload and name not in asked and name not in required:
            blocked.setdefault(name, "registry.toml: autoload is off, and it is not required")
    for name in asked:
        if name in blocked:
            raise Refused(f'-p {name}: plugin "{name}" is blocked ({blocked[name]})')
    return Selection(blocked, tuple(asked), files)


def _split(names: Iterable[str]) -> tuple[list[str], list[str]]:
    """Return the names that are wanted, and those that are written `no:NAME`."""
    each = list(dict.fromkeys(names))
    return [n for n in each if not n.startswith("no:")], [n.removeprefix("no:") for n in each if n.startswith("no:")]


def _unknown(who: str, names: Collection[str], known: Collection[str]) -> list[Problem]:
    problems = []
    for name in sorted(set(names) - set(known)):
        close = nearest(name, known)
        hint = f'did you mean "{close}"? ' if close else ""
        problems.append(
            Problem(
                f'{who}: no plugin is named "{name}"', help=f"{hint}installed: {', '.join(sorted(known)) or 'none'}"
            )
        )
    return problems
