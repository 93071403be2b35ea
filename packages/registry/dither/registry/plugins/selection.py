"""Which installed plugins may be used: what registry.toml, the environment and the command line say."""

from __future__ import annotations

import os
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

from packaging.version import InvalidVersion, Version

from ..config.errors import Problem, Refused, nearest
from .discovery import Installed
from .policy import Policy, is_called
from .status import PluginStatus

__all__ = ["ALLOWED", "STRICT", "Selection", "misnamed", "required_plugins", "select_plugins", "version_of"]

ALLOWED = "DITHER_PLUGINS"
"""The environment variable that lists the only plugins that may be used, split at commas; empty for none."""
STRICT = "DITHER_STRICT_PLUGINS"
"""The environment variable under which one plugin that cannot be loaded stops everything."""
TROUBLE = re.compile(r"""[/@"\\,]|^no:|\.py$|^\s|\s$|^$""")
"""What would not come through a pin, a list of names, or -p."""


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


def misnamed(name: str) -> str:
    """Say why a plugin cannot be called so; nothing where it can."""
    if name.isprintable() and not TROUBLE.search(name):
        return ""
    return f"no plugin can be called {name!r}: pins and -p could not name it"


def select_plugins(
    given: Sequence[str], found: Mapping[str, Sequence[Installed]], policy: Policy, named: Collection[str] = ()
) -> Selection:
    """Decide which plugins may be used.

    Args:
        given: As after -p: NAME asks for a plugin, `no:NAME` blocks it, a path that ends in .py is a one-file plugin.
        found: The installed plugins by name.
        policy: What registry.toml says.
        named: Plugins that the experiment asks for.

    Raises:
        Refused: A name is that of no installed plugin.
    """
    files = tuple(Path(name) for name in given if name.endswith(".py"))
    asked, refused = _split(name for name in given if not name.endswith(".py"))
    listed = os.environ.get(ALLOWED)
    allowed, disallowed = _split(name.strip() for name in (listed or "").split(",") if name.strip())
    problems = _unknown("-p", {*asked, *refused}, found) + _unknown(ALLOWED, {*allowed, *disallowed}, found)
    if problems:
        raise Refused(problems)
    blocked = dict.fromkeys(disallowed, f"{ALLOWED}={listed}") | {name: f"-p no:{name}" for name in refused}
    only = None if listed is None or (disallowed and not allowed) else allowed
    for name, points in found.items():
        names = (name, *(point.distribution for point in points))
        if any(is_called(block, *names) for block in policy.block):
            blocked[name] = "registry.toml"
        elif name in asked or name in named:
            continue
        elif only is not None and name not in only:
            blocked.setdefault(name, f"not in {ALLOWED}")
        elif not policy.plugins.autoload and not any(is_called(wanted.name, *names) for wanted in policy.require):
            blocked.setdefault(name, "registry.toml: autoload is off, and it is not required")
    for name in asked:
        if name in blocked:
            raise Refused(f'-p {name}: plugin "{name}" is blocked ({blocked[name]})')
    return Selection(blocked, tuple(asked), files)


def required_plugins(policy: Policy, reports: Sequence[PluginStatus]) -> tuple[list[str], list[Problem]]:
    """Return the plugins that registry.toml requires, and what is wrong with those that are not here."""
    names: list[str] = []
    problems = []
    for wanted in policy.require:
        here = [report for report in reports if is_called(wanted.name, report.name, report.source)]
        fit = [
            report.name
            for report in here
            if report.state != "loaded"  # using it says why not
            or wanted.specifier.contains(version_of(report.version) or "0", prereleases=True)
        ]
        if not fit:
            found = f"but {here[0].origin} is installed" if here else "which is not installed"
            problems.append(Problem(f'registry.toml requires "{wanted}", {found}'))
        names += fit
    return names, problems


def version_of(text: str) -> Version | None:
    """Read the version of a distribution; some say none that can be compared."""
    try:
        return Version(text)
    except InvalidVersion:
        return None


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
