"""Which arrays a store of get_model has, and what is wrong with them before a value is read.

A chunk that is not there holds the fill value, says zarr, and it may leave out chunks that hold nothing else. A copy
that was cut short looks just so, and a thousand regions without any motif, or of no accessibility, would go unnoticed
into training. So chunks that are not there are refused, unless a person says that they are empty.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

from dither.registry.config.errors import Problem, Refused

from .zarr_array import ZarrArray
from .zarr_codecs import lacking
from .zarr_header import is_array, is_group, listed

__all__ = ["GENES", "GROUPS", "open_arrays", "store_cells", "survey"]

NEEDED: Final = ("data", "peak_names", "motif_names")
GROUPS: Final = ("atpm", "expression_positive", "expression_negative", "tss")
"""What may be known of cell types: groups of arrays, one for each."""
GENES: Final = ("gene_idx_info_index", "gene_idx_info_name", "gene_idx_info_strand")
"""What may be known of genes."""
NAMES: Final = 1 << 29
"""Bytes that the names of peaks may take."""
SHOWN: Final = 3
AGAIN: Final = "copy the store again, all of it"
EMPTY: Final = (
    "copy the store again; only if whoever wrote it left out chunks of nothing but the fill value, as zarr 3 does: "
    "empty_chunks = true, or prepare get --empty-chunks"
)


def store_cells(path: Path) -> tuple[str, ...]:
    """Return the cell types that a store tells something of, sorted."""
    found = set()
    for group in GROUPS:
        if (path / group).is_dir():
            found |= {folder.name for folder in (path / group).iterdir() if _shown(folder)}
    return tuple(sorted(found))


def _shown(folder: Path) -> bool:
    return folder.is_dir() and not folder.name.startswith(".")


def open_arrays(path: Path, *, empty_chunks: bool = False) -> dict[str, ZarrArray]:
    """Open the arrays of a store by name, of which nothing is read yet.

    Raises:
        Refused: All that `survey` finds wrong.
    """
    arrays, problems = survey(path, empty_chunks=empty_chunks)
    if problems:
        raise Refused(problems)
    return arrays


def survey(path: Path, *, empty_chunks: bool = False) -> tuple[dict[str, ZarrArray], list[Problem]]:
    """Return the arrays of a store that can be read, by name, and what is wrong with the others.

    Args:
        path: The store.
        empty_chunks: Whether chunks that are not there are empty; otherwise they count as lost.

    Raises:
        Refused: There is no store.
    """
    if not is_group(path):
        fix = "a store has .zgroup or zarr.json at its top; unpack it first if it came in one file"
        what = f"{path}: is no zarr store" if path.exists() else f"{path}: No such file or directory"
        raise Refused(Problem(what, help=fix))
    problems = [*_incomplete(path)]
    arrays: dict[str, ZarrArray] = {}
    for name in _names(path):
        try:
            arrays[name] = _opened(path, name)
        except Refused as refused:
            problems += refused.problems
    problems += _packed(path, arrays)
    lost: list[str] = []
    told = ["peak_names", "data", *(name for name in arrays if name.partition("/")[0] in GROUPS)]
    peaks = next((arrays[name].shape[:1] for name in told if name in arrays), None)
    for name, array in [*arrays.items()]:
        wrong = [*_misshapen(path, name, array, peaks)]
        missing = [] if wrong or empty_chunks else array.missing()
        problems += wrong
        lost += [f'{path}: "{name}": {_lost(array, missing)}'] if missing else []
        if wrong or (missing and array.header.fill != 0):  # numbers that are there may have mistakes of their own
            del arrays[name]
    return arrays, [*problems, *(Problem(what, help=None if number else EMPTY) for number, what in enumerate(lost))]


def _packed(path: Path, arrays: dict[str, ZarrArray]) -> Iterator[Problem]:
    """Yield packings that cannot be undone, once each, and take away the arrays that have them."""
    for packing in sorted({packing for array in arrays.values() for packing in array.header.packings}):
        if (problem := lacking(packing)) is None:
            continue
        names = [name for name, array in arrays.items() if packing in array.header.packings]
        more = f" and {len(names) - 1} more arrays" if len(names) > 1 else ""
        yield Problem(f'{path}: "{names[0]}"{more}: {problem.message}', help=problem.help)
        for name in names:
            del arrays[name]


def _names(path: Path) -> list[str]:
    of_cells = [f"{group}/{cell}" for group in GROUPS for cell in store_cells(path) if _shown(path / group / cell)]
    return [*NEEDED, *of_cells, *(name for name in GENES if (path / name).is_dir())]


def _opened(path: Path, name: str) -> ZarrArray:
    if not (path / name).is_dir():
        there = ", ".join(sorted(each.name for each in path.iterdir() if is_array(each))) or "none"
        raise Refused(Problem(f'{path}: has no array "{name}"; it has {there}', help=AGAIN))
    return ZarrArray(path / name)


def _incomplete(path: Path) -> Iterator[Problem]:
    """Yield what a store says that it has and has not, or has half of."""
    names = _names(path)
    for name in listed(path):
        ours = name.partition("/")[0] in GROUPS or name in GENES
        if ours and not (path / name).is_dir():
            yield Problem(f'{path}: lists an array "{name}", which is not there; the store was cut short', help=AGAIN)
    for cell in store_cells(path):
        strands = [f"expression_{strand}/{cell}" for strand in ("positive", "negative")]
        there, gone = ([name for name in strands if (name in names) == wanted] for wanted in (True, False))
        if there and gone:
            yield Problem(f'{path}: has "{there[0]}", but no "{gone[0]}"', help=AGAIN)
    genes = [name for name in GENES if name in names]
    if genes and len(genes) < len(GENES):
        gone = [name for name in GENES if name not in names]
        yield Problem(f'{path}: has "{genes[0]}", but no "{gone[0]}"', help=AGAIN)


def _lost(array: ZarrArray, missing: Sequence[tuple[int, ...]]) -> str:
    header = array.header
    named = [*dict.fromkeys(f"{header.file_name(place)} ({header.chunk_rows(place)})" for place in missing)]
    if len(missing) > SHOWN and len(missing) == sum(1 for _ in header.places()):
        return f"none of its {len(missing):,} chunks is there, the first of them {named[0]}"
    more = f", and {len(named) - SHOWN:,} more" if len(named) > SHOWN else ""
    return f"{'a chunk is' if len(missing) == 1 else 'chunks are'} not there: {', '.join(named[:SHOWN])}{more}"


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
