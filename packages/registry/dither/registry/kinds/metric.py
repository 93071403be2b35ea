"""Metrics and trackers: the numbers computed besides the task's own, and where all numbers are sent."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Iterable
from typing import TYPE_CHECKING, ClassVar

from ..flow.spaces import Space
from ..spec.base import Spec
from ..spec.misfit import Misfit
from .space_compatibility import OverSpace, unserved_space

if TYPE_CHECKING:
    from ..flow.protocols import PredictionMetric, SampleMetric, Tracker

__all__ = ["MetricSpec", "TrackerSpec"]


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
