"""Learning-rate schedules: step -> factor of the optimizer's learning rate."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal

from pydantic import Field

from dither.registry.kinds import LRScheduleSpec

__all__ = ["WSD", "Constant", "Cosine", "Linear"]


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
            if step < self.warmup:
                return (step + 1) / self.warmup
            return self._shape(min((step - self.warmup) / max(steps - self.warmup, 1), 1.0))

        return factor


class Constant(_WithWarmup):
    """Constant learning rate after a warm-up."""

    name: ClassVar[str] = "constant"


class Cosine(_WithWarmup):
    """Half a cosine from the full learning rate down to its final share (Loshchilov and Hutter, 2017)."""

    name: ClassVar[str] = "cosine"
    final: float = Field(0.1, ge=0, le=1)
    """Share of the learning rate at the end."""

    def _shape(self, progress: float) -> float:
        return self.final + (1 - self.final) * (1 + math.cos(math.pi * progress)) / 2


class Linear(_WithWarmup):
    """Linear decay from the full learning rate to its final share."""

    name: ClassVar[str] = "linear"
    final: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate at the end."""

    def _shape(self, progress: float) -> float:
        return 1 + (self.final - 1) * progress


class WSD(_WithWarmup):
    """Warm-up, stable, decay: the full learning rate for most of the run, then a decay (Hu et al. 2024).

    Resuming with more steps from a checkpoint before the decay equals a run that had these steps from the beginning.
    """

    name: ClassVar[str] = "wsd"
    decay: float = Field(0.2, gt=0, le=1)
    """Share of the steps after the warm-up in which the learning rate decays."""
    final: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate at the end."""
    shape: Literal["linear", "sqrt"] = "linear"
    """Shape of the decay: linear, or 1 - sqrt, which is faster at first (Haegele et al. 2024)."""

    def _shape(self, progress: float) -> float:
        decayed = max(0.0, 1 - (1 - progress) / self.decay)
        return 1 + (self.final - 1) * (math.sqrt(decayed) if self.shape == "sqrt" else decayed)
