"""AnnData files: regions as observations, motifs as variables.

Where a region is, its name says ("chr1:9790-10675"), or the columns chromosome, start and end of `obs`. What is known
of cell types stands in columns of `obs` too: open:CELL, atpm:CELL, expression_positive:CELL and so on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import LIMIT, Arrays
from .column_names import PLACES, placed_names, sort_columns, speaks_of_cell
from .peaks import NAME, parse_names, texts_of
from .raw_arrays import RawArrays, collect_problems

__all__ = ["read_anndata"]

CALLED: Final = {"features": "X", "motifs": "var_names"}
"""How arrays are called in such a file."""


def read_anndata(path: Path) -> RawArrays:
    """Return what a file says.

    Raises:
        Refused: anndata is not installed, or the file is damaged or holds something else than regions and motifs.
    """
    file = _opened(path)
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
    theirs = dict(zip(placed_names(list(map(str, file.obs.columns))), file.obs.columns, strict=True))

    def place(array: str, row: int, column: str) -> str:
        where = f"{'X' if array == 'features' else 'obs'}, row {row} (from 0)"
        return where + (f', column "{theirs.get(column, column) if array in PLACES else column}"' if column else "")

    told: list[Problem] = []
    found = _of_regions(file.obs, theirs, path)
    with collect_problems(told):
        if all(name in theirs for name in PLACES):
            chromosome = file.obs[theirs["chromosome"]].to_numpy()
            where = f'column "{theirs["chromosome"]}"'
            found["chromosome"] = texts_of(chromosome, lambda row: f"{path}: obs, row {row} (from 0), {where}")
        else:
            places = parse_names(names, lambda row: f"{path}: obs_names, row {row} (from 0)")
            found |= dict(zip(PLACES, places, strict=True))
    matrix = file.X if isinstance(file.X, np.ndarray) else file.X.toarray()
    found |= {"features": np.asarray(matrix), "motifs": variables}
    return RawArrays(found, place, tuple(told), lambda name: CALLED.get(name, name))


def _opened(path: Path) -> Any:
    try:
        import anndata  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        fix = 'install the extra "anndata" of dither-tasks'
        raise Refused(Problem(f"{path} is read with anndata, which is not installed", help=fix)) from None
    if not path.is_file():
        raise Refused(f"{path}: is no plain file" if path.exists() else f"{path}: No such file or directory")
    try:
        return anndata.read_h5ad(path)
    except Exception as error:  # its readers and those of HDF5 raise what they like
        raise Refused(f"{path}: cannot be read as AnnData ({type(error).__name__}: {str(error)[:160]})") from None


def _of_regions(table: Any, theirs: dict[str, Any], path: Path) -> Arrays:
    """Read the columns of `obs` that are known, or seem to be; others are left alone."""
    columns = {ours: table[there].to_numpy() for ours, there in theirs.items()}
    asked = [name for name in columns if name in PLACES[1:] or speaks_of_cell(name)]
    if odd := [name for name in asked if columns[name].dtype.kind not in "biuf"]:
        raise Refused(
            [
                Problem(f'{path}: obs, column "{theirs[name]}" holds {table[theirs[name]].dtype}, expected numbers')
                for name in odd
            ]
        )
    numbers = [
        name for name, values in columns.items() if values.dtype.kind in "biuf" and (name in asked or ":" in name)
    ]
    stacked = [columns[name].astype(np.float64) for name in numbers]
    found = sort_columns(numbers, path).arrays(np.stack(stacked, 1) if stacked else np.zeros((len(table), 0)))
    del found["features"], found["motifs"]
    return found
