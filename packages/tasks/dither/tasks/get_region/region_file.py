"""Region files of the user: read, checked, and every mistake named with its row and column.

Two forms hold the same columns. A table (.csv, .tsv, also .gz) has the header

    chromosome,start,end,open:K562,open:HepG2,GATA1,CTCF,...

where every column that is none of the first three and no `open:CELL` (0 or 1) is a motif; columns are split by commas,
or by tabs where the header has one. An .npz file has the arrays `features` (P M, numbers, or uint8 in steps of 1/255),
`motifs` (M), `chromosome`, `start`, `end` (P) and, if accessibility is known, `open` (P C) and `cells` (C).
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections.abc import Callable, Iterator, Sequence
from io import TextIOWrapper
from pathlib import Path

import numpy as np
from jaxtyping import Float

from dither.registry.problems import Problem, Refused, nearest

from .archive import LIMIT, Arrays, load_npz
from .region_checks import check_arrays
from .regions import RegionMatrix, scale_to_largest

__all__ = ["read_columns", "read_region_file"]

PLACES = ("chromosome", "start", "end")
OPEN = "open:"
FORMS = (".npz", ".csv", ".csv.gz", ".tsv", ".tsv.gz")


def read_region_file(path: Path, *, valid: Sequence[str], test: Sequence[str], scale: bool) -> RegionMatrix:
    """Read a region file.

    Args:
        path: The file.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test.
        scale: Divide each motif by its largest value in the training regions and cut at 1.

    Raises:
        Refused: If the file is missing, cut short or damaged, or what it says cannot be; each mistake with its place.
    """
    if form_of(path) == ".npz":
        arrays = load_npz(path, path)
        check_arrays(path, arrays, lambda row: f"row {row} (from 0)")
    else:
        arrays = _read_table(path)
        check_arrays(path, arrays, lambda row: f"line {row + 2}")
    arrays = {"open": np.zeros((len(arrays["start"]), 0), bool), "cells": np.zeros(0, "U1"), **arrays}
    matrix = RegionMatrix.of(arrays, valid, test)
    _check_chromosomes(path, matrix)
    if not scale:
        return matrix
    features, _ = scale_to_largest(matrix.features, matrix.rows("train"))
    return RegionMatrix.of({**arrays, "features": features}, valid, test)


def read_columns(path: Path) -> tuple[list[str], list[str]]:
    """Return the names of the motif columns and of the cell types; of a table only the header is read."""
    if form_of(path) == ".npz":
        arrays = load_npz(path, path)
        if "motifs" not in arrays:
            raise Refused(f'{path}: has no array "motifs"; it has {", ".join(arrays) or "none"}')
        cells = arrays.get("cells", np.zeros(0, "U1"))
        return [str(name) for name in arrays["motifs"].flat], [str(name) for name in cells.flat]
    with _opened(path) as lines:
        header, _ = _header(path, lines)
    motifs = [column for column in header if column not in PLACES and not column.startswith(OPEN)]
    return motifs, [column.removeprefix(OPEN) for column in header if column.startswith(OPEN)]


def form_of(path: Path) -> str:
    """Return which of the known endings a path has.

    Raises:
        Refused: If it has none of them.
    """
    for form in FORMS:
        if path.name.lower().endswith(form):
            return form
    raise Refused(f"{path}: cannot be told by its ending; a region file ends in {', '.join(FORMS)}")


class _opened:  # noqa: N801 - reads as a verb: with _opened(path) as lines
    """Opens a table, plain or gzipped, and turns what can go wrong while it is read into a Refused."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def __enter__(self) -> TextIOWrapper:
        opener: Callable[..., TextIOWrapper] = gzip.open if self.path.name.lower().endswith(".gz") else open
        if self.path.exists() and not self.path.is_file():
            raise Refused(f"{self.path}: is no plain file")
        try:
            self.file = opener(self.path, "rt", encoding="utf-8-sig", newline="")
        except OSError as error:
            raise Refused(f"{self.path}: {error.strerror}") from None
        return self.file

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, trace: object) -> None:
        self.file.close()
        if isinstance(error, EOFError | OSError | zlib.error):
            raise Refused(f"{self.path}: is damaged or cut short ({error})") from None
        if isinstance(error, UnicodeDecodeError | csv.Error):
            raise Refused(f"{self.path}: is no text table ({error})") from None


def _header(path: Path, lines: TextIOWrapper) -> tuple[list[str], Iterator[list[str]]]:
    first = lines.readline()
    delimiter = "\t" if "\t" in first else ","
    header = [column.strip() for column in next(csv.reader([first], delimiter=delimiter), [])]
    missing = [column for column in PLACES if column not in header]
    if missing:
        raise Refused(
            Problem(
                f"{path}: line 1: the header has no {', '.join(missing)}; it begins {', '.join(header[:5]) or 'empty'}",
                help="chromosome,start,end,open:CELL,...,MOTIF,...",
            )
        )
    return header, csv.reader(lines, delimiter=delimiter)


def _read_table(path: Path) -> Arrays:
    with _opened(path) as lines:
        header, rows = _header(path, lines)
        at = {column: header.index(column) for column in PLACES}
        cells = [i for i, column in enumerate(header) if column.startswith(OPEN)]
        motifs = [i for i, column in enumerate(header) if column not in PLACES and i not in cells]
        numbers = [at["start"], at["end"], *cells, *motifs]
        names, values = [], []
        for line, row in enumerate(rows, 2):
            if len(row) != len(header):
                raise Refused(f"{path}: line {line}: has {len(row)} columns, the header has {len(header)}")
            if (line - 1) * len(numbers) * 8 > LIMIT:
                raise Refused(f"{path}: line {line}: more than {LIMIT:,} bytes of numbers")
            names.append(row[at["chromosome"]].strip())
            values.append(_numbers(path, line, header, row, numbers))
    table = np.stack(values) if values else np.zeros((0, len(numbers)))
    return {
        "chromosome": np.array(names, dtype=np.str_),
        "start": table[:, 0],
        "end": table[:, 1],
        "open": table[:, 2 : 2 + len(cells)],
        "cells": np.array([header[i].removeprefix(OPEN) for i in cells], dtype=np.str_),
        "features": table[:, 2 + len(cells) :],
        "motifs": np.array([header[i] for i in motifs], dtype=np.str_),
    }


def _numbers(path: Path, line: int, header: list[str], row: list[str], columns: list[int]) -> Float[np.ndarray, " n"]:
    try:
        return np.array([row[i] for i in columns], dtype=np.float64)
    except ValueError:
        for i in columns:
            try:
                float(row[i])
            except ValueError:
                raise Refused(f'{path}: line {line}, column "{header[i]}": "{row[i][:40]}" is no number') from None
        raise


def _check_chromosomes(path: Path, matrix: RegionMatrix) -> None:
    there = sorted(set(matrix.chromosome.tolist()))
    problems = []
    for split, names in (("valid", matrix.valid), ("test", matrix.test)):
        for name in names:
            if name not in there:
                close = nearest(name, there)
                hint = f'did you mean "{close}"? ' if close else ""
                message = f'{path}: has no chromosome "{name}" to hold out for {split}'
                problems.append(Problem(message, help=f"{hint}there are: {', '.join(there[:30])}"))
    if not problems and not matrix.rows("train").any():
        problems.append(Problem(f"{path}: every chromosome is held out, none is left to train on"))
    if problems:
        raise Refused(problems)
