"""The menu of this package: embeddings, positions, the noise level, heads. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Misfit, Space, TokenSpace
from dither.registry.config.errors import nearest
from dither.registry.spec.misfit import Path

__all__ = ["Endpoint", "Layout", "Start", "columns_without", "misfit_frequencies", "misfit_groups"]

Start = Literal["normal", "kaiming"] | Annotated[float, Field(gt=0, le=100)]
Endpoint = Literal["shared", "directed", "tied"]


def is_graph(space: TokenSpace) -> bool:
    """Whether the second of two fields has one position for each pair of the first."""
    lengths = [field.length for field in space.fields]
    return len(lengths) == 2 and lengths[1] == lengths[0] * (lengths[0] - 1) // 2


Layout = Literal["cos-sin", "sin-cos", "interleaved"]


def misfit_frequencies(frequencies: int, freq_shift: int) -> Iterator[Misfit]:
    """Yield too few frequencies for the shift: a slowest one needs a fastest one beside it."""
    if freq_shift and frequencies < 4:
        yield Misfit(f"freq_shift = 1 needs at least 4 frequencies, not {frequencies}", ("frequencies",))


def columns_without(space: FeatureSpace, groups: Sequence[str]) -> list[int]:
    """Return the columns that are in none of these groups."""
    gone = {column for group in space.groups if group.name in groups for column in range(group.start, group.stop)}
    return [column for column in range(space.width) if column not in gone]


def misfit_groups(space: Space, groups: Sequence[str], path: Path) -> Iterator[Misfit]:
    """Yield the names that no group of columns has."""
    if isinstance(space, FeatureSpace):
        there = [group.name for group in space.groups]
        for number, name in enumerate(groups):
            if name not in there:
                close = nearest(name, there)
                what = f'no group of columns is named "{name}"; groups: {", ".join(there) or "none"}'
                where = (*path, number) if len(groups) > 1 else path
                yield Misfit(what, where, ("task",), f'did you mean "{close}"?' if close else None)


ANGLE_FREQUENCIES = 256
"""Cosines and sines by which the head is told its noise."""
