"""Sources of regions in any format: find out which, read the arrays under common names, check them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ...prepared.manifest import MANIFEST, read_manifest
from ...prepared.store import open_arrays, verify
from ..data.column_groups import REGIONS, RegionInfo, Splits
from ..data.region_matrix import Labels, LazyMatrix, RegionMatrix, assemble
from .get_model import read_store
from .legacy_get_model import LIST, read_legacy
from .matrices import BED, MATRICES, read_matrix
from .region_checks import OF_CELLS, RawArrays, check_arrays, collect_problems
from .zarr_store import ZarrArray, is_group

__all__ = ["ReadOptions", "Source", "find_regions", "find_source", "open_regions"]

FORMATS = (
    f"a zarr store of get_model, its older folders, or a matrix: {', '.join(MATRICES)} (and .bed)"
)


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
    """Return the source that paths name, perhaps with BED files; raises Refused unless it is one of a known format."""
    missing = [path for path in paths if not path.exists()]
    if missing:
        raise Refused(
            [
                Problem(f"{path}: No such file or directory", code="file-not-found")
                for path in missing
            ]
        )
    beds = tuple(path for path in paths if path.name.lower().endswith(BED))
    others = [path for path in paths if path not in beds]
    if len(others) != 1:
        given = ", ".join(map(str, others)) or "none"
        raise Refused(
            f"expected one source of regions, and perhaps BED files next to it; given: {given}",
            code="usage",
        )
    (path,) = others
    if path.is_dir():
        parents = (
            folder
            for folder in path.absolute().parents
            if (folder / "data").is_dir() and is_group(folder)
        )
        if (store := next(parents, None)) is not None and not (path / "data").is_dir():
            raise Refused(
                Problem(
                    f"{path} is part of a store",
                    help=f"give the store: {store}",
                    code="unknown-format",
                )
            )
    if beds and not _is_matrix(path):
        raise Refused(
            f"{beds[0]}: a BED file goes with a matrix; {path} contains its regions", code="usage"
        )
    if (path / LIST).is_file():
        return Source(path, "legacy")
    if path.is_dir() and (is_group(path) or path.suffix == ".zarr"):
        return Source(path, "store")
    if path.is_dir() or not _is_matrix(path):
        raise Refused(
            Problem(f"{path}: unknown format of regions", help=FORMATS, code="unknown-format")
        )
    return Source(path, "matrix", beds)


def _is_matrix(path: Path) -> bool:
    return path.name.lower().endswith(MATRICES)


def find_regions(
    source: Source,
    options: ReadOptions | None = None,
    *,
    whole: bool = False,
    headers: bool = False,
) -> RawArrays:
    """Read a source and check it; the features of a store stay on disk unless it is read whole.

    With `headers`, those of a store or an .npz file are zeros that take no memory: only type and
    shape are checked.
    """
    options = options or ReadOptions()
    if source.form == "store":
        raw = read_store(source.path, empty_chunks=options.empty_chunks)
    elif source.form == "legacy":
        raw = read_legacy(source.path, overlaps=options.overlaps)
    else:
        raw = read_matrix(source.path, source.beds, headers=headers)
    if headers and isinstance(features := raw.arrays.get("features"), ZarrArray):
        raw.arrays["features"] = np.broadcast_to(np.zeros((), features.dtype), features.shape)
    elif whole and isinstance(features := raw.arrays.get("features"), ZarrArray):
        problems = list(raw.problems)
        with collect_problems(problems):
            raw.arrays["features"] = features[:]
        raw = replace(raw, problems=tuple(problems))
    check_arrays(source.path, raw, overlaps=options.overlaps)
    return raw


def open_regions(
    paths: Sequence[Path],
    splits: Splits,
    options: ReadOptions | None = None,
    *,
    headers: bool = False,
) -> RegionMatrix:
    """Read a source into memory, or map a folder of prepared regions. Unchanged files are not read again.

    With `headers`, the features of a store or an .npz file are neither read nor checked; they are
    zeros.
    """
    source = find_source(paths) if not (paths[0] / MANIFEST).exists() else None
    files = source.files() if source else sorted(paths[0].iterdir())
    state = tuple((file, file.stat().st_mtime_ns, file.stat().st_size) for file in files)
    lazy = (
        headers and source is not None and (source.form == "store" or source.path.suffix == ".npz")
    )
    return _open(source, splits, options or ReadOptions(), state, lazy)


@lru_cache(maxsize=2)
def _open(
    source: Source | None,
    splits: Splits,
    options: ReadOptions,
    state: tuple[tuple[Path, int, int], ...],
    headers: bool,
) -> RegionMatrix:
    if source is None:
        return _map_folder(state[0][0].parent, splits, repr((state, splits)))
    raw = find_regions(source, options, whole=True, headers=headers)
    if headers:
        raw.arrays["features"] = LazyMatrix(raw.arrays["features"])
        splits = splits._replace(scale=False)
    return assemble(source.path, raw.arrays, splits, raw.notes)


def _map_folder(folder: Path, splits: Splits, key: str) -> RegionMatrix:
    manifest = read_manifest(folder, REGIONS)
    info = RegionInfo.of(manifest, folder)
    verify(folder, manifest, REGIONS, ("chromosome", "start", "end"))
    mapped = open_arrays(folder, manifest, REGIONS)
    rows = sum(info.chromosomes.values())
    motifs = len(info.motifs)
    if (
        "features" not in mapped
        or mapped["features"].shape != (rows, motifs)
        or mapped["start"].shape != (rows,)
    ):
        message = f"{folder}: arrays do not match {rows} regions and {motifs} motifs in {MANIFEST}"
        raise Refused(Problem(message, help=f"run: {REGIONS.command}", code="damaged-file"))
    arrays: dict[str, Any] = {
        name: mapped[name].swapaxes(0, 1) for name in OF_CELLS if name in mapped
    }
    arrays |= {
        "features": mapped["features"],
        "start": np.asarray(mapped["start"]),
        "end": np.asarray(mapped["end"]),
    }
    arrays["chromosome"] = Labels.of(
        np.array(list(info.chromosomes), np.str_), np.asarray(mapped["chromosome"])
    )
    arrays |= {
        name: np.array(getattr(info, name), np.str_) for name in ("motifs", "cells", "unknown")
    }
    if "gene_region" in mapped:
        arrays |= {
            "gene": np.array(info.genes, np.str_),
            "gene_region": np.array(mapped["gene_region"]),
        }
    return assemble(folder, arrays, splits, info.notes, key)
