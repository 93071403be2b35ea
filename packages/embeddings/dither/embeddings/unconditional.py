"""A model that is told nothing beside the sample. Letters: B batch, L length, C condition width."""

from __future__ import annotations

from collections.abc import Mapping

from jaxtyping import Float
from torch import Tensor, nn

__all__ = ["Unconditional"]


class Unconditional(nn.Module):
    """Zeros, whatever the level and the conditions are.

    Args:
        width: Width of the condition.
    """

    def __init__(self, width: int) -> None:
        super().__init__()
        self.width = width

    def forward(self, level: Float[Tensor, "B *L"], cond: Mapping[str, Tensor]) -> Float[Tensor, "B *L C"]:
        """Return a vector of zeros per level."""
        return level.new_zeros(*level.shape, self.width)
