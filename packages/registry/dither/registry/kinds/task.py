"""Kinds of components that provide data: task and data source."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from ..flow.spaces import Space
from ..spec.base import Spec
from ..spec.misfit import Misfit

if TYPE_CHECKING:
    from ..flow.protocols import Task

__all__ = ["DataSpec", "TaskSpec"]


class TaskSpec(Spec):
    """A task: its data, its metrics and its plots."""

    kind: ClassVar[str] = "task"
    exports: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """File formats its samples can be exported to, each with a description; the built task is a `flow.Exports`."""

    def check(self) -> Iterable[Misfit]:
        """Yield incompatible options."""
        return ()

    def warn(self) -> Iterable[Misfit]:
        """Yield warnings about valid options that are likely a mistake."""
        return ()

    @abstractmethod
    def space(self) -> Space:
        """Return the space of one sample. May read data, without torch; raises `Refused` if the data are invalid."""

    @abstractmethod
    def build(self) -> Task:
        """Read the data and return the task."""


class DataSpec(Spec):
    """A source of samples: files, built-in data, or a generator.

    `gives` is the type of its records, so that a task can reject a source of another type.
    """

    kind: ClassVar[str] = "data"
    gives: ClassVar[str]
    prepared_as: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Names that `dither prepare` accepts instead of the component's name, each with the options it stands for."""

    def check(self) -> Iterable[Misfit]:
        """Yield incompatible options, and problems such as a missing file."""
        return ()

    @abstractmethod
    def build(self) -> Any:
        """Read or generate the samples, in the form that the task expects."""

    def prepare(self) -> str | None:
        """Download and convert data in advance; return a line on what was done, or None if nothing is required."""
        return None
