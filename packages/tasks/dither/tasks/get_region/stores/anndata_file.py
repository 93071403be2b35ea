"""AnnData files: regions as observations, motifs as variables.

Where a region is, its name says ("chr1:9790-10675"), or the columns chromosome, start and end of `obs`. What is known
of cell types stands in columns of `obs` too: open:CELL, atpm:CELL, expression_positive:CELL and so on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dither.registry.problems import Problem, Refused

from ..archive import LIMIT, Arrays
from ..found import Found, noted
from ..table_columns import PLACES, sort_columns, speaks_of_cell
from .peak_names import NAME, parse_names

__all__ = ["read_anndata"]


def read_anndata(path: Path) -> Found:
    """Return what a file says.

    Raises:
        Refused: anndata is not installed, or the file is damaged or holds something else than regions and motifs.
    """
    try:
        import anndata  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        fix = 'install the extra "anndata" of dither-tasks'
        raise Refused(Problem(f"{path} is read with anndata, which is not installed", help=fix)) from None
    if not path.is_file():
        raise Refused(f"{path}: is no plain file" if path.exists() else f"{path}: No such file or directory")
    try:
        file: Any = anndata.read_h5ad(path)
    except Exception as error:  # its readers and those of HDF5 raise what they like
        raise Refused(f"{path}: cannot be read as AnnData ({type(error).__name__}: {str(error)[:160]})") from None
    rows, motifs = file.shape
    if rows * motifs * 4 > LIMIT:
        raise Refused(f"{path}: its matrix would take {rows * motifs * 4:,} bytes, allowed are {LIMIT:,}")
    if file.X is None:
        raise Refused(f"{path}: has no matrix X")
    names = file.obs_names.to_numpy().astype(np.str_)
    variables = file.var_names.to_numpy().astype(np.str_)
    if len(variables) and NAME.fullmatch(variables[0]) and not (len(names) and NAME.fullmatch(names[0])):
        fix = "regions are to be observations, and motifs variables"
        raise Refused(Problem(f"{path}: its variables are regions; it says how open they are, and no motifs", help=fix))
    told: list[Problem] = []
    found = _of_regions(file.obs, path)
    if "chromosome" not in found:
        with noted(told):
            found |= dict(
                zip(PLACES, parse_names(names, lambda row: f"{path}: obs_names, row {row} (from 0)"), strict=True)
            )
    matrix = file.X if isinstance(file.X, np.ndarray) else file.X.toarray()
    return Found(found | {"features": np.asarray(matrix), "motifs": variables}, _place, tuple(told))


def _place(array: str, row: int, column: str) -> str:
    where = f"{'X' if array == 'features' else 'obs'}, row {row} (from 0)"
    return where + (f', column "{column}"' if column else "")


def _of_regions(table: Any, path: Path) -> Arrays:
    """Read the columns of `obs` that are known; others are left alone."""
    columns = {str(name): table[name].to_numpy() for name in table.columns}
    asked = [name for name in columns if name in PLACES[1:] or speaks_of_cell(name)]
    if odd := [name for name in asked if columns[name].dtype.kind not in "biuf"]:
        raise Refused(
            [Problem(f'{path}: obs, column "{name}" holds {table[name].dtype}, expected numbers') for name in odd]
        )
    numbers = [name for name, values in columns.items() if values.dtype.kind in "biuf"]
    sorted_ones = sort_columns(numbers, path)
    stacked = (
        np.stack([columns[name].astype(np.float64) for name in numbers], 1) if numbers else np.zeros((len(table), 0))
    )
    found = sorted_ones.arrays(stacked)
    del found["features"], found["motifs"]
    if all(name in columns for name in PLACES):
        found["chromosome"] = np.array([*map(str, columns["chromosome"])], np.str_)
    return found
