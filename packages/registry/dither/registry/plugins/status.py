"""The state of a plugin, and errors that plugins raise."""

from __future__ import annotations

import importlib
import signal
import traceback
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config.errors import Refused

__all__ = [
    "PluginError",
    "PluginStatus",
    "State",
    "causes_of",
    "describe_exception",
    "details",
    "is_interruption",
]

State = Literal["available", "loaded", "failed", "blocked", "clash"]
"""available: not imported yet; clash: two plugins have this name, and neither is used."""
MACHINERY = frozenset({Path(__file__).parents[1], Path(importlib.__file__).parent})
"""Folders whose frames say nothing about the place of an error."""


@dataclass(frozen=True)
class PluginStatus:
    """The state of one plugin.

    Attributes:
        name: Name of its entry point, or stem of its file.
        state: Whether it can be used.
        source: Its distribution or file.
        version: Version of its distribution.
        reason: Why it cannot be used.
        sha256: Checksum of a one-file plugin.
        hooks: Hooks that it implements, once loaded.
        parts: Number of its components, once loaded.
        imports_torch: Whether its import was the first to import torch.
        seconds: Duration of its import.
        changes: Settings of torch that its import changed, and that were restored.
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
    changes: tuple[str, ...] = ()

    @property
    def origin(self) -> str:
        """The distribution with its version, or the file."""
        return f"{self.source} {self.version}".strip()


class PluginError(Exception):
    """A hook of a plugin raised; the cause is the exception it raised."""

    def __init__(self, status: PluginStatus, hook: str, error: BaseException) -> None:
        self.plugin = status.name
        self.hook = hook
        where = f'plugin "{status.name}" ({status.origin}) failed in {hook}'
        super().__init__(f"{where}: {describe_exception(error)}")


def causes_of(
    error: BaseException | None, *, implicit: bool = False
) -> Iterator[BaseException]:
    """Yield an exception and its causes, each once: `raise error from error` makes a circle.

    `implicit`: without a cause, also the exception that was being handled.
    """
    seen = set()
    while error is not None and id(error) not in seen:
        seen.add(id(error))
        yield error
        context = error.__context__ if implicit else None
        error = error.__cause__ or context


def details(error: BaseException | None) -> str:
    """Return the traceback of an exception, or the problems of a `Refused`."""
    if isinstance(error, Refused):
        return str(error)
    return "".join(traceback.format_exception(error)).rstrip()


def is_interruption(error: BaseException) -> bool:
    """Return whether the user interrupted a plugin, rather than the plugin failed.

    Where Ctrl-C is handled otherwise, only a plugin raises KeyboardInterrupt.
    """
    if isinstance(error, KeyboardInterrupt):
        return signal.getsignal(signal.SIGINT) is signal.default_int_handler
    # Signal handlers raise subclasses of BaseException of their own.
    is_failure = isinstance(error, Exception | SystemExit | GeneratorExit)
    return not is_failure and type(error) is not BaseException


def describe_exception(error: BaseException) -> str:
    """Return type and message of an exception, and the file and line that raised it."""
    # A refusal was written for users: its type and place say nothing more.
    if isinstance(error, Refused):
        return "; ".join(problem.message for problem in error.problems)

    reason = type(error).__name__
    try:
        text = str(error)
    # `__str__` of a third party, too, may fail.
    except Exception:
        text = "its message cannot be read"
    if text:
        reason += f": {text}"

    # The last frame is the place of the error; code in `<string>` has no file to show.
    stack = traceback.extract_tb(error.__traceback__)
    frames = [frame for frame in stack if not frame.filename.startswith("<")]
    if frames:
        file = Path(frames[-1].filename)
        if MACHINERY.isdisjoint(file.parents):
            reason += f" ({file.name}:{frames[-1].lineno})"
    return reason
