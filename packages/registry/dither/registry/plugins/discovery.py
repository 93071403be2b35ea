"""Installed plugins, found by their entry points without importing anything, their states, and errors of hooks."""

from __future__ import annotations

import importlib
import traceback
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from importlib.metadata import Distribution, EntryPoint, distributions, entry_points
from pathlib import Path
from typing import Literal

from ..config.errors import Refused

__all__ = [
    "GROUP",
    "Installed",
    "PluginError",
    "PluginStatus",
    "State",
    "describe_exception",
    "installed_plugins",
]

GROUP = "dither.plugins"


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
        failed = Installed(
            name,
            name,
            "",
            EntryPoint(name, name, GROUP),
            f"its entry_points.txt is damaged: {error}",
        )
        content = error.object if isinstance(error, UnicodeDecodeError) else text.encode()
        return [failed] if GROUP.encode() in content else []


def _identify(point: EntryPoint, dist: Distribution | None) -> Installed:
    name = version = None
    with suppress(Exception):  # damaged metadata raises many types
        metadata = dist.metadata  # type: ignore[union-attr]  # parsed at each access
        name = metadata["Name"]
        version = metadata["Version"]
    failure = (
        ""
        if name and version
        else "the metadata of its distribution lacks the name or version; reinstall it"
    )
    return Installed(point.name, name or "?", version or "", point, failure)


State = Literal["available", "loaded", "failed", "blocked", "clash"]


@dataclass(frozen=True)
class PluginStatus:
    """The state of one plugin; available: not imported yet, clash: two plugins have this name and neither is used.

    `source` is its distribution or file, `reason` why it cannot be used, `sha256` that of a
    one-file plugin. Once loaded, it has hooks, a number of components (`parts`), and whether its
    import was the first to import torch.
    """

    name: str
    state: State
    source: str
    version: str = ""
    reason: str = ""
    sha256: str = ""
    hooks: tuple[str, ...] = ()
    parts: int = 0
    imports_torch: bool = False
    seconds: float = 0.0

    @property
    def origin(self) -> str:
        """The distribution with its version, or the file."""
        return f"{self.source} {self.version}".strip()


class PluginError(Exception):
    """A hook of a plugin raised; the cause is the exception it raised."""

    def __init__(self, report: PluginStatus, hook: str, error: BaseException) -> None:
        self.plugin = report.name
        self.hook = hook
        super().__init__(
            f'plugin "{report.name}" ({report.origin}) failed in {hook}: {describe_exception(error)}'
        )

    @property
    def detail(self) -> str:
        """The traceback of the cause, or the problems of a `Refused`."""
        if isinstance(self.__cause__, Refused):
            return str(self.__cause__)
        return "".join(traceback.format_exception(self.__cause__)).rstrip()


def describe_exception(error: BaseException) -> str:
    """Return type and message of an exception, and the file and line that raised it."""
    if isinstance(error, Refused):
        return "; ".join(problem.message for problem in error.problems)
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [
        f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")
    ]
    own = {Path(__file__).parents[1], Path(importlib.__file__).parent}
    if frames and not own & set(Path(frames[-1].filename).parents):
        reason += f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    return reason
