"""A zarr store of get_model as a table of regions, without preparation."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path

import numpy as np

from ..assembly import assemble
from ..facts import RegionFacts
from ..regions import RegionMatrix
from .get_model import open_arrays, store_cells
from .peak_names import parse_names
from .sources import Source, read_source

__all__ = ["open_store", "store_facts"]


def open_store(
    path: Path, *, valid: Sequence[str], test: Sequence[str], scale: bool, overlaps: bool = False
) -> RegionMatrix:
    """Read a store whole.

    Args:
        path: Its folder.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test.
        scale: Divide each motif by its largest value in the training regions, and cut at 1.
        overlaps: Whether regions may overlap each other.

    Raises:
        Refused: What is wrong with it, with array and row.
    """
    arrays = read_source(Source(path, "store"), overlaps=overlaps)
    arrays["features"] = np.asarray(arrays["features"], np.float32)
    return assemble(path, arrays, valid=valid, test=test, scale=scale)


def store_facts(path: Path, *, held_out: Sequence[str]) -> RegionFacts:
    """Tell what a store holds; the headers of its arrays and the names of its peaks are read."""
    header = path / "peak_names"
    changed = header.stat().st_mtime_ns if header.is_dir() else 0
    groups, motifs, counts = _look(path, changed)
    return RegionFacts(
        motifs=motifs,
        cells=store_cells(path),
        longest=max((count for name, count in counts.items() if name not in held_out), default=0),
        rows=sum(counts.values()),
        chromosomes=max(len(counts), 1),
        atpm="atpm" in groups,
        expression={"expression_positive", "expression_negative"} <= groups,
        tss="tss" in groups,
    )


@lru_cache(maxsize=8)
def _look(path: Path, changed: int) -> tuple[frozenset[str], int, dict[str, int]]:
    """Return which groups a store has, how many motifs, and regions by chromosome."""
    arrays = open_arrays(path)
    chromosome, _, _ = parse_names(arrays["peak_names"][:].astype(np.str_), f"{path}: peak_names")
    groups = frozenset(name.partition("/")[0] for name in arrays)
    return groups, arrays["data"].shape[1], dict(Counter(chromosome.tolist()))
