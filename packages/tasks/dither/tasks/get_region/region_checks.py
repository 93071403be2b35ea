"""What must be true of a table of regions before anything is learnt from it.

Letters: P regions, M motifs, C cell types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Integer, Shaped

from dither.registry.problems import Problem, Refused

from .mapped import blocks_of

__all__ = ["Place", "check_arrays", "in_table"]

Place = Callable[[str, int, str], str]
"""Says where a value stands, given the name of its array, its row and the name of its column, "" for none."""

SHOWN: Final = 5
KINDS: Final = {
    "features": "fiu",
    "motifs": "U",
    "chromosome": "U",
    "start": "fiu",
    "end": "fiu",
    "open": "bfiu",
    "atpm": "fiu",
    "expression": "fiu",
    "tss": "bfiu",
    "cells": "U",
}
WORDS: Final = {"fiu": "numbers", "bfiu": "0 and 1", "U": "text"}
OF_CELLS: Final = ("open", "atpm", "expression", "tss")
STRANDED: Final = ("expression", "tss")
LARGEST: Final = float(np.finfo(np.float32).max)
CHROMOSOME: Final = re.compile(r"[^\s:]{1,60}")
ENSEMBL: Final = re.compile(r"[0-9]{1,2}|[XYM]|MT")
"""Names of chromosomes without "chr"."""


def in_table(row_word: Callable[[int], str]) -> Place:
    """Return how places are named in a table whose rows `row_word` names."""
    return lambda array, row, column: row_word(row) + (f', column "{column}"' if column else "")


def check_arrays(path: Path, arrays: Mapping[str, Any], place: Place, *, overlaps: bool = True) -> None:
    """Check the arrays of a table of regions.

    Args:
        path: Where they are from, for the message.
        arrays: By the names that `RegionMatrix` knows; those of cell types may be missing. Of features, rows are read a
            block at a time.
        place: Says where a value stands.
        overlaps: Whether regions may overlap each other.

    Raises:
        Refused: Names up to five mistakes of each sort, with row and column, and counts the others.
    """
    found: list[str] = []
    stages = (_arrays, _shapes, lambda given: chain(_values(place, given), _order(place, given, overlaps=overlaps)))
    for check in stages:  # each relies on those before it
        found = found or list(check(arrays))
    if found:
        raise Refused([Problem(f"{path}: {what}") for what in found])


def _arrays(arrays: Mapping[str, Any]) -> Iterator[str]:
    """Is each array there, and of the right kind?"""
    needed = set(KINDS) - {*OF_CELLS, "cells"}
    if "cells" in arrays or not arrays.keys().isdisjoint(OF_CELLS):
        needed |= {"cells", *(arrays.keys() & set(OF_CELLS) or {"open"})}
    for name in sorted(needed):
        if name not in arrays:
            yield f'has no array "{name}"; it has {", ".join(sorted(arrays)) or "none"}'
        elif arrays[name].dtype.kind not in KINDS[name]:
            yield f'"{name}" holds {arrays[name].dtype}, expected {WORDS[KINDS[name]]}'


def _shapes(arrays: Mapping[str, Any]) -> Iterator[str]:
    """Do the arrays go together, and do names name one thing each?"""
    regions, motifs = arrays["chromosome"].size, arrays["motifs"].size
    shapes: dict[str, tuple[int, ...]] = {name: (regions,) for name in ("chromosome", "start", "end")}
    shapes |= {"motifs": (motifs,), "features": (regions, motifs)}
    if "cells" in arrays:
        cells = arrays["cells"].size
        shapes |= {"cells": (cells,)}
        shapes |= {name: (regions, cells, *(2,) * (name in STRANDED)) for name in OF_CELLS if name in arrays}
    for name, shape in shapes.items():
        if arrays[name].shape != shape:
            yield f'"{name}" has the shape {arrays[name].shape}; {regions} regions and {motifs} motifs ask for {shape}'
    for count, what in ((regions, "regions"), (motifs, "motif columns")):
        if not count:
            yield f"holds no {what}"
    for name in ("motifs", "cells"):
        values, times = np.unique(arrays.get(name, np.zeros(0, "U1")), return_counts=True)
        for twice in values[times > 1][:SHOWN]:
            yield f'"{twice}" is the name of more than one of the {name}'


def _values(place: Place, arrays: Mapping[str, Any]) -> Iterator[str]:
    yield from _numbers("features", arrays["features"], lambda at: str(arrays["motifs"][at[0]]), place)
    for name in OF_CELLS:
        if name in arrays:
            column = partial(_column_of_cell, name, arrays["cells"])
            check = _zero_or_one if name in ("open", "tss") else _numbers
            yield from check(name, arrays[name], column, place)
    for name in ("start", "end"):
        values = arrays[name]
        whole = np.isfinite(values) & (values >= 0) & (values < 2**40) & (np.floor(values) == values)
        lines = (
            f"{place(name, row, name)}: {values[row]} is no base number (a whole number of at least 0)"
            for row in np.flatnonzero(~whole).tolist()
        )
        yield from _first(lines, int((~whole).sum()))


def _column_of_cell(name: str, cells: Shaped[np.ndarray, " C"], at: tuple[int, ...]) -> str:
    strand = ("_positive", "_negative")[at[1]] if name == "expression" else ""
    return f"{name}{strand}:{cells[at[0]]}"


def _numbers(name: str, values: Any, column: Callable[[tuple[int, ...]], str], place: Place) -> Iterator[str]:
    """Refuse numbers that are not finite, negative or too large."""
    sorts: tuple[tuple[Callable[[Any], Any], str], ...] = (
        (lambda block: ~np.isfinite(block), "is not finite"),
        (lambda block: block < 0, "is negative"),
        (lambda block: np.isfinite(block) & (block > LARGEST), "is more than float32 holds"),
    )
    found: dict[str, list[str]] = {what: [] for _, what in sorts}
    counts = dict.fromkeys(found, 0)
    for rows in blocks_of(len(values)):
        block = np.asarray(values[rows])
        for wrong, what in sorts:
            bad = np.asarray(wrong(block))
            if bad.any():
                counts[what] += int(bad.sum())
                for row, *at in np.argwhere(bad)[: SHOWN - len(found[what])].tolist():
                    where = place(name, rows.start + row, column(tuple(at)))
                    found[what].append(f"{where}: {block[row, *at]} {what}")
    for what, lines in found.items():
        yield from _first(iter(lines), counts[what])


def _zero_or_one(name: str, values: Any, column: Callable[[tuple[int, ...]], str], place: Place) -> Iterator[str]:
    bad = ~np.isin(values, (0, 1))
    lines = (
        f"{place(name, row, column(tuple(at)))}: {values[row, *at]} is neither 0 nor 1"
        for row, *at in np.argwhere(bad)[:SHOWN].tolist()
    )
    yield from _first(lines, int(bad.sum()))


def _order(place: Place, arrays: Mapping[str, Any], *, overlaps: bool) -> Iterator[str]:
    """Are regions named well, and sorted? Overlaps are looked for where they are not allowed, copies always."""
    chromosome, start, end = arrays["chromosome"], arrays["start"], arrays["end"]
    if not all((np.isfinite(ends) & (np.abs(ends) < 2**40)).all() for ends in (start, end)):
        return  # said already

    def where(row: int) -> str:
        return place("start", row, "")

    backward = np.flatnonzero(end <= start)
    lines = (
        f"{where(row)}: the region ends at {end[row]:.0f}, not behind its start {start[row]:.0f}"
        for row in backward.tolist()
    )
    yield from _first(lines, len(backward))
    same = chromosome[1:] == chromosome[:-1]
    unsorted = same & (start[1:] < start[:-1])
    copies = same & (start[1:] == start[:-1]) & (end[1:] == end[:-1])

    def beside(pairs: Bool[np.ndarray, " p"], say: Callable[[int], str]) -> Iterator[str]:
        rows = (np.flatnonzero(pairs) + 1).tolist()
        yield from _first((f"{where(row)}: {say(row)}" for row in rows), len(rows))

    def name(row: int) -> str:
        return f"{chromosome[row]}:{start[row]:.0f}"

    yield from beside(unsorted, lambda row: f"{name(row)} stands behind {name(row - 1)}; sort by chromosome and start")
    yield from beside(copies, lambda row: f"{name(row)}-{end[row]:.0f} is the same region as the one before it")
    if not overlaps:
        reach = same & ~unsorted & ~copies & (start[1:] < _furthest(chromosome, end)[:-1])
        yield from beside(
            reach, lambda row: f"{name(row)}-{end[row]:.0f} overlaps a region before it; merge them, or allow overlaps"
        )
    yield from _chromosomes(where, chromosome, np.flatnonzero(~same) + 1)


def _furthest(chromosome: Shaped[np.ndarray, " P"], end: Any) -> Any:
    """Return how far the regions of a chromosome have reached, up to each. `P`."""
    changes = np.r_[True, chromosome[1:] != chromosome[:-1]]
    run = np.cumsum(changes)
    far = int(end.max()) + 1
    return np.maximum.accumulate(end + run * far) - run * far


def _chromosomes(
    where: Callable[[int], str], chromosome: Shaped[np.ndarray, " P"], changes: Integer[np.ndarray, " n"]
) -> Iterator[str]:
    seen: dict[str, int] = {}
    for row in (0, *changes.tolist()):
        name = str(chromosome[row])
        if name in seen:
            yield f"{where(row)}: {name} comes a second time; keep the regions of a chromosome together"
            return
        if not CHROMOSOME.fullmatch(name):
            yield f'{where(row)}: "{name[:60]}" is no name of a chromosome'
        seen[name] = row
    long, short = (
        next((n for n in seen if test(n)), None) for test in (lambda n: n.startswith("chr"), ENSEMBL.fullmatch)
    )
    if long and short:
        yield f'{where(seen[short])}: is called "{short}", but others as "{long}"; use one way of naming chromosomes'


def _first(lines: Iterator[str], count: int) -> Iterator[str]:
    for _, line in zip(range(SHOWN), lines, strict=False):
        yield line
    if count > SHOWN:
        yield f"... and {count - SHOWN:,} more like the last one"
