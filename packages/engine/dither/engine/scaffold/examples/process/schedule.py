"""A noise schedule: alpha(t) falls along a smooth step. Letters: B batch, L length."""

from __future__ import annotations

import math
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.kinds import ScheduleSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Schedule
    from dither.registry.contracts.records import Noise


class ExampleSchedule(ScheduleSpec):
    """alpha = 1 - (1 - eps) (3 t^2 - 2 t^3): slow at both ends, fast in the middle."""

    name = "example-schedule"
    eps: float = Field(1e-3, ge=1e-9, lt=1)
    """Signal left at t = 1."""

    def sigma_end(self) -> float:
        """Return sigma(1), with which a process rejects a schedule before torch is imported."""
        return -math.log(self.eps)

    def build(self) -> Schedule:
        """Return t -> Noise(sigma, d sigma / dt), with alpha = exp(-sigma)."""
        import torch

        from dither.registry.contracts.records import Noise

        def schedule(t: Tensor) -> Noise:  # t: `B` or `B L`
            # alpha near 1 requires the digits.
            u = t.double()
            lost = (1 - self.eps) * u.square() * (3 - 2 * u)
            rate = (
                (1 - self.eps) * 6 * u * (1 - u) / (1 - lost)
            )  # -(d alpha / dt) / alpha
            return Noise(-torch.log1p(-lost).to(t.dtype), rate.to(t.dtype))

        return schedule


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleSchedule]
