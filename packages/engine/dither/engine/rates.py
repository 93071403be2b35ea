"""The learning rate over a run, as a factor of the optimizer's own. No torch."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Literal

__all__ = ["cosine", "linear", "stable_then_decay", "warmed_up"]


def warmed_up(shape: Callable[[float], float], steps: int, warmup: int) -> Callable[[int], float]:
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
