"""The kinds of part: what each is given when it is built, and what it gives back.

Every kind has two verbs with the same arguments: `check` yields misfits without torch, `build` returns the part.
Sizes (width, condition width, vocabulary, length) are handed down by the parent, never repeated in an experiment file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from ..flow.spaces import Space
from ..spec.base import Spec
from ..spec.misfit import Misfit
from .component_info import ModelFacts, ProcessFacts
from .costs import Cost
from .space_compatibility import OverSpace, unserved_space

if TYPE_CHECKING:
    from ..flow.protocols import Process, Sampler, Schedule

__all__ = ["ProcessSpec", "SamplerSpec", "ScheduleSpec"]


class ScheduleSpec(Spec):
    """The noise schedule sigma(t) with its derivative; the remaining signal is alpha = exp(-sigma)."""

    kind: ClassVar[str] = "schedule"

    def sigma_end(self) -> float | None:
        """Return sigma(1), checked before torch is imported; None if it requires the built schedule."""
        return None

    def built_sigma_end(self) -> float:
        """Return sigma(1) of the built schedule, which a process checks if `sigma_end` returns None."""
        import torch

        return float(self.build()(torch.ones(1, dtype=torch.float64)).sigma)

    @abstractmethod
    def build(self) -> Schedule:
        """Return t -> Noise."""


class ProcessSpec(OverSpace):
    """Noise on the way in, steps on the way back."""

    kind: ClassVar[str] = "process"

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the task's space."""
        yield from unserved_space(self, self.serves, space, ("task",))

    @abstractmethod
    def facts(self, space: Space) -> ProcessFacts:
        """Tell what the parts built after the process need to know; `facts.space` is what the model must serve."""

    def warn(self, space: Space) -> Iterable[Misfit]:
        """Yield what is allowed, and should be known before a long run."""
        return ()

    def cost(self, space: Space) -> Cost:
        """What noising a sample and reading the model's output take; by default it does not say."""
        return Cost.unsaid(self.kind, self.name)

    @abstractmethod
    def build(self, space: Space) -> Process:
        """Return the process over the task's space."""


class SamplerSpec(Spec):
    """A way to walk a process back."""

    kind: ClassVar[str] = "sampler"
    blockwise: ClassVar[bool] = False
    """Whether it draws block after block, each behind finished ones, as a model with a block_size is trained."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield why this walk is not possible with this process and model."""
        return ()

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield what is allowed, and should be known before a long run."""
        return ()

    def piecewise(self) -> bool:
        """Whether predictions are asked for pieces only (`pieces`), so that no table of all positions is held."""
        return False

    @abstractmethod
    def build(self) -> Sampler:
        """Return the walk."""
