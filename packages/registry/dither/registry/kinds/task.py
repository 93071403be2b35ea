"""The kinds of part: what each is given when it is built, and what it gives back.

Every kind has two verbs with the same arguments: `check` yields misfits without torch, `build` returns the part.
Sizes (width, condition width, vocabulary, length) are handed down by the parent, never repeated in an experiment file.
"""

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
    """What the data is, how well a model does on it, and how it looks."""

    kind: ClassVar[str] = "task"
    exports: ClassVar[Mapping[str, str]] = MappingProxyType({})
    """Forms in which other programs can read its samples, by name, and what each is; its tasks are `parts.Exports`."""

    def check(self) -> Iterable[Misfit]:
        """Yield what is wrong with the options taken together."""
        return ()

    def warn(self) -> Iterable[Misfit]:
        """Yield what is allowed, and should be known before a long run."""
        return ()

    @abstractmethod
    def space(self) -> Space:
        """What one sample looks like. May read data, without torch; raises `Refused` where the data is at fault."""

    def held(self) -> int:
        """Bytes of the data while a run has them, and of libraries that no other task asks for.

        As far as they are known without reading; by default not counted.
        """
        return 0

    def reading(self) -> int:
        """Most bytes that are there for a moment besides while the data are read; by default not counted."""
        return 0

    def judging(self, samples: int) -> int:
        """Most bytes that it takes to judge and show so many samples that were drawn; by default not counted."""
        return 0

    def filled(self) -> float:
        """Share of the positions of its samples that is real on average, and no padding; by default all."""
        return 1.0

    def tells_some(self) -> bool:
        """Whether some values of every position are always known, so that none is hidden as a whole."""
        return False

    @abstractmethod
    def build(self) -> Task:
        """Read the data and return the task."""


class DataSpec(Spec):
    """A source of samples: real files, embedded data, or a generator.

    `gives` says which records come out, so that a task can refuse a source of something else.
    """

    kind: ClassVar[str] = "data"
    gives: ClassVar[str]
    prepared_as: ClassVar[Mapping[str, Mapping[str, Any]]] = MappingProxyType({})
    """Words that `dither prepare` takes in place of the name, and the options that each stands for."""

    def check(self) -> Iterable[Misfit]:
        """Yield what is wrong with the options taken together, such as a file that is not there."""
        return ()

    @abstractmethod
    def build(self) -> Any:
        """Read or make the samples; the task that takes them says what they look like."""

    def prepare(self) -> str | None:
        """Fetch and convert what this source needs beforehand, and say what was done; None when nothing is needed."""
        return None
