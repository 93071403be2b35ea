"""Zarr stores of get_model: peaks by name, motifs, and accessibility, expression and TSS of each cell type.

    data (P M)   peak_names (P), as "chr1:9790-10675"   motif_names (M)   atpm/CELL (P)
    expression_positive/CELL, expression_negative/CELL (P)   tss/CELL (P 2)
    gene_idx_info_index, gene_idx_info_name, gene_idx_info_strand (G)

Only the first three are required. Letters: P peaks, M motifs, C cell types, G genes.

zarr reads a missing chunk as the fill value, and may leave out chunks that hold nothing else. An incomplete copy looks
the same, and regions without any motif would go unnoticed into training: missing chunks are errors unless an option
says that they are empty.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Shaped

from dither.registry.config.errors import Problem, Refused

from .peaks import Places, decoded, parse_names
from .raw_arrays import RawArrays, collect_problems, limited, unknown_array
from .zarr_store import Format, ZarrArray, is_array, is_group, listed, require_zarr, write_array, write_group

__all__ = [
    "GROUPS",
    "is_store",
    "locate_in_store",
    "open_arrays",
    "places_of",
    "read_genes",
    "read_store",
    "store_cells",
    "write_store",
]

CHUNK: Final = 1000
"""Rows of a chunk, as in get_model."""
NEEDED: Final = ("data", "peak_names", "motif_names")
GROUPS: Final = ("atpm", "expression_positive", "expression_negative", "tss")
"""Groups with one array per cell type."""
GENES: Final = ("gene_idx_info_index", "gene_idx_info_name", "gene_idx_info_strand")
DISPLAY_NAMES: Final = {"features": "data", "motifs": "motif_names"}
"""Arrays that have another name in a store."""
MAX_NAMES: Final = 1 << 29
"""Bytes that the names of peaks may take."""
SHOWN_CHUNKS: Final = 3
COPY_AGAIN: Final = "copy the store again, all of it"
EMPTY: Final = (
    "copy the store again; or, if its writer left out chunks that hold only the fill value, as zarr 3 does: "
    "empty_chunks = true, or prepare get --empty-chunks"
)


def is_store(path: Path) -> bool:
    """Whether a path is a folder with a zarr group."""
    return path.is_dir() and (is_group(path) or path.suffix == ".zarr")


def store_cells(path: Path) -> tuple[str, ...]:
    """Return the cell types of a store, sorted."""
    groups = [path / group for group in GROUPS if (path / group).is_dir()]
    return tuple(sorted({folder.name for group in groups for folder in group.iterdir() if _is_visible(folder)}))


def _is_visible(folder: Path) -> bool:
    return folder.is_dir() and not folder.name.startswith(".")


def open_arrays(path: Path, *, empty_chunks: bool = False) -> dict[str, ZarrArray]:
    """Open the arrays of a store by name, without reading values.

    Raises:
        Refused: Arrays or chunks are missing, or have a wrong type or shape.
    """
    arrays, problems = _survey(path, empty_chunks=empty_chunks)
    if problems:
        raise Refused(problems)
    return arrays


def _survey(path: Path, *, empty_chunks: bool) -> tuple[dict[str, ZarrArray], list[Problem]]:
    """Return the readable arrays of a store, and the problems of the others."""
    require_zarr()
    if not path.exists():
        raise Refused(f"{path}: No such file or directory", code="file-not-found")
    if not is_group(path):
        fix = "a store has .zgroup or zarr.json at its top; unpack it first if it is one file"
        raise Refused(Problem(f"{path}: not a zarr store", help=fix, code="unknown-format"))
    problems = [*_incomplete(path)]
    arrays: dict[str, ZarrArray] = {}
    for name in _names(path):
        with collect_problems(problems):
            arrays[name] = _open(path, name)
    sized = ["peak_names", "data", *(name for name in arrays if name.partition("/")[0] in GROUPS)]
    peaks = next((arrays[name].shape[:1] for name in sized if name in arrays), None)
    for name, array in [*arrays.items()]:
        wrong = [*_wrong_shape(path, name, array, peaks)]
        missing = [] if wrong or empty_chunks else array.missing()
        problems += wrong
        if missing:
            message = f'{path}: "{name}": {_missing_chunks(array, missing)}'
            problems.append(Problem(message, help=EMPTY, code="missing-chunk"))
        if wrong or (missing and array.fill != 0):  # the chunks that exist may have problems of their own
            del arrays[name]
    return arrays, problems


def _names(path: Path) -> list[str]:
    cells = store_cells(path)
    of_cells = [f"{group}/{cell}" for group in GROUPS for cell in cells if _is_visible(path / group / cell)]
    return [*NEEDED, *of_cells, *(name for name in GENES if (path / name).is_dir())]


def _open(path: Path, name: str) -> ZarrArray:
    if not (path / name).is_dir():
        existing = ", ".join(sorted(folder.name for folder in path.iterdir() if is_array(folder))) or "none"
        message = f'{path}: no array "{name}"; it has {existing}'
        raise Refused(Problem(message, help=COPY_AGAIN, code="missing-array"))
    return ZarrArray(path / name)


def _incomplete(path: Path) -> Iterator[Problem]:
    """Yield arrays that are listed but missing, and arrays without their counterpart."""
    names = _names(path)
    for name in listed(path):
        ours = name.partition("/")[0] in GROUPS or name in GENES
        if ours and not (path / name).is_dir():
            message = f'{path}: lists an array "{name}" that does not exist; the store is incomplete'
            yield Problem(message, help=COPY_AGAIN, code="missing-array")
    pairs = [[f"expression_{strand}/{cell}" for strand in ("positive", "negative")] for cell in store_cells(path)]
    for group in (*pairs, GENES):
        existing, missing = ([name for name in group if (name in names) == exists] for exists in (True, False))
        if existing and missing:
            message = f'{path}: has "{existing[0]}", but no "{missing[0]}"'
            yield Problem(message, help=COPY_AGAIN, code="missing-array")


def _missing_chunks(array: ZarrArray, missing: Sequence[tuple[int, ...]]) -> str:
    names = [f"{array.file_name(place)} ({array.file_rows(place)})" for place in missing]
    if len(missing) > SHOWN_CHUNKS and len(missing) == sum(1 for _ in array.grid()):
        return f"all {len(missing):,} chunks are missing, the first is {names[0]}"
    more = f", and {len(names) - SHOWN_CHUNKS:,} more" if len(names) > SHOWN_CHUNKS else ""
    return f"missing chunk{'s' * (len(missing) > 1)}: {', '.join(names[:SHOWN_CHUNKS])}{more}"


def _wrong_shape(path: Path, name: str, array: ZarrArray, peaks: tuple[int, ...] | None) -> Iterator[Problem]:
    def problem(message: str, code: str = "wrong-shape") -> Problem:
        return Problem(f'{path}: "{name}" {message}', code=code)

    kind = array.dtype.kind
    if name.endswith("_names") or name in GENES[1:]:
        if kind not in "US":
            yield problem(f"holds {array.dtype}, expected text")
        elif array.ndim != 1:
            yield problem(f"has the shape {array.shape}, expected one axis")
        elif len(array) * max(array.dtype.itemsize, 4) > MAX_NAMES:
            yield problem(f"takes {len(array) * array.dtype.itemsize:,} bytes of text", "too-large")
        return
    if kind not in "biuf":
        yield problem(f"holds {array.dtype}, expected numbers")
    if name in GENES or peaks is None:
        return
    group = name.partition("/")[0]
    axes = 2 if group in ("data", "tss") else 1
    if array.ndim != axes or array.shape[:1] != peaks or (group == "tss" and array.shape[1:] != (2,)):
        expected = {"data": "(P, M)", "tss": "(P, 2)"}.get(group, "(P,)")
        yield problem(f"has the shape {array.shape}, expected {expected} with P = {peaks[0]} peaks")


def read_store(path: Path, *, empty_chunks: bool = False) -> RawArrays:
    """Read a store; its features stay on disk.

    Args:
        path: The store.
        empty_chunks: Missing chunks hold the fill value; otherwise they are errors.

    Raises:
        Refused: There is no store.
    """
    stored, problems = _survey(path, empty_chunks=empty_chunks)
    arrays: dict[str, Any] = {"features": stored["data"]} if "data" in stored else {}
    with collect_problems(problems):
        if "motif_names" in stored:
            arrays["motifs"] = decoded(stored["motif_names"][:], f"{path}: motif_names")
    with collect_problems(problems):
        if "peak_names" in stored:
            arrays |= dict(zip(("chromosome", "start", "end"), places_of(stored["peak_names"], path), strict=True))
    arrays |= _by_cell(stored, store_cells(path), problems)
    if all(name in stored for name in GENES):
        with collect_problems(problems):
            arrays |= read_genes(stored, path)
    return RawArrays(arrays, locate_in_store, tuple(problems), lambda name: DISPLAY_NAMES.get(name, name))


def places_of(names: ZarrArray, path: Path) -> Places:
    """Return chromosome, start and end of the peaks of a store.

    Raises:
        Refused: Names the rows that are not a place.
    """
    where = f"{path}: peak_names"
    return parse_names(decoded(names[:], where), lambda row: f"{where}, row {row}")


def _by_cell(stored: Mapping[str, ZarrArray], cells: tuple[str, ...], problems: list[Problem]) -> dict[str, Any]:
    """Stack the arrays of cell types; values that are unknown of one are 0."""
    groups = {group: [f"{group}/{cell}" for cell in cells] for group in GROUPS}
    values: dict[str, Shaped[np.ndarray, "P ..."]] = {}
    for name in (name for names in groups.values() for name in names if name in stored):
        with collect_problems(problems):
            values[name] = stored[name][:]
    stacked = {group: _stack([values.get(name) for name in names]) for group, names in groups.items()}
    arrays: dict[str, Any] = {"cells": np.array(cells, np.str_)} if cells else {}
    arrays |= {name: array for name in ("atpm", "tss") if (array := stacked[name]) is not None}
    strands = [array for group in GROUPS[1:3] if (array := stacked[group]) is not None]
    if len(strands) == len(GROUPS[1:3]):
        arrays["expression"] = np.stack(strands, -1)
    known = {"atpm": groups["atpm"], "expression": groups[GROUPS[1]], "tss": groups["tss"]}
    flags = {name: [one in stored for one in names] for name, names in known.items() if name in arrays}
    return arrays | unknown_array(flags, cells)


def _stack(values: Sequence[Shaped[np.ndarray, "P ..."] | None]) -> Shaped[np.ndarray, "P C ..."] | None:
    """Stack arrays of cell types, 0 where one is None; None where all are."""
    arrays = [array for array in values if array is not None]
    if not arrays:
        return None
    dtype = np.result_type(np.int8 if arrays[0].ndim > 1 else np.float32, *arrays)
    stacked = np.zeros((len(values), *arrays[0].shape), dtype)
    for number, array in enumerate(values):
        if array is not None:
            stacked[number] = array
    return stacked.swapaxes(0, 1)


def locate_in_store(array: str, row: int, column: str) -> str:
    """Return the place of a value in a store; see `Locator`."""
    if array == "features":
        return f'data, row {row}, column "{column}"'
    if array in ("atpm", "expression", "tss", "open"):
        return f"{column.replace(':', '/', 1)}, row {row}"
    return f"peak_names, row {row}"


def write_store(path: Path, arrays: Mapping[str, Any], version: Format = 2) -> None:
    """Write a store of get_model.

    Args:
        path: A folder that is empty or does not exist.
        arrays: As `read_store` returns them. Where only `open` is known of a cell type, atpm is 0 or 1; what is
            unknown of one is not written.
        version: Version of zarr's format; get_model reads 2.

    Raises:
        Refused: The folder is not empty, or the name of a cell type cannot name a folder.
    """
    if path.exists() and any(path.iterdir()):
        raise Refused(f"{path} exists already", code="file-exists")
    cells = [str(cell) for cell in arrays.get("cells", ())]
    if invalid := [cell for cell in cells if not cell or cell.startswith(".") or "/" in cell or "\\" in cell]:
        raise Refused([Problem(f'{path}: the cell type "{cell}" cannot name an array') for cell in invalid])
    write_group(path, version)
    names = zip(arrays["chromosome"], arrays["start"], arrays["end"], strict=True)
    write_array(path / "peak_names", np.array([f"{c}:{int(s)}-{int(e)}" for c, s, e in names], np.str_), None, version)
    write_array(path / "motif_names", np.asarray(arrays["motifs"]).astype(np.str_), None, version)
    write_array(path / "data", arrays["features"], CHUNK, version, np.float32)
    for group, cell, values in _known_values(arrays, cells):
        if not (path / group).exists():
            write_group(path / group, version)
        write_array(path / group / cell, np.ascontiguousarray(values), CHUNK, version)
    for name in GENES:
        if (short := name.replace("_idx_info", "")) in arrays:
            write_array(path / name, np.asarray(arrays[short]), None, version)


def _known_values(
    arrays: Mapping[str, Any], cells: Sequence[str]
) -> Iterator[tuple[str, str, Shaped[np.ndarray, "P ..."]]]:
    """Yield group, cell type and values of all that is known."""
    unknown = {*map(str, arrays.get("unknown", ()))}

    def known(name: str, cell: str) -> bool:
        return name in arrays and f"{name}:{cell}" not in unknown

    for number, cell in enumerate(cells):
        if name := next((name for name in ("atpm", "open") if known(name, cell)), None):
            yield "atpm", cell, np.asarray(arrays[name][:, number], np.float32)
        if known("expression", cell):
            for strand, group in enumerate(GROUPS[1:3]):
                yield group, cell, np.asarray(arrays["expression"][:, number, strand], np.float32)
        if known("tss", cell):
            yield "tss", cell, np.asarray(arrays["tss"][:, number]).astype(np.int8)


def read_genes(stored: Mapping[str, ZarrArray], path: Path) -> dict[str, Any]:
    """Return `gene_index`, `gene_name` and `gene_strand`.

    Args:
        stored: Arrays of the store by name, with those of genes.
        path: The store, for messages.

    Raises:
        Refused: Lengths differ, a strand is not + or -, or an index is not that of a peak.
    """
    index, name, strand = (stored[gene][:] for gene in GENES)
    name, strand = decoded(name, f"{path}: {GENES[1]}"), decoded(strand, f"{path}: {GENES[2]}")
    if index.ndim != 1 or len({len(index), len(name), len(strand)}) > 1:
        shapes = ", ".join(f"{gene} {stored[gene].shape}" for gene in GENES)
        raise Refused(f"{path}: arrays of genes differ in shape, expected (G,): {shapes}", code="wrong-shape")
    peaks = next((len(stored[array]) for array in ("peak_names", "data") if array in stored), None)
    lines: list[str] = []
    if peaks is not None:
        outside = ~np.isin(index, np.arange(peaks))
        lines += _rows(GENES[0], outside, lambda row: f"{index[row]} is not a peak, expected 0 to {peaks - 1}")
    odd = ~np.isin(strand, ["+", "-"])
    lines += _rows(GENES[2], odd, lambda row: f'"{strand[row]}" is neither "+" nor "-"')
    if lines:
        raise Refused([Problem(f"{path}: {line}", code="invalid-sample") for line in lines])
    return {"gene_index": index, "gene_name": name, "gene_strand": strand}


def _rows(name: str, wrong: Bool[np.ndarray, " G"], describe: Callable[[int], str]) -> Iterator[str]:
    rows = np.flatnonzero(wrong).tolist()
    yield from limited((f"{name}, row {row}: {describe(row)}" for row in rows), len(rows))
