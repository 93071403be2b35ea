"""What became of each plugin, and why."""

from __future__ import annotations

import traceback
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from ..config.errors import Problem, Refused

__all__ = ["PluginError", "PluginStatus", "describe_exception", "refuse_failures"]


@dataclass(frozen=True)
class PluginStatus:
    """What became of one plugin.

    Attributes:
        name: Its entry-point name, or the stem of its file.
        state: loaded (it may be used), failed, blocked, or clash (two of one name; neither may be used).
        source: The distribution, or the file.
        version: Of the distribution.
        reason: Why it is not loaded.
        sha256: Of a one-file plugin.
        hooks: The hooks that it implements.
        parts: How many parts it offers.
        imports_torch: Whether its import pulls torch in.
        seconds: What its import takes.
        active: Whether it is imported into this process: a part of it was used, or it was asked for.
    """

    name: str
    state: Literal["loaded", "failed", "blocked", "clash"]
    source: str
    version: str = ""
    reason: str = ""
    sha256: str = ""
    hooks: tuple[str, ...] = ()
    parts: int = 0
    imports_torch: bool = False
    seconds: float = 0.0
    active: bool = False

    @property
    def origin(self) -> str:
        """The distribution with its version, or the file."""
        return f"{self.source} {self.version}".strip()


class PluginError(Exception):
    """A hook of a plugin raised; the cause says where."""

    def __init__(self, report: PluginStatus, hook: str, error: BaseException) -> None:
        self.plugin, self.hook = report.name, hook
        super().__init__(f'plugin "{report.name}" ({report.origin}) failed in {hook}: {describe_exception(error)}')

    @property
    def told(self) -> str:
        """What the cause has to say: its traceback, or the mistakes of a user."""
        if isinstance(self.__cause__, Refused):
            return str(self.__cause__)
        return "".join(traceback.format_exception(self.__cause__)).rstrip()


def describe_exception(error: BaseException) -> str:
    """Say what was raised, and in which line of which file."""
    if isinstance(error, Refused):
        return "; ".join(problem.message for problem in error.problems)
    reason = f"{type(error).__name__}: {error}" if str(error) else type(error).__name__
    frames = [f for f in traceback.extract_tb(error.__traceback__) if not f.filename.startswith("<")]
    if frames and Path(__file__).parents[1] not in Path(frames[-1].filename).parents:
        reason += f" ({Path(frames[-1].filename).name}:{frames[-1].lineno})"
    return reason


def refuse_failures(reports: Iterable[PluginStatus]) -> None:
    """Stop where any plugin cannot be used for a reason other than that it was blocked.

    Raises:
        Refused: With one problem for each.
    """
    wrong = [report for report in reports if report.state in ("failed", "clash")]
    if wrong:
        raise Refused([Problem(f'plugin "{r.name}" ({r.origin}): {r.state}, {r.reason}') for r in wrong])
