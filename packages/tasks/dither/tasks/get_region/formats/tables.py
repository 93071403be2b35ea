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
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped

from dither.registry.config.errors import Problem, Refused

from ...prepared.arrays import LIMIT, Arrays, load_npz
from ..data.column_groups import RegionFacts
from ..data.preprocessing import assemble
from ..data.region_matrix import RegionMatrix
from .column_names import NAMED, PLACES, must_be_known, placed_names, sort_columns
from .peaks import texts_of
from .raw_arrays import RawArrays, collect_problems, table_locator, untold
from .region_checks import check_arrays, first_of

__all__ = ["form_of", "open_table", "read_facts", "read_parquet", "read_region_file", "read_table"]

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
        place = table_locator(lambda row: f"row {row} (from 0)", arrays=True)

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
    with open_table(path) as lines:
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


class open_table:  # noqa: N801 - reads as a verb: with opened(path) as lines
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


def read_table(path: Path, *, placed: bool = True) -> RawArrays:
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
    with open_table(path) as lines:
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
    return RawArrays(found, table_locator(lambda row: f"line {row + 2}"), told)


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


INDEX: Final = "__index_level_0__"
"""Where pandas keeps an index that has no name."""

Columns = dict[str, Shaped[np.ndarray, " P"]]


def read_parquet(path: Path) -> RawArrays:
    """Return what a file says: where its regions are as columns, as `names` of regions, or not at all.

    Raises:
        Refused: pyarrow is not installed, the file is damaged, or columns hold neither numbers nor places.
    """
    columns, index = _read(path)
    theirs = dict(zip(placed_names(list(columns)), columns, strict=True))
    given = {name: columns[there] for name, there in theirs.items()}
    naming = _without_index(given, index)
    must_be_known([name for name in given if name != naming], path)
    place = table_locator(lambda row: f"row {row} (from 0)")
    found: dict[str, Any] = {}
    told: list[Problem] = []
    if naming is not None:
        with collect_problems(told):
            texts = given.pop(naming)
            name, there = ("chromosome" if naming == "chromosome" else "names"), theirs[naming]
            found[name] = texts_of(texts, lambda row: f"{path}: {place(name, row, there)}")
    odd = [name for name, values in given.items() if values.dtype.kind not in "biuf"]
    lines = (f'{path}: the column "{theirs[name]}" holds no numbers ({given[name].dtype})' for name in odd)
    told += map(Problem, first_of(lines, len(odd)))
    numbers = [name for name in given if name not in odd]
    stacked = [np.asarray(given[name], np.float64) for name in numbers]
    rows = len(next(iter(columns.values()), ()))
    found |= sort_columns(numbers, path).arrays(np.stack(stacked, 1) if stacked else np.zeros((rows, 0)))
    return RawArrays(found, lambda array, row, column: place(array, row, theirs.get(column, column)), tuple(told))


def _read(path: Path) -> tuple[Columns, list[str]]:
    """Return the columns, and which of them are an index of pandas."""
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        fix = 'install the extra "parquet" of dither-tasks'
        raise Refused(Problem(f"{path} is read with pyarrow, which is not installed", help=fix)) from None
    try:
        said = parquet.read_metadata(path)
        if said.num_rows * said.num_columns * 8 > LIMIT:
            raise Refused(f"{path}: would take {said.num_rows * said.num_columns * 8:,} bytes, allowed are {LIMIT:,}")
        table = parquet.read_table(path)
        names = table.column_names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            raise Refused([Problem(f'{path}: "{name}" is the name of more than one of the columns') for name in twice])
        index = (table.schema.pandas_metadata or {}).get("index_columns", [])
        columns = {name: table[name].to_numpy() for name in names}
    except (OSError, ValueError, ArrowException) as error:
        raise Refused(f"{path}: cannot be read as parquet ({str(error)[:200]})") from None
    return columns, [name for name in index if isinstance(name, str)]


def _without_index(given: Columns, index: list[str]) -> str | None:
    """Take away what pandas numbers rows with, and return which column says where regions are by name, if one does."""
    placed = all(name in given for name in PLACES)
    first = next(iter(given), "")
    for name in {*index, INDEX, *([first] if first.lower() in NAMED else [])} & given.keys() - {*PLACES}:
        if placed or given[name].dtype.kind in "biuf":
            del given[name]
    if "chromosome" in given:
        return "chromosome"
    texts = [name for name, values in given.items() if values.dtype.kind not in "biuf"]
    return next((name for name in texts if name in (first, INDEX, *index)), None)
