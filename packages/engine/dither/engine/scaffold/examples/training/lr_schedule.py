"""A learning-rate schedule (Vaswani et al. 2017, eq. 3)."""

from __future__ import annotations

import math
from collections.abc import Callable

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.kinds import LRScheduleSpec


class ExampleLrSchedule(LRScheduleSpec):
    """Linear warm-up, then the inverse square root of the step."""

    name = "example-lr-schedule"
    warmup: int = Field(100, ge=1, le=1_000_000_000)
    """Steps until the full learning rate."""

    def build(self, steps: int) -> Callable[[int], float]:
        """Return step (0 .. steps - 1) -> factor of the optimizer's learning rate."""

        def factor(step: int) -> float:
            return min((step + 1) / self.warmup, math.sqrt(self.warmup / (step + 1)))

        return factor


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleLrSchedule]
