"""AnnData (.h5ad): regions as observations and motifs as variables, or cell types and regions.

In the first form, places and values of cell types are columns of `obs`; in the second, motifs are
in `varm`, and single cells are averaged into cell types by a column of `obs`. Letters: P regions, K
columns, N cells, C cell types.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from dither.registry.config.errors import Refused, did_you_mean

from ...missing_library import require_extra
from ...prepared.arrays import LIMIT, Arrays
from .column_names import is_of_cell, numbered, standard_names
from .region_checks import (
    NAME,
    PLACES,
    RawArrays,
    collect_problems,
    parse_names,
    texts_of,
)
from .tables import numeric_columns

__all__ = ["read_anndata"]


MAX_CELL_TYPES = 30
"""Largest number of rows that are read as cell types; more may be single cells."""
BARCODE = re.compile(r".*[ACGT]{8,}.*")
"""Name of a single cell."""
CELL_NAMES = "obs_names"
"""Value of `group_by` that takes every row as a cell type."""


def read_anndata(path: Path, group_by: str | None) -> RawArrays:
    """Read an .h5ad file; raise Refused if it is damaged or holds no regions and motifs.

    `group_by` is the column of `obs` whose cells are averaged into one cell type, or "obs_names".
    """
    file = _open(path)
    names = file.obs_names.to_numpy().astype(np.str_)
    motifs = file.var_names.to_numpy().astype(np.str_)
    by_cell: Arrays = {}
    notes: list[str] = []
    features = {"features": "X", "motifs": "var_names"}
    # The first name decides: `parse_names` reports others that are not places.
    if _is_region(motifs[:1]) and not _is_region(names[:1]):
        file = file.T
        names = motifs
        by_cell = _of_cells(file, path, group_by, notes)
        features = {"features": "varm", "open": "X", "atpm": "X"}
    elif group_by is not None:
        message = f"{path}: rows are regions, not cells: nothing to group"
        raise Refused(message, code="no-effect")

    originals = list(map(str, file.obs.columns))
    columns = dict(zip(standard_names(originals), file.obs.columns, strict=True))

    def locate(array: str, row: int, column: str) -> str:
        where = f"{'X' if array == 'features' else 'obs'}, row {row} (from 0)"
        if not column:
            return where
        return f'{where}, column "{columns.get(column, column)}"'

    arrays, problems = numeric_columns(
        _value_columns(file, columns), path, lambda row: f"obs, row {row} (from 0)"
    )
    # In a table other columns are motifs, but here these are X.
    del arrays["features"], arrays["motifs"]
    with collect_problems(problems):
        if all(name in columns for name in PLACES):
            chromosome = file.obs[columns["chromosome"]].to_numpy()
            arrays["chromosome"] = texts_of(
                chromosome,
                lambda row: f"{path}: {locate('chromosome', row, 'chromosome')}",
            )
        else:
            arrays |= parse_names(
                names, lambda row: f"{path}: obs_names, row {row} (from 0)"
            )
    arrays |= by_cell or {"features": _dense(file.X, path), "motifs": motifs}
    return RawArrays(
        arrays=arrays,
        locate=locate,
        problems=tuple(problems),
        display_name=lambda name: features.get(name, name),
        notes=tuple(notes),
    )


def _open(path: Path) -> Any:
    require_extra("anndata", str(path))
    import anndata  # type: ignore[import-not-found,unused-ignore]

    try:
        file = anndata.read_h5ad(path)
    # Readers of AnnData and HDF5 raise almost anything.
    except Exception as error:
        text = f"{type(error).__name__}: {str(error)[:160]}"
        message = f"{path}: cannot be read as AnnData ({text})"
        raise Refused(message, code="damaged-file") from None
    if file.X is None:
        raise Refused(f"{path}: no matrix X", code="missing-array")
    return file


def _value_columns(file: Any, columns: Mapping[str, Any]) -> list[tuple[str, str, Any]]:
    """Return standard name, own name and values of places and of values of cell types.

    Other columns are annotations, such as text, which a table of regions would not have.
    """
    result = []
    for name, column in columns.items():
        values = file.obs[column].to_numpy()
        is_known = name in ("start", "end") or is_of_cell(name)
        if is_known or (":" in name and values.dtype.kind in "biuf"):
            result.append((name, str(column), values))
    return result


def _is_region(first: Shaped[ndarray, " _"]) -> bool:
    return any(NAME.fullmatch(name) for name in first.tolist())


def _dense(matrix: Any, path: Path) -> Shaped[ndarray, "P K"]:
    # A sparse matrix may be much larger in memory than in the file.
    # 4 bytes a number, the type of the features is float32.
    if matrix.shape[0] * matrix.shape[1] * 4 > LIMIT:
        message = f"{path}: the matrix of shape {matrix.shape} is above {LIMIT:,} bytes"
        raise Refused(message, code="too-large")
    return np.asarray(matrix if isinstance(matrix, ndarray) else matrix.toarray())


def _of_cells(file: Any, path: Path, group_by: str | None, notes: list[str]) -> Arrays:
    """Return motifs, cell types and accessibility of regions x cells; motifs are in `obsm`."""
    tables = {name: file.obsm[name] for name in file.obsm}
    if len(tables) != 1 and "motifs" not in tables:
        present = ", ".join(tables) or "none"
        message = (
            f"{path}: variables are regions, but their motifs are not in varm; it has"
        )
        fix = 'store the motifs as varm["motifs"], a DataFrame, '
        fix += "or regions as observations and motifs as variables"
        raise Refused(f"{message} {present}", help=fix, code="wrong-shape")

    table = tables.get("motifs", next(iter(tables.values())))
    # Features of an axis may be a DataFrame with names, or an array without.
    if hasattr(table, "columns"):
        features = _dense(table.to_numpy(), path)
        motifs = np.array(list(map(str, table.columns)), np.str_)
    else:
        features = _dense(table, path)
        motifs = numbered(features.shape[1])

    if group_by in (None, CELL_NAMES):
        if group_by is None:
            _check_cell_types(file.var, path)
        cells = file.var_names.to_numpy().astype(np.str_)
        values = _dense(file.X, path)
    else:
        cells, values = _grouped(file, path, group_by, notes)
    is_binary = bool(np.isin(values, (0, 1)).all())
    return {
        "features": features,
        "motifs": motifs,
        "cells": cells,
        "open" if is_binary else "atpm": values,
        "unknown": np.zeros(0, np.str_),
    }


def _check_cell_types(obs: Any, path: Path) -> None:
    """Raise Refused if rows look like single cells, which would become as many cell types."""
    barcodes = [name for name in obs.index if BARCODE.fullmatch(str(name))]
    if len(obs) <= MAX_CELL_TYPES and not barcodes:
        return
    columns = ", ".join(map(str, obs.columns)) or "none"
    message = f"{path}: {len(obs):,} rows, such as {obs.index[0]!r}: single cells?"
    fix = f"--group-by COLUMN averages the cells of a type (obs has {columns}); "
    fix += f"--group-by {CELL_NAMES} takes every row as a cell type"
    raise Refused(message, help=fix, code="wrong-shape")


def _grouped(
    file: Any, path: Path, column: str, notes: list[str]
) -> tuple[Shaped[ndarray, " C"], Shaped[ndarray, "P C"]]:
    """Return cell types and the mean of their cells, by a column of `obs`."""
    from pandas import factorize  # type: ignore[import-untyped,unused-ignore]
    from scipy.sparse import csr_matrix

    columns = list(map(str, file.var.columns))
    if column not in columns:
        message = f'{path}: no column "{column}" in obs'
        fix = did_you_mean(column, columns, f"columns: {', '.join(columns) or 'none'}")
        raise Refused(message, help=fix, code="unknown-value")
    labels = file.var[column].astype(object).to_numpy()
    codes, names = factorize(labels, sort=True)
    known = codes >= 0
    # C rows of N cells, whose nonzero entries are one over the cells of the type
    sizes = np.bincount(codes[known], minlength=len(names))
    entries = 1 / sizes[codes[known]]
    places = (codes[known], np.flatnonzero(known))
    mean = csr_matrix((entries, places), shape=(len(names), len(codes)))
    notes.append(f"{known.sum():,} cells averaged into {len(names)} types by {column}")
    if not known.all():
        notes.append(f"{(~known).sum():,} cells without {column} are left out")
    values = mean @ file.X.T
    return np.array(list(map(str, names)), np.str_), _dense(values.T, path)
