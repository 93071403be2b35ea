"""AnnData (.h5ad): regions as observations and motifs as variables, or cell types and regions.

In the first form, places and values of cell types are columns of `obs`; in the second, motifs are
in `varm`. Letters: P regions, K columns.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from dither.registry.config.errors import Refused

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


def read_anndata(path: Path) -> RawArrays:
    """Read an .h5ad file; raise Refused if it is damaged or holds no regions and motifs."""
    file = _open(path)
    names = file.obs_names.to_numpy().astype(np.str_)
    motifs = file.var_names.to_numpy().astype(np.str_)
    by_cell: Arrays = {}
    features = {"features": "X", "motifs": "var_names"}
    if _is_region(motifs[:1]) and not _is_region(names[:1]):
        file = file.T
        names = motifs
        by_cell = _of_cells(file, path)
        features = {"features": "varm", "open": "X", "atpm": "X"}

    originals = list(map(str, file.obs.columns))
    columns = dict(zip(standard_names(originals), file.obs.columns, strict=True))

    def locate(array: str, row: int, column: str) -> str:
        where = f"{'X' if array == 'features' else 'obs'}, row {row} (from 0)"
        if not column:
            return where
        shown = columns.get(column, column) if array in PLACES else column
        return f'{where}, column "{shown}"'

    arrays, problems = numeric_columns(
        _value_columns(file, columns), path, lambda row: f"obs, row {row} (from 0)"
    )
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
    arrays |= by_cell or {"features": _dense(file.X), "motifs": motifs}
    return RawArrays(
        arrays=arrays,
        locate=locate,
        problems=tuple(problems),
        display_name=lambda name: features.get(name, name),
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
    # A sparse matrix may be much larger in memory than in the file.
    if file.shape[0] * file.shape[1] * 4 > LIMIT:
        message = f"{path}: the matrix of shape {file.shape} is above {LIMIT:,} bytes"
        raise Refused(message, code="too-large")
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


def _dense(matrix: Any) -> Shaped[ndarray, "P K"]:
    return np.asarray(matrix if isinstance(matrix, ndarray) else matrix.toarray())


def _of_cells(file: Any, path: Path) -> Arrays:
    """Return motifs, cell types and accessibility of regions x cell types; motifs are in `obsm`."""
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
    if hasattr(table, "columns"):
        features = _dense(table.to_numpy())
        motifs = np.array(list(map(str, table.columns)), np.str_)
    else:
        features = _dense(table)
        motifs = numbered(features.shape[1])
    values = _dense(file.X)
    is_binary = bool(np.isin(values, (0, 1)).all())
    return {
        "features": features,
        "motifs": motifs,
        "cells": file.var_names.to_numpy().astype(np.str_),
        "open" if is_binary else "atpm": values,
        "unknown": np.zeros(0, np.str_),
    }
