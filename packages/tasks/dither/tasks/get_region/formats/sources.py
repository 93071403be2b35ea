"""Readers of regions: detect the format, read arrays under common names, check them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import open_file, unreadable

from ...prepared.manifest import MANIFEST, read_manifest
from ...prepared.store import open_arrays, verify
from ..data.column_groups import REGIONS, RegionInfo, Splits
from ..data.joined_stores import join_stores
from ..data.region_matrix import RegionMatrix, RowsOf, all_rows, assemble, divide
from .get_model_folder import LIST, read_folder
from .get_model_zarr import read_store
from .matrices import BED, MATRICES, read_matrix
from .region_checks import OF_CELLS, RawArrays, check_arrays, collect_problems
from .zarr_array import ZarrArray, encoding_type, is_group

__all__ = [
    "ReadOptions",
    "Source",
    "find_regions",
    "find_source",
    "open_regions",
    "open_stores",
]

FORMATS = (
    "a zarr store of get_model, its older folders, "
    f"or a matrix: {', '.join(MATRICES)} (and .bed)"
)


@dataclass(frozen=True)
class ReadOptions:
    """Whether regions may overlap, and missing chunks of a store hold the fill value.

    `group_by` is the column of AnnData whose cells are averaged.
    """

    overlaps: bool = False
    empty_chunks: bool = True
    group_by: str | None = None


@dataclass(frozen=True)
class Source:
    """A file or folder of regions, its format, and BED files next to a matrix."""

    path: Path
    form: Literal["store", "folder", "matrix"]
    beds: tuple[Path, ...] = ()

    def files(self) -> list[Path]:
        """Return every file that is read."""
        if self.path.is_dir():
            return sorted(path for path in self.path.rglob("*") if path.is_file())
        return [self.path, *self.beds]


def find_source(paths: Sequence[Path]) -> Source:
    """Return the source that paths name, perhaps with BED files; raise Refused for another."""
    # Before the format is detected, which would report a missing folder as unknown.
    problems = []
    for path in paths:
        if not path.exists():
            message = f"{path}: No such file or directory"
            problems.append(Problem(message, code="file-not-found"))
    if problems:
        raise Refused(problems)
    beds = tuple(path for path in paths if path.name.lower().endswith(BED))
    others = [path for path in paths if path not in beds]
    if len(others) != 1:
        names = ", ".join(map(str, others)) or "none"
        message = "expected one source of regions, and perhaps BED files next to it"
        raise Refused(f"{message}; given: {names}", code="usage")

    (path,) = others
    form = _format_of(path)
    if beds and form != "matrix":
        message = (
            f"{beds[0]}: a BED file goes with a matrix; {path} contains its regions"
        )
        raise Refused(message, code="usage")
    if form is not None:
        return Source(path, form, beds)
    raise Refused(
        f"{path}: unknown format of regions", help=FORMATS, code="unknown-format"
    )


def _format_of(path: Path) -> Literal["store", "folder", "matrix"] | None:
    """Return the format of a path, None if it is unknown; raise Refused for part of a store."""
    if not path.is_dir():
        if path.name.lower().endswith(MATRICES):
            return "matrix"
        return None
    # A group inside a store is a group, too, and easily given by mistake.
    if not (path / "data").is_dir():
        for parent in path.absolute().parents:
            if (parent / "data").is_dir() and is_group(parent):
                fix = f"give the store: {parent}"
                problem = Problem(
                    f"{path} is part of a store", help=fix, code="unknown-format"
                )
                raise Refused(problem)
    if (path / LIST).is_file():
        return "folder"
    if is_group(path) or path.suffix == ".zarr":
        if encoding_type(path) == "anndata":
            message = f"{path}: AnnData in zarr"
            fix = "write it as .h5ad: anndata.read_zarr(PATH).write_h5ad(FILE)"
            raise Refused(message, help=fix, code="unknown-format")
        return "store"
    return None


def find_regions(
    source: Source,
    options: ReadOptions | None = None,
    *,
    whole: bool = False,
    headers: bool = False,
    rows: RowsOf = all_rows,
) -> RawArrays:
    """Read a source and check it; the features of a store stay on disk unless it is read whole.

    Features are read and checked in `rows` only.
    With `headers`, those of a store or an .npz file are zeros that take no memory: only type and
    shape are checked.
    """
    options = options or ReadOptions()
    if source.form == "store":
        raw = read_store(source.path, empty_chunks=options.empty_chunks)
    elif source.form == "folder":
        raw = read_folder(source.path, overlaps=options.overlaps)
    else:
        # pandas, pyarrow and anndata open files by name, and would not say what is wrong.
        for file in source.files():
            try:
                open_file(file).close()
            except OSError as error:
                raise unreadable(file, error) from None
        raw = read_matrix(
            source.path, source.beds, headers=headers, group_by=options.group_by
        )

    features = raw.arrays.get("features")
    if isinstance(features, ZarrArray):
        if headers:
            # A view of one 0, of no size in memory.
            raw.arrays["features"] = np.broadcast_to(
                np.zeros((), features.dtype), features.shape
            )
        elif whole:
            problems = list(raw.problems)
            with collect_problems(problems):
                raw.arrays["features"] = features[:]
            raw = replace(raw, problems=tuple(problems))
    check_arrays(source.path, raw, overlaps=options.overlaps, rows=rows)
    return raw


def open_regions(
    paths: Sequence[Path],
    splits: Splits,
    options: ReadOptions | None = None,
    *,
    headers: bool = False,
) -> RegionMatrix:
    """Read a source into memory, or map a folder of prepared regions.

    Unchanged files are not read again. With `headers`, the features of a store or an .npz file are
    neither read nor checked; they are zeros.
    """
    if (paths[0] / MANIFEST).exists():
        source = None
        files = sorted(paths[0].iterdir())
        headers = False
    else:
        source = find_source(paths)
        files = source.files()
        headers = headers and (source.form == "store" or source.path.suffix == ".npz")
    # Time and size of each file: a file that was touched is read again.
    state = tuple(
        (file, file.stat().st_mtime_ns, file.stat().st_size) for file in files
    )
    # The state is an argument, so that a changed file is another entry of the cache.
    return _open(source, splits, options or ReadOptions(), state, headers)


def open_stores(
    paths: Sequence[Path],
    splits: Splits,
    options: ReadOptions,
    *,
    headers: bool,
) -> RegionMatrix:
    """Read several sources as one, which are held out together; see `open_regions`."""
    whole = Splits((), (), scale=False)
    matrices = [open_regions([path], whole, options, headers=headers) for path in paths]
    if headers:
        splits = splits._replace(scale=False)
    return divide(paths[0], join_stores(paths, matrices), splits)


@lru_cache(maxsize=8)
def _open(
    source: Source | None,
    splits: Splits,
    options: ReadOptions,
    state: tuple[tuple[Path, int, int], ...],
    headers: bool,
) -> RegionMatrix:
    if source is None:
        return _map_folder(state[0][0].parent, splits)
    raw = find_regions(source, options, whole=True, headers=headers)
    if headers:
        # The largest values of the motifs are unknown without their values.
        splits = splits._replace(scale=False)
    else:
        # Motifs of a table may be of any type; a batch must not wait for their conversion.
        raw.arrays["features"] = np.asarray(raw.arrays["features"], np.float32)
    return assemble(source.path, raw.arrays, splits, raw.notes)


def _map_folder(folder: Path, splits: Splits) -> RegionMatrix:
    """Map prepared regions; the motifs stay on disk."""
    manifest = read_manifest(folder, REGIONS)
    info = RegionInfo.of(manifest, folder)
    # The small arrays only: checksums of all would read the whole folder at each start.
    verify(folder, manifest, REGIONS, ("chromosome", "start", "end"))
    mapped = open_arrays(folder, manifest, REGIONS)

    regions = sum(info.chromosomes.values())
    shapes = {"features": (regions, len(info.motifs)), "start": (regions,)}
    if any(name not in mapped or mapped[name].shape != shapes[name] for name in shapes):
        sizes = f"{regions} regions and {len(info.motifs)} motifs"
        message = f"{folder}: arrays do not match {sizes} in {MANIFEST}"
        raise Refused(message, help=f"run: {REGIONS.command}", code="damaged-file")

    arrays: dict[str, Any] = {
        "features": mapped["features"],
        "chromosome": np.asarray(mapped["chromosome"]),
        "chromosomes": np.array(list(info.chromosomes), np.str_),
        "start": np.asarray(mapped["start"]),
        "end": np.asarray(mapped["end"]),
        "motifs": np.array(info.motifs, np.str_),
        "cells": np.array(info.cells, np.str_),
        "unknown": np.array(info.unknown, np.str_),
    }
    for name in OF_CELLS:
        if name in mapped:
            arrays[name] = mapped[name].swapaxes(0, 1)
    if "gene_region" in mapped:
        arrays["gene"] = np.array(info.genes, np.str_)
        arrays["gene_region"] = np.array(mapped["gene_region"])
    return assemble(folder, arrays, splits, info.notes)
