"""The menu of this package: optimizers and learning-rate schedules."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import ClassVar, Literal

from pydantic import Field

from dither.registry.kinds.training import LRScheduleSpec

__all__ = ["WSD", "Constant", "Cosine", "Linear", "cosine", "linear", "stable_then_decay", "with_warmup"]


class _WarmedUp(LRScheduleSpec):
    """What every schedule has."""

    warmup: int = Field(0, ge=0)
    """Steps in which the learning rate rises evenly to its full value."""


class Constant(_WarmedUp):
    """The full learning rate all along, after a warm-up."""

    name: ClassVar[str] = "constant"

    def build(self, steps: int) -> Callable[[int], float]:
        """Return step -> factor."""
        return with_warmup(lambda progress: 1.0, steps, self.warmup)


class Cosine(_WarmedUp):
    """Half a cosine from the full learning rate down to its final share (Loshchilov and Hutter, 2017)."""

    name: ClassVar[str] = "cosine"
    final: float = Field(0.1, ge=0, le=1)
    """Share of the learning rate that is left at the end."""

    def build(self, steps: int) -> Callable[[int], float]:
        """Return step -> factor."""
        return with_warmup(lambda progress: cosine(progress, self.final), steps, self.warmup)


class Linear(_WarmedUp):
    """A straight line from the full learning rate down to its final share."""

    name: ClassVar[str] = "linear"
    final: float = Field(0.0, ge=0, le=1)
    """Share of the learning rate that is left at the end."""

    def build(self, steps: int) -> Callable[[int], float]:
        """Return step -> factor."""
        return with_warmup(lambda progress: linear(progress, self.final), steps, self.warmup)


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
        return with_warmup(lambda p: stable_then_decay(p, self.decay, self.final, self.shape), steps, self.warmup)


def with_warmup(shape: Callable[[float], float], steps: int, warmup: int) -> Callable[[int], float]:
    """Rise evenly for `warmup` steps, then follow `shape`.

    Args:
        shape: Progress after the warm-up, 0 to 1 -> factor.
        steps: Steps of the whole run.
        warmup: Steps of the rise; the first of them has the factor 1 / warmup, the last one 1.

    Returns:
        step -> factor; past the end of the run the last factor stays.
    """

    def factor(step: int) -> float:
        if step < warmup:
            return (step + 1) / warmup
        return shape(min((step - warmup) / max(steps - warmup, 1), 1.0))

    return factor


def cosine(progress: float, final: float) -> float:
    """Half a cosine from 1 to `final`."""
    return final + (1 - final) * (1 + math.cos(math.pi * progress)) / 2


def linear(progress: float, final: float) -> float:
    """A straight line from 1 to `final`."""
    return 1 + (final - 1) * progress


def stable_then_decay(progress: float, decay: float, final: float, shape: Literal["linear", "sqrt"]) -> float:
    """Stay at 1 until a share `decay` of the way is left, then fall to `final`."""
    fallen = max(0.0, 1 - (1 - progress) / decay)
    return linear(math.sqrt(fallen) if shape == "sqrt" else fallen, final)
