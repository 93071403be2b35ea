"""The kinds of part: what each is given when it is built, and what it gives back.

Every kind has two verbs with the same arguments: `check` yields misfits without torch, `build` returns the part.
Sizes (width, condition width, vocabulary, length) are handed down by the parent, never repeated in an experiment file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, Any, ClassVar

from .facts import ModelFacts, ProcessFacts
from .spaces import Data, Space
from .spec import Misfit, Path, Spec

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from .parts import Loss, Process, Sampler, Schedule, Task

__all__ = [
    "KINDS",
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

ANY: frozenset[Data] = frozenset({"tokens", "features"})
TOKENS: frozenset[Data] = frozenset({"tokens"})
FEATURES: frozenset[Data] = frozenset({"features"})


class TaskSpec(Spec):
    """What the data is, how well a model does on it, and how it looks."""

    kind: ClassVar[str] = "task"

    def check(self) -> Iterable[Misfit]:
        """Yield what is wrong with the options taken together."""
        return ()

    @abstractmethod
    def space(self) -> Space:
        """What one sample looks like. May read data, without torch; raises `Refused` where the data is at fault."""

    @abstractmethod
    def build(self) -> Task:
        """Read the data and return the task."""


class DataSpec(Spec):
    """A source of samples: real files, embedded data, or a generator.

    `gives` says which records come out, so that a task can refuse a source of something else.
    """

    kind: ClassVar[str] = "data"
    gives: ClassVar[str]

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


def _serves(spec: Spec, serves: frozenset[Data], space: Space, related: Path) -> Iterable[Misfit]:
    if space.data not in serves:
        (wanted,) = serves
        yield Misfit(f'{spec.kind} "{spec.name}" is for {wanted}, but here a sample is {space}', related=related)


class _OverSpace(Spec):
    """A part that is built for a space, and may serve one sort of data only."""

    serves: ClassVar[frozenset[Data]] = ANY


class ProcessSpec(_OverSpace):
    """Noise on the way in, steps on the way back."""

    kind: ClassVar[str] = "process"

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the process cannot act on the task's space."""
        yield from _serves(self, self.serves, space, ("task",))

    @abstractmethod
    def facts(self, space: Space) -> ProcessFacts:
        """Tell what the parts built after the process need to know; `facts.space` is what the model must serve."""

    @abstractmethod
    def build(self, space: Space) -> Process:
        """Return the process over the task's space."""


class SamplerSpec(Spec):
    """A way to walk a process back."""

    kind: ClassVar[str] = "sampler"

    def check(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield why this walk is not possible with this process and model."""
        return ()

    @abstractmethod
    def build(self) -> Sampler:
        """Return the walk."""


class LossSpec(_OverSpace):
    """What training minimises: (Prediction, Noised) -> Measured."""

    kind: ClassVar[str] = "loss"
    bound: ClassVar[bool] = False
    """Whether the mean over t is the diffusion part of a bound on -log p(x_0), in nats; evaluation adds the rest."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield why the loss is wrong for the process."""
        yield from _serves(self, self.serves, process.space, ("process",))

    @abstractmethod
    def build(self, process: ProcessFacts) -> Loss:
        """Return the loss as a pure function."""


class ModelSpec(_OverSpace):
    """Raw output per position; an nn.Module with the methods of `parts.Denoiser`."""

    kind: ClassVar[str] = "model"

    def check(self, space: Space) -> Iterable[Misfit]:
        """Yield why the model cannot serve the space."""
        yield from _serves(self, self.serves, space, ("process",))

    def facts(self) -> ModelFacts:
        """Tell what samplers need to know."""
        return ModelFacts()

    @abstractmethod
    def build(self, space: Space) -> nn.Module:
        """Return the model."""


class BlockSpec(Spec):
    """One layer: forward(x `B L D`, c `B C` or `B L C`, mask=, cache=, layer=, keep=) -> `B L D`."""

    kind: ClassVar[str] = "block"

    def check(self, width: int, cond: int) -> Iterable[Misfit]:
        """Yield why the block cannot have these widths."""
        return ()

    @abstractmethod
    def build(self, width: int, cond: int) -> nn.Module:
        """Return one layer."""


class EmbeddingSpec(_OverSpace):
    """Into the model: forward(state, cond, start) -> (`B extra+L D`, extra); `start` is the first position's index."""

    kind: ClassVar[str] = "embedding"

    def check(self, space: Space, width: int) -> Iterable[Misfit]:
        """Yield why the space cannot be embedded."""
        yield from _serves(self, self.serves, space, ("process",))

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the embedding."""


class PositionSpec(_OverSpace):
    """What a position is: forward(start, length, cond) -> `1 L D` or `B L D`, added to the embedded values."""

    kind: ClassVar[str] = "position"

    def check(self, space: Space, width: int) -> Iterable[Misfit]:
        """Yield why positions of this space cannot be told."""
        yield from _serves(self, self.serves, space, ("process",))

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the positions."""


class ConditionSpec(Spec):
    """Noise level and conditions: forward(level `B` or `B L`, cond) -> `B C` or `B L C`."""

    kind: ClassVar[str] = "condition"

    def check(self, width: int) -> Iterable[Misfit]:
        """Yield why the condition cannot have this width."""
        return ()

    @abstractmethod
    def build(self, width: int) -> nn.Module:
        """Return the embedding of the condition."""


class HeadSpec(_OverSpace):
    """Out of the model: forward(h `B L D`) -> `B L M` or `B L V`, ids outside a field's vocabulary at -inf."""

    kind: ClassVar[str] = "head"

    def check(self, space: Space, width: int) -> Iterable[Misfit]:
        """Yield why the head cannot serve the space."""
        yield from _serves(self, self.serves, space, ("process",))

    @abstractmethod
    def build(self, space: Space, width: int) -> nn.Module:
        """Return the head."""


class OptimizerSpec(Spec):
    """Changes the weights."""

    kind: ClassVar[str] = "optimizer"

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
