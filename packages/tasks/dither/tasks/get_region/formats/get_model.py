"""get_model's zarr stores: peaks by name, motifs, and for each cell type accessibility, expression and TSS.

    data (P M)   peak_names (P), as "chr1:9790-10675"   motif_names (M)   atpm/CELL (P)
    expression_positive/CELL, expression_negative/CELL (P)   tss/CELL (P 2)
    gene_idx_info_index, gene_idx_info_name, gene_idx_info_strand (G)

Only the first three must be there. Letters: P peaks, M motifs, C cell types, G genes.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Shaped

from dither.registry.config.errors import Problem, Refused

from .peaks import Places, decoded, parse_names
from .raw_arrays import RawArrays, collect_problems, untold
from .region_checks import first_of
from .store_survey import GENES, GROUPS, store_cells, survey
from .zarr_array import Format, ZarrArray, ZarrWriter, write_array, write_group
from .zarr_header import is_group

__all__ = ["is_store", "place_in_store", "places_of", "read_genes", "read_store", "write_store"]

CHUNK: Final = 1000
"""Rows of a chunk, as get_model has them."""
CALLED: Final = {"features": "data", "motifs": "motif_names"}
"""Names of arrays in a store that are others here."""


def is_store(path: Path) -> bool:
    """Tell whether a path is a zarr group in a folder."""
    return path.is_dir() and (is_group(path) or path.suffix == ".zarr")


def read_store(path: Path, *, empty_chunks: bool = False) -> RawArrays:
    """Return what a store says, its features to be read block by block, and what of it cannot be read.

    Args:
        path: The store.
        empty_chunks: Whether chunks that are not there are empty; otherwise they count as lost.

    Raises:
        Refused: There is no store.
    """
    opened, told = survey(path, empty_chunks=empty_chunks)
    arrays: dict[str, Any] = {"features": opened["data"]} if "data" in opened else {}
    with collect_problems(told):
        if "motif_names" in opened:
            arrays["motifs"] = decoded(opened["motif_names"][:], f"{path}: motif_names")
    with collect_problems(told):
        if "peak_names" in opened:
            arrays |= dict(zip(("chromosome", "start", "end"), places_of(opened["peak_names"], path), strict=True))
    arrays |= _by_cell(opened, store_cells(path), told)
    if all(name in opened for name in GENES):
        with collect_problems(told):
            arrays |= read_genes(opened, path)
    return RawArrays(arrays, place_in_store, tuple(told), lambda name: CALLED.get(name, name))


def places_of(names: ZarrArray, path: Path) -> Places:
    """Return where the peaks of a store are.

    Raises:
        Refused: Names the rows that are no place.
    """
    where = f"{path}: peak_names"
    return parse_names(decoded(names[:], where), lambda row: f"{where}, row {row}")


def _by_cell(arrays: Mapping[str, ZarrArray], cells: tuple[str, ...], told: list[Problem]) -> dict[str, Any]:
    """Return what is known of cell types; what is not known of one is 0, and named in `untold`."""
    groups = {group: [f"{group}/{cell}" for cell in cells] for group in GROUPS}
    read: dict[str, Shaped[np.ndarray, "P ..."]] = {}
    for name in (name for names in groups.values() for name in names if name in arrays):
        with collect_problems(told):
            read[name] = arrays[name][:]
    stacked = {group: _stacked([read.get(name) for name in names]) for group, names in groups.items()}
    found: dict[str, Any] = {"cells": np.array(cells, np.str_)} if cells else {}
    found |= {name: values for name in ("atpm", "tss") if (values := stacked[name]) is not None}
    strands = [values for group in GROUPS[1:3] if (values := stacked[group]) is not None]
    if len(strands) == len(GROUPS[1:3]):
        found["expression"] = np.stack(strands, -1)
    known = {"atpm": groups["atpm"], "expression": groups[GROUPS[1]], "tss": groups["tss"]}
    return found | untold(
        {name: [one in arrays for one in names] for name, names in known.items() if name in found}, cells
    )


def _stacked(values: Sequence[Shaped[np.ndarray, "P ..."] | None]) -> Shaped[np.ndarray, "P C ..."] | None:
    """Put what is known of each cell type beside each other, 0 where nothing is; None where nothing is of any."""
    there = [each for each in values if each is not None]
    if not there:
        return None
    sort = np.result_type(np.int8 if there[0].ndim > 1 else np.float32, *there)
    whole = np.zeros((len(values), *there[0].shape), sort)
    for number, each in enumerate(values):
        if each is not None:
            whole[number] = each
    return whole.swapaxes(0, 1)


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
        arrays: As `read_store` finds them; features, motifs, chromosome, start and end must be there. Where only
            `open` is known of a cell type, atpm is 0 or 1; what is not known of one is not written.
        version: Of zarr's format; get_model reads 2.

    Raises:
        Refused: Something is there already, or a cell type cannot give a folder its name.
    """
    if path.exists() and any(path.iterdir()):
        raise Refused(f"{path}: is there already, and stays as it is")
    cells = [str(cell) for cell in arrays.get("cells", ())]
    if odd := [cell for cell in cells if not cell or cell.startswith(".") or "/" in cell or "\\" in cell]:
        raise Refused([Problem(f'{path}: the cell type "{cell}" cannot give an array its name') for cell in odd])
    write_group(path, version)
    names = zip(arrays["chromosome"], arrays["start"], arrays["end"], strict=True)
    write_array(path / "peak_names", np.array([f"{c}:{int(s)}-{int(e)}" for c, s, e in names], np.str_), None, version)
    write_array(path / "motif_names", np.asarray(arrays["motifs"]).astype(np.str_), None, version)
    features = arrays["features"]
    data = ZarrWriter(path / "data", features.shape, np.dtype(np.float32), CHUNK, version)
    for start in range(0, len(features), CHUNK):
        data.write(np.asarray(features[start : start + CHUNK], np.float32))
    for group, cell, values in _by_name(arrays, cells):
        if not (path / group).exists():
            write_group(path / group, version)
        write_array(path / group / cell, np.ascontiguousarray(values), CHUNK, version)
    for name in GENES:
        if (short := name.replace("_idx_info", "")) in arrays:
            write_array(path / name, np.asarray(arrays[short]), None, version)


def _by_name(arrays: Mapping[str, Any], cells: Sequence[str]) -> Iterator[tuple[str, str, Shaped[np.ndarray, "P ..."]]]:
    """Yield group, cell type and values of all that is known."""
    gone = {*map(str, arrays.get("untold", ()))}

    def known(name: str, cell: str) -> bool:
        return name in arrays and f"{name}:{cell}" not in gone

    for number, cell in enumerate(cells):
        for name in ("atpm", "open"):
            if known(name, cell):
                yield "atpm", cell, np.asarray(arrays[name][:, number], np.float32)
                break
        if known("expression", cell):
            for strand, group in enumerate(GROUPS[1:3]):
                yield group, cell, np.asarray(arrays["expression"][:, number, strand], np.float32)
        if known("tss", cell):
            yield "tss", cell, np.asarray(arrays["tss"][:, number]).astype(np.int8)


def read_genes(opened: Mapping[str, ZarrArray], path: Path) -> dict[str, Any]:
    """Return `gene_index`, `gene_name` and `gene_strand`.

    Args:
        opened: The arrays of the store by name; those of genes are there.
        path: The store, for messages.

    Raises:
        Refused: They are not of one length, genes are on no strand, or on peaks that are not there.
    """
    index, name, strand = (opened[each][:] for each in GENES)
    name, strand = decoded(name, f"{path}: {GENES[1]}"), decoded(strand, f"{path}: {GENES[2]}")
    if index.ndim != 1 or len({len(index), len(name), len(strand)}) > 1:
        said = ", ".join(f"{each} {opened[each].shape}" for each in GENES)
        raise Refused(f"{path}: what is known of genes has different shapes, expected (G,) for G genes: {said}")
    peaks = next((len(opened[each]) for each in ("peak_names", "data") if each in opened), None)
    wrong: list[str] = []
    if peaks is not None:
        away = ~np.isin(index, np.arange(peaks))
        wrong += _rows(GENES[0], away, lambda row: f"{index[row]} is none of the {peaks:,} peaks, 0 to {peaks - 1}")
    odd = ~np.isin(strand, ["+", "-"])
    wrong += _rows(GENES[2], odd, lambda row: f'"{strand[row]}" is neither "+" nor "-"')
    if wrong:
        raise Refused([Problem(f"{path}: {what}") for what in wrong])
    return {"gene_index": index, "gene_name": name, "gene_strand": strand}


def _rows(name: str, wrong: Bool[np.ndarray, " G"], say: Callable[[int], str]) -> Iterator[str]:
    rows = np.flatnonzero(wrong).tolist()
    yield from first_of((f"{name}, row {row}: {say(row)}" for row in rows), len(rows))
