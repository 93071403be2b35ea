"""The data part "get": from what a person has to a folder of mapped arrays, or to a store for get_model, and back."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from time import perf_counter
from typing import TYPE_CHECKING, Any

import numpy as np

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_folder
from dither.registry.files.cache import cache_folder

from ..prepared.progress import Progress
from .data.column_groups import RegionFacts
from .data.prepared_folder import (
    SIDECAR,
    VERSION,
    Float16Rounding,
    FolderRecord,
    fill_folder,
    find_record,
    must_be_ours,
    open_folder,
    verify,
)
from .data.region_matrix import RegionMatrix
from .formats.get_model import write_store
from .formats.sources import Source, find_regions, find_source, open_store, read_source, store_facts
from .formats.zarr_array import ZarrArray

if TYPE_CHECKING:
    from .data_specs import PreparedRegions

__all__ = ["convert", "converted_facts", "destination", "is_there", "open_converted"]

STORE = ".zarr"
WORDS = {"open": "open or closed", "atpm": "atpm", "expression": "expression", "tss": "TSS"}


def destination(spec: PreparedRegions) -> Path:
    """Return the folder of the arrays, whether or not it is there."""
    if spec.out:
        return Path(spec.out).expanduser()
    said = json.dumps({**_options(spec), "paths": spec.paths, "from": str(Path.cwd())}, sort_keys=True)
    return cache_folder() / "regions" / hashlib.sha256(said.encode()).hexdigest()[:16]


def is_there(spec: PreparedRegions) -> Path | None:
    """Return the file that is missing where the arrays have not been prepared; None where they have."""
    folder = destination(spec)
    wanted = folder if folder.suffix == STORE else folder / SIDECAR
    return None if wanted.exists() else wanted


def converted_facts(spec: PreparedRegions) -> RegionFacts:
    """Tell what was prepared."""
    folder, held_out = destination(spec), (*spec.valid, *spec.test)
    return store_facts(folder, held_out=held_out) if folder.suffix == STORE else find_record(folder).facts(held_out)


def open_converted(spec: PreparedRegions) -> RegionMatrix:
    """Map the arrays.

    Raises:
        Refused: They are not there, damaged, or were made with other options.
    """
    folder = destination(spec)
    if folder.suffix == STORE:
        return open_store(folder, valid=spec.valid, test=spec.test, scale=spec.scale, overlaps=spec.overlaps)
    made = find_record(folder).made
    changed = [key for key, value in _options(spec).items() if made.get(key) != value]
    if [Path(path).name for path in made.get("paths", spec.paths)] != [Path(path).name for path in spec.paths]:
        changed.append("paths")  # by name: the folder above may have been moved
    if changed:
        what = f"{folder} was prepared otherwise: {', '.join(changed)} changed"
        raise Refused(Problem(what, help=f"run: {spec.command()} --force"))
    return open_folder(folder, valid=spec.valid, test=spec.test, scale=spec.scale)


def convert(spec: PreparedRegions) -> str:
    """Check a source and convert it, and return what became of it.

    A folder that holds the same already is read through and left alone.

    Raises:
        Refused: All that is wrong with the source, or the folder holds something else.
    """
    folder, began = destination(spec), perf_counter()
    source = find_source([Path(path).expanduser() for path in spec.paths])
    if folder.suffix == STORE:
        return _to_store(spec, source, folder)
    must_be_ours(folder)
    made = {**_options(spec), "paths": [str(path) for path in spec.paths], "source": source.facts()}
    if (there := _there(folder, made, force=spec.force)) is not None:
        return f"{folder} holds exactly this already, every checksum is right\n{_summary(there)}"
    found = find_regions(source, overlaps=spec.overlaps, empty_chunks=spec.empty_chunks)
    arrays, halves = found.arrays, None
    if spec.dtype == "float16":
        halves = Float16Rounding(source.path, arrays["motifs"], found.place)
    with Progress("regions converted") as progress, _writing(folder), atomic_folder(folder) as beside:
        record = fill_folder(beside, arrays, spec.dtype, made, progress.update, halves)
    notes = [f"note: {note}" for note in (*_notes(arrays), *(halves.notes() if halves else ()))]
    return "\n".join([_summary(record), *notes, f"in {perf_counter() - began:.1f} s, all of it in {folder}"])


def _to_store(spec: PreparedRegions, source: Source, folder: Path) -> str:
    if folder.exists():
        raise Refused(Problem(f"{folder}: is there already, and stays as it is", help="--out names another one"))
    arrays = read_source(source, overlaps=spec.overlaps, empty_chunks=spec.empty_chunks)
    with _writing(folder), atomic_folder(folder) as beside:
        write_store(beside, arrays, spec.zarr_format)
    rows, motifs = arrays["features"].shape
    return f"{rows:,} regions x {motifs} motifs as a zarr store of get_model (format {spec.zarr_format}): {folder}"


@contextmanager
def _writing(folder: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        raise Refused(f"{folder} cannot be written: {error.strerror or error}") from error


def _there(folder: Path, made: dict[str, Any], *, force: bool) -> FolderRecord | None:
    """Return the record of a folder that holds the same, read through; None where it has to be made.

    Raises:
        Refused: It holds something else, and may not be replaced.
    """
    if force or not (folder / SIDECAR).is_file():
        return None
    try:
        record = verify(folder, older=True)
    except Refused:
        return None  # damaged: of use to nobody
    keys = sorted({*made, *record.made} - {"layout"})  # version 1 had it
    changed = [key for key in keys if made.get(key) != record.made.get(key)]
    if not changed:
        return record if record.version == VERSION else None  # of an earlier version: made anew
    words = ["the source has changed" if key == "source" else f"{key} was {record.made.get(key)!r}" for key in changed]
    fix = "--force replaces them; --out names another folder"
    raise Refused(Problem(f"{folder} holds arrays that were made otherwise: {'; '.join(words)}", help=fix))


def _summary(record: FolderRecord) -> str:
    rows, motifs = record.arrays["features"].shape
    known = [word for name, word in WORDS.items() if name in record.arrays]
    size = sum(array.bytes for array in record.arrays.values()) / 1e6
    told = (
        f"{len(record.cells)} cell type{'s' * (len(record.cells) != 1)} with {', '.join(known)}"
        if known
        else "no cell types"
    )
    largest = max(record.chromosomes, key=lambda name: record.chromosomes[name])
    where = f"{len(record.chromosomes)} chromosomes, the largest {largest} ({record.chromosomes[largest]:,} regions)"
    return f"{rows:,} regions x {motifs} motifs, {told}\n{where}; {record.made['dtype']}, {size:,.1f} MB"


def _notes(arrays: Mapping[str, Any]) -> Iterator[str]:
    """Yield what is allowed, and odd."""
    features = arrays["features"]
    if isinstance(features, ZarrArray) and (missing := features.missing()):
        some = ", ".join(map(features.header.file_name, missing[:3])) + (", ..." if len(missing) > 3 else "")
        yield f"{len(missing)} chunks of data are not there ({some}): their regions have 0 for every motif"
    for told in arrays.get("untold", ()):
        name, _, cell = told.partition(":")
        if name != "open":
            so = "a run of it is told no starts" if name == "tss" else "a run that asks for it is refused"
            yield f"{name} of {cell} is not known; {so}"
    for name in ("atpm", "open"):
        for cell, values in zip(
            arrays.get("cells", ()), np.asarray(arrays.get(name, np.zeros((0, 0)))).T, strict=False
        ):
            if not values.any() and f"{name}:{cell}" not in arrays.get("untold", ()):
                yield f"{name} of {cell} is 0 everywhere"


def _options(spec: PreparedRegions) -> dict[str, Any]:
    options: dict[str, Any] = {"dtype": spec.dtype, "overlaps": spec.overlaps}
    return options | ({"empty_chunks": True} if spec.empty_chunks else {})
