"""Declaration of a check."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..situations import Situation

__all__ = ["EXAMPLES", "Check", "Level", "Place", "checks_of"]

EXAMPLES = 8
"""Default number of situations per check."""
Level = Literal["required", "recommended"]
"""A recommended check that fails is reported, and fails only under `strict`."""
Place = Literal["options", "part", "default", "alone", "in-model"]
"""Which situations to draw; see `dither.testing.situations.situations`."""


@dataclass(frozen=True)
class Check:
    """One property of a component, named in snake case; unique within a kind, which may be "any".

    `run` raises AssertionError if it is violated; `needs` are the required traits; `examples` counts situations.
    """

    name: str
    kind: str
    run: Callable[[Situation], None]
    level: Level = "required"
    needs: frozenset[str] = frozenset()
    place: Place = "part"
    examples: int = EXAMPLES

    @property
    def summary(self) -> str:
        """First line of the docstring of the function."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]


def checks_of(
    kind: str, *functions: Callable[[Situation], None], needs: str = "", level: Level = "required",
    place: Place = "part", examples: int = EXAMPLES,
) -> tuple[Check, ...]:  # fmt: skip
    """Return checks of one kind, named like their functions; `needs` is a space-separated list of traits."""
    return tuple(Check(f.__name__, kind, f, level, frozenset(needs.split()), place, examples) for f in functions)
