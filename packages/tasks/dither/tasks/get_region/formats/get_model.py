"""Zarr stores of get_model: peaks by name, motifs, and accessibility, expression and TSS of each cell type.

    data (P M)   peak_names (P), as "chr1:9790-10675"   motif_names (M)   atpm/CELL (P)
    expression_positive/CELL, expression_negative/CELL (P)   tss/CELL (P 2)

Only the first three are required; other arrays, such as those of genes, are not read. zarr 3 leaves
out chunks that hold only the fill value, which look like those of an incomplete copy: they are read as such, and noted,
or refused if an option says so. Names are always complete. Letters: P peaks, M motifs, C cell types.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped

from dither.registry.config.errors import Problem, Refused

from ..data.column_groups import unknown_names
from .region_checks import Places, RawArrays, collect_problems, decoded, parse_names
from .zarr_store import COPY_AGAIN, ZarrArray, is_group

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
    folders = (folder for group in GROUPS if (path / group).is_dir() for folder in (path / group).iterdir())
    return sorted({folder.name for folder in folders if folder.is_dir() and not folder.name.startswith(".")})


def _survey(path: Path, *, empty_chunks: bool) -> tuple[dict[str, ZarrArray], list[Problem], list[str]]:
    """Return the readable arrays of a store, the problems of the others, and notes."""
    if not path.exists():
        raise Refused(f"{path}: No such file or directory", code="file-not-found")
    if not is_group(path):
        fix = "a store has .zgroup or zarr.json at its top; unpack it first if it is one file"
        raise Refused(Problem(f"{path}: not a zarr store", help=fix, code="unknown-format"))
    cells = _cells(path)
    existing = [f"{group}/{cell}" for group in GROUPS for cell in cells if (path / group / cell).is_dir()]
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
                notes.append(f"{note}; read as {array.fill}: left out by the writer, or the copy is incomplete")
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
    names = [f"{array.file_name(place)} ({array.file_rows(place)})" for place in missing[:SHOWN_CHUNKS]]
    more = f", and {len(missing) - SHOWN_CHUNKS:,} more" if len(missing) > SHOWN_CHUNKS else ""
    return f"missing chunk{'s' * (len(missing) > 1)}: {', '.join(names)}{more}"


def _wrong_shape(path: Path, name: str, array: ZarrArray, peaks: tuple[int, ...] | None) -> Iterator[Problem]:
    is_text, group = name in TEXTS, name.partition("/")[0]
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
    with collect_problems(problems):
        if "motif_names" in stored:
            arrays["motifs"] = decoded(stored["motif_names"][:], f"{path}: motif_names")
    with collect_problems(problems):
        if "peak_names" in stored:
            arrays |= dict(zip(("chromosome", "start", "end"), _places(stored["peak_names"], path), strict=True))
    arrays |= _by_cell(stored, _cells(path), problems)
    return RawArrays(arrays, _locate, tuple(problems), lambda name: DISPLAY_NAMES.get(name, name), tuple(notes))


def _places(names: ZarrArray, path: Path) -> Places:
    where = f"{path}: peak_names"
    return parse_names(decoded(names[:], where), lambda row: f"{where}, row {row}")


def _by_cell(stored: Mapping[str, ZarrArray], cells: Sequence[str], problems: list[Problem]) -> dict[str, Any]:
    """Stack the arrays of cell types; values that are unknown of one are 0."""
    stacked: dict[str, Shaped[np.ndarray, "P C ..."]] = {}
    for group in GROUPS:
        values: dict[int, Shaped[np.ndarray, "P ..."]] = {}
        for number, cell in enumerate(cells):
            with collect_problems(problems):
                if f"{group}/{cell}" in stored:
                    values[number] = stored[f"{group}/{cell}"][:]
        if values:
            first = next(iter(values.values()))
            dtype = np.result_type(np.int8 if group == "tss" else np.float32, *values.values())
            stacked[group] = np.zeros((len(first), len(cells), *first.shape[1:]), dtype)
            for number, array in values.items():
                stacked[group][:, number] = array
    arrays: dict[str, Any] = {"cells": np.array(cells, np.str_)} if cells else {}
    arrays |= {name: stacked[name] for name in ("atpm", "tss") if name in stacked}
    if stacked.keys() >= {*STRANDS}:
        arrays["expression"] = np.stack([stacked[strand] for strand in STRANDS], -1)
    of_kind = {"atpm": "atpm", "expression": STRANDS[0], "tss": "tss"}
    known = {name: [f"{group}/{cell}" in stored for cell in cells] for name, group in of_kind.items() if name in arrays}
    return arrays | {"unknown": np.array(unknown_names(known, cells), np.str_)}


def _locate(array: str, row: int, column: str) -> str:
    """Return the place of a value in a store; see `Locator`."""
    if array == "features":
        return f'data, row {row}, column "{column}"'
    if array in ("atpm", "expression", "tss"):
        return f"{column.replace(':', '/', 1)}, row {row}"
    return f"peak_names, row {row}"
