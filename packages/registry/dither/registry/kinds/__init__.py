"""The kinds of components: what each is given and returns.

Every kind has two methods with the same arguments: `check` yields incompatibilities without torch, `build` returns the
component. Sizes (width, condition width, vocabulary, length) are passed down by the parent, never repeated in an
experiment file.
"""

from __future__ import annotations

from ..spec.base import Spec
from .compatibility import ANY, FEATURES, TOKENS, ModelFacts, ProcessFacts
from .model import BlockSpec, ConditionSpec, EmbeddingSpec, HeadSpec, ModelSpec, PositionSpec
from .process import ProcessSpec, SamplerSpec, ScheduleSpec
from .task import DataSpec, TaskSpec
from .training import LossSpec, LRScheduleSpec, MetricSpec, OptimizerSpec, TrackerSpec

__all__ = [
    "ANY", "FEATURES", "KINDS", "TOKENS", "BlockSpec", "ConditionSpec", "DataSpec", "EmbeddingSpec", "HeadSpec",
    "LRScheduleSpec", "LossSpec", "MetricSpec", "ModelFacts", "ModelSpec", "OptimizerSpec", "PositionSpec",
    "ProcessFacts", "ProcessSpec", "SamplerSpec", "ScheduleSpec", "TaskSpec", "TrackerSpec",
]  # fmt: skip

_KINDS: tuple[type[Spec], ...] = (
    *(TaskSpec, DataSpec, ProcessSpec, ScheduleSpec, SamplerSpec, LossSpec),
    *(ModelSpec, BlockSpec, EmbeddingSpec, PositionSpec, ConditionSpec, HeadSpec),
    *(OptimizerSpec, LRScheduleSpec, MetricSpec, TrackerSpec),
)
KINDS = {kind.kind: kind for kind in _KINDS}
"""Every kind by name, in the order of an experiment file."""
