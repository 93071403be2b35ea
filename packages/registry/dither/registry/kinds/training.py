"""The kinds of part: what each is given when it is built, and what it gives back.

Every kind has two verbs with the same arguments: `check` yields misfits without torch, `build` returns the part.
Sizes (width, condition width, vocabulary, length) are handed down by the parent, never repeated in an experiment file.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Iterable
from typing import TYPE_CHECKING, ClassVar

from ..spec.base import Spec
from ..spec.misfit import Misfit
from .component_info import ProcessFacts
from .costs import Cost, Stage
from .space_compatibility import OverSpace, unserved_space

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

    from ..flow.protocols import Loss

__all__ = ["LRScheduleSpec", "LossSpec", "OptimizerSpec"]


class LossSpec(OverSpace):
    """What training minimises: (Prediction, Noised) -> Measured."""

    kind: ClassVar[str] = "loss"
    bound: ClassVar[bool] = False
    """Whether the mean over t is the diffusion part of a bound on -log p(x_0), in nats; evaluation adds the rest."""

    def check(self, process: ProcessFacts) -> Iterable[Misfit]:
        """Yield why the loss is wrong for the process."""
        yield from unserved_space(self, self.serves, process.space, ("process",))

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
