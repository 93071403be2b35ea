"""Documents out of files of several sorts, one after the other, in pieces that memory can hold."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

from dither.registry.config.errors import Problem, Refused, nearest

from .text_files import find_files, read_blocks
from .tokenizers.chunks import cut_pieces

__all__ = ["NAMED", "Fault", "Passage", "entries", "find_sources"]

NAMED = ("stdlib", "shakespeare")
"""Words that stand for a text instead of a path."""
ROWS = 256
"""Rows of a parquet file that are read at once."""


@dataclass(frozen=True)
class Passage:
    """A document.

    Attributes:
        place: Where it is, as a person would say it.
        pieces: Its text, to be gone through once, before the next document is asked for. May raise `NoText`.
    """

    place: str
    pieces: Iterator[str]


@dataclass(frozen=True)
class Fault:
    """A place without a document.

    Attributes:
        place: Where it is.
        sort: What is wrong, in a word, to count by.
        message: What is wrong, and where.
    """

    place: str
    sort: str
    message: str


def find_sources(paths: Sequence[str]) -> list[str | Path]:
    """Return the files that paths, folders and globs name, each once, and the words that stand for a text.

    Args:
        paths: What a person gave. Of a folder every file at any depth is taken, but hidden ones.

    Raises:
        Refused: Names every path that is not there.
    """
    found: dict[str | Path, str | Path] = {}
    problems: list[Problem] = []
    for given in paths:
        if given in NAMED:
            found[given] = given
            continue
        try:
            files = _files(given)
        except Refused as refused:
            problems += refused.problems
            continue
        found |= {file.resolve(): file for file in files}
    if problems:
        raise Refused(problems)
    return list(found.values())


def _files(given: str) -> list[Path]:
    folder = Path(given).expanduser() if "\0" not in given else Path()
    try:
        if "\0" in given or not folder.is_dir():
            return find_files(given)
        inside = [path.relative_to(folder) for path in folder.rglob("*")]
    except OSError as error:
        raise Refused(f"{given[:200]} cannot be read: {error.strerror}") from None
    seen = sorted(path for path in inside if not any(part.startswith(".") for part in path.parts))
    if files := [folder / path for path in seen if not (folder / path).is_dir()]:
        return files
    raise Refused(f"there is no file in the folder {folder}")


def entries(sources: Sequence[str | Path], column: str) -> Iterator[Passage | Fault]:
    """Yield the documents of sources, and their faults, always in the same order.

    Args:
        sources: Files, or words of `NAMED`. What a file is follows from its ending: `.jsonl` and `.ndjson` hold one
            document a line, `.parquet` one a row, all others are one document.
        column: Where the text is in a line or a row.

    Raises:
        Refused: A parquet file has no such column, or pyarrow is not installed.
    """
    for source in sources:
        yield from _read(source, column)


def _read(source: str | Path, column: str) -> Iterator[Passage | Fault]:
    if isinstance(source, str):
        yield from _named(source)
    elif source.suffix.lower() in (".jsonl", ".ndjson"):
        yield from _lines(source, column)
    elif source.suffix.lower() == ".parquet":
        yield from _rows(source, column)
    else:
        yield Passage(str(source), cut_pieces(_plain(text for _, text in read_blocks(source))))


def _named(word: str) -> Iterator[Passage]:
    if word == "stdlib":
        from .stdlib import read_stdlib

        documents = read_stdlib(docstrings=True)
    else:
        from .shakespeare import fetch_plays, read_plays

        documents = list(read_plays(fetch_plays()).values())
    for document in documents:
        yield Passage(f"{word}: {document.name}", cut_pieces([document.load()]))


def _plain(blocks: Iterator[str]) -> Iterator[str]:
    r"""Take off a byte order mark, and make every line end "\n"."""
    newlines = io.IncrementalNewlineDecoder(None, translate=True)
    for number, block in enumerate(blocks):
        yield newlines.decode(block if number else block.removeprefix("\ufeff"))
    yield newlines.decode("", final=True)


def _lines(path: Path, key: str) -> Iterator[Passage | Fault]:
    try:
        with path.open("rb") as file:
            empty = True
            for number, raw in enumerate(file, 1):
                empty = False
                if raw.strip():
                    yield _line(f"{path}, line {number}", raw, key)
    except OSError as error:
        yield Fault(str(path), "unreadable", f"cannot be read: {error.strerror}")
        return
    if empty:
        yield Fault(str(path), "empty", "is empty")


def _line(place: str, raw: bytes, key: str) -> Passage | Fault:
    try:
        found = json.loads(raw.removeprefix(b"\xef\xbb\xbf").decode("utf-8"))
    except UnicodeDecodeError as error:
        return Fault(place, "encoding", f"is not UTF-8: byte 0x{error.object[error.start]:02x} at place {error.start}")
    except json.JSONDecodeError as error:
        return Fault(place, "json", f"is not JSON: {error.msg} at column {error.colno}")
    except (ValueError, RecursionError) as error:
        return Fault(place, "json", f"is not JSON that can be read: {error}")
    if not isinstance(found, dict) or key not in found:
        near = nearest(key, found) if isinstance(found, dict) else None
        return Fault(place, "key", f'has no key "{key}"' + (f'; did you mean "{near}"?' if near else ""))
    text = found[key]
    if not isinstance(text, str):
        return Fault(place, "key", f'"{key}" is {type(text).__name__}, not a text')
    return Passage(place, cut_pieces([text]))


def _rows(path: Path, column: str) -> Iterator[Passage | Fault]:
    try:
        from pyarrow import parquet  # type: ignore[import-not-found,unused-ignore]
    except ImportError:
        fix = 'pip install "dither-tasks[parquet]"'
        raise Refused(Problem(f"{path} is read with pyarrow, which is not installed", help=fix)) from None
    try:
        with parquet.ParquetFile(path) as file:
            _must_have(path, column, file.schema_arrow)
            number = 0
            for batch in file.iter_batches(batch_size=ROWS, columns=[column]):
                for text in batch.column(0).to_pylist():
                    number += 1
                    place = f"{path}, row {number}"
                    yield Passage(place, cut_pieces([text])) if text is not None else Fault(place, "key", "is null")
    except (OSError, ValueError) as error:  # pyarrow's own errors are of these
        yield Fault(str(path), "unreadable", f"cannot be read: {str(error).splitlines()[0]}")
        return
    if not number:
        yield Fault(str(path), "empty", "has no rows")


def _must_have(path: Path, column: str, schema: object) -> None:
    """Refuse a file without a column of text of that name."""
    fields = {field.name: str(field.type) for field in schema}  # type: ignore[attr-defined]
    if fields.get(column) in ("string", "large_string"):
        return
    texts = [name for name, sort in fields.items() if sort in ("string", "large_string")]
    what = f'{path} has no column "{column}"' if column not in fields else f'{path}: "{column}" is {fields[column]}'
    some = ", ".join(texts) or "none"
    near = nearest(column, texts) or (texts[0] if len(texts) == 1 else None)
    raise Refused(Problem(f"{what}; columns of text are: {some}", help=f"--column {near}" if near else None))
