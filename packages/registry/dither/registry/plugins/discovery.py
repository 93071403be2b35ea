"""Installed plugins, found by their entry points. Nothing is imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import Distribution, EntryPoint

__all__ = ["GROUP", "Installed", "installed_plugins"]

GROUP = "dither.plugins"
"""The entry-point group of plugins."""


@dataclass(frozen=True)
class Installed:
    """One entry point of the group.

    Attributes:
        name: Name of the plugin.
        module: What is imported, `package.module` or `package.module:object`.
        distribution: Name of the distribution that contains it.
        version: Version of the distribution.
        point: The entry point.
        failure: What is wrong with the metadata, if anything.
    """

    name: str
    module: str
    distribution: str
    version: str
    point: EntryPoint = field(repr=False, compare=False)
    failure: str = ""


def installed_plugins() -> dict[str, list[Installed]]:
    """Return the entry points by name, sorted; more than one of a name is a conflict.

    One whose distribution has damaged metadata is dropped if another of its name is intact.
    """
    found: dict[str, list[Installed]] = {}
    for plugin in _plugins():
        same = found.setdefault(plugin.name, [])
        if all((other.module, other.distribution) != (plugin.module, plugin.distribution) for other in same):
            same.append(plugin)
    intact = {name: [plugin for plugin in same if not plugin.failure] for name, same in found.items()}
    return {name: intact[name] or found[name][:1] for name in sorted(found)}


def _plugins() -> Iterator[Installed]:
    try:
        points = list(importlib.metadata.entry_points(group=GROUP))
    except Exception:  # one unreadable entry_points.txt of any package fails the whole call
        for dist in importlib.metadata.distributions():
            yield from _plugins_of(dist)
    else:
        yield from (_identify(point, point.dist) for point in points)


def _plugins_of(dist: Distribution) -> Iterator[Installed]:
    """Read the lines of a distribution one by one, so that a broken one is a plugin that failed."""
    try:
        text = dist.read_text("entry_points.txt") or ""
    except UnicodeDecodeError as error:
        text = error.object.decode(errors="replace")
    except Exception:  # a package without readable entry points registers none
        return
    group = ""
    for line in map(str.strip, text.splitlines()):
        if line.startswith("[") and line.endswith("]"):
            group = line.strip("[]")
        elif group == GROUP and line and not line.startswith("#"):
            name, equals, module = map(str.strip, line.partition("="))
            broken = "" if equals else "its line in entry_points.txt has no `=`; reinstall it"
            yield _identify(EntryPoint(name, module, GROUP), dist, broken)


def _identify(point: EntryPoint, dist: Distribution | None, broken: str = "") -> Installed:
    name = version = None
    with suppress(Exception):  # damaged metadata raises many types
        name, version = dist.name, dist.version  # type: ignore[union-attr]
    failure = "" if name and version else "the metadata of its distribution lacks the name or version; reinstall it"
    return Installed(point.name, point.value, name or "?", version or "", point, broken or failure)
