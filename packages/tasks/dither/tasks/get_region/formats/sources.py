"""Whatever a person has: which form it is in, and its arrays under one set of names."""

from __future__ import annotations

import hashlib
import os
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ..data.column_groups import RegionFacts, untold_of
from ..data.preprocessing import assemble
from ..data.region_matrix import RegionMatrix
from .get_model import is_store, places_of, read_store
from .legacy_get_model import is_legacy, read_legacy
from .matrices import MATRICES, is_bed, read_matrix
from .raw_arrays import RawArrays, collect_problems
from .region_checks import check_arrays
from .store_survey import GROUPS, open_arrays, store_cells
from .zarr_array import ZarrArray
from .zarr_header import is_group

__all__ = ["Source", "find_regions", "find_source", "open_store", "read_source", "store_facts"]

Form = Literal["store", "legacy", "anndata", "matrix"]


@dataclass(frozen=True)
class Source:
    """Where regions come from.

    Attributes:
        path: The file or folder.
        form: What it is.
        beds: BED files beside a matrix.
    """

    path: Path
    form: Form
    beds: tuple[Path, ...] = ()

    def files(self) -> list[Path]:
        """Return every file that is read."""
        if self.path.is_dir():
            return sorted(path for path in self.path.rglob("*") if path.is_file())
        return [self.path, *self.beds]

    def facts(self) -> dict[str, Any]:
        """Say how many files and bytes there are, with a digest of their names, sizes and times."""
        seen = [(path, path.stat()) for path in self.files()]
        said = [f"{os.path.relpath(path, self.path)} {state.st_size} {state.st_mtime_ns}" for path, state in seen]
        digest = hashlib.sha256("\n".join(said).encode()).hexdigest()
        return {"files": len(seen), "bytes": sum(state.st_size for _, state in seen), "digest": digest}


def find_source(paths: Sequence[Path]) -> Source:
    """Tell what paths are: one source, and perhaps BED files beside it.

    Raises:
        Refused: There is nothing, more than one source, or something that is not known.
    """
    beds = tuple(path for path in paths if is_bed(path))
    others = [path for path in paths if not is_bed(path)]
    missing = [Problem(f"{path}: No such file or directory") for path in paths if not path.exists()]
    if missing:
        raise Refused(missing)
    if len(others) != 1:
        said = ", ".join(map(str, others)) or "none"
        raise Refused(Problem(f"expected one source of regions, and perhaps BED files beside it; given are {said}"))
    (path,) = others
    form = _form(path)
    if beds and form != "matrix":
        raise Refused(f"{beds[0]}: only a matrix takes a BED file beside it; {path} says itself where its regions are")
    return Source(path, form, beds)


def _form(path: Path) -> Form:
    if path.is_dir():
        store = next(
            (above for above in path.absolute().parents if is_group(above) and (above / "data").is_dir()), None
        )
        if store is not None and not (path / "data").is_dir():
            raise Refused(Problem(f"{path}: is a part of a store", help=f"give the store: {store}"))
        if is_legacy(path):
            return "legacy"
        if is_store(path):
            return "store"
        raise Refused(Problem(f"{path}: is neither a zarr store nor a folder with cell_type_align.txt", help=_forms()))
    if path.name.lower().endswith(".h5ad"):
        return "anndata"
    if path.name.lower().endswith(MATRICES):
        return "matrix"
    raise Refused(Problem(f"{path}: cannot be told by its ending", help=_forms()))


def _forms() -> str:
    return f"a zarr store of get_model, its older folders, .h5ad, or a matrix: {', '.join(MATRICES)} (and .bed)"


def read_source(
    source: Source, *, overlaps: bool = False, empty_chunks: bool = False, whole: bool = False
) -> dict[str, Any]:
    """Return the arrays of `find_regions`."""
    return find_regions(source, overlaps=overlaps, empty_chunks=empty_chunks, whole=whole).arrays


def find_regions(
    source: Source, *, overlaps: bool = False, empty_chunks: bool = False, whole: bool = False
) -> RawArrays:
    """Read a source and check it.

    Args:
        source: What it is.
        overlaps: Whether regions may overlap each other.
        empty_chunks: Whether chunks of a store that are not there are empty; otherwise they count as lost.
        whole: Read the features of a store once and keep them; otherwise they stay on disk.

    Raises:
        Refused: What is wrong with it, with array, row and column; all at once.
    """
    found = _read(source, overlaps=overlaps, empty_chunks=empty_chunks)
    if whole and isinstance(features := found.arrays.get("features"), ZarrArray):
        told = list(found.told)
        with collect_problems(told):
            found.arrays["features"] = features[:]
        found = RawArrays(found.arrays, found.place, tuple(told), found.called)
    check_arrays(source.path, found.arrays, found.place, overlaps=overlaps, told=found.told, called=found.called)
    return found


def _read(source: Source, *, overlaps: bool, empty_chunks: bool) -> RawArrays:
    if source.form == "store":
        return read_store(source.path, empty_chunks=empty_chunks)
    if source.form == "legacy":
        return read_legacy(source.path, overlaps=overlaps)
    if source.form == "anndata":
        from .anndata import read_anndata

        return read_anndata(source.path)
    return read_matrix(source.path, source.beds)


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
