"""Documents of text, JSON, CSV, Parquet and Arrow files, in pieces that fit into memory."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dither.registry.config.errors import Problem, Refused, nearest

from ...prepared.rejected import Rejected
from .file_formats import record_format
from .records import read_records
from .text_files import (
    NotText,
    cut_pieces,
    find_all,
    find_files,
    plain_text,
    read_blocks,
    require_plain,
)

if TYPE_CHECKING:
    from .corpus import Document

__all__ = [
    "NAMED",
    "SourceDocument",
    "find_sources",
    "read_documents",
]

NAMED = ("stdlib", "shakespeare")
"""Texts that are named instead of a path."""
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
    find = partial(find_files, folders=True)
    problems: list[Problem] = []
    sources: dict[str | Path, str | Path] = {}
    for path in paths:
        if path in NAMED:
            sources[path] = path
            continue
        for file in find_all([path], problems, find):
            # A file that several paths name is read once.
            sources[file.resolve()] = file
    if problems:
        raise Refused(problems)
    found = list(sources.values())
    # Not resolved: the cache of the Hub has links to files of other names.
    tables = [
        source.absolute()
        for source in found
        if isinstance(source, Path) and source.suffix == ".arrow"
    ]
    return [source for source in found if not _describes_arrow(source, tables)]


def _describes_arrow(source: str | Path, tables: Sequence[Path]) -> bool:
    if not isinstance(source, Path) or source.name not in DATASET_FILES:
        return False
    folder = source.absolute().parent
    return any(table.is_relative_to(folder) for table in tables)


def read_documents(
    source: str | Path, column: str
) -> Iterator[SourceDocument | Rejected]:
    """Yield documents and rejected places, always in the same order.

    Files of records hold one document each under the key `column`; others are one document.

    Raises:
        Refused: A table has no such column, or pyarrow is not installed.
    """
    if isinstance(source, str):
        yield from _named(source)
        return
    form = record_format(source)
    if form is None:
        # In blocks, as a file may be larger than the memory.
        blocks = (text for _, text in read_blocks(source))
        texts = plain_text(require_plain(source, blocks, column))
        yield SourceDocument(str(source), cut_pieces(texts))
        return
    try:
        for where, record in read_records(source, form, column):
            place = f"{source}, {where}"
            if isinstance(record, NotText):
                yield Rejected(place, record.sort, record.message)
            else:
                yield _text_of(place, record, column)
    except NotText as error:
        yield Rejected(str(source), error.sort, error.message)


def _named(name: str) -> Iterator[SourceDocument]:
    from .builtin_texts import fetch_plays, read_plays, read_stdlib

    documents: list[Document] = []
    if name == "stdlib":
        documents += read_stdlib(docstrings=True)
    if name == "shakespeare":
        documents += read_plays(fetch_plays()).values()
    for document in documents:
        yield SourceDocument(f"{name}: {document.name}", cut_pieces([document.load()]))


def _text_of(place: str, record: dict[str, Any], key: str) -> SourceDocument | Rejected:
    if key not in record:
        near = nearest(key, record)
        hint = f'; did you mean "{near}"?' if near else ""
        return Rejected(place, "key", f'no key "{key}"{hint}')
    text = record[key]
    if text is None:
        return Rejected(place, "key", "null")
    if not isinstance(text, str):
        return Rejected(place, "key", f'"{key}" is {type(text).__name__}, not a string')
    return SourceDocument(place, cut_pieces([text]))
