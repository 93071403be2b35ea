"""An embedding of the noise level. Letters: B batch, L length, C condition width."""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Spec, hookimpl
from dither.registry.kinds import ConditionSpec

if TYPE_CHECKING:
    from torch import Tensor, nn


class ExampleCondition(ConditionSpec):
    """An MLP of asinh(level) and asinh(1000 level), which resolves small and large levels."""

    name = "example-condition"
    hidden: int = Field(64, ge=1, le=65_536)
    """Width of the hidden layer."""

    def build(self, width: int) -> nn.Module:
        # torch is imported here, so that `dither list` and `dither validate` stay fast.
        import torch
        from torch import nn
        from torch.nn.functional import silu

        size = self.hidden

        class LogLevel(nn.Module):
            def __init__(self) -> None:
                super().__init__()
                self.enter = nn.Linear(2, size)
                self.leave = nn.Linear(size, width)

            def forward(self, level: Tensor, cond: Mapping[str, Tensor]) -> Tensor:
                """Return B C or B L C for a level of shape B or B L."""
                # asinh and not log: a level may be 0, or negative where it is log sigma.
                scaled = torch.stack([level, 1000 * level], -1).asinh()
                hidden = silu(self.enter(scaled.to(self.enter.weight.dtype)))
                out: Tensor = self.leave(hidden)
                return out

        return LogLevel()


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleCondition]
