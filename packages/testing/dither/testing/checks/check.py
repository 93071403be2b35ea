"""What a check is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..situations import Situation

__all__ = ["Check", "Level", "Place", "checks_of"]

EXAMPLES = 8
"""Situations in which a check is run."""
Level = Literal["required", "recommended"]
"""Whether a part that fails is wrong, or could be better; the latter is reported and fails only under `strict`."""
Place = Literal["options", "part", "default", "alone", "home"]
"""Which situations a check asks for, see `dither.testing.situations`."""


@dataclass(frozen=True)
class Check:
    """One property of a part.

    Attributes:
        name: What holds, in snake case.
        kind: The kind of part it is about, or "any".
        run: Raises AssertionError where the property does not hold, `NotApplicable` where it has no meaning.
        level: Whether a part has to pass.
        needs: Traits that a part must declare for the question to have a meaning, see `dither.testing.traits`.
        place: Which situations it asks for.
        examples: In how many of them it is run; few where it draws a lot in each.
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
        """The first line of what the function says of itself."""
        return (self.run.__doc__ or "").strip().partition("\n")[0]


def checks_of(
    kind: str,
    *functions: Callable[[Situation], None],
    needs: str = "",
    level: Level = "required",
    place: Place = "part",
    examples: int = EXAMPLES,
) -> tuple[Check, ...]:
    """Make checks of one kind from functions, named as they are; `needs` lists traits with spaces between them."""
    return tuple(Check(f.__name__, kind, f, level, frozenset(needs.split()), place, examples) for f in functions)
