"""Samples made ready to be shown: read, judged, and with places for their rooms.

Letters: N samples, L tokens, R rooms.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np
from jaxtyping import Int

from dither.registry.config.errors import Refused

from .geometry.placement import Placement, place_diagram
from .plans import Diagram, decode
from .validity import Levels, validity_levels

__all__ = ["LEVELS", "DecodedSample", "decode_samples"]

LEVELS: Final = ("tokens", "programme", "order", "edges", "realisable")
"""Names of the levels 0 to 4, see `levels`."""


@dataclass(frozen=True)
class DecodedSample:
    """One sample.

    Attributes:
        number: Of the sample, from 0.
        level: The highest level that it reaches, -1 if it is no diagram at all.
        unknown: The search gave up before level 3 or 4 was decided.
        arrangement: The diagram and the places of its rooms; None if it is no diagram.
        wrong: What is wrong with the tokens of a sample that is no diagram.
    """

    number: int
    level: int
    unknown: bool
    arrangement: Placement | None
    wrong: tuple[str, ...] = ()

    @property
    def verdict(self) -> str:
        """The level in words."""
        if self.level < 0:
            return "unreadable"
        return f"L{self.level} {LEVELS[self.level]}" + ", search given up" * self.unknown


def decode_samples(tokens: Int[np.ndarray, "N L"], rooms: int) -> Iterator[DecodedSample]:
    """Yield samples of `rooms` room slots."""
    readable: list[tuple[Diagram | None, tuple[str, ...]]] = []
    for row in tokens:
        try:
            readable.append((decode(row, rooms), ()))
        except Refused as refused:
            readable.append((None, tuple(problem.message for problem in refused.problems)))
    levels = validity_levels(tokens, rooms) if len(tokens) else None
    for number, (diagram, wrong) in enumerate(readable):
        if diagram is None or levels is None:
            yield DecodedSample(number, -1, False, None, wrong)
            continue
        witness = levels.boxes[number, : len(diagram.types)]
        shown = place_diagram(diagram, witness if witness.any() else None, search=False)
        yield DecodedSample(number, _level(levels, number), bool(levels.unknown[number]), shown)


def _level(levels: Levels, number: int) -> int:
    reached = (levels.structure.tokens, levels.structure.programme, levels.structure.order, levels.edges)
    return sum(bool(level[number]) for level in (*reached, levels.realisable)) - 1
