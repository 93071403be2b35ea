"""Whatever a person has: which form it is in, and its arrays under one set of names."""

from __future__ import annotations

import hashlib
import os
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from dither.registry.problems import Problem, Refused

from ..found import Found, noted
from ..region_checks import check_arrays
from .get_model import is_store, read_store
from .header import is_group
from .legacy import is_legacy, read_legacy
from .matrices import MATRICES, is_bed, read_matrix
from .zarr_array import ZarrArray

__all__ = ["Source", "find_regions", "find_source", "read_source"]

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


def find_regions(source: Source, *, overlaps: bool = False, empty_chunks: bool = False, whole: bool = False) -> Found:
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
        with noted(told):
            found.arrays["features"] = features[:]
        found = Found(found.arrays, found.place, tuple(told), found.called)
    check_arrays(source.path, found.arrays, found.place, overlaps=overlaps, told=found.told, called=found.called)
    return found


def _read(source: Source, *, overlaps: bool, empty_chunks: bool) -> Found:
    if source.form == "store":
        return read_store(source.path, empty_chunks=empty_chunks)
    if source.form == "legacy":
        return read_legacy(source.path, overlaps=overlaps)
    if source.form == "anndata":
        from .anndata_file import read_anndata

        return read_anndata(source.path)
    return read_matrix(source.path, source.beds)
