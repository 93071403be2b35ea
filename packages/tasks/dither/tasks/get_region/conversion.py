"""The data component "get": from a source of regions to a folder of mapped arrays, or to a store of get_model."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from time import perf_counter
from typing import Any

import numpy as np

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_folder

from ..prepared.manifest import Manifest, describe_sources
from ..prepared.progress import Progress
from ..prepared.store import check_owned, find_existing, write_folder
from .data.column_groups import REGIONS, RegionInfo
from .data.prepared_folder import Float16Rounding, write_regions
from .formats.get_model import write_store
from .formats.sources import ReadOptions, find_regions, find_source
from .formats.zarr_store import Format, ZarrArray

__all__ = ["convert", "convert_to_store"]

ARRAY_NAMES = {"open": "open or closed", "atpm": "atpm", "expression": "expression", "tss": "TSS"}


def convert(
    paths: list[str], folder: Path, options: Mapping[str, Any], *, dtype: str, read: ReadOptions, force: bool
) -> str:
    """Check a source of regions and convert it; return a report. A folder with the same data is verified and kept.

    Args:
        paths: The source, and perhaps BED files.
        folder: Destination.
        options: Options that determine the result, for the manifest.
        dtype: Type of the features: float16 or float32.
        read: How the source is read.
        force: Replace data that were prepared with other options.

    Raises:
        Refused: All problems of the source, or the folder holds something else.
    """
    began = perf_counter()
    source = find_source([Path(path).expanduser() for path in paths])
    check_owned(folder, REGIONS)
    digest = describe_sources(source.files(), source.path)
    made = {**options, "source": digest}
    if (existing := find_existing(folder, REGIONS, made, force=force)) is not None:
        return f"{folder} exists already, all checksums match\n{_summary(existing)}"
    raw = find_regions(source, read)
    rounding = Float16Rounding(source.path, raw.arrays["motifs"], raw.locate) if dtype == "float16" else None
    with Progress("regions converted") as progress, write_folder(folder, REGIONS, made) as writer:
        write_regions(writer, raw.arrays, dtype, progress.update, rounding)
    notes = [f"note: {note}" for note in _notes(raw.arrays)]
    return "\n".join([_summary(writer.manifest), *notes, f"in {perf_counter() - began:.1f} s, written to {folder}"])


def convert_to_store(paths: list[str], folder: Path, read: ReadOptions, version: Format) -> str:
    """Convert a source of regions to a zarr store of get_model, and return a report.

    Raises:
        Refused: All problems of the source, or the folder exists.
    """
    source = find_source([Path(path).expanduser() for path in paths])
    if folder.exists():
        raise Refused(Problem(f"{folder} exists already", help="--out names another folder", code="file-exists"))
    arrays = find_regions(source, read).arrays
    try:
        with atomic_folder(folder) as temporary:
            write_store(temporary, arrays, version)
    except OSError as error:
        message = f"{folder}: cannot be written: {error.strerror or error}"
        raise Refused(message, code="unwritable-file") from error
    rows, motifs = arrays["features"].shape
    return f"{rows:,} regions x {motifs} motifs as a zarr store of get_model (format {version}): {folder}"


def _summary(manifest: Manifest) -> str:
    info = RegionInfo.model_validate(manifest.info)
    rows, motifs = manifest.arrays["features"].shape
    known = [text for name, text in ARRAY_NAMES.items() if name in manifest.arrays]
    size = sum(array.bytes for array in manifest.arrays.values()) / 1e6
    cells = "no cell types"
    if known:
        cells = f"{len(info.cells)} cell type{'s' * (len(info.cells) != 1)} with {', '.join(known)}"
    largest = max(info.chromosomes, key=lambda name: info.chromosomes[name])
    where = f"{len(info.chromosomes)} chromosomes, the largest {largest} ({info.chromosomes[largest]:,} regions)"
    return f"{rows:,} regions x {motifs} motifs, {cells}\n{where}; {manifest.made['dtype']}, {size:,.1f} MB"


def _notes(arrays: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is valid, but unusual."""
    features = arrays["features"]
    if isinstance(features, ZarrArray) and (missing := features.missing()):
        names = ", ".join(map(features.file_name, missing[:3])) + (", ..." if len(missing) > 3 else "")
        yield f"{len(missing)} chunks of data are missing ({names}): their regions have 0 for every motif"
    unknown = arrays.get("unknown", ())
    for entry in unknown:
        name, _, cell = entry.partition(":")
        if name != "open":
            effect = "the condition tss is left out" if name == "tss" else "tasks that need it are rejected"
            yield f"{name} of {cell} is unknown; {effect}"
    for name in ("atpm", "open"):
        values = np.asarray(arrays.get(name, np.zeros((0, 0)))).T
        for cell, of_cell in zip(arrays.get("cells", ()), values, strict=False):
            if not of_cell.any() and f"{name}:{cell}" not in unknown:
                yield f"{name} of {cell} is 0 everywhere"
