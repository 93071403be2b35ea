"""Tokenizers by name; saving them with prepared ids, and comparing them with those."""

from __future__ import annotations

import json
import os
from collections.abc import Callable
from pathlib import Path
from typing import Literal

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import read_bytes

from ..corpus import TextSource
from ..manifest import SHARDS, TokenizerRecord
from . import BPE_RANGE, SIZES, byte_pair_ids
from .base import Bytes, Characters, Ended, Tokenizer

__all__ = [
    "check_name",
    "check_same",
    "load_tokenizer",
    "record_tokenizer",
    "restore_tokenizer",
    "save_tokenizer",
    "saved_tokenizer",
]

RECORD = "tokenizer-record.json"
"""File that says which tokenizer is next to it."""


def load_tokenizer(
    name: str, source: Callable[[], TextSource] | None, *, end_of_text: bool = False
) -> Tokenizer:
    """Return a tokenizer by name.

    Args:
        name: "bytes", "chars", "gpt2", "bpe:N", the path of a `tokenizer.json`, or of a folder with
            one or with a tokenizer that `save_tokenizer` wrote.
        source: Returns the text that "chars" and "bpe:N" learn from; called only for these, None
            for the others.
        end_of_text: Add an end-of-text id if the tokenizer has none.

    Raises:
        Refused: The name is unknown, its file is unusable, or there is too little text to learn
            from.
    """
    tokenizer: Tokenizer
    if name == "bytes":
        tokenizer = Bytes()
    elif name == "chars" and source is not None:
        tokenizer = Characters(source().characters())
    elif name.startswith("bpe:") and source is not None:
        size = byte_pair_ids(name)
        if size is None:
            raise Refused(
                Problem(f'"{name}": {BPE_RANGE}', path=("task", "tokenizer"), code="out-of-range")
            )
        from .huggingface import byte_pairs

        text = source()
        tokenizer = byte_pairs(size, text.content(), text.texts)
    elif name not in SIZES and os.path.isfile(Path(name) / RECORD):  # False for invalid names
        tokenizer = saved_tokenizer(Path(name))
    else:
        from .huggingface import gpt2, read_tokenizer

        tokenizer = gpt2() if name == "gpt2" else read_tokenizer(name)
    return Ended(tokenizer) if end_of_text and tokenizer.end is None else tokenizer


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer of any sort into a folder, for `saved_tokenizer`."""
    (folder / RECORD).write_text(record_tokenizer(tokenizer, folder).model_dump_json(), "utf-8")


def saved_tokenizer(folder: Path) -> Tokenizer:
    """Load what `save_tokenizer` wrote; Refused if it is damaged."""
    try:
        record = TokenizerRecord.model_validate_json(read_bytes(folder / RECORD))
    except (OSError, ValueError) as error:
        raise Refused(f"{folder / RECORD} cannot be read: {error}", code="damaged-file") from None
    return restore_tokenizer(record, folder)


def record_tokenizer(tokenizer: Tokenizer, folder: Path) -> TokenizerRecord:
    """Describe a tokenizer, and write its definition into the folder."""
    from .huggingface import Learned

    inner = tokenizer.inner if isinstance(tokenizer, Ended) else tokenizer
    sort: Literal["bytes", "chars", "file"] = "bytes"
    file = None
    if isinstance(inner, Characters):
        sort = "chars"
        file = "alphabet.json"
        (folder / file).write_text(json.dumps({"alphabet": inner.alphabet}) + "\n", "utf-8")
    elif isinstance(inner, Learned):
        sort = "file"
        file = "tokenizer.json"
        (folder / file).write_text(inner.definition, "utf-8")
    elif not isinstance(inner, Bytes):
        raise TypeError(f'tokenizer "{tokenizer.name}" cannot be saved')
    return TokenizerRecord(
        name=tokenizer.name,
        sort=sort,
        fingerprint=tokenizer.fingerprint,
        end=tokenizer.end,
        added_end=inner is not tokenizer,
        separator=list(tokenizer.separator),
        file=file,
    )


def restore_tokenizer(record: TokenizerRecord, folder: Path) -> Tokenizer:
    """Load the tokenizer of a folder.

    Raises:
        Refused: Its file is missing, damaged, or not that of the ids.
    """
    path = folder / (record.file or "")
    inner: Tokenizer
    try:
        if record.sort == "bytes":
            inner = Bytes()
        elif record.sort == "chars":
            inner = Characters(json.loads(path.read_text("utf-8"))["alphabet"])
        else:
            from .huggingface import read_tokenizer

            inner = read_tokenizer(str(path))
            inner.name = record.name
            if not record.added_end:
                inner.end = record.end
                inner.separator = tuple(record.separator)
    except (OSError, ValueError, KeyError, TypeError, Refused) as error:
        what = f"{path}: cannot read the tokenizer: {getattr(error, 'strerror', None) or 'damaged'}"
        raise Refused(Problem(what, help=f"run: {SHARDS.command}", code="damaged-file")) from None
    tokenizer = Ended(inner) if record.added_end and inner.end is None else inner
    check_same(tokenizer, record)
    return tokenizer


def check_same(tokenizer: Tokenizer, record: TokenizerRecord) -> None:
    """Compare a tokenizer with the one that made stored ids.

    Raises:
        Refused: They differ.
    """
    if tokenizer.fingerprint != record.fingerprint:
        given = f'"{tokenizer.name}" ({tokenizer.size:,} ids, hash {tokenizer.fingerprint[:12]})'
        raise Refused(_differs(record, given))


def check_name(name: str, record: TokenizerRecord, *, end_of_text: bool) -> None:
    """Compare the options `tokenizer` and `end_of_text` with the tokenizer that made stored ids.

    Raises:
        Refused: They differ; an end-of-text id is requested and missing; or there is no such
            tokenizer.
    """
    if end_of_text and record.end is None:
        fix = "prepare the text again with --end-of-text"
        what = "the prepared ids have no end-of-text id"
        raise Refused(Problem(what, path=("task", "end_of_text"), help=fix, code="misfit"))
    if name in ("auto", record.name):
        return
    if name not in ("bytes", "gpt2") and not name.endswith(".json") and not Path(name).is_dir():
        raise Refused(_differs(record, f'"{name}"'))
    check_same(load_tokenizer(name, None, end_of_text=record.added_end), record)


def _differs(record: TokenizerRecord, given: str) -> Problem:
    what = f'the ids were made with tokenizer "{record.name}" (hash {record.fingerprint[:12]}), not {given}'
    fix = "remove tokenizer, or prepare the text again"
    return Problem(what, path=("task", "tokenizer"), help=fix, code="misfit")
