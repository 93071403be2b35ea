"""Are regions where regions can be, named well, and in the order of the genome? Letters: P regions."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Integer, Shaped

from .found import Place

__all__ = ["FARTHEST", "SHOWN", "check_ends", "check_order", "first_of"]

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


def check_ends(place: Place, name: str, values: Shaped[np.ndarray, " P"]) -> Iterator[str]:
    """Yield starts or ends that are no number of a base."""
    whole = np.isfinite(values) & (values >= 0) & (values < FARTHEST) & (np.floor(values) == values)
    lines = (
        f"{place(name, row, name)}: {values[row]} is no base number (a whole number of at least 0)"
        for row in np.flatnonzero(~whole).tolist()
    )
    yield from first_of(lines, int((~whole).sum()))


def check_order(place: Place, arrays: Mapping[str, Any], *, overlaps: bool) -> Iterator[str]:
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
    place: Place, chromosome: Shaped[np.ndarray, " P"], changes: Integer[np.ndarray, " n"]
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
