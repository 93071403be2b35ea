"""Matrices of motifs in files that do not always say where their regions are: .npz, .csv, .tsv, .parquet, and BED.

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
from .column_names import placed_names
from .peaks import Bed, decoded, parse_names, read_bed
from .raw_arrays import Locator, RawArrays, collect_problems, table_locator, untold
from .region_checks import first_of
from .tables import read_parquet, read_table

__all__ = ["BED", "MATRICES", "densify", "is_bed", "numbered", "read_matrix"]

MATRICES: Final = (".npz", ".csv", ".csv.gz", ".tsv", ".tsv.gz", ".parquet")
"""Endings of files that hold a matrix."""

BED: Final = (".bed", ".bed.gz")
"""Endings of files that hold places."""

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


def read_matrix(path: Path, beds: Sequence[Path]) -> RawArrays:
    """Read a matrix, and where its regions are.

    Args:
        path: The matrix.
        beds: BED files with one line for each row of it; one named CELL.atac.bed has the accessibility of a cell type
            in its fourth column.

    Raises:
        Refused: A file cannot be read, or they do not go together.
    """
    name = path.name.lower()
    if name.endswith(".npz"):
        found = _from_npz(load_npz(path, path), path)
    else:
        found = read_parquet(path) if name.endswith(".parquet") else read_table(path, placed=False)
    arrays, place, told = found.arrays, found.place, [*found.told]
    for each in TEXTS:
        if each in arrays and (each == "names" or arrays[each].dtype.kind == "S"):
            with collect_problems(told):
                arrays[each] = decoded(arrays[each], f'{path}: "{found.called(each)}"')
    if "names" in arrays and (names := arrays.pop("names")).dtype.kind == "U":
        with collect_problems(told):
            places = parse_names(names.ravel(), lambda row: f"{path}: {place('names', row, '')}")
            arrays |= dict(zip(PLACED, places, strict=True))
    for bed in beds:
        with collect_problems(told):
            read = read_bed(bed)
            arrays |= _from_bed(bed, read, path, arrays)
            place = _in_bed(place, bed, read)
    if not told and not all(place in arrays for place in PLACED):
        fix = "give a BED file beside it, with one line for each row"
        told.append(Problem(f"{path}: does not say where its regions are", help=fix))
    return RawArrays(arrays, place, tuple(told), found.called)


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


def _from_npz(arrays: Arrays, path: Path) -> RawArrays:
    """Return arrays under our names, which places and complaints call by the names in the file."""
    sparse = all(name in arrays for name in SPARSE)
    found = {name: array for name, array in arrays.items() if not (sparse and name in (*SPARSE, "format"))}
    called = dict(zip(placed_names(list(found)), found, strict=True))
    found = {ours: found[theirs] for ours, theirs in called.items()}
    called |= {ours: theirs for theirs, ours in RENAMED.items() if theirs in found}
    if sparse:
        found["features"] = densify(arrays, path)
    elif "features" not in arrays:
        two = [name for name, array in found.items() if array.ndim == 2 and name not in OF_CELLS]
        if len(two) != 1:
            raise Refused(f'{path}: has no array "features", and not just one matrix; it has {", ".join(arrays)}')
        found["features"], called["features"] = found.pop(two[0]), called[two[0]]
    for theirs, ours in RENAMED.items():
        if theirs in found:
            found[ours] = found.pop(theirs)
    if found["features"].ndim != 2:
        said = called.get("features", "features")
        raise Refused(f'{path}: "{said}" has the shape {found["features"].shape}, expected two axes')
    found.setdefault("motifs", numbered(found["features"].shape[1]))
    place = table_locator(lambda row: f"row {row} (from 0)", arrays=True)

    def known_as(name: str) -> str:
        return called.get(name, name)

    def within(array: str, row: int, column: str) -> str:
        return place(known_as(array), row, "" if column == array else column)

    return RawArrays(found, within, called=known_as)


def _in_bed(place: Locator, bed: Path, read: Bed) -> Locator:
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
