"""The menu of this package: optimizers and learning-rate schedules."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.costs import Stage
from dither.registry.kinds import LRScheduleSpec, OptimizerSpec

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["WSD", "AdamW", "Constant", "Cosine", "Linear", "Muon", "register_components"]

Beta = Annotated[float, Field(ge=0, lt=1)]
OUTSIDE = {"embedding", "head", "head and loss"}
"""Stages of a model whose weights Muon leaves to AdamW: tables, and the map to what comes out."""


class AdamW(OptimizerSpec):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), in one fused kernel where there is one."""

    name: ClassVar[str] = "adamw"
    moments = 2
    lr: float = Field(1e-3, gt=0)
    """Learning rate, which the schedule multiplies."""
    betas: list[Beta] = Field([0.9, 0.999], min_length=2, max_length=2)
    """Memory of the mean of the gradients, and of their squares."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of the second moment."""
    weight_decay: float = Field(0.01, ge=0)
    """Share of a weight that is taken away at each step, times the learning rate."""
    decay: Literal["matrices", "all"] = "matrices"
    """Which weights decay: matrices leaves out vectors, biases and embedding tables."""

    def build(self, module: nn.Module) -> Optimizer:
        """Return the optimizer over the parameters of `module` that want gradients."""
        from .optim import adamw

        return adamw(module, self.lr, (self.betas[0], self.betas[1]), self.eps, self.weight_decay, self.decay)


class Muon(OptimizerSpec):
    """Muon for the matrices of the blocks, AdamW for tables, vectors and the head (Jordan et al. 2024).

    Its steps are made as long as those of AdamW (Liu et al. 2025), so that one learning rate serves both.
    """

    name: ClassVar[str] = "muon"
    moments = 2
    lr: float = Field(1e-3, gt=0)
    """Learning rate, which the schedule multiplies."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Memory of the mean of the gradients of matrices; Nesterov's."""
    betas: list[Beta] = Field([0.9, 0.999], min_length=2, max_length=2)
    """AdamW's memory of the mean of the gradients, and of their squares."""
    eps: float = Field(1e-8, gt=0)
    """Added to the root of AdamW's second moment."""
    weight_decay: float = Field(0.01, ge=0)
    """Share of a matrix that is taken away at each step, times the learning rate."""

    def kept(self, stage: Stage) -> int:
        """Numbers that it keeps: one for each weight inside the model, vectors being few; AdamW's two elsewhere."""
        return (2 if stage.name in OUTSIDE else 1) * stage.parameters

    def build(self, module: nn.Module) -> Optimizer:
        """Return the optimizer over the parameters of `module` that want gradients."""
        from .muon import Muon

        return Muon(module, self.lr, self.momentum, (self.betas[0], self.betas[1]), self.eps, self.weight_decay)


class _WarmedUp(LRScheduleSpec):
    """What every schedule has."""

    warmup: int = Field(0, ge=0)
    """Steps in which the learning rate rises evenly to its full value."""


class Constant(_WarmedUp):
    """The full learning rate all along, after a warm-up."""

    name: ClassVar[str] = "constant"

    def build(self, steps: int) -> Callable[[int], float]:
        """Return step -> factor."""
        from .rates import warmed_up

        return warmed_up(lambda progress: 1.0, steps, self.warmup)


class Cosine(_WarmedUp):
    """Half a cosine from the full learning rate down to its final share (Loshchilov and Hutter, 2017)."""

    name: ClassVar[str] = "cosine"
    final: float = Field(0.1, ge=0, le=1)
    """Share of the learning rate that is left at the end."""

    def build(self, steps: int) -> Callable[[int], float]:
        """Return step -> factor."""
        from .rates import cosine, warmed_up

        return warmed_up(lambda progress: cosine(progress, self.final), steps, self.warmup)


class Linear(_WarmedUp):
    """A straight line from the full learning rate down to its final share."""

    name: ClassVar[str] = "linear"
    final: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate that is left at the end."""

    def build(self, steps: int) -> Callable[[int], float]:
        """Return step -> factor."""
        from .rates import linear, warmed_up

        return warmed_up(lambda progress: linear(progress, self.final), steps, self.warmup)


class WSD(_WarmedUp):
    """Warm-up, the full learning rate for most of the run, and a decay at its end (Hu et al. 2024).

    A run may be resumed with more steps from a checkpoint before the decay as if it had been asked for them at once.
    """

    name: ClassVar[str] = "wsd"
    decay: float = Field(0.2, gt=0, le=1)
    """Share of the run, after the warm-up, in which the learning rate falls."""
    final: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate that is left at the end."""
    shape: Literal["linear", "sqrt"] = "linear"
    """How it falls: evenly, or as 1 - sqrt of the way, which is faster at first (Haegele et al. 2024)."""

    def build(self, steps: int) -> Callable[[int], float]:
        """Return step -> factor."""
        from .rates import stable_then_decay, warmed_up

        return warmed_up(lambda p: stable_then_decay(p, self.decay, self.final, self.shape), steps, self.warmup)


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer the optimizers and the learning-rate schedules."""
    return [AdamW, Constant, Cosine, Linear, Muon, WSD]
