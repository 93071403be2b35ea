"""Tables of regions: .csv and .tsv (also .gz), and .parquet.

A text table has the header, perhaps after lines of comments that begin with #,

    chromosome,start,end,open:K562,open:HepG2,GATA1,CTCF,...

Every column that is not one of the first three and has no prefix of a cell type is a motif. Columns
are separated by commas, or by tabs if the header has one. open:CELL is 0 or 1, atpm:CELL is a
number; expression_positive:CELL, expression_negative:CELL, tss_positive:CELL and tss_negative:CELL
belong to the two strands.
"""

from __future__ import annotations

import csv
import gzip
import re
import zlib
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from io import TextIOWrapper
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import LINE_BYTES, max_expanded, open_file, unreadable

from ...missing_library import require_extra
from ...prepared.arrays import LIMIT, Arrays
from .column_names import NAMED, check_names, column_arrays, standard_names
from .region_checks import (
    PLACES,
    RawArrays,
    collect_problems,
    line_problems,
    table_locator,
    texts_of,
)

__all__ = ["BOOLEANS", "numeric_columns", "open_table", "read_table"]

COLUMNS = 100_000
"""Most columns of a text table."""
GZIP = b"\x1f\x8b"
"""First bytes of a gzipped file."""
BOOLEANS = {
    "True": "1",
    "TRUE": "1",
    "true": "1",
    "False": "0",
    "FALSE": "0",
    "false": "0",
}


class _Gzip(gzip.GzipFile):
    """A gzipped text below the size policy: its expansion, and the length of a line."""

    def __init__(
        self, file: BinaryIO, size: int, limit: int | None, line_limit: int
    ) -> None:
        super().__init__(fileobj=file, mode="rb")
        self._limit = max_expanded(size)
        if limit is not None:
            self._limit = min(self._limit, limit)
        self._line_limit = line_limit
        self._line = 0

    # The method through which TextIOWrapper reads.
    def read1(self, size: int = -1) -> bytes:
        data = super().read1(size)
        end = data.rfind(b"\n")
        # Bytes of the last line so far.
        if end < 0:
            self._line += len(data)
        else:
            self._line = len(data) - end - 1
        if self.tell() > self._limit or self._line > self._line_limit:
            raise OSError(
                f"more than {self._limit:,} bytes, or {self._line_limit:,} in a line"
            )
        return data


@contextmanager
def open_table(
    path: Path, limit: int | None = None, line_limit: int | None = None
) -> Iterator[TextIOWrapper]:
    """Open a text file, plain or gzipped under any name, of at most `limit` bytes.

    `line_limit` is that of a line of a gzipped one, by default `LINE_BYTES`. Errors while it is
    read are raised as Refused.
    """
    try:
        size = path.stat().st_size
        binary: Any = open_file(path)
    except OSError as error:
        raise unreadable(path, error) from None
    with binary:
        if limit is not None and size > limit:
            message = (
                f"{path}: has {size:,} bytes, the limit of a text table is {limit:,}"
            )
            raise Refused(message, code="too-large")
        if binary.peek(2).startswith(GZIP):
            binary = _Gzip(binary, size, limit, line_limit or LINE_BYTES)
        try:
            # utf-8-sig drops the byte order mark that Excel writes.
            yield TextIOWrapper(binary, encoding="utf-8-sig", newline="")
        except (EOFError, OSError, zlib.error) as error:
            raise Refused(
                f"{path}: damaged or cut short ({error})", code="damaged-file"
            ) from None
        except (UnicodeDecodeError, csv.Error) as error:
            raise Refused(
                f"{path}: not a text table ({error})", code="damaged-file"
            ) from None


def read_table(path: Path) -> RawArrays:
    """Read a .csv, .tsv or .parquet file.

    Places are columns, or names of regions in the first column, or missing.
    """
    is_text = not path.name.lower().endswith(".parquet")
    comments = 0
    if is_text:
        frame, comments = _read_text(path)
    else:
        frame = _read_parquet(path)
    originals = [*map(str, frame.columns)]
    names = standard_names(originals)
    # The size is known before the columns are converted.
    key, numbers = _roles(names)
    if len(frame) * len(numbers) * 8 > LIMIT:
        raise Refused(f"{path}: more than {LIMIT:,} bytes of numbers", code="too-large")

    def locate_row(row: int) -> str:
        if is_text:
            return f"line {row + comments + 2}"
        return f"row {row} (from 0)"

    columns = []
    for number in numbers:
        values = frame.iloc[:, number].to_numpy()
        columns.append((names[number], originals[number], values))

    arrays, problems = numeric_columns(columns, path, locate_row)
    if key is not None:
        name = "chromosome" if names[key] == "chromosome" else "names"

        where = ""
        if not is_text:
            where = f', column "{originals[key]}"'

        with collect_problems(problems):
            texts = texts_of(
                frame.iloc[:, key].to_numpy(),
                lambda row: f"{path}: {locate_row(row)}{where}",
            )
            arrays[name] = np.char.strip(texts)
    if problems and any(
        np.isnan(arrays[name]).any() for name in PLACES[1:] if name in arrays
    ):
        # Their order would be reported as wrong, too.
        arrays = {name: array for name, array in arrays.items() if name not in PLACES}

    of_standard = dict(zip(names, originals, strict=True))
    locate = table_locator(locate_row)
    return RawArrays(
        arrays,
        lambda name, row, column: locate(name, row, of_standard.get(column, column)),
        tuple(problems),
    )


def _is_comment(line: str) -> bool:
    """Return whether a line before the header is a comment, not a header such as "#chrom"."""
    if not line.startswith("#"):
        return False
    names = re.split(r"[,\t]", line.strip())
    return "chromosome" not in standard_names(names)


def _read_text(path: Path) -> tuple[Any, int]:
    """Return a text table, and its number of comments; columns with anything but numbers hold text."""
    import pandas  # type: ignore[import-untyped,unused-ignore]

    with open_table(path, LIMIT) as lines:
        comments = 0
        while _is_comment(first := lines.readline()):
            comments += 1
        # The header may be narrower than the rows, which fails later.
        second = lines.readline()
        delimiter = "\t" if "\t" in first else ","
        if delimiter not in first and ";" in first:
            message = f'{path}: line {comments + 1}: columns are separated by ";"'
            fix = "use commas or tabs, and points in numbers"
            raise Refused(message, help=fix, code="syntax-error")
        if max(first.count(delimiter), second.count(delimiter)) >= COLUMNS:
            raise Refused(f"{path}: more than {COLUMNS:,} columns", code="too-large")
    with open_table(path, LIMIT) as lines:
        for _ in range(comments + 1):
            lines.readline()
        header = [
            name.strip() for name in next(csv.reader([first], delimiter=delimiter), [])
        ]
        key, _ = _roles(standard_names(header))
        # Before pandas 3.1 the default parser may be off in the last digit; since, the option is
        # deprecated.
        exact = tuple(map(int, pandas.__version__.split(".")[:2])) >= (3, 1)
        try:
            frame = pandas.read_csv(
                lines,
                sep=delimiter,
                # pandas would rename columns of one name.
                header=None,
                # Chromosomes named 1 or 2 stay text.
                dtype={} if key is None else {key: str},
                # Motifs may be called NA or NaN, and empty numbers are mistakes.
                na_filter=False,
                # Numbers of lines in messages count blank ones.
                skip_blank_lines=False,
                # One type for a whole column, not one for each block.
                low_memory=False,
                float_precision=None if exact else "round_trip",
            )
        except pandas.errors.EmptyDataError:
            frame = pandas.DataFrame(np.zeros((0, len(header))))
        except pandas.errors.ParserError as error:
            message = f"{path}: cannot be read after line {comments + 1}: {error}"
            raise Refused(message, code="invalid-sample") from None
    if frame.shape[1] != len(header):
        message = f"{path}: line {comments + 2}: has {frame.shape[1]} columns, the header {len(header)}"
        raise Refused(message, code="invalid-sample")
    return frame.set_axis(header, axis=1), comments


def _roles(names: Sequence[str]) -> tuple[int | None, list[int]]:
    """Return the index of the column with chromosomes or names of regions, and those of numbers."""
    numbers = list(range(len(names)))
    key = None
    if names and names[0].lower() in NAMED:
        numbers.remove(0)
        key = 0
    if "chromosome" in names:
        key = names.index("chromosome")
    return key, [index for index in numbers if index != key]


def numeric_columns(
    columns: Sequence[tuple[str, str, Shaped[ndarray, " P"]]],
    path: Path,
    locate: Callable[[int], str],
) -> tuple[Arrays, list[Problem]]:
    """Return the arrays of columns, given standard name, own name and values of each.

    Invalid numbers are problems, and NaN in places, 0 in other columns.
    """
    import pandas

    check_names([name for name, _, _ in columns], path)

    rows = 0
    if columns:
        rows = len(columns[0][2])

    table = np.zeros((rows, len(columns)))
    problems = list[Problem]()
    wrong = list[str]()
    for place, (standard, name, values) in enumerate(columns):
        if values.dtype.kind in "biuf":
            table[:, place] = values
            continue
        texts = [BOOLEANS.get(text, text) for text in map(str, values.tolist())]
        numbers = pandas.to_numeric(texts, errors="coerce")
        invalid = np.isnan(numbers)
        table[:, place] = np.where(
            invalid, np.nan if standard in PLACES else 0, numbers
        )
        if len(values) > 1 and invalid.all():
            message = f'{path}: the column "{name}" holds text such as "{str(values[0])[:40]}"'
            problems.append(Problem(message, code="wrong-shape"))
            continue
        for row in np.flatnonzero(invalid).tolist():
            text = f'"{values[row]!s:.40}" is not a number'
            wrong.append(f'{path}: {locate(row)}, column "{name}": {text}')
    problems += line_problems(wrong)
    return column_arrays([name for name, _, _ in columns], table), problems


def _read_parquet(path: Path) -> Any:
    """Return a parquet table; an index of pandas that holds places or names becomes columns."""
    require_extra("parquet", str(path))
    from pyarrow import ArrowException, parquet  # type: ignore[import-not-found,unused-ignore]

    try:
        metadata = parquet.read_metadata(path)
        size = metadata.num_rows * metadata.num_columns * 8
        limit = min(LIMIT, max_expanded(path.stat().st_size))
        if size > limit:
            raise Refused(
                f"{path}: takes {size:,} bytes, the limit is {limit:,}",
                code="too-large",
            )
        frame = parquet.read_table(path).to_pandas()
    except (OSError, ValueError, ArrowException) as error:
        code = (
            "file-not-found" if isinstance(error, FileNotFoundError) else "damaged-file"
        )
        message = f"{path}: cannot be read as parquet ({str(error)[:200]})"
        raise Refused(message, code=code) from None
    if {*PLACES} & {*standard_names([*map(str, frame.index.names)])}:
        return frame.reset_index()
    if frame.index.to_numpy().dtype.kind not in "biuf" and "peak" not in frame.columns:
        frame.insert(0, "peak", frame.index)
    return frame
