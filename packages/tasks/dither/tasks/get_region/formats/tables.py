"""Tables of regions: .csv and .tsv (also .gz), .npz and .parquet.

A text table has the header

    chromosome,start,end,open:K562,open:HepG2,GATA1,CTCF,...

Every column that is not one of the first three and has no prefix of a cell type is a motif. Columns are separated by
commas, or by tabs if the header has one. open:CELL is 0 or 1, atpm:CELL is a number; expression_positive:CELL,
expression_negative:CELL, tss_positive:CELL and tss_negative:CELL belong to the two strands. An .npz file has the
arrays `features` (P M, numbers, or uint8 in steps of 1/255), `motifs` (M), `chromosome`, `start`, `end` (P) and, as far
as they are known, `cells` (C), `open`, `atpm` (P C), `expression` and `tss` (P C 2).
"""

from __future__ import annotations

import csv
import gzip
import zlib
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
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
from .column_names import NAMED, check_names, parse_columns, standard_names
from .peaks import texts_of
from .raw_arrays import RawArrays, collect_problems, limited, table_locator, unknown_array
from .region_checks import PLACES, check_arrays

__all__ = ["form_of", "open_table", "read_facts", "read_parquet", "read_region_file", "read_table"]

FORMS = (".npz", ".csv", ".csv.gz", ".tsv", ".tsv.gz")
INDEX: Final = "__index_level_0__"
"""Name that pandas gives to an unnamed index."""

Columns = dict[str, Shaped[np.ndarray, " P"]]


def read_region_file(path: Path, *, valid: Sequence[str], test: Sequence[str], scale: bool) -> RegionMatrix:
    """Read a region file.

    Args:
        path: The file.
        valid: Chromosomes held out for validation.
        test: Chromosomes held out for the final test.
        scale: Divide each motif by its largest value in the training regions and clip at 1.

    Raises:
        Refused: The file is missing or damaged, or values are invalid; names each row and column.
    """
    if form_of(path) == ".npz":
        arrays, originals = _standard(load_npz(path, path))
        locate = table_locator(lambda row: f"row {row} (from 0)", arrays=True)

        def display_name(name: str) -> str:
            return originals.get(name, name)

        raw = RawArrays(
            arrays, lambda name, row, column: locate(display_name(name), row, column), display_name=display_name
        )
    else:
        raw = read_table(path)
    check_arrays(path, raw)
    return assemble(path, raw.arrays, valid=valid, test=test, scale=scale)


def read_facts(path: Path, *, valid: Sequence[str], test: Sequence[str]) -> RegionFacts:
    """Return the facts of a file; of a table only the header and the chromosomes are read."""
    modified = path.stat().st_mtime_ns if path.is_file() else 0
    known, motifs, cells, chromosomes, unknown = _summary(path, modified)
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
        unknown=unknown,
        absent=tuple(name for name in (*valid, *test) if name not in chromosomes),
    )


@lru_cache(maxsize=8)
def _summary(path: Path, modified: int) -> tuple[frozenset[str], int, tuple[str, ...], dict[str, int], tuple[str, ...]]:
    """Return known arrays, number of motifs, cell types, regions by chromosome, and the array "unknown"."""
    if form_of(path) == ".npz":
        arrays, _ = _standard(load_npz(path, path))
        for name in ("motifs", "chromosome"):
            if name not in arrays:
                existing = ", ".join(arrays) or "none"
                raise Refused(f'{path}: no array "{name}"; it has {existing}', code="missing-array")
        cells = arrays.get("cells", np.zeros(0, "U1"))
        names = arrays["chromosome"].astype(np.str_).ravel().tolist()
        unknown = tuple(map(str, arrays.get("unknown", np.zeros(0, "U1")).flat))
        return frozenset(arrays), arrays["motifs"].size, tuple(map(str, cells.flat)), dict(Counter(names)), unknown
    with open_table(path) as lines:
        header, _, delimiter = _header(path, lines)
        index = header.index("chromosome")
        fields = (line.split(delimiter, index + 1) for line in lines)
        chromosomes = dict(Counter(row[index].strip().strip('"') for row in fields if len(row) > index))
    columns = parse_columns([header[i] for i in _columns(header)[1]], path)
    unknown = tuple(map(str, unknown_array(columns.known(), columns.cells).get("unknown", ())))
    return frozenset(columns.of_cells), len(columns.motifs), columns.cells, chromosomes, unknown


def _standard(arrays: Arrays) -> tuple[Arrays, dict[str, str]]:
    """Return arrays with standard names for places, and the original name of each."""
    originals = dict(zip(standard_names(list(arrays)), arrays, strict=True))
    return {name: arrays[original] for name, original in originals.items()}, originals


def form_of(path: Path) -> str:
    """Return the extension of a region file.

    Raises:
        Refused: The extension is unknown.
    """
    for form in FORMS:
        if path.name.lower().endswith(form):
            return form
    raise Refused(f"{path}: unknown file name extension; expected {', '.join(FORMS)}", code="unknown-format")


@contextmanager
def open_table(path: Path) -> Iterator[TextIOWrapper]:
    """Open a text table, plain or gzipped; errors while it is read are raised as Refused."""
    opener: Callable[..., TextIOWrapper] = gzip.open if path.name.lower().endswith(".gz") else open
    if path.exists() and not path.is_file():
        raise Refused(f"{path}: not a regular file", code="unreadable-file")
    try:
        file = opener(path, "rt", encoding="utf-8-sig", newline="")
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}", code="file-not-found") from None
    with file:
        try:
            yield file
        except (EOFError, OSError, zlib.error) as error:
            raise Refused(f"{path}: damaged or cut short ({error})", code="damaged-file") from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise Refused(f"{path}: not a text table ({error})", code="damaged-file") from None


def _header(path: Path, lines: TextIOWrapper, *, placed: bool = True) -> tuple[list[str], Iterator[list[str]], str]:
    first = lines.readline()
    delimiter = "\t" if "\t" in first else ","
    if delimiter not in first and ";" in first:
        message, fix = f'{path}: line 1: columns are separated by ";"', "use commas or tabs, and points in numbers"
        raise Refused(Problem(message, help=fix, code="syntax-error"))
    header = standard_names([column.strip() for column in next(csv.reader([first], delimiter=delimiter), [])])
    missing = [column for column in PLACES if column not in header]
    if missing and placed:
        message = f"{path}: line 1: no column {', '.join(missing)}; the header is {', '.join(header[:5]) or 'empty'}"
        raise Refused(Problem(message, help="chromosome,start,end,open:CELL,...,MOTIF,...", code="missing-array"))
    return header, csv.reader(lines, delimiter=delimiter), delimiter


def read_table(path: Path, *, placed: bool = True) -> RawArrays:
    """Read a text table.

    Args:
        path: The file.
        placed: Require chromosome, start and end; otherwise a first column with names of regions, or no places at all,
            will do.

    Raises:
        Refused: It cannot be read, or is too large.
    """
    names, values, complete = [], [], True
    wrong: list[tuple[int, int | None, str]] = []  # line, column, text
    with open_table(path) as lines:
        header, rows, _ = _header(path, lines, placed=placed)
        named, numbers = _columns(header)
        columns = parse_columns([header[i] for i in numbers], path)
        for line, row in enumerate(rows, 2):
            if (line - 1) * len(numbers) * 8 > LIMIT:
                raise Refused(f"{path}: line {line}: more than {LIMIT:,} bytes of numbers", code="too-large")
            if len(row) != len(header):
                wrong.append((line, None, f"has {len(row)} columns, the header has {len(header)}"))
                values.append(np.zeros(len(numbers)))
                complete = False
            else:
                try:
                    values.append(np.array([row[i] for i in numbers], dtype=np.float64))
                except ValueError:
                    values.append(np.array([_number(row[i]) or 0 for i in numbers]))
                    texts = [i for i in numbers if _number(row[i]) is None]
                    wrong += [(line, i, row[i]) for i in texts]
                    complete = complete and not any(header[i] in PLACES for i in texts)
            names.append("" if named is None or named >= len(row) else row[named].strip())
    arrays = columns.arrays(np.stack(values) if values else np.zeros((0, len(numbers))))
    if named is not None:
        arrays["chromosome" if header[named] == "chromosome" else "names"] = np.array(names, dtype=np.str_)
    if not complete:  # the order of the regions cannot be checked
        arrays = {name: array for name, array in arrays.items() if name not in (*PLACES, "names")}
    messages = (f"{path}: {message}" for message in _messages(wrong, header, len(values)))
    problems = tuple(Problem(message, code="invalid-sample") for message in messages)
    return RawArrays(arrays, table_locator(lambda row: f"line {row + 2}"), problems)


def _columns(header: list[str]) -> tuple[int | None, list[int]]:
    """Return the index of the column with chromosomes, or else names of regions, and those of numbers."""
    named = {0} if header and header[0].lower() in NAMED else set()
    index = header.index("chromosome") if "chromosome" in header else next(iter(named), None)
    return index, [i for i in range(len(header)) if i != index and i not in named]


def _messages(wrong: list[tuple[int, int | None, str]], header: list[str], rows: int) -> Iterator[str]:
    """Yield what is wrong with lines or values; a column without any number gives one message."""
    counts = Counter(column for _, column, _ in wrong)
    texts = [column for column, count in counts.items() if column is not None and count == rows > 1]
    for column in texts:
        line, text = next((line, text) for line, index, text in wrong if index == column)
        yield f'the column "{header[column]}" holds no numbers: "{text[:40]}" in line {line}, and so on'
    lines = [
        f"line {line}: {text}"
        if index is None
        else f'line {line}, column "{header[index]}": "{text[:40]}" is not a number'
        for line, index, text in wrong
        if index not in texts
    ]
    yield from limited(iter(lines), len(lines))


def _number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


def read_parquet(path: Path) -> RawArrays:
    """Read a parquet file; places are columns, names of regions, or missing.

    Raises:
        Refused: pyarrow is not installed, the file is damaged, or columns hold neither numbers nor places.
    """
    columns, index = _read_columns(path)
    originals = dict(zip(standard_names(list(columns)), columns, strict=True))
    table = {name: columns[original] for name, original in originals.items()}
    naming = _drop_index(table, index)
    check_names([name for name in table if name != naming], path)
    locate = table_locator(lambda row: f"row {row} (from 0)")
    arrays: dict[str, Any] = {}
    problems: list[Problem] = []
    if naming is not None:
        with collect_problems(problems):
            texts = table.pop(naming)
            name, original = ("chromosome" if naming == "chromosome" else "names"), originals[naming]
            arrays[name] = texts_of(texts, lambda row: f"{path}: {locate(name, row, original)}")
    odd = [name for name, values in table.items() if values.dtype.kind not in "biuf"]
    lines = (f'{path}: the column "{originals[name]}" holds no numbers ({table[name].dtype})' for name in odd)
    problems += [Problem(line, code="wrong-shape") for line in limited(lines, len(odd))]
    numbers = [name for name in table if name not in odd]
    stacked = [np.asarray(table[name], np.float64) for name in numbers]
    rows = len(next(iter(columns.values()), ()))
    arrays |= parse_columns(numbers, path).arrays(np.stack(stacked, 1) if stacked else np.zeros((rows, 0)))
    return RawArrays(
        arrays, lambda array, row, column: locate(array, row, originals.get(column, column)), tuple(problems)
    )


def _read_columns(path: Path) -> tuple[Columns, list[str]]:
    """Return the columns, and which of them are an index of pandas."""
    try:
        from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        fix = "pip install 'dither-tasks[parquet]'"
        raise Refused(Problem(f"{path}: requires pyarrow", help=fix, code="missing-dependency")) from None
    try:
        metadata = parquet.read_metadata(path)
        size = metadata.num_rows * metadata.num_columns * 8
        if size > LIMIT:
            raise Refused(f"{path}: takes {size:,} bytes, the limit is {LIMIT:,}", code="too-large")
        table = parquet.read_table(path)
        names = table.column_names
        if twice := sorted({name for name in names if names.count(name) > 1}):
            messages = (f'{path}: "{name}" is the name of more than one of the columns' for name in twice)
            raise Refused([Problem(message, code="duplicate") for message in messages])
        index = (table.schema.pandas_metadata or {}).get("index_columns", [])
        columns = {name: table[name].to_numpy() for name in names}
    except (OSError, ValueError, ArrowException) as error:
        code = "file-not-found" if isinstance(error, FileNotFoundError) else "damaged-file"
        raise Refused(f"{path}: cannot be read as parquet ({str(error)[:200]})", code=code) from None
    return columns, [name for name in index if isinstance(name, str)]


def _drop_index(table: Columns, index: list[str]) -> str | None:
    """Remove row numbers that pandas stored; return the column with chromosomes or names of regions, if any."""
    placed = all(name in table for name in PLACES)
    first = next(iter(table), "")
    for name in {*index, INDEX, *([first] if first.lower() in NAMED else [])} & table.keys() - {*PLACES}:
        if placed or table[name].dtype.kind in "biuf":
            del table[name]
    if "chromosome" in table:
        return "chromosome"
    texts = [name for name, values in table.items() if values.dtype.kind not in "biuf"]
    return next((name for name in texts if name in (first, INDEX, *index)), None)
