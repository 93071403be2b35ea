"""get_model's older layout: a list of cell types, and files of each.

    cell_type_align.txt                a table with the columns id, celltype, cluster, datatype, expression
    DATATYPE/ID.watac.npz              scipy csr (P, M + 1): motifs, and accessibility as the last column
    DATATYPE/ID.csv or ID.csv.gz       Chromosome, Start, End, ...
    DATATYPE/ID.exp.npy, ID.tss.npy    (P, 2): expression, and starts of transcription, on both strands; may be missing

Cell types may have regions of their own. All regions of all cell types make one table; where a cell type has no such
region its accessibility is 0, so that leaving out what is closed gives back its own regions.
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
from .peaks import Places
from .raw_arrays import RawArrays, table_locator, untold
from .region_checks import FARTHEST, check_arrays, first_of
from .tables import open_table

__all__ = ["is_legacy", "read_legacy"]

LIST: Final = "cell_type_align.txt"
SIDES: Final = {"expression": ".exp.npy", "tss": ".tss.npy"}
"""What the files beside a matrix are about, and how they end."""
KNOWN: Final = {"true": True, "1": True, "false": False, "0": False}
"""What the list says of expression: whether a cell type has any."""


@dataclass(frozen=True)
class _CellType:
    """What the files of one cell type hold."""

    name: str
    file: Path
    places: Places
    columns: Float[np.ndarray, "P K"]
    expression: Float[np.ndarray, "P 2"] | None
    tss: Integer[np.ndarray, "P 2"] | None


def is_legacy(path: Path) -> bool:
    """Tell whether a folder has the older layout."""
    return (path / LIST).is_file()


def read_legacy(path: Path, *, overlaps: bool = False) -> RawArrays:
    """Return what a folder says.

    Args:
        path: The folder.
        overlaps: Whether regions may overlap each other.

    Raises:
        Refused: Every file that is missing, damaged or does not go with the others.
    """
    found: list[_CellType] = []
    problems: list[Problem] = []
    for name, stem, expressed in _listed(path):
        try:
            found.append(_read(name, stem, expressed=expressed))
            _check(found[-1], stem, overlaps=overlaps)
        except Refused as refused:
            problems += refused.problems
    widths = {one.columns.shape[1] for one in found}
    if len(widths) > 1:
        said = ", ".join(f"{one.name} {one.columns.shape[1] - 1}" for one in found[:5])
        problems.append(Problem(f"{path}: cell types have different numbers of motifs: {said}"))
    if not found and not problems:
        problems.append(Problem(f"{path / LIST}: names no cell type"))
    if problems:
        raise Refused(problems)
    return RawArrays(_joined(path, found), table_locator(lambda row: f"row {row} of all regions together"))


def _listed(path: Path) -> Iterator[tuple[str, Path, bool]]:
    """Yield the name of each cell type, what its files begin with, and whether its expression is known.

    get_model leaves out cell types whose `expression` is not True where it learns expression.
    """
    with open_table(path / LIST) as lines:
        rows = csv.DictReader(lines, skipinitialspace=True)
        missing = [name for name in ("id", "celltype", "datatype") if name not in (rows.fieldnames or ())]
        if missing:
            raise Refused(f"{path / LIST}: line 1: the header has no {', '.join(missing)}")
        for line, row in enumerate(rows, 2):
            name, stem = (str(row[key] or "").strip() for key in ("celltype", "id"))
            folder = str(row["datatype"] or "").strip()
            if not name or not stem or {"/", ".."} & {*stem, stem, *folder, folder}:
                raise Refused(f"{path / LIST}: line {line}: names no cell type, id and datatype")
            said = str(row.get("expression", "True") or "False").strip()
            if said.lower() not in KNOWN:
                raise Refused(f'{path / LIST}: line {line}: expression is "{said[:40]}", expected True or False')
            yield name, path / folder / stem, KNOWN[said.lower()]


def _read(name: str, stem: Path, *, expressed: bool) -> _CellType:
    def beside(ending: str) -> Path:
        return stem.with_name(stem.name + ending)

    matrix = beside(".watac.npz")
    columns = densify(load_npz(matrix, matrix), matrix)
    table = beside(".csv") if beside(".csv").is_file() else beside(".csv.gz")
    places = _places(table)
    endings = (".exp.npy", ".tss.npy") if expressed else (".tss.npy",)
    sides = {ending: read_npy(beside(ending)) for ending in endings if beside(ending).is_file()}
    lengths = {matrix: len(columns), table: len(places[0])} | {beside(ending): len(x) for ending, x in sides.items()}
    if len({*lengths.values()}) > 1:
        said = ", ".join(f"{file.name} {count:,}" for file, count in lengths.items())
        raise Refused(f"{stem}: its files have different numbers of regions: {said}")
    for ending, values in sides.items():
        if values.ndim != 2 or values.shape[1] != 2 or values.dtype.kind not in "biuf":
            raise Refused(f"{beside(ending)}: has the shape {values.shape} of {values.dtype}, expected two columns")
    return _CellType(name, table, places, columns, sides.get(".exp.npy"), sides.get(".tss.npy"))


def _check(one: _CellType, stem: Path, *, overlaps: bool) -> None:
    """Check the files of a cell type by themselves, so that their own rows are named."""
    arrays: dict[str, Any] = dict(zip(("chromosome", "start", "end"), one.places, strict=True))
    arrays |= {"features": one.columns[:, :-1], "motifs": numbered(one.columns.shape[1] - 1)}
    arrays |= {"cells": np.array([one.name]), "atpm": one.columns[:, -1:]}
    arrays |= {name: values[:, None] for name in SIDES if (values := getattr(one, name)) is not None}

    def place(array: str, row: int, column: str) -> str:
        if array in SIDES:
            return f"{stem.name}{SIDES[array]}, row {row} (from 0)"
        if array in ("features", "atpm"):
            named = f'column "{column}"' if array == "features" else "the last column"
            return f"{stem.name}.watac.npz, row {row} (from 0), {named}"
        return f"{one.file.name}, line {row + 2}"

    check_arrays(stem.parent, arrays, place, overlaps=overlaps)


def _places(path: Path) -> Places:
    with open_table(path) as lines:
        rows = csv.DictReader(lines)
        names = {str(name).lower(): name for name in rows.fieldnames or ()}
        keys = [names.get(key) for key in ("chromosome", "start", "end")]
        if None in keys:
            raise Refused(f"{path}: line 1: the header has no Chromosome, Start and End")
        chromosome, numbers, wrong = [], [], []
        for line, row in enumerate(rows, 2):
            try:
                numbers.append((float(row[keys[1]]), float(row[keys[2]])))
                chromosome.append(str(row[keys[0]] or ""))
            except (ValueError, TypeError):
                wrong.append(f"{path}: line {line}: start and end are no numbers")
    if wrong:
        raise Refused([*map(Problem, first_of(iter(wrong), len(wrong)))])
    ends = np.array(numbers, np.float64).reshape(-1, 2)
    if (ends == np.clip(np.floor(ends), 0, FARTHEST)).all():  # others are refused when they are checked
        ends = ends.astype(np.int64)
    return np.array(chromosome, np.str_), ends[:, 0], ends[:, 1]


def _joined(path: Path, found: list[_CellType]) -> dict[str, Any]:
    """Put the regions of all cell types into one table, in the order of the genome."""
    keys = [list(zip(*(part.tolist() for part in one.places), strict=True)) for one in found]
    rank: dict[str, int] = {}
    for name in (key[0] for each in keys for key in each):
        rank.setdefault(name, len(rank))
    first = keys[0] if all(each == keys[0] for each in keys) else None
    regions = first or sorted({key for each in keys for key in each}, key=lambda key: (rank[key[0]], *key[1:]))
    row_of = {key: row for row, key in enumerate(regions)}
    size, motifs = len(regions), found[0].columns.shape[1] - 1
    features, known = np.zeros((size, motifs), np.float32), np.zeros(size, bool)
    arrays: dict[str, Any] = {"atpm": np.zeros((size, len(found)), np.float32)}
    for name, sort in (("expression", np.float32), ("tss", np.int8)):
        if any(getattr(one, name) is not None for one in found):
            arrays[name] = np.zeros((size, len(found), 2), sort)
    for number, (one, mine) in enumerate(zip(found, keys, strict=True)):
        rows = np.arange(size) if first else np.array([row_of[key] for key in mine], int)
        if len(np.unique(rows)) < len(rows):
            raise Refused(f"{one.file}: names a region twice")
        again = known[rows] & ~np.isclose(features[rows], one.columns[:, :-1]).all(1)
        if again.any():
            place = "{}:{}-{}".format(*regions[rows[again][0]])
            raise Refused(f"{one.file}: the motifs of {place} are not those that another cell type has there")
        features[rows], known[rows] = one.columns[:, :-1], True
        arrays["atpm"][rows, number] = one.columns[:, -1]
        for name in ("expression", "tss"):
            if getattr(one, name) is not None:
                arrays[name][rows, number] = getattr(one, name)
    chromosome, start, end = zip(*regions, strict=True) if regions else ((), (), ())
    told = {name: [getattr(one, name) is not None for one in found] for name in SIDES if name in arrays}
    cells = [one.name for one in found]
    return (
        arrays
        | untold(told, cells)
        | {
            "features": features,
            "motifs": numbered(motifs),
            "cells": np.array(cells, np.str_),
            "chromosome": np.array(chromosome, np.str_),
            "start": np.array(start, np.int64),
            "end": np.array(end, np.int64),
        }
    )
