"""Sources of regions in any format: find out which, read the arrays under common names, check them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ..data.column_groups import RegionFacts, unknown_names
from ..data.preprocessing import assemble
from ..data.region_matrix import RegionMatrix
from .get_model import GROUPS, is_store, open_arrays, places_of, read_store, store_cells
from .legacy_get_model import is_legacy, read_legacy
from .matrices import MATRICES, is_bed, read_matrix
from .raw_arrays import RawArrays, collect_problems
from .region_checks import check_arrays
from .zarr_store import ZarrArray, is_group

__all__ = ["ReadOptions", "Source", "find_regions", "find_source", "open_store", "store_facts"]

Form = Literal["store", "legacy", "anndata", "matrix"]
FORMATS = f"a zarr store of get_model, its older folders, .h5ad, or a matrix: {', '.join(MATRICES)} (and .bed)"


@dataclass(frozen=True)
class ReadOptions:
    """How a source is read.

    Attributes:
        overlaps: Regions may overlap each other.
        empty_chunks: Missing chunks of a store hold the fill value; otherwise they are errors.
    """

    overlaps: bool = False
    empty_chunks: bool = False


@dataclass(frozen=True)
class Source:
    """A source of regions.

    Attributes:
        path: The file or folder.
        form: Its format.
        beds: BED files next to a matrix.
    """

    path: Path
    form: Form
    beds: tuple[Path, ...] = ()

    def files(self) -> list[Path]:
        """Return every file that is read."""
        if self.path.is_dir():
            return sorted(path for path in self.path.rglob("*") if path.is_file())
        return [self.path, *self.beds]


def find_source(paths: Sequence[Path]) -> Source:
    """Return the source that paths name: one file or folder, and perhaps BED files.

    Raises:
        Refused: A path does not exist, there is more than one source, or the format is unknown.
    """
    missing = [
        Problem(f"{path}: No such file or directory", code="file-not-found") for path in paths if not path.exists()
    ]
    if missing:
        raise Refused(missing)
    beds = tuple(path for path in paths if is_bed(path))
    others = [path for path in paths if not is_bed(path)]
    if len(others) != 1:
        given = ", ".join(map(str, others)) or "none"
        raise Refused(f"expected one source of regions, and perhaps BED files next to it; given: {given}", code="usage")
    (path,) = others
    form = _form(path)
    if beds and form != "matrix":
        raise Refused(f"{beds[0]}: a BED file goes with a matrix; {path} contains its regions", code="usage")
    return Source(path, form, beds)


def _form(path: Path) -> Form:
    if path.is_dir():
        parents = (folder for folder in path.absolute().parents if (folder / "data").is_dir() and is_group(folder))
        store = next(parents, None)
        if store is not None and not (path / "data").is_dir():
            raise Refused(Problem(f"{path} is part of a store", help=f"give the store: {store}", code="unknown-format"))
        if is_legacy(path):
            return "legacy"
        if is_store(path):
            return "store"
        message = f"{path}: neither a zarr store nor a folder with cell_type_align.txt"
        raise Refused(Problem(message, help=FORMATS, code="unknown-format"))
    if path.name.lower().endswith(".h5ad"):
        return "anndata"
    if path.name.lower().endswith(MATRICES):
        return "matrix"
    raise Refused(Problem(f"{path}: unknown file name extension", help=FORMATS, code="unknown-format"))


def find_regions(source: Source, options: ReadOptions | None = None, *, whole: bool = False) -> RawArrays:
    """Read a source and check it.

    Args:
        source: The source.
        options: How to read it.
        whole: Read the features of a store into memory; otherwise they stay on disk.

    Raises:
        Refused: All problems together, with array, row and column.
    """
    options = options or ReadOptions()
    raw = _read(source, options)
    if whole and isinstance(features := raw.arrays.get("features"), ZarrArray):
        problems = list(raw.problems)
        with collect_problems(problems):
            raw.arrays["features"] = features[:]
        raw = RawArrays(raw.arrays, raw.locate, tuple(problems), raw.display_name)
    check_arrays(source.path, raw, overlaps=options.overlaps)
    return raw


def _read(source: Source, options: ReadOptions) -> RawArrays:
    if source.form == "store":
        return read_store(source.path, empty_chunks=options.empty_chunks)
    if source.form == "legacy":
        return read_legacy(source.path, overlaps=options.overlaps)
    if source.form == "anndata":
        from .anndata import read_anndata

        return read_anndata(source.path)
    return read_matrix(source.path, source.beds)


def open_store(
    path: Path, options: ReadOptions, *, valid: Sequence[str], test: Sequence[str], scale: bool
) -> RegionMatrix:
    """Read a store into memory.

    Args:
        path: Its folder.
        options: How to read it.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test.
        scale: Divide each motif by its largest value in the training regions, and clip at 1.

    Raises:
        Refused: All problems together, with array and row.
    """
    arrays = find_regions(Source(path, "store"), options, whole=True).arrays
    arrays["features"] = arrays["features"].astype(np.float32, copy=False)  # uint8 are counts here, not steps of 1/255
    return assemble(path, arrays, valid=valid, test=test, scale=scale)


def store_facts(path: Path, *, held_out: Sequence[str], empty_chunks: bool = False) -> RegionFacts:
    """Return the facts of a store from the headers of its arrays and the names of its peaks.

    Raises:
        Refused: Arrays or chunks are missing, or have a wrong type or shape.
    """
    header = path / "peak_names"
    modified = header.stat().st_mtime_ns if header.is_dir() else 0
    names, motifs, counts = _summary(path, modified, empty_chunks)
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
        unknown=unknown_names(known, cells),
        absent=tuple(name for name in held_out if name not in counts),
    )


@lru_cache(maxsize=8)
def _summary(path: Path, modified: int, empty_chunks: bool) -> tuple[frozenset[str], int, dict[str, int]]:
    """Return the names of the arrays, the number of motifs, and regions by chromosome."""
    arrays = open_arrays(path, empty_chunks=empty_chunks)
    chromosome, _, _ = places_of(arrays["peak_names"], path)
    return frozenset(arrays), arrays["data"].shape[1], dict(Counter(chromosome.tolist()))
