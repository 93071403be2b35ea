"""What a check is."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from ..situations import Situation

__all__ = ["Check"]


@dataclass(frozen=True)
class Check:
    """One property of a part.

    Attributes:
        name: What holds, in snake case.
        kind: The kind of part it is about, or "any".
        run: Raises AssertionError where the property does not hold, `NotApplicable` where it has no meaning.
        level: Which situations it asks for, see `dither.testing.situations`.
        claimed: Whether it holds only for parts that claim it.
    """

    name: str
    kind: str
    run: Callable[[Situation], None]
    level: Literal["options", "part", "default"] = "part"
    claimed: bool = False
