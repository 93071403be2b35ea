"""The menu of positions. No torch here."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from pydantic import Field

from dither.registry import Space
from dither.registry.costs import Cost
from dither.registry.kinds import PositionSpec

if TYPE_CHECKING:
    from .positions import LearnedPositions, NoPositions, SinusoidPositions

__all__ = ["Layout", "LearnedPosition", "NoPosition", "Sinusoid"]

Layout = Literal["cos-sin", "sin-cos", "interleaved"]


class NoPosition(PositionSpec):
    """Positions are not told apart."""

    name: ClassVar[str] = "none"

    def cost(self, space: Space, width: int) -> Cost:
        """Nothing."""
        return Cost()

    def build(self, space: Space, width: int) -> NoPositions:
        """Return zeros."""
        from .positions import NoPositions

        return NoPositions(width)


class Sinusoid(PositionSpec):
    """Cosines and sines of the index of a position (Vaswani et al., 2017)."""

    name: ClassVar[str] = "sinusoid"
    max_period: float = Field(10_000.0, gt=1, le=1e9)
    """The longest period is 2 pi times this; that of the original GET model is 300."""
    layout: Layout = "interleaved"
    """Order of the numbers: all cosines before all sines, all sines before all cosines, or sine and cosine by turns."""

    def cost(self, space: Space, width: int) -> Cost:
        """Nothing that is learned, and nothing that grows with the batch."""
        return Cost()

    def build(self, space: Space, width: int) -> SinusoidPositions:
        """Return the sinusoids."""
        from .positions import SinusoidPositions

        return SinusoidPositions(width, max_period=self.max_period, layout=self.layout)


class LearnedPosition(PositionSpec):
    """A learned vector for each position of the sample."""

    name: ClassVar[str] = "learned"
    std: float = Field(0.02, gt=0, le=100)
    """Standard deviation of the vectors at the start."""

    def cost(self, space: Space, width: int) -> Cost:
        """What the table takes."""
        return Cost(space.length * width)

    def build(self, space: Space, width: int) -> LearnedPositions:
        """Return the table."""
        from .positions import LearnedPositions

        return LearnedPositions(space.length, width, std=self.std)
