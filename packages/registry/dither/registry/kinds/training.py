"""Kinds of components of training: loss, optimizer, learning-rate schedule."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from ..spec.base import Spec
from ..spec.misfit import Misfit
from .component_info import ProcessFacts
from .space_compatibility import OverSpace, unserved_space

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..flow.protocols import Loss

__all__ = ["LRScheduleSpec", "LossSpec", "OptimizerSpec"]


class LossSpec(OverSpace):
    """The training objective: (Prediction, Noised) -> Measured."""

    kind: ClassVar[str] = "loss"
    bound: ClassVar[bool] = False
    """Whether the mean over t is the diffusion part of a bound on -log p(x_0), in nats; evaluation adds the rest."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield reasons why the loss is wrong for the process."""
        yield from unserved_space(self, self.serves, process.space, ("process",))

    def warn(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield warnings about valid options that are likely a mistake."""
        return ()

    @abstractmethod
    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss as a pure function."""


class OptimizerSpec(Spec):
    """An optimizer of the weights."""

    kind: ClassVar[str] = "optimizer"

    @abstractmethod
    def build(self, module: nn.Module) -> Optimizer:
        """Return an optimizer over the parameters of `module` that require gradients."""


class LRScheduleSpec(Spec):
    """The learning rate over a run, as a factor of the optimizer's learning rate."""

    kind: ClassVar[str] = "lr-schedule"

    @abstractmethod
    def build(self, steps: int) -> Callable[[int], float]:
        """Return step (0 .. steps-1) -> factor."""
