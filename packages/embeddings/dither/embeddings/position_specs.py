"""The menu of positions. No torch here."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from dither.registry import Misfit, Space
from dither.registry.kinds import PositionSpec
from dither.registry.kinds.costs import Cost
from dither.registry.kinds.space_compatibility import missing_condition

from .options import Layout

if TYPE_CHECKING:
    from .positions import GenomicPositions, LearnedPositions, NoPositions, SinusoidPositions

__all__ = ["GenomicSinusoid", "LearnedPosition", "NoPosition", "Sinusoid"]


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


class GenomicSinusoid(PositionSpec):
    """Cosines and sines of how far a position lies from the first of its sample, such as along a chromosome.

    Unlike an index it knows how far apart neighbours are. The task tells where positions lie.
    """

    name: ClassVar[str] = "genomic-sinusoid"
    of: str = "centre"
    """The condition that says where positions lie, by its name; get-region tells the centre of each region in bases."""
    unit: float = Field(1000.0, gt=0, le=1e9)
    """What distances are counted in: 1000 makes kilobases of bases. The shortest period is 2 pi of it."""
    max_period: float = Field(10_000.0, gt=1, le=1e9)
    """The longest period is 2 pi times this, in units; 10,000 kilobases span all that a window may."""
    layout: Layout = "interleaved"
    """Order of the numbers: all cosines before all sines, all sines before all cosines, or sine and cosine by turns."""

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Yield if the task does not tell where positions lie."""
        yield from super().check(space, width)
        yield from missing_condition(space.conditions, self.of, ("of",))

    def cost(self, space: Space, width: int) -> Cost:
        """Nothing that is learned; the sinusoids of a sample pass."""
        return Cost(passing=2 * space.length * width)

    def build(self, space: Space, width: int) -> GenomicPositions:
        """Return the sinusoids."""
        from .positions import GenomicPositions

        return GenomicPositions(width, of=self.of, unit=self.unit, max_period=self.max_period, layout=self.layout)


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
