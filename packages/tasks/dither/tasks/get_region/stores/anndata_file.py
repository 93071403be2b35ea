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
from ..table_columns import PLACES, sort_columns
from .peak_names import NAME, parse_names

__all__ = ["read_anndata"]


def read_anndata(path: Path) -> Arrays:
    """Return what a file says, under the names that `check_arrays` knows.

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
    found = _of_regions(file.obs, names, path)
    matrix = file.X if isinstance(file.X, np.ndarray) else file.X.toarray()
    return found | {"features": np.asarray(matrix), "motifs": variables}


def _of_regions(table: Any, names: Any, path: Path) -> Arrays:
    """Read the columns of `obs` that are known; others are left alone."""
    columns = {str(name): table[name].to_numpy() for name in table.columns}
    numbers = [name for name, values in columns.items() if values.dtype.kind in "biuf"]
    sorted_ones = sort_columns(numbers)
    stacked = (
        np.stack([columns[name].astype(np.float64) for name in numbers], 1) if numbers else np.zeros((len(table), 0))
    )
    found = sorted_ones.arrays(stacked)
    del found["features"], found["motifs"]
    if all(name in columns for name in PLACES):
        found["chromosome"] = np.array([*map(str, columns["chromosome"])], np.str_)
        return found
    return found | dict(zip(PLACES, parse_names(names, f"{path}: obs_names"), strict=True))
