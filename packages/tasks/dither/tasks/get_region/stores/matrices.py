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
from ..region_file import read_table
from ..table_columns import sort_columns
from .peak_names import parse_names, read_bed

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


def is_bed(path: Path) -> bool:
    """Tell whether a file is BED by its name."""
    return path.name.lower().endswith(BED)


def read_matrix(path: Path, beds: Sequence[Path]) -> Arrays:
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
        arrays = _from_npz(load_npz(path, path), path)
    elif name.endswith(".parquet"):
        arrays = _from_parquet(path)
    else:
        arrays = read_table(path, placed=False)
    if "names" in arrays:
        arrays |= dict(zip(PLACED, parse_names(arrays.pop("names"), f"{path}: names of regions"), strict=True))
    for bed in beds:
        arrays |= _from_bed(bed, path, arrays)
    if not all(place in arrays for place in PLACED):
        fix = "give a BED file beside it, with one line for each row"
        raise Refused(Problem(f"{path}: does not say where its regions are", help=fix))
    return arrays


def densify(arrays: Arrays, path: Path) -> Float[np.ndarray, "P K"]:
    """Return the matrix of an .npz file that scipy wrote (csr, csc, coo are the same to scipy's own reader).

    Raises:
        Refused: It is none, or its numbers point outside.
    """
    from scipy.sparse import csr_matrix

    try:
        if bytes(arrays["format"].item()) != b"csr":
            raise ValueError("its format is not csr")
        rows, columns = (int(n) for n in arrays["shape"])
        if not 0 <= rows * columns * 4 <= LIMIT:
            raise ValueError(f"it would take {rows * columns * 4:,} bytes, allowed are {LIMIT:,}")
        matrix: Any = csr_matrix(tuple(arrays[name] for name in SPARSE[:3]), shape=(rows, columns))
        matrix.check_format(full_check=True)
        dense: Float[np.ndarray, "P K"] = matrix.toarray()
    except (KeyError, ValueError, TypeError) as error:
        raise Refused(f"{path}: holds no sparse matrix of scipy ({error})") from None
    return dense


def numbered(count: int) -> Shaped[np.ndarray, " M"]:
    """Name motifs that have no names."""
    return np.array([f"motif-{number:04d}" for number in range(1, count + 1)], np.str_)


def _from_npz(arrays: Arrays, path: Path) -> Arrays:
    found = {name: array for name, array in arrays.items() if name not in SPARSE and name != "format"}
    if all(name in arrays for name in SPARSE):
        found["features"] = densify(arrays, path)
    elif "features" not in arrays:
        two = [name for name, array in arrays.items() if array.ndim == 2]
        if len(two) != 1:
            raise Refused(f'{path}: has no array "features", and not just one matrix; it has {", ".join(arrays)}')
        found["features"] = found.pop(two[0])
    for other, name in (("motif_names", "motifs"), ("peak_names", "names")):
        if other in found:
            found[name] = found.pop(other)
    if found["features"].ndim != 2:
        raise Refused(f'{path}: "features" has the shape {found["features"].shape}, expected two axes')
    if found["features"].dtype == np.uint8:
        found["features"] = found["features"] * np.float32(1 / 255)
    found.setdefault("motifs", numbered(found["features"].shape[1]))
    return found


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
        columns = {name: table[name].to_numpy() for name in table.column_names}
    except (OSError, ValueError, ArrowException) as error:
        raise Refused(f"{path}: cannot be read as parquet ({str(error)[:200]})") from None
    if columns.get(INDEX, np.zeros(0, np.str_)).dtype.kind in "biuf":  # numbers of rows, as pandas keeps them
        del columns[INDEX]
    texts = {name: values for name, values in columns.items() if values.dtype.kind not in "biuf"}
    first = next(iter(texts), None)
    if len(texts) > 1 or (first is not None and first not in ("chromosome", INDEX, table.column_names[0])):
        raise Refused(f"{path}: columns {', '.join(list(texts)[:5])} hold no numbers")
    numbers = [name for name in columns if name not in texts]
    stacked = np.stack([np.asarray(columns[name], np.float64) for name in numbers], 1)
    found = sort_columns(numbers).arrays(stacked)
    if first is not None:
        found["chromosome" if first == "chromosome" else "names"] = np.array([*map(str, texts[first])], np.str_)
    return found


def _from_bed(bed: Path, path: Path, arrays: Arrays) -> Arrays:
    """Return the places of a BED file, and perhaps the accessibility of a cell type beside that of others."""
    places, values = read_bed(bed)
    rows = len(arrays["features"])
    if len(places[0]) != rows:
        raise Refused(f"{bed}: has {len(places[0]):,} regions, but {path} has {rows:,} rows")
    for name, given in zip(PLACED, places, strict=True):
        if name in arrays and (wrong := np.flatnonzero(np.asarray(arrays[name]) != given)).size:
            row = int(wrong[0])
            raise Refused(
                f"{bed}: region {row} (from 0) has the {name} {given[row]}, but {path} has {arrays[name][row]}"
            )
    found: Arrays = dict(zip(PLACED, places, strict=True))
    cell, ending, _ = bed.name.partition(ACCESSIBILITY)
    if ending:
        if values is None:
            raise Refused(f"{bed}: has no fourth column of numbers, the accessibility of {cell}")
        cells = arrays.get("cells", np.zeros(0, "U1"))
        before = arrays.get("atpm", np.zeros((rows, len(cells))))
        found["cells"] = np.array([*cells.tolist(), cell], np.str_)
        found["atpm"] = np.concatenate([before, values[:, None]], 1)
        for name in ("open", "expression", "tss"):
            if name in arrays:
                empty = np.zeros((rows, 1, *arrays[name].shape[2:]), arrays[name].dtype)
                found[name] = np.concatenate([arrays[name], empty], 1)
    return found
