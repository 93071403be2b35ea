"""Optimizers and learning-rate schedules (step -> factor). Read without torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Annotated, Literal

from pydantic import Field

from dither.registry.kinds import LRScheduleSpec, OptimizerSpec

if TYPE_CHECKING:
    from torch import nn
    from torch.optim import Optimizer

__all__ = ["WSD", "AdamW", "AdamW8bit", "Constant", "Cosine", "Linear", "Muon"]

Beta = Annotated[float, Field(ge=0, lt=1)]


class AdamW(OptimizerSpec):
    """Adam with decoupled weight decay (Loshchilov and Hutter, 2019), fused where a kernel exists."""

    name = "adamw"
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
        """Return AdamW for a module on its device; ValueError if it has nothing to train."""
        from .muon import adamw, parameter_groups

        groups = parameter_groups(module, self.weight_decay, self.decay)
        return adamw(groups, self.lr, (self.betas[0], self.betas[1]), self.eps)


class AdamW8bit(AdamW):
    """AdamW with 8-bit averages (Dettmers et al. 2022): a quarter of the memory, the same numbers as torchao's.

    Slower than the fused kernel of `adamw`; not for `strategy = "fsdp"`.
    """

    name = "adamw-8bit"
    shardable = False

    def build(self, module: nn.Module) -> Optimizer:
        """Return the optimizer for a module on its device; ValueError if it has nothing to train."""
        from .adamw_8bit import AdamW8bit
        from .muon import parameter_groups

        groups = parameter_groups(module, self.weight_decay, self.decay)
        return AdamW8bit(groups, self.lr, (self.betas[0], self.betas[1]), self.eps)


class Muon(OptimizerSpec):
    """Muon for the matrices of the blocks, AdamW for tables, vectors and the head (Jordan et al. 2024).

    Its updates have the RMS of those of AdamW (Liu et al. 2025), so that both use one learning
    rate.
    """

    name = "muon"
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
        """Return the optimizer for a module on its device; ValueError if it has nothing to train."""
        from .muon import Muon

        # TOML has lists only, torch takes a pair.
        betas = self.betas[0], self.betas[1]
        return Muon(module, self.lr, self.momentum, betas, self.eps, self.weight_decay)


class _WithWarmup(LRScheduleSpec):
    """Linear warm-up, then `_shape`."""

    warmup: int = Field(0, ge=0)
    """Steps in which the learning rate rises linearly to its full value."""

    def _shape(self, progress: float) -> float:
        """Return the factor at a share of the steps after the warm-up, from 0 to 1."""
        return 1.0

    def build(self, steps: int) -> Callable[[int], float]:
        """Return step -> factor; steps past the end keep the last factor."""

        def factor(step: int) -> float:
            # The learning rate of step 0 is not 0, which would waste the step.
            if step < self.warmup:
                return (step + 1) / self.warmup
            # The warm-up may be as long as the run, or longer.
            return self._shape(
                min((step - self.warmup) / max(steps - self.warmup, 1), 1.0)
            )

        return factor


class Constant(_WithWarmup):
    """Constant learning rate after a warm-up."""

    name = "constant"


class Cosine(_WithWarmup):
    """Half a cosine from the full learning rate down to its final share (Loshchilov and Hutter, 2017)."""

    name = "cosine"
    final: float = Field(0.1, ge=0, le=1)
    """Share of the learning rate at the end."""

    def _shape(self, progress: float) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2


class Linear(_WithWarmup):
    """Linear decay from the full learning rate to its final share."""

    name = "linear"
    final: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate at the end."""

    def _shape(self, progress: float) -> float:
        return 1 + (self.final - 1) * progress


class WSD(_WithWarmup):
    """Warm-up, stable, decay: the full learning rate for most of the run, then a decay (Hu et al. 2024).

    Resuming with more steps from a checkpoint before the decay equals a run that had these steps
    from the beginning.
    """

    name = "wsd"
    decay: float = Field(0.2, gt=0, le=1)
    """Share of the steps after the warm-up in which the learning rate decays."""
    final: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate at the end."""
    shape: Literal["linear", "sqrt"] = "linear"
    """Shape of the decay: linear, or 1 - sqrt, which is faster at first (Haegele et al. 2024)."""

    def _shape(self, progress: float) -> float:
        # Negative before the decay begins.
        decayed = max(0.0, 1 - (1 - progress) / self.decay)
        if self.shape == "sqrt":
            decayed = math.sqrt(decayed)
        return 1 + (self.final - 1) * decayed
