"""Names of the columns of a table of regions: places, values of cell types, and motifs.

Letters: P regions, M motifs, C cell types, K columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import Float

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import Arrays
from ..data.column_groups import unknown_names
from .region_checks import PLACES, label_like

__all__ = ["NAMED", "TableColumns", "check_names", "is_of_cell", "parse_columns", "standard_names"]

SYNONYMS: Final = {"chr": "chromosome", "chrom": "chromosome", "chromstart": "start", "chromend": "end"}
"""Other names of the columns with places, such as those of BED; case is ignored."""

NAMED: Final = ("", "peak", "peaks", "region", "regions", "name", "names")
"""Names of a first column that holds names of regions; case is ignored."""

OTHERS: Final = (
    *("name", "score", "strand", "thickstart", "thickend", "itemrgb", "blockcount", "blocksizes", "blockstarts"),
    *("signalvalue", "pvalue", "qvalue", "peak"),
)
"""Columns of BED and narrowPeak that are not motifs; case is ignored."""

PREFIXES: Final = {
    "open": ("open",),
    "atpm": ("atpm",),
    "expression": ("expression_positive", "expression_negative"),
    "tss": ("tss_positive", "tss_negative"),
}
"""Values of cell types, and the prefix of their columns before the colon: one, or one per strand."""
ALL_PREFIXES: Final = tuple(prefix for prefixes in PREFIXES.values() for prefix in prefixes)

WORDS: Final = "|".join(sorted({*PREFIXES, *ALL_PREFIXES}, reverse=True))
NEAR: Final = re.compile(rf"(?:({WORDS})(?:[\s:._/-]+(.+))?|(.+?)[\s:._/-]+({WORDS}))", re.IGNORECASE)
"""Names similar to those of values of cell types: open, open_CELL, Open.CELL, CELL_open."""


@dataclass(frozen=True)
class TableColumns:
    """Names of the columns of a table, cell types, and indices of motifs and of the values of each cell type."""

    names: tuple[str, ...]
    cells: tuple[str, ...]
    motifs: tuple[int, ...]
    of_cells: dict[str, list[list[int | None]]]

    def arrays(self, table: Float[np.ndarray, "P K"]) -> Arrays:
        """Return the arrays of a table by name; values that are unknown of a cell type are 0."""
        arrays: Arrays = {
            "features": table[:, list(self.motifs)],
            "motifs": np.array([self.names[index] for index in self.motifs], np.str_),
        }
        arrays |= {name: table[:, self.names.index(name)] for name in ("start", "end") if name in self.names}
        if self.of_cells:
            arrays["cells"] = np.array(self.cells, np.str_)
        zeros = np.zeros(len(table))
        for kind, indices in self.of_cells.items():
            columns = [[zeros if index is None else table[:, index] for index in strands] for strands in indices]
            stacked = np.array(columns).transpose(2, 0, 1)  # P C, and strands
            arrays[kind] = stacked if len(PREFIXES[kind]) > 1 else stacked[..., 0]
        if {"open", "atpm"} <= arrays.keys():
            for number, (index,) in enumerate(self.of_cells["open"]):
                if index is None:
                    arrays["open"][:, number] = arrays["atpm"][:, number] > 0
        return arrays | {"unknown": np.array(self.unknown(), np.str_)}

    def unknown(self) -> tuple[str, ...]:
        """Return the values that are known of other cell types only; see `unknown_names`."""
        known = {kind: [None not in strands for strands in indices] for kind, indices in self.of_cells.items()}
        return unknown_names(known, self.cells)


def parse_columns(names: Sequence[str], path: Path) -> TableColumns:
    """Classify the columns of a table by their names; `path` is for messages.

    Raises:
        Refused: As `check_names`.
    """
    check_names(names, path)
    index_of = {tuple(name.split(":", 1)): index for index, name in enumerate(names) if is_of_cell(name)}
    cells = tuple(dict.fromkeys(cell for _, cell in index_of))
    indices = {
        kind: [[index_of.get((prefix, cell)) for prefix in prefixes] for cell in cells]
        for kind, prefixes in PREFIXES.items()
        if any((prefix, cell) in index_of for prefix in prefixes for cell in cells)
    }
    motifs = tuple(index for index, name in enumerate(names) if name not in PLACES and not is_of_cell(name))
    return TableColumns(tuple(names), cells, motifs, indices)


def standard_names(names: Sequence[str]) -> list[str]:
    """Return names of columns, with those of places replaced by "chromosome", "start" and "end"."""
    lower = {name: name.lower().lstrip("#") for name in names if name not in PLACES}
    standard = {name: SYNONYMS.get(low, low) for name, low in lower.items()}
    renamed = [standard[name] if standard.get(name) in PLACES else name for name in names]
    unique = all(renamed.count(place) <= 1 for place in PLACES)  # otherwise one of two may be a motif
    return renamed if unique else list(names)


def is_of_cell(name: str) -> bool:
    """Whether a column holds values of a cell type."""
    prefix, colon, _ = name.partition(":")
    return bool(colon) and prefix in ALL_PREFIXES


def check_names(names: Sequence[str], path: Path) -> None:
    """Check that no column that is not a motif would be taken for one; a label among the motifs would leak.

    Raises:
        Refused: Names look like values of cell types in another spelling, or are columns of BED.
    """
    problems: list[Problem] = []
    for name in names:
        match = NEAR.fullmatch(name)
        if match and not is_of_cell(name) and "::" not in name:  # two colons join the names of two factors
            word, cell = (match[1] or match[4]).lower(), match[2] or match[3] or "CELL"
            meant = (f'"{prefix}:{cell}"' for prefix in PREFIXES.get(word, (word,)))
            fix = f"did you mean {' and '.join(meant)}? such columns are named PREFIX:CELL"
        elif name.lower() in OTHERS:
            fix = "it is a column of BED; leave it out, or rename it if it is a motif"
        else:
            continue
        message = f'{path}: the column "{name}" is neither a known column nor, it seems, a motif'
        problems.append(Problem(message, help=fix, code="unknown-key"))
    cells = [name.partition(":")[2] for name in names if is_of_cell(name)]
    for problem in label_like(names, cells):
        problems.append(replace(problem, message=f"{path}: {problem.message}"))
    if problems:
        raise Refused(problems)
