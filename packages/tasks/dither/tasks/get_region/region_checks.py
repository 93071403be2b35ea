"""What must be true of a table of regions before anything is learnt from it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path

import numpy as np

from dither.registry.problems import Problem, Refused

from .archive import Arrays

__all__ = ["check_arrays"]

SHOWN = 5
KINDS = {
    "features": "fiu",
    "motifs": "U",
    "chromosome": "U",
    "start": "fiu",
    "end": "fiu",
    "open": "bfiu",
    "cells": "U",
}
WORDS = {"fiu": "numbers", "bfiu": "0 and 1", "U": "text"}


def check_arrays(path: Path, arrays: Arrays, place: Callable[[int], str]) -> None:
    """Check the arrays of a region file.

    Args:
        path: Where they are from, for the message.
        arrays: By the names that `RegionMatrix` knows; `open` and `cells` may both be missing.
        place: Says where in the file a region stands, given its row.

    Raises:
        Refused: Names up to five mistakes of each sort, with row and column.
    """
    found: list[str] = []
    for check in (_arrays, _shapes, partial(_values, place), partial(_order, place)):  # each relies on those before it
        found = found or list(check(arrays))
    if found:
        raise Refused([Problem(f"{path}: {what}") for what in found])


def _arrays(arrays: Arrays) -> Iterator[str]:
    """Is each array there, and of the right kind?"""
    needed = set(KINDS) if {"open", "cells"} & set(arrays) else set(KINDS) - {"open", "cells"}
    for name in sorted(needed):
        if name not in arrays:
            yield f'has no array "{name}"; it has {", ".join(sorted(arrays)) or "none"}'
        elif arrays[name].dtype.kind not in KINDS[name]:
            yield f'"{name}" holds {arrays[name].dtype}, expected {WORDS[KINDS[name]]}'


def _shapes(arrays: Arrays) -> Iterator[str]:
    """Do the arrays go together, and do names name one thing each?"""
    regions, motifs = arrays["chromosome"].size, arrays["motifs"].size
    shapes: dict[str, tuple[int, ...]] = {name: (regions,) for name in ("chromosome", "start", "end")}
    shapes |= {"motifs": (motifs,), "features": (regions, motifs)}
    if "open" in arrays:
        shapes |= {"cells": (arrays["cells"].size,), "open": (regions, arrays["cells"].size)}
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


def _values(place: Callable[[int], str], arrays: Arrays) -> Iterator[str]:
    features = arrays["features"]
    for bad, what in ((~np.isfinite(features), "is not finite"), (features < 0, "is negative")):
        for row, column in np.argwhere(bad)[:SHOWN]:
            yield f'{place(row)}, column "{arrays["motifs"][column]}": {features[row, column]} {what}'
    if "open" in arrays:
        for row, column in np.argwhere(~np.isin(arrays["open"], (0, 1)))[:SHOWN]:
            cell, value = arrays["cells"][column], arrays["open"][row, column]
            yield f'{place(row)}, column "open:{cell}": {value} is neither 0 nor 1'
    for name in ("start", "end"):
        values = arrays[name]
        whole = np.isfinite(values) & (values >= 0) & (values < 2**40) & (np.floor(values) == values)
        for row in np.flatnonzero(~whole)[:SHOWN]:
            yield f'{place(row)}, column "{name}": {values[row]} is no base number (a whole number of at least 0)'


def _order(place: Callable[[int], str], arrays: Arrays) -> Iterator[str]:
    chromosome, start, end = arrays["chromosome"], arrays["start"], arrays["end"]
    for row in np.flatnonzero(end <= start)[:SHOWN]:
        yield f"{place(row)}: the region ends at {end[row]:.0f}, not behind its start {start[row]:.0f}"
    same = chromosome[1:] == chromosome[:-1]
    for row in np.flatnonzero(same & (start[1:] < start[:-1]))[:SHOWN] + 1:
        before = f"{chromosome[row]}:{start[row - 1]:.0f}"
        yield f"{place(row)}: {chromosome[row]}:{start[row]:.0f} stands behind {before}; sort by chromosome and start"
    firsts = np.concatenate([[0], np.flatnonzero(~same) + 1])
    seen: set[str] = set()
    for row in firsts.tolist():
        if chromosome[row] in seen:
            yield f"{place(row)}: {chromosome[row]} comes a second time; keep the regions of a chromosome together"
            return
        seen.add(chromosome[row])
