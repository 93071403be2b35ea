"""Checks of a table of regions before it is used: types, shapes, names, values, and the order of the regions.

Letters: P regions, M motifs, C cell types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Integer, Shaped

from dither.registry.config.errors import Problem, Refused

from ..data.lazy_matrix import row_blocks
from .raw_arrays import MAX_SHOWN, Locator, RawArrays, collect_problems, limited

__all__ = ["MAX_BASE", "PLACES", "check_arrays", "check_ends", "check_order"]

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
KIND_NAMES: Final = {"fiu": "numbers", "bfiu": "0 and 1", "U": "text"}
OF_CELLS: Final = ("open", "atpm", "expression", "tss")
STRANDED: Final = ("expression", "tss")
PLACES: Final = ("chromosome", "start", "end")
LARGEST: Final = float(np.finfo(np.float32).max)
INVALID: Final[tuple[tuple[Callable[[Any], Any], str], ...]] = (
    (lambda block: ~np.isfinite(block), "is not finite"),
    (lambda block: block < 0, "is negative"),
    (lambda block: np.isfinite(block) & (block.astype(np.float64) > LARGEST), "is more than float32 holds"),
)
"""Tests of a block of numbers for values that are not allowed, and their description."""


def check_arrays(path: Path, raw: RawArrays, *, overlaps: bool = True) -> None:
    """Check the arrays of a table of regions.

    Args:
        path: Source of the arrays, for messages.
        raw: The arrays; those of cell types may be missing. Features are read a block of rows at a time.
        overlaps: Regions may overlap each other.

    Raises:
        Refused: Names up to five problems of each kind, with array, row and column, and counts the others.
    """
    arrays, display_name = dict(raw.arrays), raw.display_name
    problems = [] if raw.problems else [*_missing(arrays, display_name)]
    for check in (_kinds, _shapes):  # values of an array with the wrong type or shape are not checked
        for name, message in list(check(arrays, display_name)):
            problems.append(Problem(message, code="wrong-shape"))
            arrays.pop(name, None)
    problems += _names(arrays)
    problems += _values(raw.locate, arrays, display_name)
    if arrays.keys() >= {*PLACES} and arrays["start"].size:
        problems += check_order(raw.locate, arrays, overlaps=overlaps)
    own = [
        problem if problem.message.startswith(str(path)) else Problem(f"{path}: {problem.message}", code=problem.code)
        for problem in problems
    ]
    if every := [*raw.problems, *own]:
        raise Refused(list({problem.message: problem for problem in every}.values()))


def _lines(lines: Iterator[str], count: int, code: str = "invalid-sample") -> Iterator[Problem]:
    """Yield the first lines as problems, and the number of the others."""
    yield from (Problem(line, code=code) for line in limited(lines, count))


def _missing(arrays: Mapping[str, Any], display_name: Callable[[str], str]) -> Iterator[Problem]:
    needed = set(KINDS) - {*OF_CELLS, "cells"}
    if "cells" in arrays or not arrays.keys().isdisjoint(OF_CELLS):
        needed |= {"cells", *(arrays.keys() & set(OF_CELLS) or {"open"})}
    existing = ", ".join(sorted({*map(display_name, arrays)})) or "none"
    for name in sorted(needed - arrays.keys()):
        yield Problem(f'no array "{display_name(name)}"; it has {existing}', code="missing-array")


def _kinds(arrays: Mapping[str, Any], display_name: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    for name, kinds in sorted(KINDS.items()):
        if name in arrays and arrays[name].dtype.kind not in kinds:
            yield name, f'"{display_name(name)}" holds {arrays[name].dtype}, expected {KIND_NAMES[kinds]}'


def _shapes(arrays: Mapping[str, Any], display_name: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    regions = next((arrays[name].size for name in PLACES if name in arrays), None)
    motifs = arrays["motifs"].size if "motifs" in arrays else None
    rows, columns = (*(arrays["features"].shape if "features" in arrays else ()), 0, 0)[:2]
    regions, motifs = rows if regions is None else regions, columns if motifs is None else motifs
    shapes: dict[str, tuple[int, ...]] = {name: (regions,) for name in PLACES}
    shapes |= {"motifs": (motifs,), "features": (regions, motifs)}
    if "cells" in arrays:
        cells = arrays["cells"].size
        shapes |= {"cells": (cells,)}
        shapes |= {name: (regions, cells, *(2,) * (name in STRANDED)) for name in OF_CELLS}
    for name, shape in shapes.items():
        if name in arrays and arrays[name].shape != shape:
            expected = f"expected {shape} for {regions} regions and {motifs} motifs"
            yield name, f'"{display_name(name)}" has the shape {arrays[name].shape}, {expected}'
    for name, count, items in (("start", regions, "regions"), ("motifs", motifs, "motif columns")):
        if not count and name in arrays:
            yield name, f"holds no {items}"


def _names(arrays: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield names that are empty or occur twice."""
    for name in ("motifs", "cells"):
        names = arrays.get(name, np.zeros(0, "U1"))
        empty = [number for number, value in enumerate(names.tolist(), 1) if not value.strip()]
        yield from _lines((f"number {number} of the {name} has no name" for number in empty), len(empty))
        values, times = np.unique(names, return_counts=True)
        for twice in [value for value in values[times > 1].tolist() if value.strip()][:MAX_SHOWN]:
            yield Problem(f'"{twice}" is the name of more than one of the {name}', code="duplicate")


def _values(locate: Locator, arrays: Mapping[str, Any], display_name: Callable[[str], str]) -> Iterator[Problem]:
    if "features" in arrays:
        of_motif = partial(_column_of_motif, arrays.get("motifs"))
        yield from _numbers("features", arrays["features"], of_motif, locate, display_name)
    for name in OF_CELLS:
        if name in arrays and "cells" in arrays:
            of_cell = partial(_column_of_cell, name, arrays["cells"])
            if name in ("open", "tss"):
                yield from _zero_or_one(name, arrays[name], of_cell, locate)
            else:
                yield from _numbers(name, arrays[name], of_cell, locate, display_name)
    for name in ("start", "end"):
        if name in arrays:
            yield from check_ends(locate, name, arrays[name])


def _column_of_motif(motifs: Shaped[np.ndarray, " M"] | None, index: tuple[int, ...]) -> str:
    return str(index[0] if motifs is None else motifs[index[0]])


def _column_of_cell(name: str, cells: Shaped[np.ndarray, " C"], index: tuple[int, ...]) -> str:
    strand = ("_positive", "_negative")[index[1]] if name == "expression" else ""
    return f"{name}{strand}:{cells[index[0]]}"


def _numbers(
    name: str,
    values: Any,
    column: Callable[[tuple[int, ...]], str],
    locate: Locator,
    display_name: Callable[[str], str],
) -> Iterator[Problem]:
    """Yield numbers that are not finite, negative or too large, and blocks that cannot be read."""
    lines: dict[str, list[str]] = {description: [] for _, description in INVALID}
    counts = dict.fromkeys(lines, 0)
    unreadable: list[Problem] = []
    for rows in row_blocks(len(values)):
        block: Any = np.zeros(0)
        with collect_problems(unreadable):
            block = np.asarray(values[rows])
        if not block.size:
            continue
        if block.min() >= 0 and float(block.max()) <= LARGEST:  # false where anything is NaN
            continue
        for invalid, description in INVALID:
            bad = np.asarray(invalid(block))
            counts[description] += int(bad.sum())
            for row, *index in np.argwhere(bad)[: MAX_SHOWN - len(lines[description])].tolist():
                where = locate(name, rows.start + row, column(tuple(index)))
                lines[description].append(f"{where}: {block[row, *index]} {description}")
    unreadable = list({problem.message: problem for problem in unreadable}.values())
    yield from unreadable[:MAX_SHOWN]
    if len(unreadable) > MAX_SHOWN:
        more = f"{display_name(name)}: ... and {len(unreadable) - MAX_SHOWN:,} more such problems"
        yield Problem(more, code=unreadable[0].code)
    for description, some in lines.items():
        yield from _lines(iter(some), counts[description])


def _zero_or_one(
    name: str, values: Any, column: Callable[[tuple[int, ...]], str], locate: Locator
) -> Iterator[Problem]:
    bad = (values != 0) & (values != 1)
    lines = (
        f"{locate(name, row, column(tuple(index)))}: {values[row, *index]} is neither 0 nor 1"
        for row, *index in np.argwhere(bad)[:MAX_SHOWN].tolist()
    )
    yield from _lines(lines, int(bad.sum()))


MAX_BASE: Final = 2**40
"""More than the number of bases of any chromosome."""
CHROMOSOME: Final = re.compile(r"[^\s:]{1,60}")
MISSING_VALUES: Final = ("na", "nan", "none", "null", "<na>")
ENSEMBL: Final = re.compile(r"[0-9]{1,2}|[XYM]|MT")
"""Names of chromosomes without "chr"."""


def check_ends(locate: Locator, name: str, values: Shaped[np.ndarray, " P"]) -> Iterator[Problem]:
    """Yield starts or ends that are not whole numbers of at least 0."""
    whole = np.isfinite(values) & (values >= 0) & (values < MAX_BASE) & (np.floor(values) == values)
    lines = (
        f"{locate(name, row, name)}: {values[row]} is not a base number (a whole number of at least 0)"
        for row in np.flatnonzero(~whole).tolist()
    )
    yield from _lines(lines, int((~whole).sum()))


def check_order(locate: Locator, arrays: Mapping[str, Any], *, overlaps: bool) -> Iterator[Problem]:
    """Yield regions that are empty, unsorted or equal, that overlap unless allowed, and odd names of chromosomes."""
    chromosome, start, end = arrays["chromosome"], arrays["start"], arrays["end"]
    if not all((np.isfinite(ends) & (np.abs(ends) < MAX_BASE)).all() for ends in (start, end)):
        return  # reported by check_ends

    def where(row: int) -> str:
        return locate("start", row, "")

    backward = np.flatnonzero(end <= start)
    lines = (
        f"{where(row)}: the region ends at {end[row]:.0f}, not after its start {start[row]:.0f}"
        for row in backward.tolist()
    )
    yield from _lines(lines, len(backward))
    same = chromosome[1:] == chromosome[:-1]
    unsorted = same & (start[1:] < start[:-1])
    copies = same & (start[1:] == start[:-1]) & (end[1:] == end[:-1])

    def pairs(wrong: Bool[np.ndarray, " p"], describe: Callable[[int], str], code: str) -> Iterator[Problem]:
        rows = (np.flatnonzero(wrong) + 1).tolist()
        yield from _lines((f"{where(row)}: {describe(row)}" for row in rows), len(rows), code)

    def name(row: int) -> str:
        return f"{chromosome[row]}:{start[row]:.0f}"

    def order(row: int) -> str:
        return f"regions are not sorted: {name(row)} after {name(row - 1)}; sort by chromosome and start"

    yield from pairs(unsorted, order, "unsorted")
    yield from pairs(copies, lambda row: f"{name(row)}-{end[row]:.0f} equals the region before it", "duplicate")
    if not overlaps:
        reach = same & ~unsorted & ~copies & (start[1:] < _furthest(chromosome, end)[:-1])
        fix = "overlaps a region before it; merge them, or set overlaps = true"
        yield from pairs(reach, lambda row: f"{name(row)}-{end[row]:.0f} {fix}", "invalid-sample")
    yield from _chromosomes(locate, chromosome, np.flatnonzero(~same) + 1)


def _furthest(chromosome: Shaped[np.ndarray, " P"], end: Any) -> Any:
    """Return the largest end so far on the chromosome, for each region. `P`."""
    changes = np.r_[True, chromosome[1:] != chromosome[:-1]]
    run = np.cumsum(changes)
    far = int(end.max()) + 1
    return np.maximum.accumulate(end + run * far) - run * far


def _chromosomes(
    locate: Locator, chromosome: Shaped[np.ndarray, " P"], changes: Integer[np.ndarray, " n"]
) -> Iterator[Problem]:
    def where(row: int) -> str:
        return locate("chromosome", row, "")

    seen: dict[str, int] = {}
    again, odd = [], []
    for row in (0, *changes.tolist()):
        name = str(chromosome[row])
        if name in seen:
            again.append(f"{where(row)}: {name} occurs a second time; keep the regions of a chromosome together")
        elif not CHROMOSOME.fullmatch(name) or name.lower() in MISSING_VALUES:
            odd.append(f'{where(row)}: "{name[:60]}" is not the name of a chromosome')
        seen.setdefault(name, row)
    yield from _lines(iter(again), len(again), "unsorted")
    yield from _lines(iter(odd), len(odd))
    long, short = (
        next((name for name in seen if test(name)), None)
        for test in (lambda name: name.startswith("chr"), ENSEMBL.fullmatch)
    )
    if long and short:
        message = f'{where(seen[short])}: named "{short}", but others like "{long}"; name all chromosomes the same way'
        yield Problem(message, code="invalid-sample")
