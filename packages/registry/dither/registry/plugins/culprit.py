"""Which plugin of a third party raised an exception, and in which of its components."""

from __future__ import annotations

import traceback
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from types import FrameType

from ..spec.base import Spec, origin_of
from .discovery import BUILT_IN, FILE_MODULE, installed_plugins
from .status import causes_of

__all__ = ["Culprit", "culprit_of"]

NAMESPACE = "dither"
"""Package that distributions share: a plugin is a package inside it, or any other package."""


@dataclass(frozen=True)
class Culprit:
    """A plugin whose code raised an exception.

    Attributes:
        plugin: Its name.
        origin: Its distribution with the version, or its file.
        component: The component, if it can be identified.
        error: The exception, which may be a cause of another one.
    """

    plugin: str
    origin: str
    component: Spec | type[Spec] | None
    error: BaseException

    @property
    def title(self) -> str:
        """Kind and name of the component, plugin and origin, for messages."""
        plugin = f'plugin "{self.plugin}" ({self.origin})'
        if self.component is None:
            return plugin
        return f'{self.component.kind} "{self.component.name}" of {plugin}'


def culprit_of(error: BaseException) -> Culprit | None:
    """Return the plugin of the innermost frame of a third party, also of the causes of an exception.

    None if no plugin of a third party took part.
    """
    installed = _installed_packages()
    for cause in causes_of(error):
        frames = [frame for frame, _ in traceback.walk_tb(cause.__traceback__)]
        # The last one is the place of the error, or called the library that raised it.
        frames.reverse()
        for place, frame in enumerate(frames):
            package = _package(frame)
            if package in installed:
                plugin, origin = installed[package]
            # After those that are installed, whose packages may be called so.
            elif package.startswith(FILE_MODULE):
                file = Path(frame.f_globals["__file__"])
                plugin = file.stem.replace("_", "-")
                origin = file.name
            else:
                continue
            others = [other for other in frames[place:] if _package(other) == package]
            return Culprit(plugin, origin, _component(others), cause)
    return None


def _installed_packages() -> dict[str, tuple[str, str]]:
    """Return name and distribution of each installed plugin of a third party, by its package."""
    packages = {}
    for name, (plugin, *_) in installed_plugins().items():
        if name not in BUILT_IN:
            origin = f"{plugin.distribution} {plugin.version}".strip()
            packages[_top(plugin.point.module)] = (name, origin)
    return packages


def _package(frame: FrameType) -> str:
    # Code that was compiled by hand may have any globals.
    return _top(str(frame.f_globals.get("__name__", "")))


def _top(module: str) -> str:
    names = module.split(".")
    return ".".join(names[: 2 if names[0] == NAMESPACE else 1])


def _component(frames: Sequence[FrameType]) -> Spec | type[Spec] | None:
    """Return the component whose code is the innermost of these frames, or the only one of their module."""
    for frame in frames:
        owner = frame.f_locals.get("self")
        spec = owner if isinstance(owner, Spec) else None
        spec = spec or origin_of(frame.f_code) or origin_of(owner)
        # A component of another plugin may use or return what this one has built.
        if spec is not None and _top(type(spec).__module__) == _package(frame):
            return spec
    module = frames[0].f_globals
    specs = [
        value
        for value in module.values()
        if isinstance(value, type)
        and issubclass(value, Spec)
        and value.__module__ == module["__name__"]
    ]
    return specs[0] if len(specs) == 1 else None
