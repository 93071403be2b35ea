"""A zarr store of get_model as a table of regions, without preparation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..assembly import assemble
from ..facts import RegionFacts, untold_of
from ..regions import RegionMatrix
from .get_model import places_of
from .sources import Source, read_source
from .survey import GROUPS, open_arrays, store_cells

__all__ = ["open_store", "store_facts"]


def open_store(
    path: Path,
    *,
    valid: Sequence[str],
    test: Sequence[str],
    scale: bool,
    overlaps: bool = False,
    empty_chunks: bool = False,
) -> RegionMatrix:
    """Read a store whole.

    Args:
        path: Its folder.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test.
        scale: Divide each motif by its largest value in the training regions, and cut at 1.
        overlaps: Whether regions may overlap each other.
        empty_chunks: Whether chunks that are not there are empty; otherwise they count as lost.

    Raises:
        Refused: What is wrong with it, with array and row.
    """
    arrays = read_source(Source(path, "store"), overlaps=overlaps, empty_chunks=empty_chunks, whole=True)
    arrays["features"] = arrays["features"].astype(np.float32, copy=False)  # bytes are numbers here, no steps of 1/255
    return assemble(path, arrays, valid=valid, test=test, scale=scale)


def store_facts(path: Path, *, held_out: Sequence[str], empty_chunks: bool = False) -> RegionFacts:
    """Tell what a store holds; the headers of its arrays and the names of its peaks are read.

    Raises:
        Refused: All that can be seen without reading numbers: arrays and chunks that are missing, or of a wrong kind.
    """
    header = path / "peak_names"
    changed = header.stat().st_mtime_ns if header.is_dir() else 0
    names, motifs, counts = _look(path, changed, empty_chunks)
    groups, cells = {name.partition("/")[0] for name in names}, store_cells(path)
    first = {"atpm": GROUPS[0], "expression": GROUPS[1], "tss": GROUPS[3]}
    known = {
        name: {cell for cell in cells if f"{group}/{cell}" in names} for name, group in first.items() if group in groups
    }
    return RegionFacts(
        motifs=motifs,
        cells=cells,
        longest=max((count for name, count in counts.items() if name not in held_out), default=0),
        rows=sum(counts.values()),
        chromosomes=max(len(counts), 1),
        atpm="atpm" in groups,
        expression="expression_positive" in groups,
        tss="tss" in groups,
        untold=untold_of(known, cells),
        absent=tuple(name for name in held_out if name not in counts),
    )


@lru_cache(maxsize=8)
def _look(path: Path, changed: int, empty_chunks: bool) -> tuple[frozenset[str], int, dict[str, int]]:
    """Return which arrays a store has, how many motifs, and regions by chromosome."""
    arrays = open_arrays(path, empty_chunks=empty_chunks)
    chromosome, _, _ = places_of(arrays["peak_names"], path)
    return frozenset(arrays), arrays["data"].shape[1], dict(Counter(chromosome.tolist()))
