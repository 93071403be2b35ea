"""Matrices of motifs in .npz, .csv, .tsv, .parquet or .h5ad files, with places in the file itself or in BED files.

An .npz file has the arrays `features` (P M) and, as far as they are known, `motifs` (M),
`chromosome`, `start`, `end` (P), `cells` (C), `open`, `atpm` (P C), `expression` and `tss` (P C 2),
`gene` and `gene_region` (G): names of genes, and the rows in which they are transcribed. Letters: P
regions, M motifs, K columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np
from jaxtyping import Float, Shaped

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import LIMIT, Arrays, load_npz
from .column_names import standard_names
from .region_checks import (
    OF_CELLS,
    PLACES,
    Locator,
    Places,
    RawArrays,
    collect_problems,
    decoded,
    limited,
    parse_names,
    stack_cells,
)
from .tables import open_table, read_anndata, read_table

__all__ = [
    "BED",
    "MATRICES",
    "Bed",
    "densify",
    "from_bed",
    "locate_in",
    "numbered",
    "read_bed",
    "read_matrix",
]

MATRICES: Final = (".npz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet", ".h5ad")
BED: Final = (".bed", ".bed.gz")
ACCESSIBILITY: Final = ".atac"
SPARSE: Final = ("data", "indices", "indptr", "shape", "format")
RENAMED: Final = {"motif_names": "motifs", "peak_names": "names"}
TEXTS: Final = ("names", "motifs", "chromosome", "cells", "gene")


def read_matrix(path: Path, beds: Sequence[Path], *, headers: bool = False) -> RawArrays:
    """Read a matrix and the places of its regions; of the features of an .npz file perhaps only dtype and shape.

    BED files have one line per row; CELL.atac.bed has the accessibility of a cell type as its
    fourth column.
    """
    name = path.name.lower()
    if name.endswith(".npz"):
        raw = _from_npz(load_npz(path, ("features",) if headers else ()), path)
    elif name.endswith(".h5ad"):
        return read_anndata(path)
    else:
        raw = read_table(path)
    arrays = raw.arrays
    locate = raw.locate
    problems = [*raw.problems]
    for text in TEXTS:
        if text in arrays and (text == "names" or arrays[text].dtype.kind == "S"):
            with collect_problems(problems):
                arrays[text] = decoded(arrays[text], f'{path}: "{raw.display_name(text)}"')
    if (
        "names" in arrays
        and (names := arrays.pop("names")).dtype.kind == "U"
        and "start" not in arrays
    ):
        with collect_problems(problems):
            places = parse_names(names.ravel(), lambda row: f"{path}: {locate('names', row, '')}")
            arrays |= dict(zip(PLACES, places, strict=True))
    for path_of_bed in beds:
        with collect_problems(problems):
            bed = read_bed(path_of_bed)
            arrays |= from_bed(path_of_bed, bed, path, arrays)
            locate = locate_in(path_of_bed, bed, locate)
    if not problems and (missing := [place for place in PLACES if place not in arrays]):
        fix = "name the columns chromosome, start and end, or give a BED file with one line per row as well"
        message = f'{path}: no places of regions: no array "{missing[0]}"; it has {", ".join(sorted(arrays))}'
        problems.append(Problem(message, help=fix, code="missing-array"))
    return RawArrays(arrays, locate, tuple(problems), raw.display_name)


def densify(arrays: Arrays, path: Path) -> Float[np.ndarray, "P K"]:
    """Return the sparse matrix in an .npz file of scipy (CSR or CSC) as a dense one; Refused if it is invalid."""
    from scipy.sparse import csc_matrix, csr_matrix

    try:
        kind: Any = {b"csr": csr_matrix, b"csc": csc_matrix}.get(bytes(arrays["format"].item()))
        if kind is None:
            raise ValueError("format is neither csr nor csc")
        rows, columns = (int(n) for n in arrays["shape"])
        if not 0 <= rows * columns * 4 <= LIMIT:
            raise ValueError(f"takes {rows * columns * 4:,} bytes, the limit is {LIMIT:,}")
        matrix = kind(tuple(arrays[name] for name in SPARSE[:3]), shape=(rows, columns))
        matrix.check_format(full_check=True)
        dense: Float[np.ndarray, "P K"] = matrix.toarray()
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(
            f"{path}: not a sparse matrix of scipy ({error})", code="damaged-file"
        ) from None
    return dense


def numbered(count: int) -> Shaped[np.ndarray, " M"]:
    """Return names for motifs that have none."""
    return np.array([f"motif-{number:04d}" for number in range(1, count + 1)], np.str_)


def _from_npz(arrays: Arrays, path: Path) -> RawArrays:
    """Return arrays under standard names, which messages call by their names in the file."""
    dense = None
    if all(name in arrays for name in SPARSE[:4]):
        dense = densify(arrays, path)
        arrays = {name: arrays[name] for name in arrays if name not in SPARSE}
    originals = dict(zip(standard_names(list(arrays)), arrays, strict=True))
    originals = {RENAMED.get(name, name): original for name, original in originals.items()}
    standard = {name: arrays[original] for name, original in originals.items()}
    if dense is not None:
        standard["features"] = dense
    elif "features" not in standard:
        matrices = [
            name for name, array in standard.items() if array.ndim == 2 and name not in OF_CELLS[:2]
        ]
        if len(matrices) != 1:
            message = f'{path}: no array "features", and not exactly one matrix; it has {", ".join(sorted(arrays))}'
            raise Refused(message, code="missing-array")
        standard["features"] = standard.pop(matrices[0])
        originals["features"] = originals[matrices[0]]
    if standard["features"].ndim != 2:
        name = originals.get("features", "features")
        shape = standard["features"].shape
        raise Refused(
            f'{path}: "{name}" has the shape {shape}, expected two axes', code="wrong-shape"
        )
    standard.setdefault("motifs", numbered(standard["features"].shape[1]))

    def locate(array: str, row: int, column: str) -> str:
        where = f"{originals.get(array, array)}, row {row} (from 0)"
        return where + (f', column "{column}"' if column not in ("", array) else "")

    return RawArrays(standard, locate, display_name=lambda name: originals.get(name, name))


class Bed(NamedTuple):
    """Places, line numbers from 1, and the accessibility of a cell type, if the name of the file is that of one."""

    places: Places
    lines: list[int]
    accessibility: Float[np.ndarray, " P"] | None


def read_bed(path: Path) -> Bed:
    """Read the places of regions and perhaps accessibility; raises Refused with the lines that have neither."""
    rows: list[tuple[str, int, int, float]] = []
    lines = list[int]()
    wrong = list[str]()
    has_value = ACCESSIBILITY in path.name
    expected = (
        "chromosome, start, end and accessibility" if has_value else "chromosome, start and end"
    )
    with open_table(path) as file:
        for line, text in enumerate(file, 1):
            if not text.strip() or text.startswith(("#", "track", "browser")):
                continue
            fields = text.rstrip("\r\n").split("\t") if "\t" in text else text.split()
            try:
                row = (
                    fields[0].strip(),
                    int(fields[1]),
                    int(fields[2]),
                    float(fields[3]) if has_value else 0.0,
                )
            except (ValueError, IndexError):
                row = "", -1, -1, 0.0
            if 0 <= min(row[1:3]) <= max(row[1:3]) < 1 << 62:
                rows.append(row)
                lines.append(line)
            else:
                wrong.append(f'{path}: line {line}: expected {expected}, got "{text.strip()[:60]}"')
    if wrong:
        raise Refused(
            [Problem(line, code="invalid-sample") for line in limited(iter(wrong), len(wrong))]
        )
    chromosome, start, end, values = zip(*rows, strict=True) if rows else ((), (), (), ())
    places = np.array(chromosome, np.str_), np.array(start, np.int64), np.array(end, np.int64)
    return Bed(places, lines, np.array(values) if has_value else None)


def locate_in(path: Path, bed: Bed, otherwise: Locator) -> Locator:
    """Return a locator that finds places, and perhaps accessibility, in a BED file."""
    column = f"atpm:{path.name.partition(ACCESSIBILITY)[0]}"
    return lambda array, row, name: (
        f"{path.name}, line {bed.lines[row]}"
        if array in PLACES or (array, name) == ("atpm", column)
        else otherwise(array, row, name)
    )


def from_bed(
    path: Path,
    bed: Bed,
    matrix: Path,
    arrays: Arrays,
) -> Arrays:
    """Return the places in a BED file, and perhaps accessibility with a further cell type."""
    rows = len(arrays["features"])
    if len(bed.lines) != rows:
        message = f"{path}: has {len(bed.lines):,} regions, but {matrix} has {rows:,} rows"
        raise Refused(message, code="wrong-shape")
    for name, values in zip(PLACES, bed.places, strict=True):
        if name in arrays and (wrong := np.flatnonzero(np.asarray(arrays[name]) != values)).size:
            row = int(wrong[0])
            message = (
                f"{path}: line {bed.lines[row]}: the {name} is {values[row]}, but {arrays[name][row]} in row {row} "
                f"(from 0) of {matrix}; {wrong.size:,} such lines"
            )
            raise Refused(message, code="contradiction")
    result: Arrays = dict(zip(PLACES, bed.places, strict=True))
    if bed.accessibility is None:
        return result
    cell = path.name.partition(ACCESSIBILITY)[0]
    cells = arrays.get("cells", np.zeros(0, "U1")).tolist()
    unknown = arrays.get("unknown", ())
    known: dict[str, dict[str, Any]] = {
        kind: {
            other: arrays[kind][:, number]
            for number, other in enumerate(cells)
            if f"{kind}:{other}" not in unknown
        }
        for kind in OF_CELLS
        if kind in arrays
        and arrays[kind].shape[:2] == (rows, len(cells))  # others are reported by `check_arrays`
    }
    known.setdefault("atpm", {})[cell] = bed.accessibility
    return result | stack_cells(known, [*cells, cell], rows)
