"""Which sort of data a part serves, for every kind that is built for a space."""

from __future__ import annotations

from collections.abc import Iterable
from typing import ClassVar

from .spaces import Data, Space
from .spec import Misfit, Path, Spec

__all__ = ["ANY", "FEATURES", "TOKENS", "OverSpace", "serves_not"]

ANY: frozenset[Data] = frozenset({"tokens", "features"})
"""Tokens and features alike."""
TOKENS: frozenset[Data] = frozenset({"tokens"})
"""Tokens alone."""
FEATURES: frozenset[Data] = frozenset({"features"})
"""Features alone."""


def serves_not(spec: Spec, serves: frozenset[Data], space: Space, related: Path) -> Iterable[Misfit]:
    """Yield if the space is of a sort that the part does not serve; `related` says where the space comes from."""
    if space.data not in serves:
        (wanted,) = serves
        yield Misfit(f'{spec.kind} "{spec.name}" is for {wanted}, but here a sample is {space}', related=related)


class OverSpace(Spec):
    """A part that is built for a space, and may serve one sort of data only."""

    serves: ClassVar[frozenset[Data]] = ANY
