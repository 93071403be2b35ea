"""AdamW and Muon as components. No torch at import."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, ClassVar, Literal

from pydantic import Field

from dither.registry.kinds import OptimizerSpec

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["AdamW", "Muon"]

Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamW(OptimizerSpec):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), fused where a kernel exists."""

    name: ClassVar[str] = "adamw"
    lr: float = Field(1e-3, gt=0)
    """Learning rate, multiplied by the schedule."""
    betas: list[Beta] = Field([0.9, 0.999], min_length=2, max_length=2)
    """Decay rates of the running averages of the gradient and of its square."""
    eps: float = Field(1e-8, gt=0)
    """Added to the denominator for numerical stability."""
    weight_decay: float = Field(0.01, ge=0)
    """Weight decay coefficient, multiplied by the learning rate."""
    decay: Literal["matrices", "all"] = "matrices"
    """Which weights decay; "matrices" leaves out vectors, biases and embedding tables."""

    def build(self, module: nn.Module) -> Optimizer:
        """Return AdamW for a module that is on its device already; ValueError if it has nothing to train."""
        from torch.optim import AdamW

        from .parameter_groups import has_fused_kernel, parameter_groups

        groups = parameter_groups(module, self.weight_decay, self.decay)
        betas = self.betas[0], self.betas[1]
        return AdamW(groups, lr=self.lr, betas=betas, eps=self.eps, fused=has_fused_kernel(groups))


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
        """Return the optimizer for a module that is on its device already; ValueError if it has nothing to train."""
        from .muon import Muon

        betas = self.betas[0], self.betas[1]
        return Muon(module, self.lr, self.momentum, betas, self.eps, self.weight_decay)
