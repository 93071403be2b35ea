"""Specs of position embeddings. Read without torch."""

from __future__ import annotations

from collections.abc import Iterator
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import FeatureSpace, Misfit, Space
from dither.registry.kinds import PositionSpec, missing_condition

from .options import Layout

if TYPE_CHECKING:
    from .positions import (
        GridPositions,
        LearnedPositions,
        NoPositions,
        SinusoidPositions,
    )

__all__ = [
    "GenomicSinusoid",
    "GridSinusoid",
    "LearnedPosition",
    "NoPosition",
    "Sinusoid",
]


class NoPosition(PositionSpec):
    """No position embedding."""

    name = "none"

    def traits(self) -> frozenset[str]:
        """All positions are the same."""
        return frozenset({"position-free"})

    def build(self, space: Space, width: int) -> NoPositions:
        from .positions import NoPositions

        return NoPositions(width)


class Sinusoid(PositionSpec):
    """Sinusoids of the index of a position (Vaswani et al., 2017)."""

    name = "sinusoid"
    max_period: float = Field(10_000.0, gt=1, le=1e9)
    """The longest period is 2 pi times this; the original GET model uses 300."""
    layout: Layout = "interleaved"
    """Order: all cosines before all sines, all sines before all cosines, or sine and cosine
    interleaved."""

    def build(self, space: Space, width: int) -> SinusoidPositions:
        from .positions import SinusoidPositions

        return SinusoidPositions(width, max_period=self.max_period, layout=self.layout)


class GenomicSinusoid(PositionSpec):
    """Sinusoids of the distance from the first position of the sample, such as along a chromosome.

    Unlike an index this encodes how far apart neighbours are. The task provides the coordinates as
    a condition.
    """

    name = "genomic-sinusoid"
    of: str = "centre"
    """Name of the condition with the coordinates; get-region provides the centre of each region in
    bases."""
    unit: float = Field(1000.0, gt=0, le=1e9)
    """Unit of distances: 1000 converts bases to kilobases. The shortest period is 2 pi units."""
    max_period: float = Field(10_000.0, gt=1, le=1e9)
    """The longest period is 2 pi times this, in units; 10,000 kilobases cover the largest possible
    window."""
    layout: Layout = "interleaved"
    """Order: all cosines before all sines, all sines before all cosines, or sine and cosine
    interleaved."""

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Require this condition of the task."""
        yield from super().check(space, width)
        yield from missing_condition(space.conditions, self.of, ("of",))

    def build(self, space: Space, width: int) -> SinusoidPositions:
        from .positions import SinusoidPositions

        return SinusoidPositions(width, **self.model_dump())


class GridSinusoid(PositionSpec):
    """Sinusoids of the column and the row of a position on a grid, half of the width each (MAE, DiT)."""

    name = "grid-sinusoid"
    max_period: float = Field(10_000.0, gt=1, le=1e9)
    """The longest period is 2 pi times this."""

    def check(self, space: Space, width: int) -> Iterator[Misfit]:
        """Require positions on a grid, and sines and cosines for both coordinates."""
        yield from super().check(space, width)
        if not isinstance(space, FeatureSpace) or space.grid is None:
            message = f"{space} have no grid"
            fix = 'use position "learned" or "sinusoid"'
            yield Misfit(message, related=("task",), help=fix)
        if width % 4:
            message = f"width {width} is not divisible by 4: sine and cosine of column and row"
            yield Misfit(message, related=("model", "width"), code="out-of-range")

    def build(self, space: Space, width: int) -> GridPositions:
        from .positions import GridPositions

        assert isinstance(space, FeatureSpace)
        assert space.grid is not None
        return GridPositions(space.grid, width, max_period=self.max_period)


class LearnedPosition(PositionSpec):
    """A learned vector per position."""

    name = "learned"
    std: float = Field(0.02, gt=0, le=100)
    """Initial standard deviation of the vectors."""

    def build(self, space: Space, width: int) -> LearnedPositions:
        from .positions import LearnedPositions

        return LearnedPositions(space.length, width, std=self.std)
