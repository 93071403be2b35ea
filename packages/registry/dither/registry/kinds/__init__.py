"""The kinds of part: what each is given when it is built, and what it gives back.

Every kind has two verbs with the same arguments: `check` yields misfits without torch, `build` returns the part.
Sizes (width, condition width, vocabulary, length) are handed down by the parent, never repeated in an experiment file.
"""

from __future__ import annotations

from ..spec.base import Spec
from .component_info import ModelFacts, ProcessFacts
from .metric import MetricSpec, TrackerSpec
from .model import BlockSpec, ConditionSpec, EmbeddingSpec, HeadSpec, ModelSpec, PositionSpec
from .process import ProcessSpec, SamplerSpec, ScheduleSpec
from .space_compatibility import ANY, FEATURES, TOKENS
from .task import DataSpec, TaskSpec
from .training import LossSpec, LRScheduleSpec, OptimizerSpec

__all__ = [
    "ANY",
    "FEATURES",
    "KINDS",
    "TOKENS",
    "BlockSpec",
    "ConditionSpec",
    "DataSpec",
    "EmbeddingSpec",
    "HeadSpec",
    "LRScheduleSpec",
    "LossSpec",
    "MetricSpec",
    "ModelFacts",
    "ModelSpec",
    "OptimizerSpec",
    "PositionSpec",
    "ProcessFacts",
    "ProcessSpec",
    "SamplerSpec",
    "ScheduleSpec",
    "TaskSpec",
    "TrackerSpec",
]

KINDS: dict[str, type[Spec]] = {
    kind.kind: kind
    for kind in (
        TaskSpec,
        DataSpec,
        ProcessSpec,
        ScheduleSpec,
        SamplerSpec,
        LossSpec,
        ModelSpec,
        BlockSpec,
        EmbeddingSpec,
        PositionSpec,
        ConditionSpec,
        HeadSpec,
        OptimizerSpec,
        LRScheduleSpec,
        MetricSpec,
        TrackerSpec,
    )
}
"""Every kind by its name, in the order in which an experiment meets them."""
