"""Kinds of components of a run: loss, optimizer, learning-rate schedule, metric, tracker."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from ..flow.spaces import Space
from ..spec.base import Spec
from ..spec.misfit import Misfit
from .compatibility import OverSpace, ProcessFacts, unserved_space

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..flow.protocols import Loss, PredictionMetric, SampleMetric, Tracker

__all__ = ["LRScheduleSpec", "LossSpec", "MetricSpec", "OptimizerSpec", "TrackerSpec"]


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


class MetricSpec(OverSpace):
    """Numbers computed from predictions or from samples, listed by `[evaluate] metrics = [...]`."""

    kind: ClassVar[str] = "metric"

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield reasons why the metric cannot be computed over the task's space."""
        yield from unserved_space(self, self.serves, space, ("task",))

    @abstractmethod
    def build(self, space: Space) -> PredictionMetric | SampleMetric:
        """Return the metric: a function of samples, an object with `metrics()` for predictions, or both in one."""


class TrackerSpec(Spec):
    """A destination of metrics and pictures, such as TensorBoard, W&B or MLflow; listed by `[train] trackers`."""

    kind: ClassVar[str] = "tracker"

    def check(self) -> Iterable[Misfit]:
        """Yield reasons why the tracker cannot be used, such as a package that is not installed."""
        return ()

    @abstractmethod
    def build(self) -> Tracker:
        """Return the tracker. Nothing is opened or sent before `Tracker.start`."""
