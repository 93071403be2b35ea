"""Tasks whose samples are text, for the evaluation harness."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol, runtime_checkable

from dither.registry.config.errors import Refused

from ..infilling import InfillingTask

__all__ = ["TextTask", "require_text"]


@runtime_checkable
class TextTask(InfillingTask, Protocol):
    """A task whose samples are text: that of this package, or of an export without its data."""

    def tokens(self, text: str) -> Sequence[int]:
        """Return the ids of a text."""

    def text(self, ids: Sequence[int]) -> str:
        """Return the text of ids."""


def require_text(task: Any) -> TextTask:
    """Return a task, or raise `Refused` if its samples are not text."""
    if not isinstance(task, TextTask):
        raise Refused("the task of the run is not about text", ("task",), code="misfit")
    return task
