"""What a reader found in files of others: arrays under one set of names, and where in the files each value stands.

Letters: P regions, M motifs, C cell types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ..data.column_groups import untold_of

__all__ = ["Locator", "RawArrays", "collect_problems", "table_locator", "untold"]

Locator = Callable[[str, int, str], str]
"""Says where a value stands, given the name of its array, its row and the name of its column, "" for none."""


@dataclass(frozen=True)
class RawArrays:
    """What was read.

    Attributes:
        arrays: By the names that `RegionMatrix` knows; also `untold`, see there.
        place: Says where a value stands.
        told: What could not be read. The arrays that it is about may be missing.
        called: Says how an array is called where it stands, given its name here.
    """

    arrays: dict[str, Any]
    place: Locator
    told: tuple[Problem, ...] = ()
    called: Callable[[str], str] = str


def table_locator(row_word: Callable[[int], str], *, arrays: bool = False) -> Locator:
    """Return how places are named in a table whose rows `row_word` names; `arrays` have names that are said as well."""

    def place(array: str, row: int, column: str) -> str:
        return (f"{array}, " if arrays else "") + row_word(row) + (f', column "{column}"' if column else "")

    return place


@contextmanager
def collect_problems(told: list[Problem]) -> Iterator[None]:
    """Keep what is refused, to say it together with all else that is wrong."""
    try:
        yield
    except Refused as refused:
        told += refused.problems


def untold(known: Mapping[str, Sequence[bool]], cells: Sequence[str]) -> dict[str, Any]:
    """Return, as the array `untold`, what is 0 only because nobody said it: "atpm:CELL", "expression:CELL" and so on.

    "open:CELL" is there where atpm does not say it either.

    Args:
        known: Of each thing that is known of some cell types, of which.
        cells: Their names.
    """
    names = untold_of(
        {name: {cell for cell, is_it in zip(cells, each, strict=True) if is_it} for name, each in known.items()}, cells
    )
    return {"untold": np.array(names, np.str_)} if names else {}
