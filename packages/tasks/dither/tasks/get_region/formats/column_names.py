"""Columns of a table of regions by name: places, what is said of cell types, and motifs.

Letters: P regions, M motifs, C cell types, K columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import Arrays
from .raw_arrays import untold

__all__ = ["NAMED", "PLACES", "TableColumns", "must_be_known", "placed_names", "sort_columns", "speaks_of_cell"]

PLACES: Final = ("chromosome", "start", "end")
"""Columns that say where a region is."""

ALSO: Final = {"chr": "chromosome", "chrom": "chromosome", "chromstart": "start", "chromend": "end"}
"""How others call them, BED above all; capitals do not matter."""

NAMED: Final = ("", "peak", "peaks", "region", "regions", "name", "names")
"""How a first column may be called that holds the names of regions; capitals do not matter."""

OTHERS: Final = (
    *("name", "score", "strand", "thickstart", "thickend", "itemrgb", "blockcount", "blocksizes", "blockstarts"),
    *("signalvalue", "pvalue", "qvalue", "peak"),
)
"""Columns of BED and of narrowPeak that are no motifs; capitals do not matter."""

PREFIXES: Final = {
    "open": ("open",),
    "atpm": ("atpm",),
    "expression": ("expression_positive", "expression_negative"),
    "tss": ("tss_positive", "tss_negative"),
}
"""What may be known of cell types, and how its columns are called before the colon: one, or one for each strand."""

WORDS: Final = "|".join(sorted({*PREFIXES, *(each for all_of in PREFIXES.values() for each in all_of)}, reverse=True))
NEAR: Final = re.compile(rf"(?:({WORDS})(?:[\s:._/-]+(.+))?|(.+?)[\s:._/-]+({WORDS}))", re.IGNORECASE)
"""Names of columns that are near to what is said of cell types: open, open_CELL, Open.CELL, CELL_open."""


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
        Refused: As `must_be_known`.
    """
    must_be_known(names, path)
    of_cells = {place: name.split(":", 1) for place, name in enumerate(names) if speaks_of_cell(name)}
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


def must_be_known(names: Sequence[str], path: Path) -> None:
    """Refuse columns that are neither known nor motifs; a label that was taken for a motif would give itself away.

    Raises:
        Refused: Some seem to speak of cell types, but not in words that are known, or are columns of BED.
    """
    prefixes = ", ".join(f"{prefix}:CELL" for all_of in PREFIXES.values() for prefix in all_of)
    problems: list[Problem] = []
    for name in names:
        what = f'{path}: the column "{name}" is no motif, it seems, and none that is known'
        if meant := _meant(name):
            known = "" if problems else f" such columns are called {prefixes}"
            problems.append(Problem(what, help=f"did you mean {' and '.join(meant)}?{known}"))
        elif name.lower() in OTHERS:
            fix = "it is one of BED's; leave it out, or give it another name if it is a motif"
            problems.append(Problem(what, help=fix))
    if problems:
        raise Refused(problems)


def _meant(name: str) -> list[str]:
    """Return how a column that seems to speak of a cell type should be called; nothing where it does not seem to."""
    match = NEAR.fullmatch(name)
    if match is None or speaks_of_cell(name) or "::" in name:  # two colons join the names of two factors
        return []
    word, cell = (match[1] or match[4]).lower(), match[2] or match[3] or "CELL"
    return [f'"{prefix}:{cell}"' for prefix in PREFIXES.get(word, (word,))]
