"""A reward of samples. Letters: N samples, L length."""

from __future__ import annotations

from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Space, Spec, hookimpl
from dither.registry.kinds import TOKENS, RewardSpec

if TYPE_CHECKING:
    from torch import Tensor

    from dither.registry.contracts.protocols import Reward
    from dither.registry.contracts.records import Clean


class ExampleReward(RewardSpec):
    """Number of neighbouring positions that differ."""

    name = "example-reward"
    serves = TOKENS
    weight: float = Field(1.0, ge=-100, le=100)
    """Reward of a pair of neighbours that differ."""

    def build(self, space: Space) -> Reward:
        """Return a function of samples `N L` and the templates they were drawn from."""

        def reward(samples: Tensor, like: Clean) -> Tensor:
            changes = samples[:, 1:] != samples[:, :-1]
            return self.weight * changes.sum(1).float()

        return reward


@hookimpl
def register_components() -> list[type[Spec]]:
    return [ExampleReward]
