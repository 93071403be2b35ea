"""Matrices of motifs in .npz, .csv, .tsv or .parquet files, with places in the file itself or in BED files.

Letters: P regions, M motifs, K columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Shaped

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import LIMIT, Arrays, load_npz
from .column_names import standard_names
from .peaks import Bed, decoded, parse_names, read_bed
from .raw_arrays import Locator, RawArrays, collect_problems, limited, table_locator, unknown_array
from .region_checks import PLACES
from .tables import read_parquet, read_table

__all__ = ["BED", "MATRICES", "densify", "is_bed", "numbered", "read_matrix"]

MATRICES: Final = (".npz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
BED: Final = (".bed", ".bed.gz")
ACCESSIBILITY: Final = ".atac"
SPARSE: Final = ("data", "indices", "indptr", "shape")
RENAMED: Final = {"motif_names": "motifs", "peak_names": "names"}
TEXTS: Final = ("names", "motifs", "chromosome", "cells")
OF_CELLS: Final = ("open", "atpm")
"""Matrices of regions by cell types, which are not motifs."""


def is_bed(path: Path) -> bool:
    """Whether the name is that of a BED file."""
    return path.name.lower().endswith(BED)


def read_matrix(path: Path, beds: Sequence[Path]) -> RawArrays:
    """Read a matrix and the places of its regions.

    Args:
        path: The matrix.
        beds: BED files with one line per row; CELL.atac.bed has the accessibility of a cell type as its fourth column.

    Raises:
        Refused: A file cannot be read, or they do not match.
    """
    name = path.name.lower()
    if name.endswith(".npz"):
        raw = _from_npz(load_npz(path, path), path)
    else:
        raw = read_parquet(path) if name.endswith(".parquet") else read_table(path, placed=False)
    arrays, locate, problems = raw.arrays, raw.locate, [*raw.problems]
    for text in TEXTS:
        if text in arrays and (text == "names" or arrays[text].dtype.kind == "S"):
            with collect_problems(problems):
                arrays[text] = decoded(arrays[text], f'{path}: "{raw.display_name(text)}"')
    if "names" in arrays and (names := arrays.pop("names")).dtype.kind == "U":
        with collect_problems(problems):
            places = parse_names(names.ravel(), lambda row: f"{path}: {locate('names', row, '')}")
            arrays |= dict(zip(PLACES, places, strict=True))
    for path_of_bed in beds:
        with collect_problems(problems):
            bed = read_bed(path_of_bed)
            arrays |= _from_bed(path_of_bed, bed, path, arrays)
            locate = _bed_locator(locate, path_of_bed, bed)
    if not problems and not all(place in arrays for place in PLACES):
        fix = "give a BED file with one line per row as well"
        problems.append(Problem(f"{path}: no places of regions", help=fix, code="missing-array"))
    return RawArrays(arrays, locate, tuple(problems), raw.display_name)


def densify(arrays: Arrays, path: Path) -> Float[np.ndarray, "P K"]:
    """Return the sparse matrix in an .npz file of scipy (CSR or CSC) as a dense one.

    Raises:
        Refused: There is none, or its indices are out of range.
    """
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
        raise Refused(f"{path}: not a sparse matrix of scipy ({error})", code="damaged-file") from None
    return dense


def numbered(count: int) -> Shaped[np.ndarray, " M"]:
    """Return names for motifs that have none."""
    return np.array([f"motif-{number:04d}" for number in range(1, count + 1)], np.str_)


def _from_npz(arrays: Arrays, path: Path) -> RawArrays:
    """Return arrays under standard names, which messages call by their names in the file."""
    sparse = all(name in arrays for name in SPARSE)
    standard = {name: array for name, array in arrays.items() if not (sparse and name in (*SPARSE, "format"))}
    originals = dict(zip(standard_names(list(standard)), standard, strict=True))
    standard = {name: standard[original] for name, original in originals.items()}
    originals |= {name: original for original, name in RENAMED.items() if original in standard}
    if sparse:
        standard["features"] = densify(arrays, path)
    elif "features" not in arrays:
        matrices = [name for name, array in standard.items() if array.ndim == 2 and name not in OF_CELLS]
        if len(matrices) != 1:
            message = f'{path}: no array "features", and not exactly one matrix; it has {", ".join(arrays)}'
            raise Refused(message, code="missing-array")
        standard["features"], originals["features"] = standard.pop(matrices[0]), originals[matrices[0]]
    for original, name in RENAMED.items():
        if original in standard:
            standard[name] = standard.pop(original)
    if standard["features"].ndim != 2:
        name, shape = originals.get("features", "features"), standard["features"].shape
        raise Refused(f'{path}: "{name}" has the shape {shape}, expected two axes', code="wrong-shape")
    standard.setdefault("motifs", numbered(standard["features"].shape[1]))
    table = table_locator(lambda row: f"row {row} (from 0)", arrays=True)

    def display_name(name: str) -> str:
        return originals.get(name, name)

    def locate(array: str, row: int, column: str) -> str:
        return table(display_name(array), row, "" if column == array else column)

    return RawArrays(standard, locate, display_name=display_name)


def _bed_locator(locate: Locator, path: Path, bed: Bed) -> Locator:
    """Return a locator that finds places, and perhaps accessibility, in a BED file."""
    column = f"atpm:{path.name.partition(ACCESSIBILITY)[0]}"

    def locate_in_bed(array: str, row: int, name: str) -> str:
        if array in PLACES or (array == "atpm" and name == column):
            return f"{path.name}, line {bed.lines[row]}"
        return locate(array, row, name)

    return locate_in_bed


def _from_bed(path: Path, bed: Bed, matrix: Path, arrays: Arrays) -> Arrays:
    """Return the places in a BED file, and perhaps accessibility with a further cell type."""
    rows = len(arrays["features"])
    if len(bed.lines) != rows:
        message = f"{path}: has {len(bed.lines):,} regions, but {matrix} has {rows:,} rows"
        raise Refused(message, code="wrong-shape")
    for name, values in zip(PLACES, bed.places, strict=True):
        if name in arrays and (wrong := np.flatnonzero(np.asarray(arrays[name]) != values)).size:
            row = int(wrong[0])
            more = f", and so on in {wrong.size:,} lines" if wrong.size > 1 else ""
            message = (
                f"{path}: line {bed.lines[row]}: the {name} is {values[row]}, but {arrays[name][row]} in row {row} "
                f"(from 0) of {matrix}{more}"
            )
            raise Refused(message, code="contradiction")
    result: Arrays = dict(zip(PLACES, bed.places, strict=True))
    cell, ending, _ = path.name.partition(ACCESSIBILITY)
    if not ending:
        return result
    values = _accessibility(path, bed, cell)
    cells = arrays.get("cells", np.zeros(0, "U1")).tolist()
    others = arrays.get("atpm", np.zeros((rows, len(cells))))
    result["cells"] = np.array([*cells, cell], np.str_)
    result["atpm"] = np.concatenate([others, values[:, None]], 1)
    known = {"atpm": ["atpm" in arrays] * len(cells) + [True]}
    for name in ("open", "expression", "tss"):
        if name in arrays:
            empty = np.zeros((rows, 1, *arrays[name].shape[2:]), arrays[name].dtype)
            result[name] = np.concatenate([arrays[name], empty], 1)
            known[name] = [True] * len(cells) + [False]
    if "open" in result:
        result["open"][:, -1] = values > 0
    unknown = {*map(str, arrays.get("unknown", ())), *map(str, unknown_array(known, [*cells, cell]).get("unknown", ()))}
    return result | ({"unknown": np.array(sorted(unknown), np.str_)} if unknown else {})


def _accessibility(path: Path, bed: Bed, cell: str) -> Float[np.ndarray, " P"]:
    values, wrong = np.zeros(len(bed.fourth)), []
    for row, text in enumerate(bed.fourth):
        try:
            values[row] = float(text)
        except ValueError:
            wrong.append(f'{path}: line {bed.lines[row]}: "{text[:40]}" is not a number (accessibility of {cell})')
    if wrong and not any(bed.fourth):
        raise Refused(f"{path}: no fourth column of numbers, the accessibility of {cell}", code="missing-array")
    if wrong:
        lines = limited(iter(wrong), len(wrong))
        raise Refused([Problem(line, code="invalid-sample") for line in lines])
    return values
