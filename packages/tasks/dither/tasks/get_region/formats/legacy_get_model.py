"""Folders of get_model before its zarr layout: a list of cell types, and files of each.

    cell_type_align.txt                a table with the columns id, celltype, cluster, datatype, expression
    DATATYPE/ID.watac.npz              scipy CSR (P, M + 1): motifs, and accessibility as the last column
    DATATYPE/ID.csv or ID.csv.gz       Chromosome, Start, End, ...
    DATATYPE/ID.exp.npy, ID.tss.npy    (P, 2): expression, and transcription start sites, on both strands; optional

Cell types may have different regions. The table has the regions of all cell types; a region that a cell type does not
have gets accessibility 0 there, so that dropping closed regions gives its own regions again.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Float, Integer

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import load_npz, read_npy
from .matrices import densify, numbered
from .region_checks import PLACES, Places, RawArrays, check_arrays, collect_problems, stack_cells, table_locator
from .tables import open_table

__all__ = ["LIST", "read_legacy"]

LIST: Final = "cell_type_align.txt"
"""File that only a folder of this layout has."""
SUFFIXES: Final = {"expression": ".exp.npy", "tss": ".tss.npy"}
BOOLEANS: Final = {"true": True, "1": True, "false": False, "0": False}
"""Values of the column expression."""


@dataclass(frozen=True)
class _CellType:
    name: str
    file: Path
    places: Places
    columns: Float[np.ndarray, "P K"]
    expression: Float[np.ndarray, "P 2"] | None
    tss: Integer[np.ndarray, "P 2"] | None


def read_legacy(path: Path, *, overlaps: bool = False) -> RawArrays:
    """Read a folder; raises Refused with every file that is missing, damaged or does not match the others."""
    cell_types: list[_CellType] = []
    problems: list[Problem] = []
    for name, stem, has_expression in _listed(path):
        with collect_problems(problems):
            cell_types.append(_read(name, stem, has_expression=has_expression))
            _check(cell_types[-1], stem, overlaps=overlaps)
    if len({cell.columns.shape[1] for cell in cell_types}) > 1:
        counts = ", ".join(f"{cell.name} {cell.columns.shape[1] - 1}" for cell in cell_types[:5])
        problems.append(Problem(f"{path}: cell types differ in the number of motifs: {counts}", code="wrong-shape"))
    if not cell_types and not problems:
        problems.append(Problem(f"{path / LIST}: no cell type", code="no-samples"))
    if problems:
        raise Refused(problems)
    return RawArrays(_joined(path, cell_types), table_locator(lambda row: f"row {row} of all regions together"))


def _listed(path: Path) -> Iterator[tuple[str, Path, bool]]:
    """Yield the name of each cell type, the stem of its files, and whether its expression is known."""
    with open_table(path / LIST) as lines:
        rows = csv.DictReader(lines, skipinitialspace=True)
        missing = [name for name in ("id", "celltype", "datatype") if name not in (rows.fieldnames or ())]
        if missing:
            raise Refused(f"{path / LIST}: line 1: no column {', '.join(missing)}", code="missing-array")
        for line, row in enumerate(rows, 2):
            name, stem = (str(row[key] or "").strip() for key in ("celltype", "id"))
            folder = str(row["datatype"] or "").strip()
            if not name or not stem or {"/", ".."} & {*stem, stem, *folder, folder}:
                message = f"{path / LIST}: line {line}: cell type, id and datatype must be names"
                raise Refused(message, code="invalid-sample")
            expression = str(row.get("expression", "True") or "False").strip()
            if expression.lower() not in BOOLEANS:
                message = f'{path / LIST}: line {line}: expression is "{expression[:40]}", expected True or False'
                raise Refused(message, code="invalid-sample")
            yield name, path / folder / stem, BOOLEANS[expression.lower()]


def _read(name: str, stem: Path, *, has_expression: bool) -> _CellType:
    def with_suffix(suffix: str) -> Path:
        return stem.with_name(stem.name + suffix)

    matrix = with_suffix(".watac.npz")
    columns = densify(load_npz(matrix, matrix), matrix)
    table = with_suffix(".csv") if with_suffix(".csv").is_file() else with_suffix(".csv.gz")
    places = _places(table)
    suffixes = [suffix for name, suffix in SUFFIXES.items() if has_expression or name != "expression"]
    sides = {suffix: read_npy(with_suffix(suffix)) for suffix in suffixes if with_suffix(suffix).is_file()}
    lengths = {matrix: len(columns), table: len(places[0])} | {with_suffix(s): len(x) for s, x in sides.items()}
    if len({*lengths.values()}) > 1:
        counts = ", ".join(f"{file.name} {count:,}" for file, count in lengths.items())
        raise Refused(f"{stem}: files differ in the number of regions: {counts}", code="wrong-shape")
    for suffix, values in sides.items():
        if values.ndim != 2 or values.shape[1] != 2 or values.dtype.kind not in "biuf":
            message = f"{with_suffix(suffix)}: has the shape {values.shape} of {values.dtype}, expected two columns"
            raise Refused(message, code="wrong-shape")
    return _CellType(name, table, places, columns, sides.get(".exp.npy"), sides.get(".tss.npy"))


def _check(cell: _CellType, stem: Path, *, overlaps: bool) -> None:
    """Check the files of a cell type on their own, so that messages name their rows."""
    arrays: dict[str, Any] = dict(zip(PLACES, cell.places, strict=True))
    arrays |= {"features": cell.columns[:, :-1], "motifs": numbered(cell.columns.shape[1] - 1)}
    arrays |= {"cells": np.array([cell.name]), "atpm": cell.columns[:, -1:]}
    arrays |= {name: values[:, None] for name in SUFFIXES if (values := getattr(cell, name)) is not None}

    def locate(array: str, row: int, column: str) -> str:
        if array in SUFFIXES:
            return f"{stem.name}{SUFFIXES[array]}, row {row} (from 0)"
        if array in ("features", "atpm"):
            name = f'column "{column}"' if array == "features" else "the last column"
            return f"{stem.name}.watac.npz, row {row} (from 0), {name}"
        return f"{cell.file.name}, line {row + 2}"

    check_arrays(stem.parent, RawArrays(arrays, locate), overlaps=overlaps)


def _places(path: Path) -> Places:
    import pandas  # type: ignore[import-untyped,unused-ignore]

    with open_table(path) as lines:
        try:
            table = pandas.read_csv(lines, dtype=str)
        except ValueError as error:  # of pandas
            raise Refused(f"{path}: not a table ({error})", code="damaged-file") from None
    table.columns = table.columns.str.lower()
    if missing := ", ".join(sorted({*PLACES} - {*table.columns})):
        raise Refused(f"{path}: line 1: no columns {missing}", code="missing-array")
    start, end = (pandas.to_numeric(table[name], errors="coerce").to_numpy() for name in PLACES[1:])
    return table["chromosome"].to_numpy(str), start, end


def _joined(path: Path, cell_types: list[_CellType]) -> dict[str, Any]:
    """Return one table with the regions of all cell types, in genome order."""
    import pandas

    keys = [pandas.MultiIndex.from_arrays(cell.places) for cell in cell_types]
    regions = keys[0].append(keys[1:]).drop_duplicates()
    rank = pandas.factorize(regions.get_level_values(0))[0]  # chromosomes in the order of the files
    if not all(key.equals(keys[0]) for key in keys):
        regions = regions[np.lexsort((regions.get_level_values(2), regions.get_level_values(1), rank))]
    size, motifs = len(regions), cell_types[0].columns.shape[1] - 1
    features, known = np.zeros((size, motifs), np.float32), np.zeros(size, bool)
    values: dict[str, dict[str, Any]] = {"atpm": {}, "expression": {}, "tss": {}}
    for cell, key in zip(cell_types, keys, strict=True):
        rows = regions.get_indexer(key)
        differs = known[rows] & ~np.isclose(features[rows], cell.columns[:, :-1]).all(1)
        if differs.any():
            region = "{}:{}-{}".format(*regions[rows[differs][0]])
            message = f"{cell.file}: the motifs of {region} differ from those of another cell type"
            raise Refused(message, code="contradiction")
        features[rows], known[rows] = cell.columns[:, :-1], True
        for name, own in (("atpm", cell.columns[:, -1]), ("expression", cell.expression), ("tss", cell.tss)):
            if own is not None:
                values[name][cell.name] = np.zeros((size, *own.shape[1:]), own.dtype)
                values[name][cell.name][rows] = own
    chromosome, start, end = (regions.get_level_values(level).to_numpy() for level in range(3))
    values = {name: of_cells for name, of_cells in values.items() if of_cells}
    return {
        **stack_cells(values, [cell.name for cell in cell_types], size),
        "features": features,
        "motifs": numbered(motifs),
        "chromosome": chromosome.astype(np.str_),
        "start": start.astype(np.int64),
        "end": end.astype(np.int64),
    }
