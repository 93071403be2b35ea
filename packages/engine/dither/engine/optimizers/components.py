"""The menu of this package: optimizers and learning-rate schedules."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.kinds.costs import Stage
from dither.registry.kinds.training import OptimizerSpec

from .lr_schedules import WSD, Constant, Cosine, Linear

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["AdamW", "Muon", "register_components"]

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
        from .adamw import adamw

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


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer the optimizers and the learning-rate schedules."""
    return [AdamW, Constant, Cosine, Linear, Muon, WSD]
