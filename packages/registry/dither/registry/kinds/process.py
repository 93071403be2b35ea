"""Kinds of components of diffusion: schedule, process, sampler."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from ..flow.spaces import Space
from ..spec.base import Spec
from ..spec.misfit import Misfit
from .compatibility import ModelFacts, OverSpace, ProcessFacts, unserved_space

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
    """A diffusion process: adds noise to clean samples, and removes it step by step."""

    kind: ClassVar[str] = "process"

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield reasons why the process cannot act on the task's space."""
        yield from unserved_space(self, self.serves, space, ("task",))

    @abstractmethod
    def facts(self, space: Space) -> ProcessFacts:
        """Return the properties that losses and samplers need; the model must serve `facts.space`."""

    def warn(self, space: Space) -> Iterable[Misfit]:
        """Yield warnings about valid options that are likely a mistake."""
        return ()

    @abstractmethod
    def build(self, space: Space) -> Process:
        """Return the process over the task's space."""


class SamplerSpec(Spec):
    """An algorithm that draws samples by reversing a process."""

    kind: ClassVar[str] = "sampler"
    blockwise: ClassVar[bool] = False
    """Whether it draws block after block, as a model with a block size is trained."""

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield reasons why the sampler cannot be used with this process and model."""
        return ()

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield warnings about valid options that are likely a mistake."""
        return ()

    @abstractmethod
    def build(self) -> Sampler:
        """Return the sampler."""
