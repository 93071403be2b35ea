"""Option types and checks shared by the specs of this package. No torch here."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Annotated, Literal

from pydantic import Field

from dither.registry import FeatureSpace, Misfit, Space, TokenSpace
from dither.registry.config.errors import did_you_mean
from dither.registry.spec.misfit import Path

__all__ = ["Endpoint", "Init", "Layout", "check_groups", "columns_without", "is_graph"]

Init = Literal["normal", "kaiming"] | Annotated[float, Field(gt=0, le=100)]
Endpoint = Literal["shared", "directed", "tied"]
Layout = Literal["cos-sin", "sin-cos", "interleaved"]


def is_graph(space: TokenSpace) -> bool:
    """Whether the fields are n nodes, their n(n-1)/2 pairs, and others of n, or n(n+1)/2 (pairs, then nodes)."""
    n, *lengths = (field.length for field in space.fields)
    pairs = n * (n - 1) // 2
    return lengths[:1] == [pairs] and all(
        length in (n, pairs + n) for length in lengths[1:]
    )


def columns_without(space: FeatureSpace, groups: Sequence[str]) -> list[int]:
    """Return the columns outside these groups."""
    excluded: set[int] = set()
    for group in space.groups:
        if group.name in groups:
            excluded.update(range(group.start, group.stop))
    return [column for column in range(space.width) if column not in excluded]


def check_groups(space: Space, groups: Sequence[str], path: Path) -> Iterator[Misfit]:
    """Reject names of unknown groups of columns."""
    if not isinstance(space, FeatureSpace):
        return
    known = [group.name for group in space.groups]
    for number, name in enumerate(groups):
        if name not in known:
            listed = ", ".join(known) or "none"
            # Of a single group the option is at fault, of several the entry.
            where = path
            if len(groups) > 1:
                where = (*path, number)
            yield Misfit(
                f'unknown group of columns "{name}"; groups: {listed}',
                where,
                ("task",),
                did_you_mean(name, known),
                code="unknown-value",
            )
