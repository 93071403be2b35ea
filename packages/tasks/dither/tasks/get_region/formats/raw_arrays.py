"""Arrays read from a file in any format, under common names, with the place of each value in the file.

Letters: P regions, M motifs, C cell types.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ..data.column_groups import unknown_names

__all__ = ["MAX_SHOWN", "Locator", "RawArrays", "collect_problems", "limited", "table_locator", "unknown_array"]

MAX_SHOWN: Final = 5
"""Problems of one kind that are shown; the others are counted."""

Locator = Callable[[str, int, str], str]
"""Returns the place of a value, given the name of its array, its row and the name of its column ("" for none)."""


@dataclass(frozen=True)
class RawArrays:
    """Arrays of one source.

    Attributes:
        arrays: By the names in `RegionMatrix`; also "unknown", see `unknown_array`.
        locate: Returns the place of a value.
        problems: Problems found while reading. The arrays that they concern may be missing.
        display_name: Returns the name of an array in the source, given its name here.
    """

    arrays: dict[str, Any]
    locate: Locator
    problems: tuple[Problem, ...] = ()
    display_name: Callable[[str], str] = str


def table_locator(row_name: Callable[[int], str], *, arrays: bool = False) -> Locator:
    """Return a locator for a table whose rows `row_name` names; `arrays` adds the name of the array."""

    def locate(array: str, row: int, column: str) -> str:
        return (f"{array}, " if arrays else "") + row_name(row) + (f', column "{column}"' if column else "")

    return locate


@contextmanager
def collect_problems(problems: list[Problem]) -> Iterator[None]:
    """Append refused problems to a list, to report them together with others."""
    try:
        yield
    except Refused as refused:
        problems += refused.problems


def limited(lines: Iterator[str], count: int) -> Iterator[str]:
    """Yield the first lines, and the number of the others."""
    for _, line in zip(range(MAX_SHOWN), lines, strict=False):
        yield line
    if count > MAX_SHOWN:
        yield f"... and {count - MAX_SHOWN:,} more like the last one"


def unknown_array(known: Mapping[str, Sequence[bool]], cells: Sequence[str]) -> dict[str, Any]:
    """Return the array "unknown": values that are unknown and stored as 0, such as "atpm:CELL" or "expression:CELL".

    "open:CELL" is included where atpm is unknown as well.

    Args:
        known: For each array, whether it is known of each cell type.
        cells: Names of the cell types.
    """
    names = unknown_names(
        {
            name: {cell for cell, is_known in zip(cells, flags, strict=True) if is_known}
            for name, flags in known.items()
        },
        cells,
    )
    return {"unknown": np.array(names, np.str_)} if names else {}
