"""Parquet tables of regions: the same columns as in a text table, and perhaps an index of pandas."""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped

from dither.registry.problems import Problem, Refused

from ..archive import LIMIT
from ..found import Found, in_table, noted
from ..region_order import first_of
from ..table_columns import NAMED, PLACES, must_be_known, placed_names, sort_columns
from .peak_names import texts_of

__all__ = ["read_parquet"]

INDEX: Final = "__index_level_0__"
"""Where pandas keeps an index that has no name."""

Columns = dict[str, Shaped[np.ndarray, " P"]]


def read_parquet(path: Path) -> Found:
    """Return what a file says: where its regions are as columns, as `names` of regions, or not at all.

    Raises:
        Refused: pyarrow is not installed, the file is damaged, or columns hold neither numbers nor places.
    """
    columns, index = _read(path)
    theirs = dict(zip(placed_names(list(columns)), columns, strict=True))
    given = {name: columns[there] for name, there in theirs.items()}
    naming = _without_index(given, index)
    must_be_known([name for name in given if name != naming], path)
    place = in_table(lambda row: f"row {row} (from 0)")
    found: dict[str, Any] = {}
    told: list[Problem] = []
    if naming is not None:
        with noted(told):
            texts = given.pop(naming)
            name, there = ("chromosome" if naming == "chromosome" else "names"), theirs[naming]
            found[name] = texts_of(texts, lambda row: f"{path}: {place(name, row, there)}")
    odd = [name for name, values in given.items() if values.dtype.kind not in "biuf"]
    lines = (f'{path}: the column "{theirs[name]}" holds no numbers ({given[name].dtype})' for name in odd)
    told += map(Problem, first_of(lines, len(odd)))
    numbers = [name for name in given if name not in odd]
    stacked = [np.asarray(given[name], np.float64) for name in numbers]
    rows = len(next(iter(columns.values()), ()))
    found |= sort_columns(numbers, path).arrays(np.stack(stacked, 1) if stacked else np.zeros((rows, 0)))
    return Found(found, lambda array, row, column: place(array, row, theirs.get(column, column)), tuple(told))


def _read(path: Path) -> tuple[Columns, list[str]]:
    """Return the columns, and which of them are an index of pandas."""
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
        names = table.column_names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise Refused([Problem(f'{path}: "{name}" is the name of more than one of the columns') for name in twice])
        index = (table.schema.pandas_metadata or {}).get("index_columns", [])
        columns = {name: table[name].to_numpy() for name in names}
    except (OSError, ValueError, ArrowException) as error:
        raise Refused(f"{path}: cannot be read as parquet ({str(error)[:200]})") from None
    return columns, [name for name in index if isinstance(name, str)]


def _without_index(given: Columns, index: list[str]) -> str | None:
    """Take away what pandas numbers rows with, and return which column says where regions are by name, if one does."""
    placed = all(name in given for name in PLACES)
    first = next(iter(given), "")
    for name in {*index, INDEX, *([first] if first.lower() in NAMED else [])} & given.keys() - {*PLACES}:
        if placed or given[name].dtype.kind in "biuf":
            del given[name]
    if "chromosome" in given:
        return "chromosome"
    texts = [name for name, values in given.items() if values.dtype.kind not in "biuf"]
    return next((name for name in texts if name in (first, INDEX, *index)), None)
