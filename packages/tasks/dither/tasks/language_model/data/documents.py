"""Documents of text, JSON Lines, Parquet and Arrow files, one after the other, in pieces that fit into memory."""

from __future__ import annotations

import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dither.registry.config.errors import Problem, Refused, nearest
from dither.registry.plugins.install_command import optional_import

from ...prepared.rejected import Rejected
from .text_files import cut_pieces, find_all, plain_text, read_blocks

__all__ = ["NAMED", "SourceDocument", "find_sources", "read_documents"]

NAMED = ("stdlib", "shakespeare")
"""Texts that are named instead of a path."""
ROWS = 256
"""Rows per read of a Parquet file."""
DATASET_FILES = frozenset({"dataset_info.json", "state.json", "dataset_dict.json"})
"""What `save_to_disk` of the library `datasets` writes next to .arrow files."""


@dataclass(frozen=True)
class SourceDocument:
    """A document; its pieces are to be iterated once, before the next document is read, and may raise `NotText`."""

    place: str
    pieces: Iterator[str]


def find_sources(paths: Sequence[str]) -> list[str | Path]:
    """Return named texts, and the files of paths, folders (at any depth, except hidden ones) and globs, each once.

    Raises:
        Refused: Names every path that does not exist.
    """
    problems: list[Problem] = []
    sources: dict[str | Path, str | Path] = {}
    for path in paths:
        found = [path] if path in NAMED else find_all([path], problems, folders=True)
        sources |= {
            source if isinstance(source, str) else source.resolve(): source for source in found
        }
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
                str(source), cut_pieces(plain_text(text for _, text in read_blocks(source)))
            )


def _named(name: str) -> Iterator[SourceDocument]:
    if name == "stdlib":
        from .builtin_texts import read_stdlib

        documents = read_stdlib(docstrings=True)
    else:
        from .builtin_texts import fetch_plays, read_plays

        documents = list(read_plays(fetch_plays()).values())
    for document in documents:
        yield SourceDocument(f"{name}: {document.name}", cut_pieces([document.load()]))


def _json_lines(path: Path, key: str) -> Iterator[SourceDocument | Rejected]:
    try:
        with path.open("rb") as file:
            empty = True
            for number, raw in enumerate(file, 1):
                empty = False
                if raw.strip():
                    yield _json_line(f"{path}, line {number}", raw, key)
    except OSError as error:
        yield Rejected(str(path), "unreadable", error.strerror or "cannot be read")
        return
    if empty:
        yield Rejected(str(path), "empty", "empty")


def _json_line(place: str, raw: bytes, key: str) -> SourceDocument | Rejected:
    try:
        record = json.loads(raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except UnicodeDecodeError as error:
        message = f"not UTF-8: byte 0x{error.object[error.start]:02x} at offset {error.start}"
        return Rejected(place, "encoding", message)
    except json.JSONDecodeError as error:
        return Rejected(place, "json", f"not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        return Rejected(place, "json", f"not JSON: {error}")
    if not isinstance(record, dict) or key not in record:
        near = nearest(key, record) if isinstance(record, dict) else None
        return Rejected(
            place, "key", f'no key "{key}"' + (f'; did you mean "{near}"?' if near else "")
        )
    text = record[key]
    if not isinstance(text, str):
        return Rejected(place, "key", f'"{key}" is {type(text).__name__}, not a string')
    return SourceDocument(place, cut_pieces([text]))


def _table_rows(path: Path, column: str) -> Iterator[SourceDocument | Rejected]:
    """Yield the rows of a Parquet file, or of an Arrow stream as in a folder of `save_to_disk` (`datasets`)."""
    with optional_import(f"{path}: pyarrow is not installed", "dither-tasks", "parquet"):
        from pyarrow import ipc, memory_map, parquet  # type: ignore[import-not-found,unused-ignore]
    try:
        stream = path.suffix.lower() == ".arrow"
        with (
            ipc.open_stream(memory_map(str(path))) if stream else parquet.ParquetFile(path) as file
        ):
            fields = {
                field.name: str(field.type)
                for field in (file.schema if stream else file.schema_arrow)
            }
            texts = [name for name, kind in fields.items() if kind in ("string", "large_string")]
            if column not in texts:
                near = nearest(column, texts) or (texts[0] if len(texts) == 1 else None)
                what = f'{path}: no string column "{column}"; string columns: {", ".join(texts) or "none"}'
                raise Refused(
                    Problem(what, help=f"--column {near}" if near else None, code="missing-array")
                )
            number = 0
            for batch in file if stream else file.iter_batches(batch_size=ROWS, columns=[column]):
                for text in batch.column(column).to_pylist():
                    number += 1
                    place = f"{path}, row {number}"
                    yield (
                        Rejected(place, "key", "null")
                        if text is None
                        else SourceDocument(place, cut_pieces([text]))
                    )
    except (OSError, ValueError) as error:  # the base classes of pyarrow's errors
        yield Rejected(str(path), "unreadable", str(error).splitlines()[0])
        return
    if not number:
        yield Rejected(str(path), "empty", "no rows")
