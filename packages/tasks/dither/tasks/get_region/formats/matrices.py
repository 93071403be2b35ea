"""Matrices of motifs: .npz, .csv, .tsv, .parquet or .h5ad, with places in the file or in BED files.

An .npz file has the arrays `features` (P M) and, as far as they are known, `motifs` (M),
`chromosome`, `start`, `end` (P), `cells` (C), `open`, `atpm` (P C), `expression` and `tss` (P C 2),
`gene` and `gene_region` (G): names of genes, and the rows in which they are transcribed. Letters: P
regions, M motifs, K columns.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
from jaxtyping import Float
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import LIMIT, Arrays, load_npz
from .anndata_file import read_anndata
from .column_names import numbered, standard_names
from .region_checks import (
    KINDS,
    OF_CELLS,
    PLACES,
    Locator,
    RawArrays,
    collect_problems,
    decoded,
    line_problems,
    other_style,
    parse_names,
    place_arrays,
    stack_cells,
)
from .tables import open_table, read_table

__all__ = [
    "BED",
    "MATRICES",
    "Bed",
    "densify",
    "from_bed",
    "locate_in",
    "read_bed",
    "read_matrix",
]

MATRICES = (".npz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".h5ad")
BED = (".bed", ".bed.gz")
ACCESSIBILITY = ".atac"
SPARSE = ("data", "indices", "indptr", "shape", "format")
RENAMED = {"motif_names": "motifs", "peak_names": "names"}
ARRAY_NAMES = {"names", "unknown", *KINDS}
"""Arrays that are read, under their standard names."""
TEXTS = ("names", "motifs", "chromosome", "cells", "gene")


def read_matrix(
    path: Path,
    beds: Sequence[Path],
    *,
    headers: bool,
    group_by: str | None,
) -> RawArrays:
    """Read a matrix and the places of its regions; for `group_by` see `read_anndata`.

    With `headers`, only dtype and shape of the features of an .npz file are read. BED files have
    one line per row; CELL.atac.bed has the accessibility of a cell type as its fourth column.
    """
    name = path.name.lower()
    if name.endswith(".h5ad"):
        return read_anndata(path, group_by)
    if group_by is not None:
        message = f"{path}: group_by is an option of cells in AnnData (.h5ad)"
        raise Refused(message, code="no-effect")
    if name.endswith(".npz"):
        raw = _from_npz(load_npz(path, ("features",) if headers else ()), path)
    else:
        raw = read_table(path)
    arrays = raw.arrays
    locate = raw.locate
    problems = [*raw.problems]
    for text in TEXTS:
        # Other libraries store text as bytes.
        if text in arrays and (text == "names" or arrays[text].dtype.kind == "S"):
            with collect_problems(problems):
                arrays[text] = decoded(
                    arrays[text], f'{path}: "{raw.display_name(text)}"'
                )

    # Columns with places say more than names such as "chr1:9790-10675".
    names = arrays.pop("names", None)
    if names is not None and names.dtype.kind == "U" and "start" not in arrays:
        with collect_problems(problems):
            arrays |= parse_names(
                names.ravel(), lambda row: f"{path}: {raw.locate('names', row, '')}"
            )
    for bed_path in beds:
        with collect_problems(problems):
            bed = read_bed(bed_path)
            arrays |= from_bed(bed, path, arrays)
            locate = locate_in(bed, locate)

    if not problems:
        problems += _missing_places(arrays, path)
    return RawArrays(
        arrays=arrays,
        locate=locate,
        problems=tuple(problems),
        display_name=raw.display_name,
        notes=raw.notes,
    )


def _missing_places(arrays: Arrays, path: Path) -> Iterator[Problem]:
    missing = [place for place in PLACES if place not in arrays]
    if missing:
        fix = "name the columns chromosome, start and end, "
        fix += "or give a BED file with one line per row as well"
        existing = ", ".join(sorted(arrays))
        message = (
            f'{path}: no places of regions: no array "{missing[0]}"; it has {existing}'
        )
        yield Problem(message, help=fix, code="missing-array")


def densify(arrays: Arrays, path: Path) -> Float[ndarray, "P K"]:
    """Return a sparse matrix of scipy (CSR or CSC) as a dense one; Refused if it is invalid."""
    from scipy.sparse import csc_matrix, csr_matrix

    kinds: dict[bytes, Any] = {b"csr": csr_matrix, b"csc": csc_matrix}
    try:
        # scipy stores the format as bytes.
        kind = kinds.get(bytes(arrays["format"].item()))
        if kind is None:
            raise ValueError("format is neither csr nor csc")
        rows, columns = (int(n) for n in arrays["shape"])
        # Checked before the dense array is allocated.
        if not 0 <= rows * columns * 4 <= LIMIT:
            raise ValueError(
                f"takes {rows * columns * 4:,} bytes, the limit is {LIMIT:,}"
            )
        parts = (arrays["data"], arrays["indices"], arrays["indptr"])
        matrix = kind(parts, shape=(rows, columns))
        # Indices of a damaged file would be written outside of the dense array.
        matrix.check_format(full_check=True)
        dense: Float[ndarray, "P K"] = matrix.toarray()
    except (KeyError, ValueError, TypeError) as error:
        message = f"{path}: not a sparse matrix of scipy ({error})"
        raise Refused(message, code="damaged-file") from None
    return dense


def _from_npz(arrays: Arrays, path: Path) -> RawArrays:
    """Return arrays under standard names, which messages call by their names in the file."""
    dense = None
    if all(name in arrays for name in SPARSE[:4]):
        dense = densify(arrays, path)
        arrays = {name: arrays[name] for name in arrays if name not in SPARSE}
    originals = {}
    for name, original in zip(standard_names(list(arrays)), arrays, strict=True):
        originals[RENAMED.get(name, name)] = original
    standard = {name: arrays[original] for name, original in originals.items()}
    if dense is not None:
        standard["features"] = dense
    elif "features" not in standard:
        name = _only_matrix(standard, path)
        standard["features"] = standard.pop(name)
        originals["features"] = originals[name]

    if standard["features"].ndim != 2:
        name = originals.get("features", "features")
        shape = standard["features"].shape
        message = f'{path}: "{name}" has the shape {shape}, expected two axes'
        raise Refused(message, code="wrong-shape")
    standard.setdefault("motifs", numbered(standard["features"].shape[1]))
    notes = []
    if unread := sorted(standard.keys() - ARRAY_NAMES):
        notes.append(f"arrays that are not read: {', '.join(unread)[:200]}")

    def locate(array: str, row: int, column: str) -> str:
        where = f"{originals.get(array, array)}, row {row} (from 0)"
        if column in ("", array):
            return where
        return f'{where}, column "{column}"'

    return RawArrays(
        standard,
        locate,
        display_name=lambda name: originals.get(name, name),
        notes=tuple(notes),
    )


def _only_matrix(arrays: Arrays, path: Path) -> str:
    """Return the name of the only matrix that may hold motifs."""
    names = [
        name
        for name, array in arrays.items()
        if array.ndim == 2 and name not in ("open", "atpm")
    ]
    if len(names) != 1:
        existing = ", ".join(sorted(arrays))
        message = f'{path}: no array "features", and not exactly one matrix; it has {existing}'
        raise Refused(message, code="missing-array")
    return names[0]


class Bed(NamedTuple):
    """Places, line numbers from 1, and accessibility if the file is named after a cell type."""

    path: Path
    places: Arrays
    lines: list[int]
    accessibility: Float[ndarray, " P"] | None


def read_bed(path: Path) -> Bed:
    """Read places of regions and perhaps accessibility; raise Refused with invalid lines."""
    rows: list[tuple[str, int, int, float]] = []
    lines = list[int]()
    wrong = list[str]()
    has_value = ACCESSIBILITY in path.name
    expected = "chromosome, start and end"
    if has_value:
        expected = "chromosome, start, end and accessibility"
    with open_table(path) as file:
        for line, text in enumerate(file, 1):
            if not text.strip() or text.startswith(("#", "track", "browser")):
                continue
            row = _parse_line(text, has_value=has_value)
            if row is None:
                wrong.append(
                    f'{path}: line {line}: expected {expected}, got "{text.strip()[:60]}"'
                )
            else:
                rows.append(row)
                lines.append(line)
    if wrong:
        raise Refused(line_problems(wrong))

    values = None
    if has_value:
        values = np.array([row[3] for row in rows])

    return Bed(path, place_arrays(rows), lines, values)


def _parse_line(text: str, *, has_value: bool) -> tuple[str, int, int, float] | None:
    """Return chromosome, start, end and accessibility of a line; None if it is invalid."""
    # Fields between tabs may have spaces.
    fields = text.rstrip("\r\n").split("\t") if "\t" in text else text.split()
    try:
        start = int(fields[1])
        end = int(fields[2])
        value = float(fields[3]) if has_value else 0.0
    except (ValueError, IndexError):
        return None
    # Beyond int64 numpy raises OverflowError.
    if min(start, end) < 0 or max(start, end) >= 1 << 62:
        return None
    return fields[0].strip(), start, end, value


def locate_in(bed: Bed, otherwise: Locator) -> Locator:
    """Return a locator that finds places, and perhaps accessibility, in a BED file."""
    own_column = f"atpm:{bed.path.name.partition(ACCESSIBILITY)[0]}"

    def locate(array: str, row: int, column: str) -> str:
        if array in PLACES or (array, column) == ("atpm", own_column):
            return f"{bed.path.name}, line {bed.lines[row]}"
        return otherwise(array, row, column)

    return locate


def from_bed(bed: Bed, matrix: Path, arrays: Arrays) -> Arrays:
    """Return the places in a BED file, and perhaps accessibility with a further cell type."""
    rows = len(arrays["features"])
    if len(bed.lines) != rows:
        regions = f"{len(bed.lines):,} regions"
        message = f"{bed.path}: has {regions}, but {matrix} has {rows:,} rows"
        raise Refused(message, code="wrong-shape")
    for name, values in bed.places.items():
        if name not in arrays:
            continue
        wrong = np.flatnonzero(np.asarray(arrays[name]) != values)
        if wrong.size:
            row = int(wrong[0])
            message = (
                f"{bed.path}: line {bed.lines[row]}: the {name} is {values[row]}, "
                f"but {arrays[name][row]} in row {row} (from 0) of {matrix}; "
                f"{wrong.size:,} such lines"
            )
            fix = None
            if name == "chromosome" and other_style(values[row]) == arrays[name][row]:
                fix = 'name chromosomes the same way, with "chr" or without'
            raise Refused(message, help=fix, code="contradiction")
    if bed.accessibility is None:
        return bed.places

    cell = bed.path.name.partition(ACCESSIBILITY)[0]
    cells = arrays.get("cells", np.zeros(0, "U1")).tolist()
    unknown = arrays.get("unknown", ())
    by_cell: dict[str, dict[str, Any]] = {}
    for kind in OF_CELLS:
        # `check_arrays` reports an array of another shape.
        if kind in arrays and arrays[kind].shape[:2] == (rows, len(cells)):
            by_cell[kind] = {
                other: arrays[kind][:, number]
                for number, other in enumerate(cells)
                if f"{kind}:{other}" not in unknown
            }
    by_cell.setdefault("atpm", {})[cell] = bed.accessibility
    return bed.places | stack_cells(by_cell, [*cells, cell], rows)
