"""Optimizers and learning-rate schedules of this package."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry.kinds.training import OptimizerSpec

from .adamw import AdamW, Beta

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["AdamW", "Muon"]


class Muon(OptimizerSpec):
    """Muon for the matrices of the blocks, AdamW for tables, vectors and the head (Jordan et al. 2024).

    Its updates have the RMS of those of AdamW (Liu et al. 2025), so that both use one learning rate.
    """

    name: ClassVar[str] = "muon"
    lr: float = Field(1e-3, gt=0)
    """Learning rate, multiplied by the schedule."""
    momentum: float = Field(0.95, ge=0, lt=1)
    """Nesterov momentum of matrices."""
    betas: list[Beta] = Field([0.9, 0.999], min_length=2, max_length=2)
    """AdamW's decay rates of the running averages of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """Added to AdamW's denominator for numerical stability."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay coefficient of matrices, multiplied by the learning rate."""

    def build(self, module: nn.Module) -> Optimizer:
        """Return the optimizer for a module that is on its device already."""
        from .muon import Muon

        options = self.model_dump(include={"lr", "momentum", "eps", "weight_decay"})
        return Muon(module, betas=(self.betas[0], self.betas[1]), **options)
