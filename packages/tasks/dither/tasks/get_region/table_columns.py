"""Columns of a table of regions by name: places, what is said of cell types, and motifs.

Letters: P regions, M motifs, C cell types, K columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float

from dither.registry.problems import Problem, Refused

from .archive import Arrays
from .found import untold

__all__ = ["PLACES", "TableColumns", "placed_names", "sort_columns", "speaks_of_cell"]

PLACES: Final = ("chromosome", "start", "end")
"""Columns that say where a region is."""

ALSO: Final = {"chr": "chromosome", "chrom": "chromosome", "chromstart": "start", "chromend": "end"}
"""How others call them, BED above all; capitals do not matter."""

PREFIXES: Final = {
    "open": ("open",),
    "atpm": ("atpm",),
    "expression": ("expression_positive", "expression_negative"),
    "tss": ("tss_positive", "tss_negative"),
}
"""What may be known of cell types, and how its columns are called before the colon: one, or one for each strand."""


@dataclass(frozen=True)
class TableColumns:
    """The columns of a table.

    Attributes:
        names: All of them, in order.
        cells: Cell types, in order of appearance.
        motifs: Places of the motif columns.
        told: For each thing that is known of cell types, the places of its columns, of each cell type in turn; None
            where the table has no column for one.
    """

    names: tuple[str, ...]
    cells: tuple[str, ...]
    motifs: tuple[int, ...]
    told: dict[str, list[list[int | None]]]

    def arrays(self, table: Float[np.ndarray, "P K"]) -> Arrays:
        """Return the arrays that `check_arrays` knows; what is not known of a cell type is 0."""
        found: Arrays = {
            "features": table[:, list(self.motifs)],
            "motifs": np.array([self.names[place] for place in self.motifs], np.str_),
        }
        found |= {name: table[:, self.names.index(name)] for name in ("start", "end") if name in self.names}
        if self.told:
            found["cells"] = np.array(self.cells, np.str_)
        nothing = np.zeros(len(table))
        for sort, places in self.told.items():
            columns = [[nothing if at is None else table[:, at] for at in each] for each in places]
            stacked = np.array(columns).transpose(2, 0, 1)  # P C, and strands
            found[sort] = stacked if len(PREFIXES[sort]) > 1 else stacked[..., 0]
        if {"open", "atpm"} <= found.keys():
            for number, (at,) in enumerate(self.told["open"]):
                if at is None:
                    found["open"][:, number] = found["atpm"][:, number] > 0
        return found | untold(self.known(), self.cells)

    def known(self) -> dict[str, list[bool]]:
        """Tell of each thing that is known of cell types, of which; of both strands, or it is not known."""
        return {sort: [None not in each for each in places] for sort, places in self.told.items()}


def sort_columns(names: Sequence[str], path: Path) -> TableColumns:
    """Tell the columns of a table apart by their names; `path` is said in a message.

    Raises:
        Refused: Some seem to speak of cell types, but not in words that are known; they are no motifs.
    """
    prefixes = [prefix for all_of in PREFIXES.values() for prefix in all_of]
    of_cells = {place: name.split(":", 1) for place, name in enumerate(names) if speaks_of_cell(name)}
    if odd := [name for name in names if not speaks_of_cell(name) and _seems_to(name, prefixes)]:
        fix = f"such columns are called {', '.join(f'{prefix}:CELL' for prefix in prefixes)}"
        raise Refused(
            [
                Problem(f'{path}: the column "{name}" is no motif, it seems, and none that is known', help=fix)
                for name in odd
            ]
        )
    at = {tuple(parts): place for place, parts in of_cells.items()}
    cells = tuple(dict.fromkeys(cell for _, cell in at))
    told = {
        sort: [[at.get((prefix, cell)) for prefix in all_of] for cell in cells]
        for sort, all_of in PREFIXES.items()
        if any((prefix, cell) in at for prefix in all_of for cell in cells)
    }
    motifs = tuple(place for place, name in enumerate(names) if name not in PLACES and place not in of_cells)
    return TableColumns(tuple(names), cells, motifs, told)


def placed_names(names: Sequence[str]) -> list[str]:
    """Return the names of columns, those that say where a region is as they are called here."""
    lower = {name: name.lower().lstrip("#") for name in names if name not in PLACES}
    called = {name: ALSO.get(low, low) for name, low in lower.items()}
    renamed = [called[name] if called.get(name) in PLACES else name for name in names]
    clear = all(renamed.count(place) <= 1 for place in PLACES)  # else one of two is perhaps a motif
    return renamed if clear else list(names)


def speaks_of_cell(name: str) -> bool:
    """Tell whether a column says something of a cell type."""
    prefix, colon, _ = name.partition(":")
    return bool(colon) and any(prefix in all_of for all_of in PREFIXES.values())


def _seems_to(name: str, prefixes: Sequence[str]) -> bool:
    prefix, colon, rest = name.partition(":")
    return bool(colon) and not rest.startswith(":") and prefix.lower() in (*PREFIXES, *prefixes)
