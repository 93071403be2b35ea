"""The kinds of part: what each is given when it is built, and what it gives back.

Every kind has two verbs with the same arguments: `check` yields misfits without torch, `build` returns the part.
Sizes (width, condition width, vocabulary, length) are handed down by the parent, never repeated in an experiment file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, ClassVar

from .costs import Cost, Stage
from .facts import ModelFacts, ProcessFacts
from .model_kinds import BlockSpec, ConditionSpec, EmbeddingSpec, HeadSpec, ModelSpec, PositionSpec
from .serving import ANY, FEATURES, TOKENS, OverSpace, serves_not
from .spaces import Space
from .spec import Misfit, Spec

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from .parts import Loss, Process, Sampler, Schedule, Task

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
    "ModelFacts",
    "ModelSpec",
    "OptimizerSpec",
    "PositionSpec",
    "ProcessFacts",
    "ProcessSpec",
    "SamplerSpec",
    "ScheduleSpec",
    "TaskSpec",
]


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


class ScheduleSpec(Spec):
    """sigma(t) and its derivative; the signal left is alpha = exp(-sigma)."""

    kind: ClassVar[str] = "schedule"

    def sigma_end(self) -> float | None:
        """Return sigma(1), or None if it is not known without building."""
        return None

    @abstractmethod
    def build(self) -> Schedule:
        """Return t -> Noise."""


class ProcessSpec(OverSpace):
    """Noise on the way in, steps on the way back."""

    kind: ClassVar[str] = "process"

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the task's space."""
        yield from serves_not(self, self.serves, space, ("task",))

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


class LossSpec(OverSpace):
    """What training minimises: (Prediction, Noised) -> Measured."""

    kind: ClassVar[str] = "loss"
    bound: ClassVar[bool] = False
    """Whether the mean over t is the diffusion part of a bound on -log p(x_0), in nats; evaluation adds the rest."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield why the loss is wrong for the process."""
        yield from serves_not(self, self.serves, process.space, ("process",))

    def warn(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield what is allowed, and should be known before a long run."""
        return ()

    def cost(self, process: ProcessFacts) -> Cost:
        """What measuring a prediction takes, the way back included; by default it does not say."""
        return Cost.unsaid(self.kind, self.name)

    def fused_cost(self, process: ProcessFacts, *, half: bool = False) -> Cost | None:
        """What measuring from what the head reads takes (`FusedLoss`), with products in bfloat16 if `half`.

        None where the loss has no such form.
        """
        return None

    @abstractmethod
    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss as a pure function."""


class OptimizerSpec(Spec):
    """Changes the weights."""

    kind: ClassVar[str] = "optimizer"
    moments: ClassVar[int | None] = None
    """Numbers that it keeps for each weight, as the two of Adam; None where it does not say."""

    def kept(self, stage: Stage) -> int:
        """Numbers that it keeps for the weights of a part of the model, if these are all trained."""
        return (self.moments or 0) * stage.parameters

    @abstractmethod
    def build(self, module: nn.Module) -> Optimizer:
        """Return an optimizer over the parameters of `module` that want gradients."""


class LRScheduleSpec(Spec):
    """The learning rate over a run, as a factor of the optimizer's own."""

    kind: ClassVar[str] = "lr-schedule"

    @abstractmethod
    def build(self, steps: int) -> Callable[[int], float]:
        """Return step (0 .. steps-1) -> factor."""


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
    )
}
"""Every kind by its name, in the order in which an experiment meets them."""
