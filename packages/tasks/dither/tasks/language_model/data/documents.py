"""Documents of text, JSON lines, Parquet and Arrow files, in pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import AbstractContextManager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither.registry.config.errors import Problem, Refused, nearest

from ...missing_library import require_extra
from ...prepared.rejected import Rejected
from .text_files import (
    NotText,
    cut_pieces,
    find_all,
    plain_text,
    read_blocks,
    read_json_lines,
)

if TYPE_CHECKING:
    from .corpus import Document

__all__ = ["NAMED", "SourceDocument", "find_sources", "read_documents"]

NAMED = ("stdlib", "shakespeare")
"""Texts that are named instead of a path."""
ROWS = 256
"""Rows per read of a Parquet file."""
DATASET_FILES = frozenset({"dataset_info.json", "state.json", "dataset_dict.json"})
"""What `save_to_disk` of the library `datasets` writes next to .arrow files."""


@dataclass(frozen=True)
class SourceDocument:
    """A document; its pieces are iterated once, before the next one, and may raise `NotText`."""

    place: str
    pieces: Iterator[str]


def find_sources(paths: Sequence[str]) -> list[str | Path]:
    """Return named texts, and the files of paths, folders and globs, each once.

    Raises:
        Refused: Names every path that does not exist.
    """
    problems: list[Problem] = []
    sources: dict[str | Path, str | Path] = {}
    for path in paths:
        if path in NAMED:
            sources[path] = path
            continue
        for file in find_all([path], problems, folders=True):
            sources[file.resolve()] = file
    if problems:
        raise Refused(problems)
    return [source for source in sources.values() if not _describes_arrow(source)]


def _describes_arrow(source: str | Path) -> bool:
    return (
        isinstance(source, Path)
        and source.name in DATASET_FILES
        and any(source.parent.glob("**/*.arrow"))
    )


def read_documents(
    sources: Sequence[str | Path], column: str
) -> Iterator[SourceDocument | Rejected]:
    """Yield documents and rejected places, always in the same order.

    `.jsonl` and `.ndjson` hold one document a line, under the key `column`, `.parquet` and `.arrow`
    one a row; all other files are one document.

    Raises:
        Refused: A table has no such column, or pyarrow is not installed.
    """
    for source in sources:
        if isinstance(source, str):
            yield from _named(source)
        elif source.suffix.lower() in (".jsonl", ".ndjson"):
            yield from _json_lines(source, column)
        elif source.suffix.lower() in (".parquet", ".arrow"):
            yield from _table_rows(source, column)
        else:
            yield SourceDocument(
                str(source),
                cut_pieces(plain_text(text for _, text in read_blocks(source))),
            )


def _named(name: str) -> Iterator[SourceDocument]:
    from .builtin_texts import fetch_plays, read_plays, read_stdlib

    documents: list[Document] = []
    if name == "stdlib":
        documents += read_stdlib(docstrings=True)
    if name == "shakespeare":
        documents += read_plays(fetch_plays()).values()
    for document in documents:
        yield SourceDocument(f"{name}: {document.name}", cut_pieces([document.load()]))


def _json_lines(path: Path, key: str) -> Iterator[SourceDocument | Rejected]:
    try:
        for number, record in read_json_lines(path):
            place = f"{path}, line {number}"
            if isinstance(record, NotText):
                yield Rejected(place, record.sort, record.message)
            else:
                yield _text_of(place, record, key)
    except NotText as error:
        yield Rejected(str(path), error.sort, error.message)


def _text_of(place: str, record: dict[str, Any], key: str) -> SourceDocument | Rejected:
    if key not in record:
        near = nearest(key, record)
        hint = f'; did you mean "{near}"?' if near else ""
        return Rejected(place, "key", f'no key "{key}"{hint}')
    text = record[key]
    if not isinstance(text, str):
        return Rejected(place, "key", f'"{key}" is {type(text).__name__}, not a string')
    return SourceDocument(place, cut_pieces([text]))


def _table_rows(path: Path, column: str) -> Iterator[SourceDocument | Rejected]:
    number = 0
    try:
        with _open_table(path) as file:
            _check_column(path, column, file)
            for text in _values(file, column):
                number += 1
                place = f"{path}, row {number}"
                if text is None:
                    yield Rejected(place, "key", "null")
                else:
                    yield SourceDocument(place, cut_pieces([text]))
    except (OSError, ValueError) as error:  # the base classes of pyarrow's errors
        yield Rejected(str(path), "unreadable", str(error).splitlines()[0])
        return
    if number == 0:
        yield Rejected(str(path), "empty", "no rows")


def _open_table(path: Path) -> AbstractContextManager[Any]:
    """Open a Parquet file, or an Arrow stream as in a folder of `save_to_disk` (`datasets`)."""
    require_extra("parquet", str(path))
    from pyarrow import ipc, memory_map, parquet  # type: ignore[import-not-found,unused-ignore]

    if path.suffix.lower() == ".arrow":
        return ipc.open_stream(memory_map(str(path)))  # type: ignore[no-any-return,unused-ignore]
    return parquet.ParquetFile(path)  # type: ignore[no-any-return,unused-ignore]


def _check_column(path: Path, column: str, file: Any) -> None:
    schema = file.schema if path.suffix.lower() == ".arrow" else file.schema_arrow
    texts = [
        field.name for field in schema if str(field.type) in ("string", "large_string")
    ]
    if column in texts:
        return
    near = nearest(column, texts)
    if near is None and len(texts) == 1:
        near = texts[0]
    listed = ", ".join(texts) or "none"
    message = f'{path}: no string column "{column}"; string columns: {listed}'
    fix = f"--column {near}" if near else None
    raise Refused(message, help=fix, code="missing-array")


def _values(file: Any, column: str) -> Iterator[str | None]:
    from pyarrow import parquet  # type: ignore[import-not-found,unused-ignore]

    # A stream of Arrow is iterated by the batches it was written in.
    batches = file
    if isinstance(file, parquet.ParquetFile):
        batches = file.iter_batches(batch_size=ROWS, columns=[column])
    for batch in batches:
        yield from batch.column(column).to_pylist()
