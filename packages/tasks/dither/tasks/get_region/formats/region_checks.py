"""Checks of arrays from a file of any format: types, shapes, names, values, order of regions.

Letters: P regions, M motifs, C cell types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Bool, Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused

from ..data.region_matrix import RowsOf, all_rows, row_blocks

__all__ = [
    "KINDS",
    "MAX_BASE",
    "NAME",
    "OF_CELLS",
    "PLACES",
    "Locator",
    "RawArrays",
    "check_arrays",
    "check_order",
    "collect_problems",
    "decoded",
    "invalid_rows",
    "label_like",
    "line_problems",
    "name_array",
    "other_style",
    "parse_names",
    "place_arrays",
    "stack_cells",
    "table_locator",
    "texts_of",
]

_Column = Shaped[ndarray, " P"]

MAX_SHOWN = 5
"""Problems of one kind that are shown; the others are counted."""
KINDS: dict[str, str] = {
    **dict.fromkeys(("features", "start", "end", "atpm", "expression"), "fiu"),
    **dict.fromkeys(("open", "tss"), "bfiu"),
    **dict.fromkeys(("motifs", "chromosome", "cells", "gene"), "U"),
    "gene_region": "iu",
}
KIND_NAMES = {
    "fiu": "numbers",
    "iu": "whole numbers",
    "bfiu": "0 and 1",
    "U": "text",
}
OF_CELLS = ("open", "atpm", "expression", "tss")
GENES = ("gene", "gene_region")
PLACES = ("chromosome", "start", "end")
LARGEST = float(np.finfo(np.float32).max)
MAX_NAME = 1000
"""Characters of a chromosome or of the name of a region."""
# float64 holds every whole number below 2^53 exactly, far beyond this.
MAX_BASE = 2**40
"""More than the number of bases of any chromosome."""
CHROMOSOME = re.compile(r"[^\s:]{1,60}")
LABELS = ("label", "labels", "target", "targets", "class", "accessibility")
MISSING_VALUES = ("na", "nan", "none", "null", "<na>")
ENSEMBL = re.compile(r"[0-9]{1,2}|[XYM]|MT")
"""Names of chromosomes without "chr"."""

NAME = re.compile(r"([^\s:]{1,60}):(\d{1,12})-(\d{1,12})")

Locator = Callable[[str, int, str], str]
"""Returns the place of a value, given the name of its array, its row and the name of its column (""
for none)."""


@dataclass(frozen=True)
class RawArrays:
    """Arrays of one source by their names in `RegionMatrix`; those with `problems` may be missing.

    `display_name` returns the name of an array in the source; `notes` are on data that are valid,
    but may be a mistake.
    """

    arrays: dict[str, Any]
    locate: Locator
    problems: tuple[Problem, ...] = ()
    display_name: Callable[[str], str] = str
    notes: tuple[str, ...] = ()


def stack_cells(
    values: Mapping[str, Mapping[str, Any]], cells: Sequence[str], rows: int
) -> dict[str, Any]:
    """Return `cells`, `unknown`, and each kind of value as one array of regions by cell types.

    Values that are unknown of some cell types only are 0, and named in `unknown` as "atpm:CELL".
    Where only atpm is known, a region is open if its atpm is above 0. `values` by kind and cell
    type are `P`, or `P 2` for expression and tss.
    """
    arrays: dict[str, Any] = {}
    if cells:
        arrays["cells"] = np.array(cells, np.str_)
    unknown = []
    atpm = values.get("atpm", {})
    for kind, by_cell in sorted(values.items()):
        of_cells = dict(by_cell)
        if kind == "open":
            for cell in atpm.keys() - of_cells.keys():
                of_cells[cell] = atpm[cell] > 0
        strands = (2,) if kind in ("expression", "tss") else ()
        dtype = np.result_type(
            np.int8 if kind == "tss" else np.float32, *of_cells.values()
        )
        arrays[kind] = np.zeros((rows, len(cells), *strands), dtype)
        for number, cell in enumerate(cells):
            if cell in of_cells:
                arrays[kind][:, number] = of_cells[cell]
            else:
                unknown.append(f"{kind}:{cell}")
    if "atpm" in values and "open" not in values:
        unknown += [f"open:{cell}" for cell in cells if cell not in atpm]
    return arrays | {"unknown": np.array(sorted(unknown), np.str_)}


def table_locator(row_name: Callable[[int], str]) -> Locator:
    """Return a locator for a table whose rows `row_name` names."""

    def locate(array: str, row: int, column: str) -> str:
        return row_name(row) + (f', column "{column}"' if column else "")

    return locate


@contextmanager
def collect_problems(problems: list[Problem]) -> Iterator[None]:
    """Append refused problems to a list, to report them together with others."""
    try:
        yield
    except Refused as refused:
        problems += refused.problems


def line_problems(
    lines: Sequence[str], code: str = "invalid-sample", count: int | None = None
) -> list[Problem]:
    """Return the first lines as problems, and one with the number of the others of `count`."""
    others = (len(lines) if count is None else count) - MAX_SHOWN
    shown = list(lines[:MAX_SHOWN])
    if others > 0:
        shown.append(f"... and {others:,} more like the last one")
    return [Problem(line, code=code) for line in shown]


def invalid_rows(
    wrong: Bool[ndarray, " n"],
    describe: Callable[[int], str],
    code: str = "invalid-sample",
) -> list[Problem]:
    """Describe the first of the wrong rows, and count the others."""
    rows = np.flatnonzero(wrong).tolist()
    return line_problems([*map(describe, rows[:MAX_SHOWN])], code, len(rows))


def check_arrays(
    path: Path, raw: RawArrays, *, overlaps: bool = True, rows: RowsOf = all_rows
) -> None:
    """Check the arrays of a table of regions; raise Refused with all problems.

    Those of cell types may be missing. Values of features are read in `rows` only.
    """
    # A copy, from which wrong arrays are removed.
    arrays = dict(raw.arrays)
    name_of = raw.display_name
    # An array may be missing because of a problem that the reader reports.
    problems = []
    if not raw.problems:
        problems = [*_missing(arrays, name_of)]

    for name, kinds in sorted(KINDS.items()):
        if name in arrays and arrays[name].dtype.kind not in kinds:
            dtype = arrays.pop(name).dtype
            message = f'"{name_of(name)}" holds {dtype}, expected {KIND_NAMES[kinds]}'
            problems.append(Problem(message, code="wrong-shape"))
    # Values of an array of another shape have no place, so they are not checked.
    for name, message in list(_wrong_shapes(arrays, name_of)):
        problems.append(Problem(message, code="wrong-shape"))
        arrays.pop(name, None)
    problems += _names(arrays)
    problems += _values(raw.locate, arrays, rows)
    if arrays.keys() >= {*PLACES} and arrays["start"].size:
        problems += check_order(raw.locate, arrays, overlaps=overlaps)

    # A reader and these checks may find the same mistake.
    by_message = {problem.message: problem for problem in raw.problems}
    for problem in problems:
        message = problem.message
        if not message.startswith(str(path)):
            message = f"{path}: {message}"
        by_message.setdefault(message, replace(problem, message=message))
    if by_message:
        raise Refused(list(by_message.values()))


def _missing(
    arrays: Mapping[str, Any], name_of: Callable[[str], str]
) -> Iterator[Problem]:
    required = set(KINDS) - {*OF_CELLS, *GENES, "cells"}
    if not arrays.keys().isdisjoint(GENES):
        required |= {*GENES}
    if not arrays.keys().isdisjoint(("cells", *OF_CELLS)):
        required.add("cells")
        if arrays.keys().isdisjoint(OF_CELLS):
            required.add("open")
    shown = {name_of(name) for name in arrays if name != "unknown"}
    existing = ", ".join(sorted(shown)) or "none"
    for name in sorted(required - arrays.keys()):
        yield Problem(
            f'no array "{name_of(name)}"; it has {existing}', code="missing-array"
        )


def _wrong_shapes(
    arrays: Mapping[str, Any], name_of: Callable[[str], str]
) -> Iterator[tuple[str, str]]:
    """Yield arrays whose shape does not fit the others, and arrays without regions or motifs."""
    regions = 0
    motifs = 0
    if "features" in arrays:
        regions, motifs = (*arrays["features"].shape, 0, 0)[:2]
    # Places count more than features, and of the places the first.
    for name in reversed(PLACES):
        if name in arrays:
            regions = arrays[name].size
    if "motifs" in arrays:
        motifs = arrays["motifs"].size

    for name, shape in _shapes(arrays, regions, motifs).items():
        if name in arrays and arrays[name].shape != shape:
            actual = f'"{name_of(name)}" has the shape {arrays[name].shape}'
            expected = f"expected {shape} for {regions} regions and {motifs} motifs"
            yield name, f"{actual}, {expected}"
    if "start" in arrays and not regions:
        yield "start", "holds no regions"
    if "motifs" in arrays and not motifs:
        yield "motifs", "holds no motif columns"


def _shapes(
    arrays: Mapping[str, Any], regions: int, motifs: int
) -> dict[str, tuple[int, ...]]:
    shapes: dict[str, tuple[int, ...]] = {name: (regions,) for name in PLACES}
    shapes |= {"motifs": (motifs,), "features": (regions, motifs)}
    if "cells" in arrays:
        cells = arrays["cells"].size
        shapes["cells"] = (cells,)
        shapes |= dict.fromkeys(("open", "atpm"), (regions, cells))
        # Plus and minus strand.
        shapes |= dict.fromkeys(("expression", "tss"), (regions, cells, 2))
    if "gene" in arrays:
        shapes |= dict.fromkeys(GENES, (arrays["gene"].size,))
    return shapes


def label_like(motifs: Iterable[str], cells: Iterable[str]) -> Iterator[Problem]:
    """Yield motifs named like a cell type or a label: as inputs they would leak the target."""
    cell_of = {cell.lower(): cell for cell in cells}
    for name in motifs:
        if name.lower() in cell_of or name.lower() in LABELS:
            cell = cell_of.get(name.lower(), "CELL")
            fix = f'name it "open:{cell}" if it is the accessibility of a cell type; '
            fix += "rename or remove it otherwise"
            message = f'the column "{name}" is named like a cell type or a label, not like a motif'
            yield Problem(message, help=fix, code="unknown-key")


def _names(arrays: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield names that are empty, occur twice, or are those of labels among the motifs."""
    none = np.zeros(0, "U1")
    both = {name: arrays.get(name, none).ravel() for name in ("motifs", "cells")}
    yield from label_like(both["motifs"].tolist(), both["cells"].tolist())
    for array, names in both.items():
        empty = np.char.strip(names) == ""
        unnamed = np.flatnonzero(empty).tolist()
        lines = [f"number {row + 1} of the {array} has no name" for row in unnamed]
        yield from line_problems(lines)
        values, times = np.unique(names[~empty], return_counts=True)
        repeated = values[times > 1].tolist()
        lines = [
            f'"{value}" is the name of more than one of the {array}'
            for value in repeated
        ]
        yield from line_problems(lines, "duplicate")


def _values(
    locate: Locator, arrays: Mapping[str, Any], rows_of: RowsOf
) -> Iterator[Problem]:
    """Yield numbers that are not allowed; of features those in `rows_of`."""
    if "features" in arrays:
        features = arrays["features"]
        motifs = arrays.get("motifs", np.arange(features.shape[1]))
        yield from _numbers(
            "features", features, lambda column: str(motifs[column]), locate, rows_of
        )
    for name in OF_CELLS:
        if name in arrays and "cells" in arrays:
            column_name = partial(_column_of_cell, name, arrays["cells"])
            yield from _numbers(name, arrays[name], column_name, locate)
    for name in arrays.keys() & {"start", "end"}:
        yield from _numbers(name, arrays[name], lambda name=name: name, locate)
    if {"gene_region", "start"} <= arrays.keys():
        rows = arrays["gene_region"]
        outside = (rows < 0) | (rows >= len(arrays["start"]))
        fault = "is the number of no region"
        yield from invalid_rows(
            outside,
            lambda row: f"{locate('gene_region', row, '')}: {rows[row]} {fault}",
        )


def _column_of_cell(
    name: str, cells: Shaped[ndarray, " C"], cell: int, strand: int | None = None
) -> str:
    """Return the name of a column of a cell type in a table."""
    suffix = ""
    if name == "expression" and strand is not None:
        suffix = ("_positive", "_negative")[strand]
    return f"{name}{suffix}:{cells[cell]}"


def _faults(name: str, block: Shaped[ndarray, "n ..."]) -> dict[str, Any]:
    """Return masks of the values that are not allowed, by their description."""
    if name in ("start", "end"):
        whole = (block >= 0) & (block < MAX_BASE) & (np.floor(block) == block)
        return {"is not a base number (a whole number of at least 0)": ~whole}
    if name in ("open", "tss"):
        return {"is neither 0 nor 1": (block != 0) & (block != 1)}
    # False where anything is NaN.
    if block.min() >= 0 and float(block.max()) <= LARGEST:
        return {}
    finite = np.isfinite(block)
    return {
        "is not finite": ~finite,
        "is negative": block < 0,
        "is more than float32 holds": finite & (block.astype(np.float64) > LARGEST),
    }


def _numbers(
    name: str,
    values: Any,
    column_name: Callable[..., str],
    locate: Locator,
    rows_of: RowsOf = all_rows,
) -> Iterator[Problem]:
    """Yield numbers that are not allowed, and blocks that cannot be read."""
    lines: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    unreadable: list[Problem] = []
    # By blocks, as the values may be larger than the memory.
    for rows in row_blocks(len(values), rows_of):
        block: Any = np.zeros(0)
        with collect_problems(unreadable):
            block = np.asarray(values[rows])
        if not block.size:
            continue
        for fault, wrong in _faults(name, block).items():
            shown = lines.setdefault(fault, [])
            counts[fault] = counts.get(fault, 0) + int(wrong.sum())
            places = np.argwhere(wrong)[: MAX_SHOWN - len(shown)]
            for row, *index in places.tolist():
                where = locate(name, rows.start + row, column_name(*index))
                shown.append(f"{where}: {block[row, *index]} {fault}")

    # A damaged file of several blocks is one problem.
    unreadable = list({problem.message: problem for problem in unreadable}.values())
    yield from unreadable[:MAX_SHOWN]
    if len(unreadable) > MAX_SHOWN:
        message = f"... and {len(unreadable) - MAX_SHOWN:,} more such problems"
        yield Problem(message, code=unreadable[0].code)
    for fault, shown in lines.items():
        yield from line_problems(shown, count=counts[fault])


def check_order(
    locate: Locator, arrays: Mapping[str, Any], *, overlaps: bool
) -> Iterator[Problem]:
    """Yield regions that are empty, unsorted, equal or overlapping, and odd chromosomes."""
    chromosome = arrays["chromosome"]
    start = arrays["start"]
    end = arrays["end"]
    for bases in (start, end):
        # Reported with the values.
        if not (np.isfinite(bases) & (np.abs(bases) < MAX_BASE)).all():
            return

    def region(row: int) -> str:
        return f"{chromosome[row]}:{start[row]:.0f}-{end[row]:.0f}"

    def problems(
        wrong: Bool[ndarray, " P"], fault: Callable[[int], str], code: str
    ) -> list[Problem]:
        return invalid_rows(
            wrong, lambda row: f"{locate('start', row, '')}: {fault(row)}", code
        )

    def empty_text(row: int) -> str:
        return (
            f"the region ends at {end[row]:.0f}, not after its start {start[row]:.0f}"
        )

    def order_text(row: int) -> str:
        names = []
        for place in (row, row - 1):
            names.append(f"{chromosome[place]}:{start[place]:.0f}")
        order = " after ".join(names)
        return f"regions are not sorted: {order}; sort by chromosome and start"

    # Each region is compared with the one before; the first has none.
    same = np.r_[False, chromosome[1:] == chromosome[:-1]]
    earlier = start[1:] < start[:-1]
    unsorted = same & np.r_[False, earlier]
    same_start = start[1:] == start[:-1]
    same_end = end[1:] == end[:-1]
    copies = same & np.r_[False, same_start & same_end]
    yield from problems(end <= start, empty_text, "invalid-sample")
    yield from problems(unsorted, order_text, "unsorted")
    yield from problems(
        copies, lambda row: f"{region(row)} equals the region before it", "duplicate"
    )
    if not overlaps:
        import pandas  # type: ignore[import-untyped,unused-ignore]

        # Each start is compared with the largest end so far on the chromosome.
        ends = pandas.Series(end).groupby(np.cumsum(~same))
        reach = ends.cummax().shift(fill_value=0).to_numpy()
        crossing = same & ~unsorted & ~copies & (start < reach)
        fix = "overlaps a region before it; merge them, or set overlaps = true"
        yield from problems(
            crossing, lambda row: f"{region(row)} {fix}", "invalid-sample"
        )
    yield from _chromosomes(
        lambda row: locate("chromosome", row, ""), chromosome, ~same
    )


def _chromosomes(
    where: Callable[[int], str],
    chromosome: _Column,
    begins: Bool[ndarray, " P"],
) -> Iterator[Problem]:
    """Yield chromosomes that occur in two places, and names that are none, or of two styles."""
    rows = np.flatnonzero(begins)
    names, first = np.unique(chromosome[rows], return_index=True)
    again = begins.copy()
    again[rows[first]] = False
    text = "{} occurs a second time; keep the regions of a chromosome together"
    yield from invalid_rows(
        again, lambda row: f"{where(row)}: {text.format(chromosome[row])}", "unsorted"
    )

    long = short = None
    invalid = []
    for name, row in zip(names.tolist(), rows[first].tolist(), strict=True):
        if not CHROMOSOME.fullmatch(name) or name.lower() in MISSING_VALUES:
            invalid.append(name)
        if name.startswith("chr"):
            long = long or (name, row)
        if ENSEMBL.fullmatch(name):
            short = short or (name, row)
    yield from invalid_rows(
        np.isin(chromosome, invalid) & begins & ~again,
        lambda row: (
            f'{where(row)}: "{chromosome[row][:60]}" is not the name of a chromosome'
        ),
    )
    if long and short:
        message = f'{where(short[1])}: named "{short[0]}", but others like "{long[0]}"'
        yield Problem(
            f"{message}; name all chromosomes the same way", code="invalid-sample"
        )


def other_style(name: str) -> str:
    """Return the name of a chromosome with "chr" added, or without it."""
    if name.startswith("chr"):
        return name.removeprefix("chr")
    return f"chr{name}"


def parse_names(names: _Column, where: Callable[[int], str]) -> dict[str, Any]:
    """Return chromosome, start and end from names of regions; raise Refused with invalid ones.

    `where` returns the place of a row.
    """
    matches = [NAME.fullmatch(name) for name in names.tolist()]
    wrong = np.array([match is None for match in matches], np.bool_)
    fault = "is not a place such as chr1:9790-10675"
    if problems := invalid_rows(
        wrong, lambda row: f'{where(row)}: "{names[row][:40]}" {fault}'
    ):
        raise Refused(problems)
    return place_arrays([match.groups() for match in matches if match])


def place_arrays(rows: Sequence[Sequence[Any]]) -> dict[str, Any]:
    """Return arrays of rows that begin with chromosome, start and end."""
    return {
        "chromosome": np.array([row[0] for row in rows], np.str_),
        "start": np.array([row[1] for row in rows], np.int64),
        "end": np.array([row[2] for row in rows], np.int64),
    }


def decoded(values: Shaped[ndarray, " n"], where: str) -> Shaped[ndarray, " n"]:
    """Return text, decoded from UTF-8 if it is stored as bytes; raise Refused for others."""
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind != "S":
        raise Refused(
            f"{where} holds {values.dtype}, expected text", code="wrong-shape"
        )
    texts = []
    for row, content in enumerate(values.ravel().tolist()):
        try:
            texts.append(content.decode("utf-8"))
        except UnicodeDecodeError:
            message = f"{where}, row {row}: {content[:40]!r} is not UTF-8"
            raise Refused(message, code="invalid-sample") from None
    return np.array(texts, np.str_).reshape(values.shape)


def name_array(names: Sequence[str], where: str) -> _Column:
    """Return names as an array, which takes the bytes of the longest for each; Refused if long."""
    longest = max(map(len, names), default=0)
    if longest > MAX_NAME:
        message = (
            f"{where}: a name of {longest:,} characters, the limit is {MAX_NAME:,}"
        )
        raise Refused(message, code="too-large")
    return np.array(names, np.str_)


def texts_of(values: _Column, where: Callable[[int], str]) -> _Column:
    """Return names or whole numbers as text; raise Refused with rows of neither, such as nan."""
    if values.dtype.kind in "iuU":
        return values.astype(np.str_)
    texts = values.tolist()
    wrong = np.array([not isinstance(text, str) for text in texts], np.bool_)

    def mistake(row: int) -> str:
        # An empty cell is None or nan by the version of pandas.
        value = "nan"
        if texts[row] is not None:
            value = str(values[row])[:40]

        return f"{where(row)}: {value} is not text"

    problems = invalid_rows(wrong, mistake)
    if problems:
        raise Refused(problems)
    return name_array(texts, where(0))
