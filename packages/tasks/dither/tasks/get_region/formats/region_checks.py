"""What must be true of a table of regions before anything is learnt from it.

Letters: P regions, M motifs, C cell types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Integer, Shaped

from dither.registry.config.errors import Problem, Refused

from ..data.lazy_matrix import row_blocks
from .raw_arrays import Locator, collect_problems

__all__ = ["FARTHEST", "SHOWN", "check_arrays", "check_ends", "check_order", "first_of"]

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
PLACED: Final = ("chromosome", "start", "end")
LARGEST: Final = float(np.finfo(np.float32).max)
WRONG: Final[tuple[tuple[Callable[[Any], Any], str], ...]] = (
    (lambda block: ~np.isfinite(block), "is not finite"),
    (lambda block: block < 0, "is negative"),
    (lambda block: np.isfinite(block) & (block.astype(np.float64) > LARGEST), "is more than float32 holds"),
)
"""What a number must not be, and how that is said."""


def check_arrays(
    path: Path,
    arrays: Mapping[str, Any],
    place: Locator,
    *,
    overlaps: bool = True,
    told: Sequence[Problem] = (),
    called: Callable[[str], str] = str,
) -> None:
    """Check the arrays of a table of regions.

    Args:
        path: Where they are from, for the message.
        arrays: By the names that `RegionMatrix` knows; those of cell types may be missing. Of features, rows are read a
            block at a time.
        place: Says where a value stands.
        overlaps: Whether regions may overlap each other.
        told: What is wrong already; the arrays that it is about may be missing.
        called: Says how an array is called where it stands.

    Raises:
        Refused: Names up to five mistakes of each sort, with array, row and column, and counts the others.
    """
    sound, problems = dict(arrays), list(told)
    needed = [] if told else [*_absent(arrays, called)]
    found: list[str | Problem] = [*needed]
    for check in (_kinds, _shapes):  # what an array has wrong as a whole, its values need not be asked for
        for name, what in list(check(sound, called)):
            found.append(what)
            sound.pop(name, None)
    found += _names(sound)
    found += _values(place, sound, called)
    if sound.keys() >= {*PLACED} and sound["start"].size:
        found += check_order(place, sound, overlaps=overlaps)
    problems += [what if isinstance(what, Problem) else Problem(f"{path}: {what}") for what in found]
    if problems:
        raise Refused(list({problem.message: problem for problem in problems}.values()))


def _absent(arrays: Mapping[str, Any], called: Callable[[str], str]) -> Iterator[str]:
    """Is each array there?"""
    needed = set(KINDS) - {*OF_CELLS, "cells"}
    if "cells" in arrays or not arrays.keys().isdisjoint(OF_CELLS):
        needed |= {"cells", *(arrays.keys() & set(OF_CELLS) or {"open"})}
    for name in sorted(needed - arrays.keys()):
        yield f'has no array "{called(name)}"; it has {", ".join(sorted({*map(called, arrays)})) or "none"}'


def _kinds(arrays: Mapping[str, Any], called: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Is each array of the right kind?"""
    for name, kinds in sorted(KINDS.items()):
        if name in arrays and arrays[name].dtype.kind not in kinds:
            yield name, f'"{called(name)}" holds {arrays[name].dtype}, expected {WORDS[kinds]}'


def _shapes(arrays: Mapping[str, Any], called: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    """Do the arrays go together?"""
    regions = next((arrays[name].size for name in PLACED if name in arrays), None)
    motifs = arrays["motifs"].size if "motifs" in arrays else None
    rows, columns = (*(arrays["features"].shape if "features" in arrays else ()), 0, 0)[:2]
    regions, motifs = rows if regions is None else regions, columns if motifs is None else motifs
    shapes: dict[str, tuple[int, ...]] = {name: (regions,) for name in PLACED}
    shapes |= {"motifs": (motifs,), "features": (regions, motifs)}
    if "cells" in arrays:
        cells = arrays["cells"].size
        shapes |= {"cells": (cells,)}
        shapes |= {name: (regions, cells, *(2,) * (name in STRANDED)) for name in OF_CELLS}
    for name, shape in shapes.items():
        if name in arrays and arrays[name].shape != shape:
            asked = f"{regions} regions and {motifs} motifs ask for {shape}"
            yield name, f'"{called(name)}" has the shape {arrays[name].shape}; {asked}'
    for name, count, what in (("start", regions, "regions"), ("motifs", motifs, "motif columns")):
        if not count and name in arrays:
            yield name, f"holds no {what}"


def _names(arrays: Mapping[str, Any]) -> Iterator[str]:
    """Do names name one thing each?"""
    for name in ("motifs", "cells"):
        names = arrays.get(name, np.zeros(0, "U1"))
        nameless = [number for number, value in enumerate(names.tolist(), 1) if not value.strip()]
        yield from first_of((f"number {number} of the {name} has no name" for number in nameless), len(nameless))
        values, times = np.unique(names, return_counts=True)
        for twice in [value for value in values[times > 1].tolist() if value.strip()][:SHOWN]:
            yield f'"{twice}" is the name of more than one of the {name}'


def _values(place: Locator, arrays: Mapping[str, Any], called: Callable[[str], str]) -> Iterator[str | Problem]:
    if "features" in arrays:
        of_motif = partial(_column_of_motif, arrays.get("motifs"))
        yield from _numbers("features", arrays["features"], of_motif, place, called)
    for name in OF_CELLS:
        if name in arrays and "cells" in arrays:
            of_cell = partial(_column_of_cell, name, arrays["cells"])
            if name in ("open", "tss"):
                yield from _zero_or_one(name, arrays[name], of_cell, place)
            else:
                yield from _numbers(name, arrays[name], of_cell, place, called)
    for name in ("start", "end"):
        if name in arrays:
            yield from check_ends(place, name, arrays[name])


def _column_of_motif(motifs: Shaped[np.ndarray, " M"] | None, at: tuple[int, ...]) -> str:
    return str(at[0] if motifs is None else motifs[at[0]])


def _column_of_cell(name: str, cells: Shaped[np.ndarray, " C"], at: tuple[int, ...]) -> str:
    strand = ("_positive", "_negative")[at[1]] if name == "expression" else ""
    return f"{name}{strand}:{cells[at[0]]}"


def _numbers(
    name: str, values: Any, column: Callable[[tuple[int, ...]], str], place: Locator, called: Callable[[str], str]
) -> Iterator[str | Problem]:
    """Refuse numbers that are not finite, negative or too large, and blocks that cannot be read."""
    found: dict[str, list[str]] = {what: [] for _, what in WRONG}
    counts = dict.fromkeys(found, 0)
    told: list[Problem] = []
    for rows in row_blocks(len(values)):
        block: Any = np.zeros(0)
        with collect_problems(told):
            block = np.asarray(values[rows])
        if not block.size:
            continue
        if block.min() >= 0 and float(block.max()) <= LARGEST:  # false where anything is not a number
            continue
        for wrong, what in WRONG:
            bad = np.asarray(wrong(block))
            counts[what] += int(bad.sum())
            for row, *at in np.argwhere(bad)[: SHOWN - len(found[what])].tolist():
                where = place(name, rows.start + row, column(tuple(at)))
                found[what].append(f"{where}: {block[row, *at]} {what}")
    yield from told[:SHOWN]
    if len(told) > SHOWN:
        yield f"{called(name)}: ... and {len(told) - SHOWN:,} more such problems"
    for what, lines in found.items():
        yield from first_of(iter(lines), counts[what])


def _zero_or_one(name: str, values: Any, column: Callable[[tuple[int, ...]], str], place: Locator) -> Iterator[str]:
    bad = (values != 0) & (values != 1)
    lines = (
        f"{place(name, row, column(tuple(at)))}: {values[row, *at]} is neither 0 nor 1"
        for row, *at in np.argwhere(bad)[:SHOWN].tolist()
    )
    yield from first_of(lines, int(bad.sum()))


SHOWN: Final = 5
"""Mistakes of one sort that are said; others are counted."""
FARTHEST: Final = 2**40
"""A number of a base that no chromosome has."""
CHROMOSOME: Final = re.compile(r"[^\s:]{1,60}")
NOTHING: Final = ("na", "nan", "none", "null", "<na>")
"""How others write that nothing stands there; in small letters."""
ENSEMBL: Final = re.compile(r"[0-9]{1,2}|[XYM]|MT")
"""Names of chromosomes without "chr"."""


def first_of(lines: Iterator[str], count: int) -> Iterator[str]:
    """Yield the first lines, and how many there are besides."""
    for _, line in zip(range(SHOWN), lines, strict=False):
        yield line
    if count > SHOWN:
        yield f"... and {count - SHOWN:,} more like the last one"


def check_ends(place: Locator, name: str, values: Shaped[np.ndarray, " P"]) -> Iterator[str]:
    """Yield starts or ends that are no number of a base."""
    whole = np.isfinite(values) & (values >= 0) & (values < FARTHEST) & (np.floor(values) == values)
    lines = (
        f"{place(name, row, name)}: {values[row]} is no base number (a whole number of at least 0)"
        for row in np.flatnonzero(~whole).tolist()
    )
    yield from first_of(lines, int((~whole).sum()))


def check_order(place: Locator, arrays: Mapping[str, Any], *, overlaps: bool) -> Iterator[str]:
    """Are regions named well, and sorted? Overlaps are looked for where they are not allowed, copies always."""
    chromosome, start, end = arrays["chromosome"], arrays["start"], arrays["end"]
    if not all((np.isfinite(ends) & (np.abs(ends) < FARTHEST)).all() for ends in (start, end)):
        return  # said already

    def where(row: int) -> str:
        return place("start", row, "")

    backward = np.flatnonzero(end <= start)
    lines = (
        f"{where(row)}: the region ends at {end[row]:.0f}, not behind its start {start[row]:.0f}"
        for row in backward.tolist()
    )
    yield from first_of(lines, len(backward))
    same = chromosome[1:] == chromosome[:-1]
    unsorted = same & (start[1:] < start[:-1])
    copies = same & (start[1:] == start[:-1]) & (end[1:] == end[:-1])

    def beside(pairs: Bool[np.ndarray, " p"], say: Callable[[int], str]) -> Iterator[str]:
        rows = (np.flatnonzero(pairs) + 1).tolist()
        yield from first_of((f"{where(row)}: {say(row)}" for row in rows), len(rows))

    def name(row: int) -> str:
        return f"{chromosome[row]}:{start[row]:.0f}"

    yield from beside(unsorted, lambda row: f"{name(row)} stands behind {name(row - 1)}; sort by chromosome and start")
    yield from beside(copies, lambda row: f"{name(row)}-{end[row]:.0f} is the same region as the one before it")
    if not overlaps:
        reach = same & ~unsorted & ~copies & (start[1:] < _furthest(chromosome, end)[:-1])
        yield from beside(
            reach, lambda row: f"{name(row)}-{end[row]:.0f} overlaps a region before it; merge them, or allow overlaps"
        )
    yield from _chromosomes(place, chromosome, np.flatnonzero(~same) + 1)


def _furthest(chromosome: Shaped[np.ndarray, " P"], end: Any) -> Any:
    """Return how far the regions of a chromosome have reached, up to each. `P`."""
    changes = np.r_[True, chromosome[1:] != chromosome[:-1]]
    run = np.cumsum(changes)
    far = int(end.max()) + 1
    return np.maximum.accumulate(end + run * far) - run * far


def _chromosomes(
    place: Locator, chromosome: Shaped[np.ndarray, " P"], changes: Integer[np.ndarray, " n"]
) -> Iterator[str]:
    def where(row: int) -> str:
        return place("chromosome", row, "")

    seen: dict[str, int] = {}
    again, odd = [], []
    for row in (0, *changes.tolist()):
        name = str(chromosome[row])
        if name in seen:
            again.append(f"{where(row)}: {name} comes a second time; keep the regions of a chromosome together")
        elif not CHROMOSOME.fullmatch(name) or name.lower() in NOTHING:
            odd.append(f'{where(row)}: "{name[:60]}" is no name of a chromosome')
        seen.setdefault(name, row)
    yield from first_of(iter(again), len(again))
    yield from first_of(iter(odd), len(odd))
    long, short = (
        next((n for n in seen if test(n)), None) for test in (lambda n: n.startswith("chr"), ENSEMBL.fullmatch)
    )
    if long and short:
        yield f'{where(seen[short])}: is called "{short}", but others as "{long}"; use one way of naming chromosomes'
