"""Matrices of motifs in files that do not always say where their regions are: .npz, .csv, .tsv, .parquet, and BED.

Letters: P regions, M motifs, K columns.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Shaped

from dither.registry.problems import Problem, Refused

from ..archive import LIMIT, Arrays, load_npz
from ..found import Found, Place, in_table, noted, untold
from ..region_file import read_table
from ..region_order import first_of
from ..table_columns import placed_names, sort_columns
from .peak_names import Bed, decoded, parse_names, read_bed

__all__ = ["BED", "MATRICES", "densify", "is_bed", "numbered", "read_matrix"]

MATRICES: Final = (".npz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""Endings of files that hold a matrix."""

BED: Final = (".bed", ".bed.gz")
"""Endings of files that hold places."""

INDEX: Final = "__index_level_0__"
"""Where pandas keeps the index of a table in parquet."""

ACCESSIBILITY: Final = ".atac"
SPARSE: Final = ("data", "indices", "indptr", "shape")
PLACED: Final = ("chromosome", "start", "end")
RENAMED: Final = {"motif_names": "motifs", "peak_names": "names"}
TEXTS: Final = ("names", "motifs", "chromosome", "cells")
OF_CELLS: Final = ("open", "atpm")
"""Matrices of regions by cell types, which are no motifs."""


def is_bed(path: Path) -> bool:
    """Tell whether a file is BED by its name."""
    return path.name.lower().endswith(BED)


def read_matrix(path: Path, beds: Sequence[Path]) -> Found:
    """Read a matrix, and where its regions are.

    Args:
        path: The matrix.
        beds: BED files with one line for each row of it; one named CELL.atac.bed has the accessibility of a cell type
            in its fourth column.

    Raises:
        Refused: A file cannot be read, or they do not go together.
    """
    name = path.name.lower()
    place = in_table(lambda row: f"row {row} (from 0)")
    told: list[Problem] = []
    if name.endswith(".npz"):
        arrays, place = _from_npz(load_npz(path, path), path)
    elif name.endswith(".parquet"):
        arrays = _from_parquet(path)
    else:
        table = read_table(path, placed=False)
        arrays, place = table.arrays, table.place
        told += table.told
    for each in TEXTS:
        if each in arrays and (each == "names" or arrays[each].dtype.kind == "S"):
            with noted(told):
                arrays[each] = decoded(arrays[each], f'{path}: "{each}"')
    if "names" in arrays and (names := arrays.pop("names")).dtype.kind == "U":
        with noted(told):
            places = parse_names(names.ravel(), lambda row: f"{path}: {place('names', row, '')}")
            arrays |= dict(zip(PLACED, places, strict=True))
    for bed in beds:
        with noted(told):
            read = read_bed(bed)
            arrays |= _from_bed(bed, read, path, arrays)
            place = _in_bed(place, bed, read)
    if not told and not all(place in arrays for place in PLACED):
        fix = "give a BED file beside it, with one line for each row"
        told.append(Problem(f"{path}: does not say where its regions are", help=fix))
    return Found(arrays, place, tuple(told))


def densify(arrays: Arrays, path: Path) -> Float[np.ndarray, "P K"]:
    """Return the matrix of an .npz file that scipy wrote, by rows or by columns.

    Raises:
        Refused: It is none, or its numbers point outside.
    """
    from scipy.sparse import csc_matrix, csr_matrix

    try:
        kind: Any = {b"csr": csr_matrix, b"csc": csc_matrix}.get(bytes(arrays["format"].item()))
        if kind is None:
            raise ValueError("its format is neither csr nor csc")
        rows, columns = (int(n) for n in arrays["shape"])
        if not 0 <= rows * columns * 4 <= LIMIT:
            raise ValueError(f"it would take {rows * columns * 4:,} bytes, allowed are {LIMIT:,}")
        matrix = kind(tuple(arrays[name] for name in SPARSE[:3]), shape=(rows, columns))
        matrix.check_format(full_check=True)
        dense: Float[np.ndarray, "P K"] = matrix.toarray()
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(f"{path}: holds no sparse matrix of scipy ({error})") from None
    return dense


def numbered(count: int) -> Shaped[np.ndarray, " M"]:
    """Name motifs that have no names."""
    return np.array([f"motif-{number:04d}" for number in range(1, count + 1)], np.str_)


def _from_npz(arrays: Arrays, path: Path) -> tuple[Arrays, Place]:
    """Return arrays under our names, and how places in them are named: by the names in the file."""
    found = {name: array for name, array in arrays.items() if name not in SPARSE and name != "format"}
    called = {"features": "features", **{ours: theirs for theirs, ours in RENAMED.items() if theirs in found}}
    if all(name in arrays for name in SPARSE):
        found["features"] = densify(arrays, path)
    elif "features" not in arrays:
        two = [name for name, array in arrays.items() if array.ndim == 2 and name not in OF_CELLS]
        if len(two) != 1:
            raise Refused(f'{path}: has no array "features", and not just one matrix; it has {", ".join(arrays)}')
        found["features"], called["features"] = found.pop(two[0]), two[0]
    for theirs, ours in RENAMED.items():
        if theirs in found:
            found[ours] = found.pop(theirs)
    if found["features"].ndim != 2:
        raise Refused(f'{path}: "features" has the shape {found["features"].shape}, expected two axes')
    if found["features"].dtype == np.uint8:
        found["features"] = found["features"] * np.float32(1 / 255)
    found.setdefault("motifs", numbered(found["features"].shape[1]))
    place = in_table(lambda row: f"row {row} (from 0)", arrays=True)
    return found, lambda array, row, column: place(called.get(array, array), row, column)


def _from_parquet(path: Path) -> Arrays:
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        fix = 'install the extra "parquet" of dither-tasks'
        raise Refused(Problem(f"{path} is read with pyarrow, which is not installed", help=fix)) from None
    try:
        said = parquet.read_metadata(path)
        if said.num_rows * said.num_columns * 8 > LIMIT:
            raise Refused(f"{path}: would take {said.num_rows * said.num_columns * 8:,} bytes, allowed are {LIMIT:,}")
        table = parquet.read_table(path)
        called = placed_names(table.column_names)
        columns = {ours: table[name].to_numpy() for ours, name in zip(called, table.column_names, strict=True)}
        index = (table.schema.pandas_metadata or {}).get("index_columns", [])
    except (OSError, ValueError, ArrowException) as error:
        raise Refused(f"{path}: cannot be read as parquet ({str(error)[:200]})") from None
    if columns.get(INDEX, np.zeros(0, np.str_)).dtype.kind in "biuf":  # numbers of rows, as pandas keeps them
        del columns[INDEX]
    texts = {name: values for name, values in columns.items() if values.dtype.kind not in "biuf"}
    first = next(iter(texts), None)
    if len(texts) > 1 or (first is not None and first not in ("chromosome", INDEX, called[0], *index)):
        raise Refused(f"{path}: columns {', '.join(list(texts)[:5])} hold no numbers")
    numbers = [name for name in columns if name not in texts]
    stacked = np.stack([np.asarray(columns[name], np.float64) for name in numbers], 1)
    found = sort_columns(numbers, path).arrays(stacked)
    if first is not None:
        found["chromosome" if first == "chromosome" else "names"] = np.array([*map(str, texts[first])], np.str_)
    return found


def _in_bed(place: Place, bed: Path, read: Bed) -> Place:
    """Return how places are named once a BED file says where regions are, and perhaps how open they are."""
    column = f"atpm:{bed.name.partition(ACCESSIBILITY)[0]}"

    def within(array: str, row: int, name: str) -> str:
        if array in PLACED or (array == "atpm" and name == column):
            return f"{bed.name}, line {read.lines[row]}"
        return place(array, row, name)

    return within


def _from_bed(bed: Path, read: Bed, path: Path, arrays: Arrays) -> Arrays:
    """Return the places of a BED file, and perhaps the accessibility of a cell type beside that of others."""
    rows = len(arrays["features"])
    if len(read.lines) != rows:
        raise Refused(f"{bed}: has {len(read.lines):,} regions, but {path} has {rows:,} rows")
    for name, given in zip(PLACED, read.places, strict=True):
        if name in arrays and (wrong := np.flatnonzero(np.asarray(arrays[name]) != given)).size:
            row = int(wrong[0])
            more = f", and so on in {wrong.size:,} lines" if wrong.size > 1 else ""
            raise Refused(
                f"{bed}: line {read.lines[row]}: the {name} is {given[row]}, but {arrays[name][row]} in row {row} "
                f"(from 0) of {path}{more}"
            )
    found: Arrays = dict(zip(PLACED, read.places, strict=True))
    cell, ending, _ = bed.name.partition(ACCESSIBILITY)
    if not ending:
        return found
    values = _accessibility(bed, read, cell)
    cells = arrays.get("cells", np.zeros(0, "U1")).tolist()
    before = arrays.get("atpm", np.zeros((rows, len(cells))))
    found["cells"] = np.array([*cells, cell], np.str_)
    found["atpm"] = np.concatenate([before, values[:, None]], 1)
    known = {"atpm": ["atpm" in arrays] * len(cells) + [True]}
    for name in ("open", "expression", "tss"):
        if name in arrays:
            empty = np.zeros((rows, 1, *arrays[name].shape[2:]), arrays[name].dtype)
            found[name] = np.concatenate([arrays[name], empty], 1)
            known[name] = [True] * len(cells) + [False]
    if "open" in found:
        found["open"][:, -1] = values > 0
    gone = {*map(str, arrays.get("untold", ())), *map(str, untold(known, [*cells, cell]).get("untold", ()))}
    return found | ({"untold": np.array(sorted(gone), np.str_)} if gone else {})


def _accessibility(bed: Path, read: Bed, cell: str) -> Float[np.ndarray, " P"]:
    values, wrong = np.zeros(len(read.fourth)), []
    for row, text in enumerate(read.fourth):
        try:
            values[row] = float(text)
        except ValueError:
            wrong.append(f'{bed}: line {read.lines[row]}: "{text[:40]}" is no accessibility of {cell}, a number')
    if wrong and not any(read.fourth):
        raise Refused(f"{bed}: has no fourth column of numbers, the accessibility of {cell}")
    if wrong:
        raise Refused([*map(Problem, first_of(iter(wrong), len(wrong)))])
    return values
