"""A plugin in one file: the sigmoid schedule (Jabri, Fleet, Chen 2022, "Scalable Adaptive Computation", appendix B)."""

import math
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.kinds.process import ScheduleSpec

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Schedule


class Sigmoid(ScheduleSpec):
    """alpha falls along a sigmoid from 1 to eps: slowly at both ends, fast in the middle."""

    name: ClassVar[str] = "sigmoid"
    steepness: float = Field(6.0, gt=0, le=40)
    """Width of the sigmoid's argument; towards 0 the schedule becomes a straight line."""
    eps: float = Field(1e-3, gt=0, lt=0.1)
    """Signal left at t = 1."""

    def sigma_end(self) -> float:
        """Return sigma(1)."""
        return -math.log(self.eps)

    def build(self) -> "Schedule":
        """Return the schedule."""
        import torch

        from dither.registry.flow.records import Noise

        def schedule(t: torch.Tensor) -> Noise:
            x = self.steepness * (t.double() - 0.5)
            end = torch.sigmoid(torch.tensor(self.steepness / 2, dtype=torch.float64))
            share = (1 - self.eps) / (2 * end - 1)
            alpha = (self.eps + share * (torch.sigmoid(-x) - (1 - end))).clamp(max=1)  # rounding may lead above
            slope = share * self.steepness * torch.sigmoid(x) * torch.sigmoid(-x)  # -d alpha / dt
            return Noise(-alpha.log().to(t.dtype), (slope / alpha).to(t.dtype))

        return schedule


@hookimpl
def register_components() -> list[type[Spec]]:
    """Offer the schedule."""
    return [Sigmoid]
