"""Installed plugins, found by their entry points. Nothing is imported."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points

__all__ = ["GROUP", "Installed", "installed_plugins"]

GROUP = "dither.plugins"
"""The entry-point group of plugins."""


@dataclass(frozen=True)
class Installed:
    """One entry point of the group: a plugin's name, distribution and version, and what is wrong with the metadata."""

    name: str
    distribution: str
    version: str
    point: EntryPoint = field(repr=False, compare=False)
    failure: str = ""


def installed_plugins() -> dict[str, list[Installed]]:
    """Return the entry points by name, sorted, intact ones first; more than one of a name is a conflict."""
    found: dict[str, list[Installed]] = {}
    for plugin in sorted(_plugins(), key=lambda plugin: (plugin.name, plugin.failure)):
        same = found.setdefault(plugin.name, [])
        if not (plugin.failure and same):
            same.append(plugin)
    return found


def _plugins() -> Iterator[Installed]:
    try:
        yield from [_identify(point, point.dist) for point in entry_points(group=GROUP)]
    except Exception:  # one unreadable entry_points.txt of any package fails the whole call
        for dist in distributions():
            yield from _plugins_of(dist)


def _plugins_of(dist: Distribution) -> list[Installed]:
    """Return the plugins of a distribution; if its entry points cannot be read, it is one plugin that failed."""
    text = ""
    try:
        text = dist.read_text("entry_points.txt") or ""
        return [_identify(point, dist) for point in dist.entry_points.select(group=GROUP)]
    except Exception as error:
        name = _identify(EntryPoint("", "", GROUP), dist).distribution
        failed = Installed(name, name, "", EntryPoint(name, name, GROUP), f"its entry_points.txt is damaged: {error}")
        return [failed] if GROUP in text else []


def _identify(point: EntryPoint, dist: Distribution | None) -> Installed:
    name = version = None
    with suppress(Exception):  # damaged metadata raises many types
        name, version = dist.name, dist.version  # type: ignore[union-attr]
    failure = "" if name and version else "the metadata of its distribution lacks the name or version; reinstall it"
    return Installed(point.name, name or "?", version or "", point, failure)
