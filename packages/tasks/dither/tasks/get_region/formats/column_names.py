"""Names of the columns of a table of regions: places, values of cell types, and motifs.

Letters: P regions, M motifs, C cell types, K columns.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from itertools import chain
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Float, Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import Arrays
from .region_checks import PLACES, stack_cells

__all__ = [
    "NAMED",
    "check_names",
    "column_arrays",
    "is_of_cell",
    "numbered",
    "standard_names",
]

SYNONYMS = {
    "chr": "chromosome",
    "chrom": "chromosome",
    "chromstart": "start",
    "chromend": "end",
}
"""Other names of the columns with places, such as those of BED; case is ignored."""

NAMED = ("", "peak", "peaks", "region", "regions", "name", "names")
"""Names of a first column that holds names of regions; case is ignored."""

OTHERS = frozenset(
    {
        "name",
        "score",
        "strand",
        "thickstart",
        "thickend",
        "itemrgb",
        "blockcount",
        "blocksizes",
    }
    | {"blockstarts", "signalvalue", "pvalue", "qvalue", "peak"}
)
"""Columns of BED and narrowPeak that are not motifs; case is ignored."""

PREFIXES = {
    "open": ("open",),
    "atpm": ("atpm",),
    "expression": ("expression_positive", "expression_negative"),
    "tss": ("tss_positive", "tss_negative"),
}
"""Values of cell types, and the prefix of their columns before the colon: one, or one per
strand."""
ALL_PREFIXES = frozenset(chain.from_iterable(PREFIXES.values()))

# Longest first: "expression" would match the start of "expression_positive".
WORDS = "|".join(sorted({*PREFIXES, *ALL_PREFIXES}, reverse=True))
NEAR = re.compile(
    rf"(?:({WORDS})(?:[\s:._/-]+(.+))?|(.+?)[\s:._/-]+({WORDS}))", re.IGNORECASE
)
"""Names similar to those of values of cell types: open, open_CELL, Open.CELL, CELL_open."""


def column_arrays(names: Sequence[str], table: Float[ndarray, "P K"]) -> Arrays:
    """Return the arrays of a table by name; values that are unknown of a cell type are 0."""
    column = dict(zip(names, table.T, strict=True))
    cells = list(
        dict.fromkeys(name.partition(":")[2] for name in names if is_of_cell(name))
    )
    values: dict[str, dict[str, Any]] = {}
    for kind, prefixes in PREFIXES.items():
        for cell in cells:
            strands = [f"{prefix}:{cell}" for prefix in prefixes]
            present = [column[strand] for strand in strands if strand in column]
            if present:
                of_kind = values.setdefault(kind, {})
                # Values of one strand only count as unknown.
                if len(present) == len(prefixes):
                    of_kind[cell] = (
                        np.stack(present, -1) if len(prefixes) > 1 else present[0]
                    )

    motifs = [
        index
        for index, name in enumerate(names)
        if name not in PLACES and not is_of_cell(name)
    ]
    arrays: Arrays = {
        "features": table[:, motifs],
        "motifs": np.array([names[index] for index in motifs], np.str_),
    }
    for name in ("start", "end"):
        if name in column:
            arrays[name] = column[name]
    return arrays | stack_cells(values, cells, len(table))


def numbered(count: int) -> Shaped[ndarray, " M"]:
    """Return names for motifs that have none."""
    return np.array([f"motif-{number:04d}" for number in range(1, count + 1)], np.str_)


def standard_names(names: Sequence[str]) -> list[str]:
    """Return names of columns; those of places become "chromosome", "start" and "end"."""
    renamed = []
    for name in names:
        lower = name.lower().lstrip("#")
        standard = SYNONYMS.get(lower, lower)
        renamed.append(standard if standard in PLACES else name)
    # Otherwise one of two may be a motif.
    unique = all(renamed.count(place) <= 1 for place in PLACES)
    return renamed if unique else list(names)


def is_of_cell(name: str) -> bool:
    """Whether a column holds values of a cell type."""
    prefix, colon, _ = name.partition(":")
    return bool(colon) and prefix in ALL_PREFIXES


def check_names(names: Sequence[str], path: Path) -> None:
    """Refuse columns that are not motifs, such as those of BED: as inputs a label would leak."""
    problems: list[Problem] = []
    for name in names:
        match = NEAR.fullmatch(name)
        # Two colons join the names of two factors.
        if match and not is_of_cell(name) and "::" not in name:
            kind = (match[1] or match[4]).lower()
            cell = match[2] or match[3] or "CELL"
            meant = " and ".join(
                f'"{prefix}:{cell}"' for prefix in PREFIXES.get(kind, (kind,))
            )
            fix = f"did you mean {meant}? such columns are named PREFIX:CELL"
        elif name.lower() in OTHERS:
            fix = "it is a column of BED; leave it out, or rename it if it is a motif"
        else:
            continue
        message = f'{path}: the column "{name}" is neither a known column nor, it seems, a motif'
        problems.append(Problem(message, help=fix, code="unknown-key"))
    if problems:
        raise Refused(problems)
