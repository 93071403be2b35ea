"""Folders of get_model before its zarr layout: a list of cell types, and files of each.

    cell_type_align.txt             a table: id, celltype, cluster, datatype, expression
    DATATYPE/ID.watac.npz           scipy CSR (P, M + 1): motifs, last the accessibility
    DATATYPE/ID.csv or ID.csv.gz    Chromosome, Start, End, ...
    DATATYPE/ID.exp.npy             (P, 2): expression on both strands; optional
    DATATYPE/ID.tss.npy             (P, 2): transcription start sites on both strands; optional

Cell types may have different regions. The table has the regions of all cell types; a region that a
cell type does not have gets accessibility 0 there, so that dropping closed regions gives its own
regions again.
"""

from __future__ import annotations

import csv
from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import Arrays, load_npz, map_npy
from .column_names import numbered
from .matrices import densify
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

LIST = "cell_type_align.txt"
"""File that only a folder of this layout has."""
SUFFIXES = {"expression": ".exp.npy", "tss": ".tss.npy"}


class _CellType(NamedTuple):
    """A row of the list, and the arrays of its files, which begin with `stem`."""

    name: str
    stem: Path
    arrays: Arrays


def read_folder(path: Path, *, overlaps: bool = False) -> RawArrays:
    """Read a folder; raise Refused with every file that is missing, damaged, or does not match."""
    cell_types: list[_CellType] = []
    problems: list[Problem] = []
    for name, stem, has_expression in _listed(path):
        with collect_problems(problems):
            arrays = _read(name, stem, has_expression=has_expression)
            cell_types.append(_CellType(name, stem, arrays))
            # One by one, so that messages name the rows of a file.
            raw = RawArrays(arrays, partial(_locate, stem))
            check_arrays(stem.parent, raw, overlaps=overlaps)

    counts = {cell.name: cell.arrays["features"].shape[1] for cell in cell_types}
    if len({*counts.values()}) > 1:
        shown = ", ".join(f"{name} {count}" for name, count in [*counts.items()][:5])
        message = f"{path}: cell types differ in the number of motifs: {shown}"
        problems.append(Problem(message, code="wrong-shape"))
    if not cell_types and not problems:
        problems.append(Problem(f"{path / LIST}: no cell type", code="no-samples"))
    if problems:
        raise Refused(problems)
    locate = table_locator(lambda row: f"row {row} of all regions together")
    return RawArrays(_joined(cell_types), locate)


def _listed(path: Path) -> Iterator[tuple[str, Path, bool]]:
    """Yield name, stem of the files, and whether expression is known, of each cell type."""
    with open_table(path / LIST) as lines:
        rows = csv.DictReader(lines, skipinitialspace=True)
        columns = rows.fieldnames or ()
        missing = [
            name for name in ("id", "celltype", "datatype") if name not in columns
        ]
        if missing:
            message = f"{path / LIST}: line 1: no column {', '.join(missing)}"
            raise Refused(message, code="missing-array")
        for line, row in enumerate(rows, 2):
            where = f"{path / LIST}: line {line}"
            name = str(row["celltype"] or "").strip()
            stem = str(row["id"] or "").strip()
            folder = str(row["datatype"] or "").strip()
            # Names from data are never paths out of the folder.
            if not name or not stem or {"/", ".."} & {*stem, stem, *folder, folder}:
                message = f"{where}: cell type, id and datatype must be names"
                raise Refused(message, code="invalid-sample")
            expression = str(row.get("expression", "True") or "False").strip()
            known = BOOLEANS.get(expression, expression)
            if known not in ("0", "1"):
                message = f'{where}: expression is "{expression[:40]}", expected True or False'
                raise Refused(message, code="invalid-sample")
            yield name, path / folder / stem, known == "1"


def _read(name: str, stem: Path, *, has_expression: bool) -> Arrays:
    """Return the arrays of one cell type."""
    matrix = Path(f"{stem}.watac.npz")
    columns = densify(load_npz(matrix), matrix)
    table = Path(f"{stem}.csv")
    if not table.is_file():
        table = Path(f"{stem}.csv.gz")
    arrays = {
        "features": columns[:, :-1],
        "motifs": numbered(columns.shape[1] - 1),
        "cells": np.array([name]),
        "atpm": columns[:, -1:],
        **_places(table),
    }
    counts = {matrix.name: len(columns), table.name: len(arrays["start"])}
    for kind, suffix in SUFFIXES.items():
        path = Path(f"{stem}{suffix}")
        if not path.is_file() or (kind == "expression" and not has_expression):
            continue
        values = np.array(map_npy(path))
        if values.ndim != 2 or values.shape[1] != 2 or values.dtype.kind not in "biuf":
            shape = f"the shape {values.shape} of {values.dtype}"
            raise Refused(
                f"{path}: has {shape}, expected two columns", code="wrong-shape"
            )
        arrays[kind] = values[:, None]
        counts[path.name] = len(values)
    if len({*counts.values()}) > 1:
        shown = ", ".join(f"{file} {count:,}" for file, count in counts.items())
        raise Refused(
            f"{stem}: files differ in the number of regions: {shown}",
            code="wrong-shape",
        )
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
        except ValueError as error:
            raise Refused(
                f"{path}: not a table ({error})", code="damaged-file"
            ) from None
    table.columns = table.columns.str.lower()
    if missing := ", ".join(sorted({*PLACES} - {*table.columns})):
        raise Refused(f"{path}: line 1: no columns {missing}", code="missing-array")
    places = {"chromosome": table["chromosome"].to_numpy(str)}
    for name in ("start", "end"):
        places[name] = pandas.to_numeric(table[name], errors="coerce").to_numpy()
    return places


def _joined(cell_types: list[_CellType]) -> Arrays:
    """Return one table with the regions of all cell types, in genome order."""
    import pandas

    keys = []
    for cell in cell_types:
        places = [cell.arrays[name] for name in PLACES]
        keys.append(pandas.MultiIndex.from_arrays(places))
    # The union of the regions of all cell types.
    regions = keys[0].append(keys[1:]).drop_duplicates()
    if not all(key.equals(keys[0]) for key in keys):
        # Chromosomes stay in the order of the files.
        rank, _ = pandas.factorize(regions.get_level_values(0))
        start, end = (regions.get_level_values(level) for level in (1, 2))
        regions = regions[np.lexsort((end, start, rank))]

    size = len(regions)
    motifs = cell_types[0].arrays["motifs"]
    features = np.zeros((size, len(motifs)), np.float32)
    known = np.zeros(size, bool)
    values: dict[str, dict[str, Any]] = {}
    for (name, stem, arrays), key in zip(cell_types, keys, strict=True):
        # Each cell type has its own order of regions; here they get the rows of the union.
        rows = regions.get_indexer(key)
        same = np.isclose(features[rows], arrays["features"]).all(1)
        differs = known[rows] & ~same
        if differs.any():
            region = "{}:{}-{}".format(*regions[rows[differs][0]])
            message = f"{stem}.csv: the motifs of {region} differ from those of another cell type"
            raise Refused(message, code="contradiction")
        features[rows] = arrays["features"]
        known[rows] = True
        for kind in ("atpm", *SUFFIXES):
            if kind in arrays:
                # 0 in regions that the cell type does not have.
                measured = arrays[kind][:, 0]
                of_cell = np.zeros((size, *measured.shape[1:]), measured.dtype)
                of_cell[rows] = measured
                values.setdefault(kind, {})[name] = of_cell
    stacked = stack_cells(values, [cell.name for cell in cell_types], size)
    return {
        **stacked,
        "chromosome": regions.get_level_values(0).to_numpy().astype(np.str_),
        "start": regions.get_level_values(1).to_numpy().astype(np.int64),
        "end": regions.get_level_values(2).to_numpy().astype(np.int64),
        "features": features,
        "motifs": motifs,
    }
