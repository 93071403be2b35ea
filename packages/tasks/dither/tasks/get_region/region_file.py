"""Region files of the user: read, checked, and every mistake named with its row and column.

Two forms hold the same columns. A table (.csv, .tsv, also .gz) has the header

    chromosome,start,end,open:K562,open:HepG2,GATA1,CTCF,...

where every column that is none of the first three and says nothing of a cell type is a motif; columns are split by
commas, or by tabs where the header has one. Of a cell type, open:CELL is 0 or 1, atpm:CELL is a number, and
expression_positive:CELL, expression_negative:CELL, tss_positive:CELL and tss_negative:CELL speak of the two strands. An
.npz file has the arrays `features` (P M, numbers, or uint8 in steps of 1/255), `motifs` (M), `chromosome`, `start`,
`end` (P) and, as far as they are known, `cells` (C), `open`, `atpm` (P C), `expression` and `tss` (P C 2).
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from functools import lru_cache
from io import TextIOWrapper
from pathlib import Path

import numpy as np

from dither.registry.problems import Problem, Refused

from .archive import LIMIT, Arrays, load_npz
from .assembly import assemble
from .facts import RegionFacts
from .found import Found, in_table, untold
from .region_checks import check_arrays
from .region_order import first_of
from .regions import RegionMatrix
from .table_columns import NAMED, PLACES, placed_names, sort_columns

__all__ = ["form_of", "opened", "read_facts", "read_region_file", "read_table"]

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
        arrays, theirs = _placed(load_npz(path, path))
        place = in_table(lambda row: f"row {row} (from 0)", arrays=True)

        def called(name: str) -> str:
            return theirs.get(name, name)

        check_arrays(path, arrays, lambda name, row, column: place(called(name), row, column), called=called)
    else:
        found = read_table(path)
        arrays = found.arrays
        check_arrays(path, arrays, found.place, told=found.told)
    return assemble(path, arrays, valid=valid, test=test, scale=scale)


def read_facts(path: Path, *, valid: Sequence[str], test: Sequence[str]) -> RegionFacts:
    """Tell what a file holds; of a table only the header and the chromosomes are read."""
    changed = path.stat().st_mtime_ns if path.is_file() else 0
    known, motifs, cells, chromosomes, gone = _look(path, changed)
    counts = [count for name, count in chromosomes.items() if name not in {*valid, *test}]
    return RegionFacts(
        motifs,
        cells,
        max(counts, default=0),
        sum(chromosomes.values()),
        max(len(chromosomes), 1),
        "atpm" in known,
        "expression" in known,
        "tss" in known,
        untold=gone,
        absent=tuple(name for name in (*valid, *test) if name not in chromosomes),
    )


@lru_cache(maxsize=8)
def _look(path: Path, changed: int) -> tuple[frozenset[str], int, tuple[str, ...], dict[str, int], tuple[str, ...]]:
    """Return what a file knows of cell types, how many motifs, which cell types, regions by chromosome, `untold`."""
    if form_of(path) == ".npz":
        arrays, _ = _placed(load_npz(path, path))
        for name in ("motifs", "chromosome"):
            if name not in arrays:
                raise Refused(f'{path}: has no array "{name}"; it has {", ".join(arrays) or "none"}')
        cells = arrays.get("cells", np.zeros(0, "U1"))
        names = arrays["chromosome"].astype(np.str_).ravel().tolist()
        gone = tuple(map(str, arrays.get("untold", np.zeros(0, "U1")).flat))
        return frozenset(arrays), arrays["motifs"].size, tuple(map(str, cells.flat)), dict(Counter(names)), gone
    with opened(path) as lines:
        header, _, delimiter = _header(path, lines)
        place = header.index("chromosome")
        fields = (line.split(delimiter, place + 1) for line in lines)
        found = dict(Counter(row[place].strip().strip('"') for row in fields if len(row) > place))
    columns = sort_columns([header[i] for i in _columns(header)[1]], path)
    gone = tuple(map(str, untold(columns.known(), columns.cells).get("untold", ())))
    return frozenset(columns.told), len(columns.motifs), columns.cells, found, gone


def _placed(arrays: Arrays) -> tuple[Arrays, dict[str, str]]:
    """Return arrays, those that say where regions are as they are called here, and how they are called in the file."""
    theirs = dict(zip(placed_names(list(arrays)), arrays, strict=True))
    return {name: arrays[there] for name, there in theirs.items()}, theirs


def form_of(path: Path) -> str:
    """Return which of the known endings a path has.

    Raises:
        Refused: If it has none of them.
    """
    for form in FORMS:
        if path.name.lower().endswith(form):
            return form
    raise Refused(f"{path}: cannot be told by its ending; a region file ends in {', '.join(FORMS)}")


class opened:  # noqa: N801 - reads as a verb: with opened(path) as lines
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


def _header(path: Path, lines: TextIOWrapper, *, placed: bool = True) -> tuple[list[str], Iterator[list[str]], str]:
    first = lines.readline()
    delimiter = "\t" if "\t" in first else ","
    if delimiter not in first and ";" in first:
        fix = "save it with commas between columns, and points in numbers"
        raise Refused(Problem(f'{path}: line 1: is split by ";"; columns are split by commas or tabs', help=fix))
    header = placed_names([column.strip() for column in next(csv.reader([first], delimiter=delimiter), [])])
    missing = [column for column in PLACES if column not in header]
    if missing and placed:
        raise Refused(
            Problem(
                f"{path}: line 1: the header has no {', '.join(missing)}; it begins {', '.join(header[:5]) or 'empty'}",
                help="chromosome,start,end,open:CELL,...,MOTIF,...",
            )
        )
    return header, csv.reader(lines, delimiter=delimiter), delimiter


def read_table(path: Path, *, placed: bool = True) -> Found:
    """Read a table.

    Args:
        path: The file.
        placed: Whether chromosome, start and end must be there; else a first column with the names of regions, or
            nothing that says where they are, does as well.

    Raises:
        Refused: It cannot be read, or is larger than memory allows.
    """
    names, values, whole = [], [], True
    wrong: list[tuple[int, int | None, str]] = []  # line, column, what
    with opened(path) as lines:
        header, rows, _ = _header(path, lines, placed=placed)
        place, numbers = _columns(header)
        columns = sort_columns([header[i] for i in numbers], path)
        for line, row in enumerate(rows, 2):
            if (line - 1) * len(numbers) * 8 > LIMIT:
                raise Refused(f"{path}: line {line}: more than {LIMIT:,} bytes of numbers")
            if len(row) != len(header):
                wrong.append((line, None, f"has {len(row)} columns, the header has {len(header)}"))
                values.append(np.zeros(len(numbers)))
                whole = False
            else:
                try:
                    values.append(np.array([row[i] for i in numbers], dtype=np.float64))
                except ValueError:
                    values.append(np.array([_number(row[i]) or 0 for i in numbers]))
                    texts = [i for i in numbers if _number(row[i]) is None]
                    wrong += [(line, i, row[i]) for i in texts]
                    whole = whole and not any(header[i] in PLACES for i in texts)
            names.append("" if place is None or place >= len(row) else row[place].strip())
    found = columns.arrays(np.stack(values) if values else np.zeros((0, len(numbers))))
    if place is not None:
        found["chromosome" if header[place] == "chromosome" else "names"] = np.array(names, dtype=np.str_)
    if not whole:  # then where regions are cannot be judged
        found = {name: values for name, values in found.items() if name not in (*PLACES, "names")}
    told = tuple(Problem(f"{path}: {what}") for what in _told(wrong, header, len(values)))
    return Found(found, in_table(lambda row: f"line {row + 2}"), told)


def _columns(header: list[str]) -> tuple[int | None, list[int]]:
    """Return which column names chromosomes, or else regions, and which hold numbers."""
    named = {0} if header and header[0].lower() in NAMED else set()
    place = header.index("chromosome") if "chromosome" in header else next(iter(named), None)
    return place, [i for i in range(len(header)) if i != place and i not in named]


def _told(wrong: list[tuple[int, int | None, str]], header: list[str], rows: int) -> Iterator[str]:
    """Yield what is wrong in a line, and perhaps a column of it; a column that holds no number at all is said once."""
    times = Counter(column for _, column, _ in wrong)
    empty = [column for column, count in times.items() if column is not None and count == rows > 1]
    for column in empty:
        line, text = next((line, text) for line, at, text in wrong if at == column)
        yield f'the column "{header[column]}" holds no numbers: "{text[:40]}" in line {line}, and so on'
    lines = [
        f"line {line}: {text}" if at is None else f'line {line}, column "{header[at]}": "{text[:40]}" is no number'
        for line, at, text in wrong
        if at not in empty
    ]
    yield from first_of(iter(lines), len(lines))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None
