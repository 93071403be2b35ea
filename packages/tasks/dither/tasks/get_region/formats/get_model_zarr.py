"""Zarr stores of get_model: peaks by name, motifs, and accessibility, expression and TSS of each cell type.

    data (P M)   peak_names (P), as "chr1:9790-10675"   motif_names (M)   atpm/CELL (P)
    expression_positive/CELL, expression_negative/CELL (P)   tss/CELL (P 2)
    gene_idx_info_name, gene_idx_info_index (G)

Only the first three are required; other arrays are not read. zarr 3 leaves out chunks that hold
only the fill value, which look like those of an incomplete copy: they are read as such, and noted,
or refused if an option says so. Names are always complete. Letters: P peaks, M motifs, C cell
types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np

from dither.registry.config.errors import Problem, Refused

from .region_checks import PLACES, RawArrays, collect_problems, decoded, parse_names, stack_cells
from .zarr_array import COPY_AGAIN, ZarrArray, is_group

__all__ = ["read_store"]

NEEDED: Final = ("data", "peak_names", "motif_names")
STRANDS: Final = ("expression_positive", "expression_negative")
GROUPS: Final = ("atpm", *STRANDS, "tss")
"""Groups with one array per cell type."""
DISPLAY_NAMES: Final = {"features": "data", "motifs": "motif_names"}
"""Arrays that have another name in a store."""
SHOWN_CHUNKS: Final = 3
TEXTS: Final = NEEDED[1:]
"""Arrays whose chunks are never all fill value."""


def _cells(path: Path) -> list[str]:
    """Return the cell types of a store, sorted."""
    folders = (
        folder for group in GROUPS if (path / group).is_dir() for folder in (path / group).iterdir()
    )
    return sorted(
        {folder.name for folder in folders if folder.is_dir() and not folder.name.startswith(".")}
    )


def _survey(
    path: Path, *, empty_chunks: bool
) -> tuple[dict[str, ZarrArray], list[Problem], list[str]]:
    """Return the readable arrays of a store, the problems of the others, and notes."""
    if not path.exists():
        raise Refused(f"{path}: No such file or directory", code="file-not-found")
    if not is_group(path):
        fix = "a store has .zgroup or zarr.json at its top; unpack it first if it is one file"
        raise Refused(Problem(f"{path}: not a zarr store", help=fix, code="unknown-format"))
    cells = _cells(path)
    existing = [
        f"{group}/{cell}" for group in GROUPS for cell in cells if (path / group / cell).is_dir()
    ]
    existing += [name for name in NEEDED if (path / name).is_dir()]
    problems = [*_absent(path, existing, cells)]
    arrays: dict[str, ZarrArray] = {}
    notes: list[str] = []
    for name in existing:
        with collect_problems(problems):
            arrays[name] = ZarrArray(path / name)
    sized = ["peak_names", "data", *(name for name in arrays if name.partition("/")[0] in GROUPS)]
    peaks = next((arrays[name].shape[:1] for name in sized if name in arrays), None)
    for name, array in [*arrays.items()]:
        wrong = [*_wrong_shape(path, name, array, peaks)]
        if not wrong and (missing := array.missing()):
            note = f'{path}: "{name}": {_missing_chunks(array, missing)}'
            if name in TEXTS or not empty_chunks:
                wrong = [Problem(note, help=COPY_AGAIN, code="missing-chunk")]
            else:
                notes.append(
                    f"{note}; read as {array.fill}: left out by the writer, or the copy is incomplete"
                )
        problems += wrong
        if any(problem.code != "missing-chunk" or array.fill != 0 for problem in wrong):
            del arrays[name]  # otherwise the chunks that exist may have problems of their own
    return arrays, problems, notes


def _absent(path: Path, existing: Sequence[str], cells: Sequence[str]) -> Iterator[Problem]:
    """Yield arrays that are required, or required by the others of their group."""
    for together in (NEEDED, *([f"{strand}/{cell}" for strand in STRANDS] for cell in cells)):
        if together is NEEDED or not {*together}.isdisjoint(existing):
            for name in (name for name in together if name not in existing):
                message = f'{path}: no array "{name}"; it has {", ".join(existing) or "none"}'
                yield Problem(message, help=COPY_AGAIN, code="missing-array")


def _missing_chunks(array: ZarrArray, missing: Sequence[tuple[int, ...]]) -> str:
    names = [
        f"{array.file_name(place)} ({array.file_rows(place)})" for place in missing[:SHOWN_CHUNKS]
    ]
    more = f", and {len(missing) - SHOWN_CHUNKS:,} more" if len(missing) > SHOWN_CHUNKS else ""
    return f"missing chunk{'s' * (len(missing) > 1)}: {', '.join(names)}{more}"


def _wrong_shape(
    path: Path,
    name: str,
    array: ZarrArray,
    peaks: tuple[int, ...] | None,
) -> Iterator[Problem]:
    is_text = name in TEXTS
    group = name.partition("/")[0]
    axes = 2 if group in ("data", "tss") else 1
    text = ""
    if array.dtype.kind not in ("US" if is_text else "biuf"):
        text = f"holds {array.dtype}, expected {'text' if is_text else 'numbers'}"
    elif array.ndim != axes or (group == "tss" and array.shape[1] != 2):
        text = f"has the shape {array.shape}, expected {('(P,)', '(P, 2)' if group == 'tss' else '(P, M)')[axes - 1]}"
    elif not is_text and array.shape[:1] != peaks:
        text = f"has the shape {array.shape}, expected {peaks} for the peaks of the other arrays"
    if text:
        yield Problem(f'{path}: "{name}" {text}', code="wrong-shape")


def read_store(path: Path, *, empty_chunks: bool = True) -> RawArrays:
    """Read a store; its features stay on disk. Raises Refused for a path without a store."""
    stored, problems, notes = _survey(path, empty_chunks=empty_chunks)
    arrays: dict[str, Any] = {"features": stored["data"]} if "data" in stored else {}
    texts = {}
    for name in (name for name in TEXTS if name in stored):
        with collect_problems(problems):
            texts[name] = decoded(stored[name][:], f"{path}: {name}")
    arrays |= {"motifs": texts["motif_names"]} if "motif_names" in texts else {}
    if "peak_names" in texts:
        with collect_problems(problems):
            places = parse_names(texts["peak_names"], lambda row: f"{path}: peak_names, row {row}")
            arrays |= dict(zip(PLACES, places, strict=True))
    with collect_problems(problems):
        arrays |= _genes(path)
    of_cells = [array for name, array in stored.items() if name.partition("/")[0] in GROUPS]
    arrays |= _by_cell(stored, _cells(path), len(of_cells[0]) if of_cells else 0, problems)
    return RawArrays(
        arrays, _locate, tuple(problems), lambda name: DISPLAY_NAMES.get(name, name), tuple(notes)
    )


def _genes(path: Path) -> dict[str, Any]:
    """Return names of genes and the number of the peak where each is transcribed; nothing if the store has none."""
    folders = [path / f"gene_idx_info_{name}" for name in ("name", "index")]
    if not all(folder.is_dir() for folder in folders):
        return {}
    names, regions = (ZarrArray(folder) for folder in folders)
    for folder, array in zip(folders, (names, regions), strict=True):
        if missing := array.missing():
            message = f"{folder}: {_missing_chunks(array, missing)}"
            raise Refused(Problem(message, help=COPY_AGAIN, code="missing-chunk"))
    return {"gene": decoded(names[:], str(folders[0])), "gene_region": regions[:]}


def _by_cell(
    stored: Mapping[str, ZarrArray],
    cells: Sequence[str],
    rows: int,
    problems: list[Problem],
) -> dict[str, Any]:
    """Return the arrays of cell types; values that are unknown of one are 0."""
    read: dict[str, dict[str, Any]] = {group: {} for group in GROUPS}
    for group, cell in (
        (group, cell) for group in GROUPS for cell in cells if f"{group}/{cell}" in stored
    ):
        with collect_problems(problems):
            read[group][cell] = stored[f"{group}/{cell}"][:]
    plus, minus = (read[strand] for strand in STRANDS)
    both = {cell: np.stack([plus[cell], minus[cell]], -1) for cell in plus if cell in minus}
    values = {"atpm": read["atpm"], "expression": both, "tss": read["tss"]}
    return stack_cells(
        {kind: of_cells for kind, of_cells in values.items() if of_cells}, cells, rows
    )


def _locate(array: str, row: int, column: str) -> str:
    """Return the place of a value in a store; see `Locator`."""
    if array == "features":
        return f'data, row {row}, column "{column}"'
    if array == "gene_region":
        return f"gene_idx_info_index, row {row}"
    if array in ("atpm", "expression", "tss"):
        return f"{column.replace(':', '/', 1)}, row {row}"
    return f"peak_names, row {row}"
