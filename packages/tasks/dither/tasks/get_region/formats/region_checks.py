"""Arrays read from a file in any format, and their checks: types, shapes, names, values, and the order of the regions.

Letters: P regions, M motifs, C cell types.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Bool, Int, Shaped

from dither.registry.config.errors import Problem, Refused

from ..data.region_matrix import row_blocks

__all__ = [
    "MAX_BASE",
    "NAME",
    "OF_CELLS",
    "PLACES",
    "Locator",
    "Places",
    "RawArrays",
    "check_arrays",
    "check_order",
    "collect_problems",
    "decoded",
    "invalid_rows",
    "label_like",
    "limited",
    "name_array",
    "parse_names",
    "stack_cells",
    "table_locator",
    "texts_of",
]

MAX_SHOWN: Final = 5
"""Problems of one kind that are shown; the others are counted."""
KINDS: Final = {
    **dict.fromkeys(("features", "start", "end", "atpm", "expression"), "fiu"),
    **dict.fromkeys(("open", "tss"), "bfiu"),
    **dict.fromkeys(("motifs", "chromosome", "cells", "gene"), "U"),
    "gene_region": "iu",
}
KIND_NAMES: Final = {"fiu": "numbers", "iu": "whole numbers", "bfiu": "0 and 1", "U": "text"}
OF_CELLS: Final = ("open", "atpm", "expression", "tss")
GENES: Final = ("gene", "gene_region")
PLACES: Final = ("chromosome", "start", "end")
LARGEST: Final = float(np.finfo(np.float32).max)
MAX_NAME: Final = 1000
"""Characters of a chromosome or of the name of a region."""
MAX_BASE: Final = 2**40
"""More than the number of bases of any chromosome."""
CHROMOSOME: Final = re.compile(r"[^\s:]{1,60}")
LABELS: Final = ("label", "labels", "target", "targets", "class", "accessibility")
MISSING_VALUES: Final = ("na", "nan", "none", "null", "<na>")
ENSEMBL: Final = re.compile(r"[0-9]{1,2}|[XYM]|MT")
"""Names of chromosomes without "chr"."""

Places = tuple[Shaped[np.ndarray, " P"], Int[np.ndarray, " P"], Int[np.ndarray, " P"]]
"""Chromosome, start and end of each region."""

NAME: Final = re.compile(r"([^\s:]{1,60}):(\d{1,12})-(\d{1,12})")

Locator = Callable[[str, int, str], str]
"""Returns the place of a value, given the name of its array, its row and the name of its column (""
for none)."""


@dataclass(frozen=True)
class RawArrays:
    """Arrays of one source by the names in `RegionMatrix`; those that `problems` concern may be missing.

    `display_name` returns the name of an array in the source; `notes` are what is valid, but may be
    a mistake.
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
    type are `P`, or `P 2` for expression and tss, or None if unknown.
    """
    arrays: dict[str, Any] = {"cells": np.array(cells, np.str_)} if cells else {}
    unknown = []
    for kind, given in sorted(values.items()):
        of_cells = [given.get(cell) for cell in cells]
        if kind == "open" and (atpm := values.get("atpm")):
            pairs = zip(of_cells, map(atpm.get, cells), strict=True)
            of_cells = [
                number > 0 if own is None and number is not None else own for own, number in pairs
            ]
        known = [array for array in of_cells if array is not None]
        dtype = np.result_type(np.int8 if kind == "tss" else np.float32, *known)
        arrays[kind] = np.zeros((rows, len(cells), *(2,) * (kind in ("expression", "tss"))), dtype)
        for number, (cell, array) in enumerate(zip(cells, of_cells, strict=True)):
            if array is None:
                unknown.append(f"{kind}:{cell}")
            else:
                arrays[kind][:, number] = array
    if "atpm" in values and "open" not in values:
        unknown += [
            f"open:{name.partition(':')[2]}" for name in unknown if name.startswith("atpm:")
        ]
    return arrays | {"unknown": np.array(sorted(unknown), np.str_)}


def table_locator(row_name: Callable[[int], str]) -> Locator:
    """Return a locator for a table whose rows `row_name` names."""
    return lambda array, row, column: row_name(row) + (f', column "{column}"' if column else "")


@contextmanager
def collect_problems(problems: list[Problem]) -> Iterator[None]:
    """Append refused problems to a list, to report them together with others."""
    try:
        yield
    except Refused as refused:
        problems += refused.problems


def limited(lines: Iterator[str], count: int) -> Iterator[str]:
    """Yield the first lines, and the number of the others."""
    for _, line in zip(range(MAX_SHOWN), lines, strict=False):
        yield line
    if count > MAX_SHOWN:
        yield f"... and {count - MAX_SHOWN:,} more like the last one"


def invalid_rows(
    wrong: Bool[np.ndarray, " n"], describe: Callable[[int], str], code: str = "invalid-sample"
) -> list[Problem]:
    """Describe the first of the wrong rows, and count the others."""
    rows = np.flatnonzero(wrong).tolist()
    return [Problem(line, code=code) for line in limited(map(describe, rows), len(rows))]


def check_arrays(path: Path, raw: RawArrays, *, overlaps: bool = True) -> None:
    """Check the arrays of a table of regions, where those of cell types may be missing; Refused with all problems."""
    arrays = dict(raw.arrays)
    name_of = raw.display_name
    problems = [] if raw.problems else [*_missing(arrays, name_of)]
    for name, kinds in sorted(KINDS.items()):
        if name in arrays and arrays[name].dtype.kind not in kinds:
            message = (
                f'"{name_of(name)}" holds {arrays.pop(name).dtype}, expected {KIND_NAMES[kinds]}'
            )
            problems.append(Problem(message, code="wrong-shape"))
    for name, message in list(_shapes(arrays, name_of)):  # values of such an array are not checked
        problems.append(Problem(message, code="wrong-shape"))
        arrays.pop(name, None)
    problems += _names(arrays)
    problems += _values(raw.locate, arrays)
    if arrays.keys() >= {*PLACES} and arrays["start"].size:
        problems += check_order(raw.locate, arrays, overlaps=overlaps)
    own = [
        problem
        if problem.message.startswith(str(path))
        else replace(problem, message=f"{path}: {problem.message}")
        for problem in problems
    ]
    if every := [*raw.problems, *own]:
        raise Refused(list({problem.message: problem for problem in every}.values()))


def _missing(arrays: Mapping[str, Any], name_of: Callable[[str], str]) -> Iterator[Problem]:
    needed = set(KINDS) - {*OF_CELLS, *GENES, "cells"} | (arrays.keys() & {*GENES} and {*GENES})
    if "cells" in arrays or not arrays.keys().isdisjoint(OF_CELLS):
        needed |= {"cells", *(arrays.keys() & set(OF_CELLS) or {"open"})}
    existing = ", ".join(sorted({*map(name_of, arrays.keys() - {"unknown"})})) or "none"
    for name in sorted(needed - arrays.keys()):
        yield Problem(f'no array "{name_of(name)}"; it has {existing}', code="missing-array")


def _shapes(arrays: Mapping[str, Any], name_of: Callable[[str], str]) -> Iterator[tuple[str, str]]:
    rows, columns = (*(arrays["features"].shape if "features" in arrays else ()), 0, 0)[:2]
    regions = next((arrays[name].size for name in PLACES if name in arrays), rows)
    motifs = arrays["motifs"].size if "motifs" in arrays else columns
    shapes: dict[str, tuple[int, ...]] = {name: (regions,) for name in PLACES}
    shapes |= {"motifs": (motifs,), "features": (regions, motifs)}
    if "cells" in arrays:
        of_cells = (regions, arrays["cells"].size)
        shapes |= {"cells": of_cells[1:], "open": of_cells, "atpm": of_cells}
        shapes |= {"expression": (*of_cells, 2), "tss": (*of_cells, 2)}
    if "gene" in arrays:
        shapes |= dict.fromkeys(GENES, (arrays["gene"].size,))
    for name, shape in shapes.items():
        if name in arrays and arrays[name].shape != shape:
            expected = f"expected {shape} for {regions} regions and {motifs} motifs"
            yield name, f'"{name_of(name)}" has the shape {arrays[name].shape}, {expected}'
    for name, count, items in (("start", regions, "regions"), ("motifs", motifs, "motif columns")):
        if not count and name in arrays:
            yield name, f"holds no {items}"


def label_like(motifs: Iterable[str], cells: Iterable[str]) -> Iterator[Problem]:
    """Yield motifs that are named like a cell type or a label: trained on, they would leak what is predicted."""
    cell_of = {cell.lower(): cell for cell in cells}
    for name in motifs:
        if name.lower() in cell_of or name.lower() in LABELS:
            cell = cell_of.get(name.lower(), "CELL")
            fix = f'name it "open:{cell}" if it is the accessibility of a cell type; rename or remove it otherwise'
            message = f'the column "{name}" is named like a cell type or a label, not like a motif'
            yield Problem(message, help=fix, code="unknown-key")


def _names(arrays: Mapping[str, Any]) -> Iterator[Problem]:
    """Yield names that are empty, occur twice, or are those of labels among the motifs."""
    yield from label_like(
        *(map(str, arrays.get(name, np.zeros(0, "U1")).ravel()) for name in ("motifs", "cells"))
    )
    for name in ("motifs", "cells"):
        names = arrays.get(name, np.zeros(0, "U1"))
        empty = np.char.strip(names) == ""
        lines = [
            f"number {row + 1} of the {name} has no name" for row in np.flatnonzero(empty).tolist()
        ]
        values, times = np.unique(names[~empty], return_counts=True)
        twice = [
            f'"{value}" is the name of more than one of the {name}'
            for value in values[times > 1].tolist()
        ]
        yield from (
            Problem(line, code="invalid-sample") for line in limited(iter(lines), len(lines))
        )
        yield from (Problem(line, code="duplicate") for line in limited(iter(twice), len(twice)))


def _values(locate: Locator, arrays: Mapping[str, Any]) -> Iterator[Problem]:
    if "features" in arrays:
        motifs = arrays.get("motifs", np.arange(arrays["features"].shape[1]))
        yield from _numbers(
            "features", arrays["features"], lambda column: str(motifs[column]), locate
        )
    for name in (name for name in OF_CELLS if name in arrays and "cells" in arrays):

        def column_name(cell: int, strand: int = 0, name: str = name) -> str:
            suffix = ("_positive", "_negative")[strand] if name == "expression" else ""
            return f"{name}{suffix}:{arrays['cells'][cell]}"

        yield from _numbers(name, arrays[name], column_name, locate)
    for name in arrays.keys() & {"start", "end"}:
        yield from _numbers(name, arrays[name], lambda name=name: name, locate)
    if {"gene_region", "start"} <= arrays.keys():
        rows = arrays["gene_region"]
        outside = (rows < 0) | (rows >= len(arrays["start"]))
        fault = "is the number of no region"
        yield from invalid_rows(
            outside, lambda row: f"{locate('gene_region', row, '')}: {rows[row]} {fault}"
        )


def _faults(name: str, block: Shaped[np.ndarray, "n ..."]) -> dict[str, Any]:
    """Return masks of the values that are not allowed, by their description."""
    if name in ("start", "end"):
        whole = (block >= 0) & (block < MAX_BASE) & (np.floor(block) == block)
        return {"is not a base number (a whole number of at least 0)": ~whole}
    if name in ("open", "tss"):
        return {"is neither 0 nor 1": (block != 0) & (block != 1)}
    if block.min() >= 0 and float(block.max()) <= LARGEST:  # false where anything is NaN
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
) -> Iterator[Problem]:
    """Yield numbers that are not allowed, and blocks that cannot be read."""
    lines: dict[str, list[str]] = {}
    counts: dict[str, int] = {}
    unreadable: list[Problem] = []
    for rows in row_blocks(len(values)):
        block: Any = np.zeros(0)
        with collect_problems(unreadable):
            block = np.asarray(values[rows])
        for fault, wrong in (_faults(name, block) if block.size else {}).items():
            shown = lines.setdefault(fault, [])
            counts[fault] = counts.get(fault, 0) + int(wrong.sum())
            for row, *index in np.argwhere(wrong)[: MAX_SHOWN - len(shown)].tolist():
                where = locate(name, rows.start + row, column_name(*index))
                shown.append(f"{where}: {block[row, *index]} {fault}")
    unreadable = list({problem.message: problem for problem in unreadable}.values())
    yield from unreadable[:MAX_SHOWN]
    if len(unreadable) > MAX_SHOWN:
        yield Problem(
            f"... and {len(unreadable) - MAX_SHOWN:,} more such problems", code=unreadable[0].code
        )
    for fault, shown in lines.items():
        yield from (
            Problem(line, code="invalid-sample") for line in limited(iter(shown), counts[fault])
        )


def check_order(locate: Locator, arrays: Mapping[str, Any], *, overlaps: bool) -> Iterator[Problem]:
    """Yield regions that are empty, unsorted or equal, that overlap unless allowed, and odd names of chromosomes."""
    chromosome = arrays["chromosome"]
    start = arrays["start"]
    end = arrays["end"]
    if not all((np.isfinite(ends) & (np.abs(ends) < MAX_BASE)).all() for ends in (start, end)):
        return  # reported with the values

    def name(row: int) -> str:
        return f"{chromosome[row]}:{start[row]:.0f}"

    def problems(
        wrong: Bool[np.ndarray, " P"], fault: Callable[[int], str], code: str
    ) -> list[Problem]:
        return invalid_rows(wrong, lambda row: f"{locate('start', row, '')}: {fault(row)}", code)

    def order(row: int) -> str:
        return f"regions are not sorted: {name(row)} after {name(row - 1)}; sort by chromosome and start"

    same = np.r_[False, chromosome[1:] == chromosome[:-1]]
    unsorted = same & np.r_[False, start[1:] < start[:-1]]
    copies = same & np.r_[False, (start[1:] == start[:-1]) & (end[1:] == end[:-1])]
    ends = "the region ends at {:.0f}, not after its start {:.0f}"
    yield from problems(
        end <= start, lambda row: ends.format(end[row], start[row]), "invalid-sample"
    )
    yield from problems(unsorted, order, "unsorted")
    yield from problems(
        copies, lambda row: f"{name(row)}-{end[row]:.0f} equals the region before it", "duplicate"
    )
    if not overlaps:  # compare each start with the largest end so far on the chromosome
        run = np.cumsum(~same)
        far = int(end.max()) + 1
        reach = np.r_[0, (np.maximum.accumulate(end + run * far) - run * far)[:-1]]
        crossing = same & ~unsorted & ~copies & (start < reach)
        fix = "overlaps a region before it; merge them, or set overlaps = true"
        yield from problems(
            crossing, lambda row: f"{name(row)}-{end[row]:.0f} {fix}", "invalid-sample"
        )
    yield from _chromosomes(lambda row: locate("chromosome", row, ""), chromosome, ~same)


def _chromosomes(
    where: Callable[[int], str],
    chromosome: Shaped[np.ndarray, " P"],
    begins: Bool[np.ndarray, " P"],
) -> Iterator[Problem]:
    rows = np.flatnonzero(begins)
    names, first = np.unique(chromosome[rows], return_index=True)
    again = np.isin(np.arange(len(chromosome)), np.delete(rows, first))
    text = "{} occurs a second time; keep the regions of a chromosome together"
    yield from invalid_rows(
        again, lambda row: f"{where(row)}: {text.format(chromosome[row])}", "unsorted"
    )
    valid = {
        name: CHROMOSOME.fullmatch(name) and name.lower() not in MISSING_VALUES
        for name in names.tolist()
    }
    odd = (
        np.isin(chromosome, [name for name in names.tolist() if not valid[name]]) & begins & ~again
    )
    yield from invalid_rows(
        odd, lambda row: f'{where(row)}: "{chromosome[row][:60]}" is not the name of a chromosome'
    )
    seen = dict(zip(names.tolist(), rows[first].tolist(), strict=True))
    long = next((name for name in seen if name.startswith("chr")), None)
    short = next((name for name in seen if ENSEMBL.fullmatch(name)), None)
    if long and short:
        message = f'{where(seen[short])}: named "{short}", but others like "{long}"; name all chromosomes the same way'
        yield Problem(message, code="invalid-sample")


def parse_names(names: Shaped[np.ndarray, " P"], where: Callable[[int], str]) -> Places:
    """Parse names of regions; raises Refused with the places, which `where` returns, of those that do not parse."""
    matches = [NAME.fullmatch(name) for name in names.tolist()]
    wrong = np.array([match is None for match in matches], np.bool_)
    fault = "is not a place such as chr1:9790-10675"
    if problems := invalid_rows(wrong, lambda row: f'{where(row)}: "{names[row][:40]}" {fault}'):
        raise Refused(problems)
    groups = [match.groups() for match in matches if match]
    chromosome, start, end = zip(*groups, strict=True) if groups else ((), (), ())
    return np.array(chromosome, np.str_), np.array(start, np.int64), np.array(end, np.int64)


def decoded(values: Shaped[np.ndarray, " n"], where: str) -> Shaped[np.ndarray, " n"]:
    """Return text, decoded if it is stored as bytes; raises Refused if it is neither text nor UTF-8."""
    if values.dtype.kind == "U":
        return values
    if values.dtype.kind != "S":
        raise Refused(f"{where} holds {values.dtype}, expected text", code="wrong-shape")
    texts = []
    for row, content in enumerate(values.ravel().tolist()):
        try:
            texts.append(content.decode("utf-8"))
        except UnicodeDecodeError:
            raise Refused(
                f"{where}, row {row}: {content[:40]!r} is not UTF-8", code="invalid-sample"
            ) from None
    return np.array(texts, np.str_).reshape(values.shape)


def name_array(names: Sequence[str], where: str) -> Shaped[np.ndarray, " P"]:
    """Return names as an array, which takes the bytes of the longest for each; Refused if it is too long."""
    if (longest := max(map(len, names), default=0)) > MAX_NAME:
        raise Refused(
            f"{where}: a name of {longest:,} characters, the limit is {MAX_NAME:,}",
            code="too-large",
        )
    return np.array(names, np.str_)


def texts_of(
    values: Shaped[np.ndarray, " P"], where: Callable[[int], str]
) -> Shaped[np.ndarray, " P"]:
    """Return a column of names or whole numbers as text; raises Refused with rows that hold neither, such as nan."""
    if values.dtype.kind not in "iuU":
        wrong = np.array([not isinstance(value, str) for value in values.tolist()], np.bool_)
        if problems := invalid_rows(
            wrong, lambda row: f"{where(row)}: {str(values[row])[:40]} is not text"
        ):
            raise Refused(problems)
        return name_array(values.tolist(), where(0))
    return values.astype(np.str_)
