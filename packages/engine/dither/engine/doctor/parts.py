"""The plugins: what became of each, what makes a start slow, what hides another, what an author should mend."""

from __future__ import annotations

import importlib.metadata
from collections.abc import Iterator
from typing import Any

from packaging.utils import canonicalize_name

from dither.registry.installed import GROUP, installed_plugins

from .findings import Finding, Scene

__all__ = ["mutable_defaults", "shadowed", "slow_imports", "states", "undocumented"]

SLOW = 1.0
"""Seconds of an import from which on it is worth a word."""


def states(scene: Scene) -> Iterator[Finding]:
    """What became of each plugin."""
    loaded = []
    for report in scene.plugins.reports:
        origin = f"{report.name} ({report.origin})"
        if report.state == "failed":
            advice = f"python -m pip install --upgrade {report.source}, or leave it out with -p no:{report.name}"
            yield Finding("plugins", "broken", f"{origin} cannot be loaded: {report.reason}", advice)
        elif report.state == "clash":
            advice = "keep one of them: python -m pip uninstall"
            yield Finding("plugins", "broken", f"{origin}: {report.reason}; none is used", advice)
        elif report.state == "blocked":
            yield Finding("plugins", "note", f"{origin} is blocked: {report.reason}")
        else:
            loaded.append(f"{report.name} {report.version}".strip())
    if loaded:
        yield Finding("plugins", "ok", f"{len(loaded)} loaded: {', '.join(loaded)}")
    elif not installed_plugins():
        yield Finding("plugins", "broken", "none is installed", "python -m pip install -r requirements.txt")


def slow_imports(scene: Scene) -> Iterator[Finding]:
    """Plugins whose import takes long, mostly because they import torch at once."""
    for report in scene.plugins.reports:
        if report.imports_torch:
            message = f"{report.name} imports torch when it is loaded, which takes {report.seconds:.1f} s"
            yield Finding("start", "note", message, "its author can move the import into `build`")
        elif report.seconds > SLOW and report.state == "loaded":
            yield Finding("start", "note", f"{report.name} takes {report.seconds:.1f} s to load")


def shadowed(scene: Scene) -> Iterator[Finding]:
    """Distributions that are there twice: Python reads the first, and does not see the plugins of the second."""
    found: dict[str, list[importlib.metadata.Distribution]] = {}
    for dist in importlib.metadata.distributions():
        same = found.setdefault(canonicalize_name(dist.name or "?"), [])
        if all(_where(dist) != _where(other) for other in same):
            same.append(dist)
    for name, (first, *rest) in sorted(found.items()):
        for other in rest:
            hidden = {point.name for point in _plugins(other)} - {point.name for point in _plugins(first)}
            message = (
                f"{name} is there twice: {_where(first)} ({first.version}) hides {_where(other)} ({other.version})"
            )
            if hidden:
                message += f", and with it plugin {', '.join(sorted(hidden))}"
            stale = _where(first).endswith(".egg-info")
            advice = (
                f"remove the folder {_where(first)}"
                if stale
                else f"python -m pip uninstall {name}, and install it anew"
            )
            yield Finding("installed twice", "broken" if hidden else "note", message, advice)


def _where(dist: importlib.metadata.Distribution) -> str:
    """Where the metadata lies; the library tells it through a private name only, so that may be missing."""
    place: Any = getattr(dist, "_path", None) or dist.locate_file("")
    return str(place)


def _plugins(dist: importlib.metadata.Distribution) -> list[importlib.metadata.EntryPoint]:
    return [point for point in dist.entry_points if point.group == GROUP]


def mutable_defaults(scene: Scene) -> Iterator[Finding]:
    """Options whose default is a list, a table or a set. Each part gets a copy, but may be changed in place."""
    found: dict[str, list[str]] = {}
    for part in scene.plugins.catalog.parts():
        if part.offer.mutable:
            found.setdefault(part.plugin, []).append(f"{part.kind} {part.name} ({', '.join(part.offer.mutable)})")
    for plugin, names in found.items():
        message = f"{plugin} has defaults that can be changed in place: {'; '.join(names)}"
        yield Finding("defaults", "note", message, "harmless as long as nobody does; a tuple is safe")


def undocumented(scene: Scene) -> Iterator[Finding]:
    """Parts of which lists have nothing to say."""
    for part in scene.plugins.catalog.parts():
        if not part.summary:
            message = f"{part.kind} {part.name} of {part.plugin} has no docstring"
            yield Finding("docstrings", "note", message, "its author can say in a line what it does")
