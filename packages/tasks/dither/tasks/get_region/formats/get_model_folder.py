"""Folders of get_model before its zarr layout: a list of cell types, and files of each.

    cell_type_align.txt                a table with the columns id, celltype, cluster, datatype, expression
    DATATYPE/ID.watac.npz              scipy CSR (P, M + 1): motifs, and accessibility as the last column
    DATATYPE/ID.csv or ID.csv.gz       Chromosome, Start, End, ...
    DATATYPE/ID.exp.npy, ID.tss.npy    (P, 2): expression, and transcription start sites, on both strands; optional

Cell types may have different regions. The table has the regions of all cell types; a region that a
cell type does not have gets accessibility 0 there, so that dropping closed regions gives its own
regions again.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import Arrays, load_npz, map_npy
from .matrices import densify, numbered
from .region_checks import (
    PLACES,
    RawArrays,
    check_arrays,
    collect_problems,
    stack_cells,
    table_locator,
)
from .tables import BOOLEANS, open_table

__all__ = ["LIST", "read_folder"]

LIST: Final = "cell_type_align.txt"
"""File that only a folder of this layout has."""
SUFFIXES: Final = {"expression": ".exp.npy", "tss": ".tss.npy"}


_CellType = tuple[str, Path, Arrays]
"""Name, stem of the files, and arrays."""


def read_folder(path: Path, *, overlaps: bool = False) -> RawArrays:
    """Read a folder; raises Refused with every file that is missing, damaged or does not match the others."""
    cell_types: list[_CellType] = []
    problems: list[Problem] = []
    for name, stem, has_expression in _listed(path):
        with collect_problems(problems):
            cell_types.append((name, stem, _read(name, stem, has_expression=has_expression)))
            raw = RawArrays(cell_types[-1][2], partial(_locate, stem))
            check_arrays(
                stem.parent, raw, overlaps=overlaps
            )  # on their own, so that messages name their rows
    counts = {name: arrays["features"].shape[1] for name, _, arrays in cell_types}
    if len({*counts.values()}) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in [*counts.items()][:5])
        problems.append(
            Problem(
                f"{path}: cell types differ in the number of motifs: {shown}", code="wrong-shape"
            )
        )
    if not cell_types and not problems:
        problems.append(Problem(f"{path / LIST}: no cell type", code="no-samples"))
    if problems:
        raise Refused(problems)
    return RawArrays(
        _joined(cell_types), table_locator(lambda row: f"row {row} of all regions together")
    )


def _listed(path: Path) -> Iterator[tuple[str, Path, bool]]:
    """Yield the name of each cell type, the stem of its files, and whether its expression is known."""
    with open_table(path / LIST) as lines:
        rows = csv.DictReader(lines, skipinitialspace=True)
        missing = [
            name for name in ("id", "celltype", "datatype") if name not in (rows.fieldnames or ())
        ]
        if missing:
            raise Refused(
                f"{path / LIST}: line 1: no column {', '.join(missing)}", code="missing-array"
            )
        for line, row in enumerate(rows, 2):
            name, stem = (str(row[key] or "").strip() for key in ("celltype", "id"))
            folder = str(row["datatype"] or "").strip()
            if not name or not stem or {"/", ".."} & {*stem, stem, *folder, folder}:
                message = f"{path / LIST}: line {line}: cell type, id and datatype must be names"
                raise Refused(message, code="invalid-sample")
            expression = str(row.get("expression", "True") or "False").strip()
            if (known := BOOLEANS.get(expression, expression)) not in ("0", "1"):
                message = f'{path / LIST}: line {line}: expression is "{expression[:40]}", expected True or False'
                raise Refused(message, code="invalid-sample")
            yield name, path / folder / stem, known == "1"


def _read(name: str, stem: Path, *, has_expression: bool) -> Arrays:
    """Return the arrays of one cell type."""
    matrix = Path(f"{stem}.watac.npz")
    table = Path(f"{stem}.csv")
    columns = densify(load_npz(matrix), matrix)
    table = table if table.is_file() else Path(f"{table}.gz")
    arrays = {
        "features": columns[:, :-1],
        "motifs": numbered(columns.shape[1] - 1),
        **_places(table),
    }
    arrays |= {"cells": np.array([name]), "atpm": columns[:, -1:]}
    counts = {matrix.name: len(columns), table.name: len(arrays["start"])}
    for kind, suffix in SUFFIXES.items():
        path = Path(f"{stem}{suffix}")
        if not path.is_file() or (kind == "expression" and not has_expression):
            continue
        values = np.array(map_npy(path))
        if values.ndim != 2 or values.shape[1] != 2 or values.dtype.kind not in "biuf":
            message = (
                f"{path}: has the shape {values.shape} of {values.dtype}, expected two columns"
            )
            raise Refused(message, code="wrong-shape")
        arrays[kind] = values[:, None]
        counts[path.name] = len(values)
    if len({*counts.values()}) > 1:
        shown = ", ".join(f"{file} {count:,}" for file, count in counts.items())
        raise Refused(f"{stem}: files differ in the number of regions: {shown}", code="wrong-shape")
    return arrays


def _locate(
    stem: Path,
    array: str,
    row: int,
    column: str,
) -> str:
    """Return the place of a value; see `Locator`."""
    if array in SUFFIXES:
        return f"{stem.name}{SUFFIXES[array]}, row {row} (from 0)"
    if array in ("features", "atpm"):
        name = f'column "{column}"' if array == "features" else "the last column"
        return f"{stem.name}.watac.npz, row {row} (from 0), {name}"
    return f"{stem.name}.csv, line {row + 2}"


def _places(path: Path) -> Arrays:
    import pandas  # type: ignore[import-untyped,unused-ignore]

    with open_table(path) as lines:
        try:
            table = pandas.read_csv(lines, dtype=str)
        except ValueError as error:  # of pandas
            raise Refused(f"{path}: not a table ({error})", code="damaged-file") from None
    table.columns = table.columns.str.lower()
    if missing := ", ".join(sorted({*PLACES} - {*table.columns})):
        raise Refused(f"{path}: line 1: no columns {missing}", code="missing-array")
    ends = {name: pandas.to_numeric(table[name], errors="coerce").to_numpy() for name in PLACES[1:]}
    return {"chromosome": table["chromosome"].to_numpy(str), **ends}


def _joined(cell_types: list[_CellType]) -> Arrays:
    """Return one table with the regions of all cell types, in genome order."""
    import pandas

    keys = [
        pandas.MultiIndex.from_arrays([arrays[name] for name in PLACES])
        for _, _, arrays in cell_types
    ]
    regions = keys[0].append(keys[1:]).drop_duplicates()
    rank = pandas.factorize(regions.get_level_values(0))[0]  # chromosomes in the order of the files
    if not all(key.equals(keys[0]) for key in keys):
        regions = regions[
            np.lexsort((regions.get_level_values(2), regions.get_level_values(1), rank))
        ]
    size = len(regions)
    motifs = cell_types[0][2]["motifs"]
    features = np.zeros((size, len(motifs)), np.float32)
    known = np.zeros(size, bool)
    values: dict[str, dict[str, Any]] = {}
    for (cell, stem, arrays), key in zip(cell_types, keys, strict=True):
        rows = regions.get_indexer(key)
        differs = known[rows] & ~np.isclose(features[rows], arrays["features"]).all(1)
        if differs.any():
            region = "{}:{}-{}".format(*regions[rows[differs][0]])
            message = f"{stem}.csv: the motifs of {region} differ from those of another cell type"
            raise Refused(message, code="contradiction")
        features[rows] = arrays["features"]
        known[rows] = True
        for kind in ("atpm", *SUFFIXES):
            if kind in arrays:
                own = values.setdefault(kind, {})[cell] = np.zeros(
                    (size, *arrays[kind].shape[2:]), arrays[kind].dtype
                )
                own[rows] = arrays[kind][:, 0]
    chromosome, start, end = (regions.get_level_values(level).to_numpy() for level in range(3))
    places = {
        "chromosome": chromosome.astype(np.str_),
        "start": start.astype(np.int64),
        "end": end.astype(np.int64),
    }
    stacked = stack_cells(values, [cell for cell, _, _ in cell_types], size)
    return {**stacked, **places, "features": features, "motifs": motifs}
