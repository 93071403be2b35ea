"""A position embedding. Letters: B batch, L length, D width."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Space, Spec, hookimpl
from dither.registry.kinds import PositionSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


class ExamplePosition(PositionSpec):
    """Sines of the position with learned frequencies and phases, then a linear map."""

    name = "example-position"
    waves: int = Field(16, ge=1, le=4096)
    """Number of sines."""

    def build(self, space: Space, width: int) -> nn.Module:
        # torch is imported here, so that `dither list` and `dither validate` stay fast.
        import torch
        from torch import nn

        # From one wave over the whole sample to one radian a position.
        waves = self.waves
        lowest = 2 * math.pi / max(space.length, 2)

        class LearnedSines(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.frequency = nn.Parameter(
                    torch.logspace(math.log10(lowest), 0.0, waves)
                )
                self.phase = nn.Parameter(torch.zeros(waves))
                self.linear = nn.Linear(waves, width)

            def forward(
                self, start: int, length: int, cond: Mapping[str, Tensor]
            ) -> Tensor:
                """Return the vectors of positions start .. start + length - 1: 1 L D or B L D."""
                index = torch.arange(start, start + length, device=self.phase.device)
                angle = (
                    index[:, None].to(self.phase.dtype) * self.frequency + self.phase
                )
                out: Tensor = self.linear(angle.sin())[None]
                return out

        return LearnedSines()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExamplePosition]
