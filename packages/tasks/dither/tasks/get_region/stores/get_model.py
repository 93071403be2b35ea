"""get_model's zarr stores: peaks by name, motifs, and for each cell type accessibility, expression and TSS.

    data (P M)   peak_names (P), as "chr1:9790-10675"   motif_names (M)   atpm/CELL (P)
    expression_positive/CELL, expression_negative/CELL (P)   tss/CELL (P 2)
    gene_idx_info_index, gene_idx_info_name, gene_idx_info_strand (G)

Only the first three must be there. Letters: P peaks, M motifs, C cell types, G genes.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped

from dither.registry.problems import Problem, Refused

from .header import is_array, is_group
from .peak_names import parse_names
from .zarr_array import ZarrArray
from .zarr_writing import Format, ZarrWriter, write_array, write_group

__all__ = ["is_store", "open_arrays", "place_in_store", "read_store", "store_cells", "write_store"]

GROUPS: Final = ("atpm", "expression_positive", "expression_negative", "tss")
GENES: Final = ("gene_idx_info_index", "gene_idx_info_name", "gene_idx_info_strand")
CHUNK: Final = 1000
"""Rows of a chunk, as get_model has them."""
NAMES: Final = 1 << 29
"""Bytes that the names of peaks may take."""


def is_store(path: Path) -> bool:
    """Tell whether a path is a zarr group in a folder."""
    return path.is_dir() and (is_group(path) or path.suffix == ".zarr")


def store_cells(path: Path) -> tuple[str, ...]:
    """Return the cell types that a store tells something of, sorted."""
    found = set()
    for group in GROUPS:
        if (path / group).is_dir():
            found |= {folder.name for folder in (path / group).iterdir() if folder.is_dir()}
    return tuple(sorted(found))


def open_arrays(path: Path) -> dict[str, ZarrArray]:
    """Open the arrays of a store by name, of which nothing is read yet.

    Raises:
        Refused: Every array that is missing, damaged or of the wrong kind or shape, by name.
    """
    if not is_group(path):
        fix = "a store has .zgroup or zarr.json at its top; unpack it first if it came in one file"
        what = f"{path}: is no zarr store" if path.exists() else f"{path}: No such file or directory"
        raise Refused(Problem(what, help=fix))
    problems: list[Problem] = []
    arrays = dict(_opened(path, problems))
    peaks = arrays["peak_names"].shape if "peak_names" in arrays else None
    for name, array in arrays.items():
        problems += _misshapen(path, name, array, peaks)
    if problems:
        raise Refused(problems)
    return arrays


def read_store(path: Path) -> dict[str, Any]:
    """Return what a store says, under the names that `check_arrays` knows; its features are read block by block.

    Raises:
        Refused: Every array that is missing, damaged or of the wrong kind or shape, by name.
    """
    arrays = open_arrays(path)
    found: dict[str, Any] = {"features": arrays["data"], "motifs": arrays["motif_names"][:].astype(np.str_)}
    places = parse_names(arrays["peak_names"][:].astype(np.str_), f"{path}: peak_names")
    found |= dict(zip(("chromosome", "start", "end"), places, strict=True))
    if cells := store_cells(path):
        found |= _by_cell(arrays, cells, len(places[0]))
    if all(name in arrays for name in GENES):
        found |= {name.replace("_idx_info", ""): arrays[name][:] for name in GENES}
    return found


def _opened(path: Path, problems: list[Problem]) -> Iterator[tuple[str, ZarrArray]]:
    """Yield the arrays of a store by name; what cannot be opened goes to the problems."""
    names = ["data", "peak_names", "motif_names"]
    names += [f"{group}/{cell}" for group in GROUPS for cell in store_cells(path) if (path / group / cell).is_dir()]
    names += [name for name in GENES if (path / name).is_dir()]
    for name in names:
        try:
            if not (path / name).is_dir():
                there = ", ".join(sorted(each.name for each in path.iterdir() if is_array(each))) or "none"
                raise Refused(f'{path}: has no array "{name}"; it has {there}')
            yield name, ZarrArray(path / name)
        except Refused as refused:
            problems += refused.problems


def _misshapen(path: Path, name: str, array: ZarrArray, peaks: tuple[int, ...] | None) -> Iterator[Problem]:
    kind = array.dtype.kind
    if name.endswith("_names") or name in GENES[1:]:
        if kind not in "US":
            yield Problem(f'{path}: "{name}" holds {array.dtype}, expected text')
        elif array.ndim != 1:
            yield Problem(f'{path}: "{name}" has the shape {array.shape}, expected one axis')
        elif len(array) * max(array.dtype.itemsize, 4) > NAMES:
            yield Problem(f'{path}: "{name}" would take {len(array) * array.dtype.itemsize:,} bytes of text')
        return
    if kind not in "biuf":
        yield Problem(f'{path}: "{name}" holds {array.dtype}, expected numbers')
    if name in GENES or peaks is None:
        return
    axes = {"data": 2, "tss": 2}.get(name.partition("/")[0], 1)
    if array.ndim != axes or array.shape[:1] != peaks or (name.startswith("tss/") and array.shape[1:] != (2,)):
        wanted = {"data": "(P, M)", "tss": "(P, 2)"}.get(name.partition("/")[0], "(P,)")
        yield Problem(f'{path}: "{name}" has the shape {array.shape}, expected {wanted} with P = {peaks[0]} peaks')


def _by_cell(arrays: Mapping[str, ZarrArray], cells: tuple[str, ...], peaks: int) -> dict[str, Any]:
    """Return what is known of cell types; a cell type of which one thing is not known has zeros there."""

    def stacked(group: str, *rest: int) -> Shaped[np.ndarray, "P C ..."]:
        sort = np.int8 if group == "tss" else np.float32
        whole = np.zeros((len(cells), peaks, *rest), sort)
        for number, cell in enumerate(cells):
            if f"{group}/{cell}" in arrays:
                whole[number] = arrays[f"{group}/{cell}"][:]
        return whole.swapaxes(0, 1)

    there = {name.partition("/")[0] for name in arrays}
    found: dict[str, Any] = {"cells": np.array(cells, np.str_)}
    if "atpm" in there:
        found["atpm"] = stacked("atpm")
    if {"expression_positive", "expression_negative"} <= there:
        found["expression"] = np.stack([stacked("expression_positive"), stacked("expression_negative")], -1)
    if "tss" in there:
        found["tss"] = stacked("tss", 2)
    return found


def place_in_store(array: str, row: int, column: str) -> str:
    """Say where in a store a value stands, for `check_arrays`."""
    if array == "features":
        return f'data, row {row}, column "{column}"'
    if array in ("atpm", "expression", "tss", "open"):
        return f"{column.replace(':', '/', 1)}, row {row}"
    return f"peak_names, row {row}"


def write_store(path: Path, arrays: Mapping[str, Any], version: Format = 2) -> None:
    """Write a store as get_model has it.

    Args:
        path: The folder; made if need be, and empty.
        arrays: As `read_store` returns them; features, motifs, chromosome, start and end must be there. Where only
            `open` is known of cell types, atpm is 0 or 1.
        version: Of zarr's format; get_model reads 2.
    """
    if path.exists() and any(path.iterdir()):
        raise Refused(f"{path}: is there already, and stays as it is")
    write_group(path, version)
    names = zip(arrays["chromosome"], arrays["start"], arrays["end"], strict=True)
    write_array(path / "peak_names", np.array([f"{c}:{int(s)}-{int(e)}" for c, s, e in names], np.str_), None, version)
    write_array(path / "motif_names", np.asarray(arrays["motifs"]).astype(np.str_), None, version)
    features = arrays["features"]
    data = ZarrWriter(path / "data", features.shape, np.dtype(np.float32), CHUNK, version)
    for start in range(0, len(features), CHUNK):
        data.write(np.asarray(features[start : start + CHUNK], np.float32))
    for group, values in _groups_of(arrays):
        write_group(path / group, version)
        for number, cell in enumerate(arrays["cells"]):
            write_array(path / group / str(cell), np.ascontiguousarray(values[:, number]), CHUNK, version)
    for name in GENES:
        if (short := name.replace("_idx_info", "")) in arrays:
            write_array(path / name, np.asarray(arrays[short]), None, version)


def _groups_of(arrays: Mapping[str, Any]) -> Iterator[tuple[str, Shaped[np.ndarray, "P C ..."]]]:
    atpm = arrays.get("atpm", arrays.get("open"))
    if atpm is not None:
        yield "atpm", np.asarray(atpm, np.float32)
    if "expression" in arrays:
        expression = np.asarray(arrays["expression"], np.float32)
        yield "expression_positive", expression[..., 0]
        yield "expression_negative", expression[..., 1]
    if "tss" in arrays:
        yield "tss", np.asarray(arrays["tss"]).astype(np.int8)
