"""Zarr stores of get_model: peaks by name, motifs, and the values of each cell type.

    data (P M)   peak_names (P), as "chr1:9790-10675"   motif_names (M)   atpm/CELL (P)
    expression_positive/CELL, expression_negative/CELL (P)   tss/CELL (P 2)
    gene_idx_info_name, gene_idx_info_index (G)

Only the first three are required; other arrays are not read. zarr 3 leaves out chunks that hold
only the fill value, which look like those of an incomplete copy: they are read as such, and noted,
or refused if an option says so. Names are always complete. Letters: P peaks, M motifs, C cell
types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dither.registry.config.errors import Problem, Refused

from .region_checks import (
    RawArrays,
    collect_problems,
    decoded,
    parse_names,
    stack_cells,
)
from .zarr_array import COPY_AGAIN, ZarrArray, is_group

__all__ = ["read_store"]

REQUIRED = ("data", "peak_names", "motif_names")
STRANDS = ("expression_positive", "expression_negative")
GROUPS = ("atpm", *STRANDS, "tss")
"""Groups with one array per cell type."""
DISPLAY_NAMES = {"features": "data", "motifs": "motif_names"}
"""Arrays that have another name in a store."""
SHOWN_CHUNKS = 3
TEXTS = REQUIRED[1:]
"""Arrays whose chunks are never all fill value."""


def read_store(path: Path, *, empty_chunks: bool = True) -> RawArrays:
    """Read a store; its features stay on disk. Raise Refused for a path without a store."""
    cells = _cells(path)
    stored, problems, notes = _survey(path, cells, empty_chunks=empty_chunks)
    arrays: dict[str, Any] = {}
    if "data" in stored:
        arrays["features"] = stored["data"]
    if "motif_names" in stored:
        with collect_problems(problems):
            arrays["motifs"] = decoded(stored["motif_names"][:], f"{path}: motif_names")
    if "peak_names" in stored:
        with collect_problems(problems):
            names = decoded(stored["peak_names"][:], f"{path}: peak_names")
            arrays |= parse_names(names, lambda row: f"{path}: peak_names, row {row}")
    with collect_problems(problems):
        arrays |= _genes(path)
    arrays |= _by_cell(stored, cells, problems)
    return RawArrays(
        arrays=arrays,
        locate=_locate,
        problems=tuple(problems),
        display_name=lambda name: DISPLAY_NAMES.get(name, name),
        notes=tuple(notes),
    )


def _cells(path: Path) -> list[str]:
    """Return the cell types of a store, sorted."""
    if not path.exists():
        raise Refused(f"{path}: No such file or directory", code="file-not-found")
    if not is_group(path):
        fix = "a store has .zgroup or zarr.json at its top; unpack it first if it is one file"
        raise Refused(f"{path}: not a zarr store", help=fix, code="unknown-format")
    cells = set()
    for group in GROUPS:
        for folder in path.glob(f"{group}/*/"):
            # Hidden folders belong to other programs.
            if not folder.name.startswith("."):
                cells.add(folder.name)
    return sorted(cells)


def _survey(
    path: Path, cells: Sequence[str], *, empty_chunks: bool
) -> tuple[dict[str, ZarrArray], list[Problem], list[str]]:
    """Return the readable arrays of a store, the problems of the others, and notes."""
    names = []
    for group in GROUPS:
        names += [f"{group}/{cell}" for cell in cells]
    existing = [name for name in (*names, *REQUIRED) if (path / name).is_dir()]
    problems = [*_absent(path, existing, cells)]
    arrays: dict[str, ZarrArray] = {}
    for name in existing:
        with collect_problems(problems):
            arrays[name] = ZarrArray(path / name)

    # The number of peaks that others are compared with.
    peaks = None
    for name in ("peak_names", "data", *names):
        if peaks is None and name in arrays:
            peaks = arrays[name].shape[:1]

    notes: list[str] = []
    for name, array in [*arrays.items()]:
        text = _wrong_shape(name, array, peaks)
        if text:
            problems.append(Problem(f'{path}: "{name}" {text}', code="wrong-shape"))
            del arrays[name]
            continue
        missing = array.missing()
        if not missing:
            continue
        note = f'{path}: "{name}": {_missing_chunks(array, missing)}'
        if empty_chunks and name not in TEXTS:
            origin = "left out by the writer, or the copy is incomplete"
            notes.append(f"{note}; read as {array.fill}: {origin}")
            continue
        problems.append(Problem(note, help=COPY_AGAIN, code="missing-chunk"))
        # The chunks of numbers that exist may have problems of their own.
        if array.fill != 0:
            del arrays[name]
    return arrays, problems, notes


def _absent(
    path: Path, existing: Sequence[str], cells: Sequence[str]
) -> Iterator[Problem]:
    """Yield arrays that are required, and a strand whose other strand exists."""
    required = [*REQUIRED]
    for cell in cells:
        strands = [f"{strand}/{cell}" for strand in STRANDS]
        # One strand without the other is part of an incomplete copy.
        if not {*strands}.isdisjoint(existing):
            required += strands
    for name in required:
        if name not in existing:
            message = (
                f'{path}: no array "{name}"; it has {", ".join(existing) or "none"}'
            )
            yield Problem(message, help=COPY_AGAIN, code="missing-array")


def _missing_chunks(array: ZarrArray, missing: Sequence[tuple[int, ...]]) -> str:
    names = [
        f"{array.file_name(place)} ({array.file_rows(place)})"
        for place in missing[:SHOWN_CHUNKS]
    ]
    text = f"missing {'chunk' if len(missing) == 1 else 'chunks'}: {', '.join(names)}"
    if len(missing) > SHOWN_CHUNKS:
        text += f", and {len(missing) - SHOWN_CHUNKS:,} more"
    return text


def _wrong_shape(name: str, array: ZarrArray, peaks: tuple[int, ...] | None) -> str:
    """Return what is wrong with type or shape of an array; "" if they are right."""
    group = name.partition("/")[0]
    kinds, expected = ("US", "text") if name in TEXTS else ("biuf", "numbers")
    if array.dtype.kind not in kinds:
        return f"holds {array.dtype}, expected {expected}"
    if group == "data":
        is_right = array.ndim == 2
        shape = "(P, M)"
    elif group == "tss":
        is_right = array.shape[1:] == (2,)
        shape = "(P, 2)"
    else:
        is_right = array.ndim == 1
        shape = "(P,)"
    if not is_right:
        return f"has the shape {array.shape}, expected {shape}"
    if name not in TEXTS and array.shape[:1] != peaks:
        return f"has the shape {array.shape}, expected {peaks} for the peaks of the other arrays"
    return ""


def _genes(path: Path) -> dict[str, Any]:
    """Return names of genes, and the peak where each is transcribed; nothing without them."""
    folders = [path / f"gene_idx_info_{name}" for name in ("name", "index")]
    if not all(folder.is_dir() for folder in folders):
        return {}
    names, regions = (ZarrArray(folder) for folder in folders)
    for array in (names, regions):
        # A peak that is read as the fill value 0 would be a wrong one.
        if missing := array.missing():
            message = f"{array.folder}: {_missing_chunks(array, missing)}"
            raise Refused(message, help=COPY_AGAIN, code="missing-chunk")
    return {"gene": decoded(names[:], str(names.folder)), "gene_region": regions[:]}


def _by_cell(
    stored: Mapping[str, ZarrArray], cells: Sequence[str], problems: list[Problem]
) -> dict[str, Any]:
    """Return the arrays of cell types; values that are unknown of one are 0."""
    read: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    rows = 0
    for group, of_group in read.items():
        for cell in cells:
            array = stored.get(f"{group}/{cell}")
            if array is not None:
                rows = len(array)
                with collect_problems(problems):
                    of_group[cell] = array[:]

    plus = read.pop("expression_positive")
    minus = read.pop("expression_negative")
    read["expression"] = {
        cell: np.stack([plus[cell], minus[cell]], -1) for cell in plus if cell in minus
    }
    known = {kind: of_cells for kind, of_cells in read.items() if of_cells}
    return stack_cells(known, cells, rows)


def _locate(array: str, row: int, column: str) -> str:
    """Return the place of a value in a store; see `Locator`."""
    if array == "features":
        return f'data, row {row}, column "{column}"'
    if array == "gene_region":
        return f"gene_idx_info_index, row {row}"
    if array in ("atpm", "expression", "tss"):
        return f"{column.replace(':', '/', 1)}, row {row}"
    return f"peak_names, row {row}"
