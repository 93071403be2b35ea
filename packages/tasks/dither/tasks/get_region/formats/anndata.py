"""AnnData files: regions as observations, motifs as variables.

The place of a region is in its name ("chr1:9790-10675"), or in the columns chromosome, start and end of `obs`. Values
of cell types are columns of `obs`, too: open:CELL, atpm:CELL, expression_positive:CELL and so on.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, Final

import numpy as np

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import LIMIT, Arrays
from .column_names import is_of_cell, parse_columns, standard_names
from .peaks import NAME, parse_names, texts_of
from .raw_arrays import RawArrays, collect_problems
from .region_checks import PLACES

__all__ = ["read_anndata"]

DISPLAY_NAMES: Final = {"features": "X", "motifs": "var_names"}


def read_anndata(path: Path) -> RawArrays:
    """Read an .h5ad file.

    Raises:
        Refused: anndata is not installed, or the file is damaged or does not hold regions and motifs.
    """
    file = _open(path)
    rows, motifs = file.shape
    if rows * motifs * 4 > LIMIT:
        raise Refused(f"{path}: matrix takes {rows * motifs * 4:,} bytes, the limit is {LIMIT:,}", code="too-large")
    if file.X is None:
        raise Refused(f"{path}: no matrix X", code="missing-array")
    names = file.obs_names.to_numpy().astype(np.str_)
    variables = file.var_names.to_numpy().astype(np.str_)
    if len(variables) and NAME.fullmatch(variables[0]) and not (len(names) and NAME.fullmatch(names[0])):
        message, fix = f"{path}: variables are regions, expected motifs", "store regions as observations"
        raise Refused(Problem(message, help=fix, code="wrong-shape"))
    columns = dict(zip(standard_names(list(map(str, file.obs.columns))), file.obs.columns, strict=True))

    def locate(array: str, row: int, column: str) -> str:
        where = f"{'X' if array == 'features' else 'obs'}, row {row} (from 0)"
        return where + (f', column "{columns.get(column, column) if array in PLACES else column}"' if column else "")

    problems: list[Problem] = []
    arrays = _of_regions(file.obs, columns, path)
    with collect_problems(problems):
        if all(name in columns for name in PLACES):
            chromosome = file.obs[columns["chromosome"]].to_numpy()
            where = f'column "{columns["chromosome"]}"'
            arrays["chromosome"] = texts_of(chromosome, lambda row: f"{path}: obs, row {row} (from 0), {where}")
        else:
            places = parse_names(names, lambda row: f"{path}: obs_names, row {row} (from 0)")
            arrays |= dict(zip(PLACES, places, strict=True))
    matrix = file.X if isinstance(file.X, np.ndarray) else file.X.toarray()
    arrays |= {"features": np.asarray(matrix), "motifs": variables}
    return RawArrays(arrays, locate, tuple(problems), lambda name: DISPLAY_NAMES.get(name, name))


def _open(path: Path) -> Any:
    try:
        import anndata  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        fix = "pip install 'dither-tasks[anndata]'"
        raise Refused(Problem(f"{path}: requires anndata", help=fix, code="missing-dependency")) from None
    if not path.exists():
        raise Refused(f"{path}: No such file or directory", code="file-not-found")
    if not path.is_file():
        raise Refused(f"{path}: not a regular file", code="unreadable-file")
    try:
        return anndata.read_h5ad(path)
    except Exception as error:  # readers of AnnData and HDF5 raise almost anything
        message = f"{path}: cannot be read as AnnData ({type(error).__name__}: {str(error)[:160]})"
        raise Refused(message, code="damaged-file") from None


def _of_regions(table: Any, names: dict[str, Any], path: Path) -> Arrays:
    """Read the columns of `obs` that are known, or look as if they were; others are ignored."""
    columns = {name: table[original].to_numpy() for name, original in names.items()}
    needed = [name for name in columns if name in PLACES[1:] or is_of_cell(name)]
    if odd := [name for name in needed if columns[name].dtype.kind not in "biuf"]:
        messages = (
            f'{path}: obs, column "{names[name]}" holds {table[names[name]].dtype}, expected numbers' for name in odd
        )
        raise Refused([Problem(message, code="wrong-shape") for message in messages])
    numbers = [
        name for name, values in columns.items() if values.dtype.kind in "biuf" and (name in needed or ":" in name)
    ]
    stacked = [columns[name].astype(np.float64) for name in numbers]
    arrays = parse_columns(numbers, path).arrays(np.stack(stacked, 1) if stacked else np.zeros((len(table), 0)))
    del arrays["features"], arrays["motifs"]
    return arrays
