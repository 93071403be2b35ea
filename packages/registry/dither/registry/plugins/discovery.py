"""Installed plugins, found by their entry points. Nothing is imported."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import EntryPoint

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
    for point in _entry_points():
        plugin = _identify(point)
        same = found.setdefault(plugin.name, [])
        if all((other.module, other.distribution) != (plugin.module, plugin.distribution) for other in same):
            same.append(plugin)
    intact = {name: [plugin for plugin in same if not plugin.failure] for name, same in found.items()}
    return {name: intact[name] or found[name][:1] for name in sorted(found)}


def _entry_points() -> Iterator[EntryPoint]:
    try:
        yield from list(importlib.metadata.entry_points(group=GROUP))
    except Exception:  # one unreadable entry_points.txt of any package fails the whole call
        for dist in importlib.metadata.distributions():
            try:
                yield from [point for point in dist.entry_points if point.group == GROUP]
            except Exception:  # a package without readable entry points registers none
                continue


def _identify(point: EntryPoint) -> Installed:
    name = version = None
    with suppress(Exception):  # damaged metadata raises many types
        name, version = point.dist.name, point.dist.version  # type: ignore[union-attr]
    failure = "" if name and version else "the metadata of its distribution lacks the name or version; reinstall it"
    return Installed(point.name, point.value, name or "?", version or "", point, failure)
