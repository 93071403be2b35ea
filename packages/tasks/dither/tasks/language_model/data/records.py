"""Records of JSON, CSV, Parquet and Arrow files: the one reader of all sources of text."""

from __future__ import annotations

import codecs
import csv
import json
import logging
import os
from collections.abc import Generator, Iterator
from contextlib import ExitStack, closing
from pathlib import Path
from typing import Any

from dither.registry.config.errors import Refused, nearest
from dither.registry.files.limits import FREE_BYTES, LINE_BYTES

from ...missing_library import require_extra
from .file_formats import COMPRESSED
from .remote_files import RandomReader, RemotePath
from .text_files import NotText, open_data, plain_text, read_blocks

__all__ = ["TABLES", "Record", "read_records"]

logger = logging.getLogger(__name__)

Record = dict[str, Any] | NotText
"""The values of a record by name, or why there are none."""

TABLES = ("parquet", "arrow")
ROWS = 256
"""Rows per read of a Parquet file."""
ARROW_FILE = b"ARROW1"
"""First bytes of an Arrow file; a stream, as of `datasets`, begins otherwise."""

ARROW_END = b"\xff\xff\xff\xff\0\0\0\0"
"""Last bytes of a stream, whose first four begin every part of it."""
TAIL = 1 << 12
"""Bytes in which the end of a stream is looked for."""


def read_records(
    path: Path, form: str, column: str | None = None
) -> Iterator[tuple[str, Record]]:
    """Yield the line, row or item of each record, and its content.

    Args:
        path: The file.
        form: Its format, as of `file_formats.record_format`.
        column: The only column to read of a table, which must hold text; None for all.

    Raises:
        NotText: The file is unreadable, empty or damaged.
        Refused: A table has no such column, or a library is missing.
    """
    if form in TABLES:
        records = _table_rows(path, form, column)
    elif form in ("csv", "tsv"):
        records = _csv_rows(path, form, column)
    elif form == "json":
        records = _json_records(path)
    else:
        records = _json_lines(path)
    empty = True
    for record in records:
        empty = False
        yield record
    if empty:
        raise NotText("empty", "no records")


def _json_lines(path: Path) -> Iterator[tuple[str, Record]]:
    with closing(_lines(path)) as lines:
        for number, raw in enumerate(lines, 1):
            if raw.strip():
                yield f"line {number}", _json_object(raw)


def _lines(path: Path) -> Generator[bytes, None, None]:
    """Yield the lines of a file, the first one without a byte order mark."""
    mark = codecs.BOM_UTF8
    with open_data(path) as file:
        # One byte more than is allowed shows that a line is too long.
        while raw := file.readline(LINE_BYTES + 1):
            if len(raw) > LINE_BYTES:
                raise NotText(
                    "unreadable", f"a line has more than {LINE_BYTES:,} bytes"
                )
            yield raw.removeprefix(mark)
            mark = b""


def _json_object(raw: bytes) -> Record:
    try:
        record = json.loads(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        byte = f"byte 0x{error.object[error.start]:02x} at offset {error.start}"
        return NotText("encoding", f"not UTF-8: {byte}")
    except json.JSONDecodeError as error:
        return NotText("json", f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        # An integer of too many digits, or lists in lists without end.
        return NotText("json", f"not JSON: {error}")
    return _object(record)


def _object(record: Any) -> Record:
    if not isinstance(record, dict):
        return NotText("key", f"{type(record).__name__}, not an object")
    return record


def _json_records(path: Path) -> Iterator[tuple[str, Record]]:
    """Yield the records of a .json file: an array, objects in lines, or one object."""
    # Published corpora of JSON lines are often named .json, and larger than memory.
    # A generator that is left early would keep the file open until it is collected.
    with closing(_lines(path)) as lines:
        first = next((line for line in lines if line.strip()), b"")
    if first.lstrip()[:1] == b"{" and isinstance(_json_object(first), dict):
        yield from _json_lines(path)
        return

    try:
        content = json.loads(_whole_text(path))
    except json.JSONDecodeError as error:
        place = f"line {error.lineno}, column {error.colno}"
        raise NotText("json", f"not JSON: {error.msg} in {place}") from None
    except (ValueError, RecursionError) as error:
        if isinstance(error, NotText):
            raise
        raise NotText("json", f"not JSON: {error}") from None
    if not isinstance(content, list):
        content = [content]
    for number, record in enumerate(content, 1):
        yield f"item {number}", _object(record)


def _whole_text(path: Path) -> str:
    texts = []
    size = 0
    for raw, text in read_blocks(path):
        size += len(raw)
        if size > FREE_BYTES:
            message = f"one JSON value of more than {FREE_BYTES:,} bytes"
            raise NotText("unreadable", message, "save it as JSON lines")
        texts.append(text)
    return "".join(plain_text(texts))


def _csv_rows(
    path: Path, form: str, column: str | None
) -> Iterator[tuple[str, Record]]:
    # The default of the library is shorter than many documents.
    csv.field_size_limit(LINE_BYTES)
    blocks = (text for _, text in read_blocks(path))
    lines = _text_lines(plain_text(blocks))
    # strict: otherwise a quote that is never closed swallows the rest of the file.
    reader = csv.reader(lines, delimiter="\t" if form == "tsv" else ",", strict=True)
    try:
        header = next(reader, [])
        if len(set(header)) < len(header):
            raise NotText("key", f"two columns of one name in {', '.join(header)}")
        if column is not None:
            _require_column(path, column, header)
        for cells in reader:
            place = f"line {reader.line_num}"
            if len(cells) == len(header):
                yield place, dict(zip(header, cells, strict=True))
            elif cells:
                message = f"{len(cells)} cells, but the header has {len(header)}"
                yield place, NotText("key", message)
    except csv.Error as error:
        message = f"not CSV: {error} in line {reader.line_num}"
        raise NotText("csv", message) from None


def _text_lines(blocks: Iterator[str]) -> Iterator[str]:
    pending = ""
    for block in blocks:
        # Not splitlines, which also cuts at characters such as U+2028 inside of a cell.
        lines = (pending + block).split("\n")
        pending = lines.pop()
        yield from (f"{line}\n" for line in lines)
    if pending:
        yield pending


def _table_rows(
    path: Path, form: str, column: str | None
) -> Iterator[tuple[str, Record]]:
    """Yield the rows of a Parquet file, or of an Arrow file or stream."""
    require_extra("parquet", str(path))
    if path.suffix.lower() in COMPRESSED:
        raise NotText("unreadable", "a compressed table", "decompress it")
    number = 0
    try:
        for batch in _batches(path, form, column):
            for row in batch.to_pylist():
                number += 1
                yield f"row {number}", row
    except (OSError, ValueError) as error:  # the base classes of pyarrow's errors
        if isinstance(error, NotText):
            raise
        raise NotText("unreadable", str(error).splitlines()[0]) from None


def _batches(path: Path, form: str, column: str | None) -> Iterator[Any]:
    from pyarrow import ipc, parquet  # type: ignore[import-not-found,unused-ignore]

    if form == "parquet":
        with ExitStack() as stack:
            source: Any = path
            if isinstance(path, RemotePath):
                source = stack.enter_context(RandomReader(path))
            file = stack.enter_context(parquet.ParquetFile(source))
            columns = _text_columns(path, file.schema_arrow, column)
            yield from file.iter_batches(batch_size=ROWS, columns=columns)
        return
    with _open_arrow(path) as source:
        is_file = source.read(len(ARROW_FILE)) == ARROW_FILE
        source.seek(0)
        reader: Any
        if is_file:
            reader = ipc.open_file(source)
            batches = map(reader.get_batch, range(reader.num_record_batches))
        else:
            _warn_without_end(source, path)
            reader = ipc.open_stream(source)
            batches = iter(reader)
        columns = _text_columns(path, reader.schema, column)
        for batch in batches:
            yield batch if columns is None else batch.select(columns)


def _warn_without_end(source: Any, path: Path) -> None:
    """Warn of an Arrow stream without a mark at its end: closed so, or cut between two batches."""
    begins = source.read(4)
    source.seek(0, os.SEEK_END)
    source.seek(max(source.tell() - TAIL, 0))
    # Zeros may follow the mark, which ends with some.
    ends = source.read().rstrip(b"\0")
    source.seek(0)
    # Streams of before 2019 begin and end otherwise.
    mark = ARROW_END.rstrip(b"\0")
    if begins == mark and ends and not ends.endswith(mark):
        logger.warning("%s: an Arrow stream without an end may be cut short", path)


def _open_arrow(path: Path) -> Any:
    from pyarrow import PythonFile, memory_map

    if isinstance(path, RemotePath):
        return PythonFile(RandomReader(path), mode="r")
    return memory_map(str(path))


def _text_columns(path: Path, schema: Any, column: str | None) -> list[str] | None:
    if column is None:
        return None
    _require_column(path, column, [f.name for f in schema if _is_text(f.type)])
    return [column]


def _is_text(kind: Any) -> bool:
    from pyarrow import types

    # Columns of categories hold strings, too.
    if types.is_dictionary(kind):
        kind = kind.value_type
    tests = (types.is_string, types.is_large_string, types.is_string_view)
    return any(is_kind(kind) for is_kind in tests)


def _require_column(path: Path, column: str, columns: list[str]) -> None:
    if column in columns:
        return
    near = nearest(column, columns)
    if near is None and len(columns) == 1:
        near = columns[0]
    listed = ", ".join(columns) or "none"
    message = f'{path}: no string column "{column}"; string columns: {listed}'
    fix = f"--column {near}" if near else None
    raise Refused(message, help=fix, code="missing-array")
