"""Sources of regions in any format: find out which, read the arrays under common names, check them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Literal

from dither.registry.config.errors import Problem, Refused

from ..data.column_groups import RegionFacts, Splits
from ..data.region_matrix import RegionMatrix, assemble
from .get_model import read_store
from .legacy_get_model import LIST, read_legacy
from .matrices import BED, MATRICES, read_matrix
from .region_checks import RawArrays, check_arrays, collect_problems
from .tables import read_header
from .zarr_store import ZarrArray, is_group

__all__ = ["ReadOptions", "Source", "file_facts", "find_regions", "find_source", "open_file", "open_store"]

FORMATS = f"a zarr store of get_model, its older folders, or a matrix: {', '.join(MATRICES)} (and .bed)"


@dataclass(frozen=True)
class ReadOptions:
    """Whether regions may overlap each other, and whether missing chunks of a store hold the fill value."""

    overlaps: bool = False
    empty_chunks: bool = True


@dataclass(frozen=True)
class Source:
    """A file or folder of regions, its format, and BED files next to a matrix."""

    path: Path
    form: Literal["store", "legacy", "matrix"]
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
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise Refused([Problem(f"{path}: No such file or directory", code="file-not-found") for path in missing])
    beds = tuple(path for path in paths if path.name.lower().endswith(BED))
    others = [path for path in paths if path not in beds]
    if len(others) != 1:
        given = ", ".join(map(str, others)) or "none"
        raise Refused(f"expected one source of regions, and perhaps BED files next to it; given: {given}", code="usage")
    (path,) = others
    if path.is_dir():
        parents = (folder for folder in path.absolute().parents if (folder / "data").is_dir() and is_group(folder))
        if (store := next(parents, None)) is not None and not (path / "data").is_dir():
            raise Refused(Problem(f"{path} is part of a store", help=f"give the store: {store}", code="unknown-format"))
    if beds and not _is_matrix(path):
        raise Refused(f"{beds[0]}: a BED file goes with a matrix; {path} contains its regions", code="usage")
    if (path / LIST).is_file():
        return Source(path, "legacy")
    if path.is_dir() and (is_group(path) or path.suffix == ".zarr"):
        return Source(path, "store")
    if path.is_dir() or not _is_matrix(path):
        raise Refused(Problem(f"{path}: unknown format of regions", help=FORMATS, code="unknown-format"))
    return Source(path, "matrix", beds)


def _is_matrix(path: Path) -> bool:
    return path.name.lower().endswith(MATRICES)


def find_regions(source: Source, options: ReadOptions | None = None, *, whole: bool = False) -> RawArrays:
    """Read a source and check it; the features of a store stay on disk unless it is read whole.

    Raises:
        Refused: All problems together, with array, row and column.
    """
    options = options or ReadOptions()
    if source.form == "store":
        raw = read_store(source.path, empty_chunks=options.empty_chunks)
    elif source.form == "legacy":
        raw = read_legacy(source.path, overlaps=options.overlaps)
    else:
        raw = read_matrix(source.path, source.beds)
    if whole and isinstance(features := raw.arrays.get("features"), ZarrArray):
        problems = list(raw.problems)
        with collect_problems(problems):
            raw.arrays["features"] = features[:]
        raw = replace(raw, problems=tuple(problems))
    check_arrays(source.path, raw, overlaps=options.overlaps)
    return raw


def open_store(path: Path, options: ReadOptions, splits: Splits) -> RegionMatrix:
    """Read a store into memory; raises Refused with all problems together."""
    raw = find_regions(Source(path, "store"), options, whole=True)
    return assemble(path, raw.arrays, splits, raw.notes)


def open_file(path: Path, splits: Splits) -> RegionMatrix:
    """Read a region file, in which regions may overlap.

    Raises:
        Refused: The file is missing or damaged, or values are invalid; names each row and column.
    """
    return assemble(path, find_regions(_file(path), ReadOptions(overlaps=True)).arrays, splits)


def _file(path: Path) -> Source:
    if not _is_matrix(path):
        raise Refused(f"{path}: unknown file name extension; expected {', '.join(MATRICES)}", code="unknown-format")
    return Source(path, "matrix")


def file_facts(path: Path, held_out: Sequence[str]) -> RegionFacts:
    """Return the facts of a region file; of a text table only the header and the chromosomes are read."""
    motifs, cells, counts, kinds, unknown = _summary(path, path.stat().st_mtime_ns if path.is_file() else 0)
    return RegionFacts.of(motifs, cells, counts, kinds, unknown, held_out)


@lru_cache(maxsize=8)
def _summary(path: Path, modified: int) -> tuple[int, tuple[str, ...], dict[str, int], frozenset[str], tuple[str, ...]]:
    """Return number of motifs, cell types, regions by chromosome, known arrays, and unknown values."""
    if _file(path).path.name.lower().endswith((".csv", ".csv.gz", ".tsv", ".tsv.gz")):
        columns, counts = read_header(path)
        return len(columns.motifs), columns.cells, counts, frozenset(columns.of_cells), columns.unknown()
    arrays = find_regions(_file(path), ReadOptions(overlaps=True)).arrays
    cells, unknown = (tuple(map(str, arrays.get(name, ()))) for name in ("cells", "unknown"))
    return arrays["motifs"].size, cells, dict(Counter(arrays["chromosome"].tolist())), frozenset(arrays), unknown
