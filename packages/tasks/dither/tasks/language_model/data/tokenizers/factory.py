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
from . import BPE_RANGE, OPTION, byte_pair_ids
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
        tokenizer = _byte_pairs(name, source())
    elif name == "gpt2":
        from .huggingface import gpt2

        tokenizer = gpt2()
    # Unlike Path, os.path accepts names that are not valid paths.
    elif os.path.isfile(Path(name) / RECORD):
        tokenizer = saved_tokenizer(Path(name))
    else:
        from .huggingface import read_tokenizer

        tokenizer = read_tokenizer(name)

    if end_of_text and tokenizer.end is None:
        return Ended(tokenizer)
    return tokenizer


def _byte_pairs(name: str, text: TextSource) -> Tokenizer:
    from .huggingface import byte_pairs

    size = byte_pair_ids(name)
    if size is None:
        raise Refused(f'"{name}": {BPE_RANGE}', path=OPTION, code="out-of-range")
    return byte_pairs(size, text.content(), text.texts)


def save_tokenizer(tokenizer: Tokenizer, folder: Path) -> None:
    """Write a tokenizer of any sort into a folder, for `saved_tokenizer`."""
    (folder / RECORD).write_text(
        record_tokenizer(tokenizer, folder).model_dump_json(), "utf-8"
    )


def saved_tokenizer(folder: Path) -> Tokenizer:
    """Load what `save_tokenizer` wrote; Refused if it is damaged."""
    try:
        record = TokenizerRecord.model_validate_json(read_bytes(folder / RECORD))
    except (OSError, ValueError) as error:
        raise Refused(
            f"{folder / RECORD} cannot be read: {error}", code="damaged-file"
        ) from None
    return restore_tokenizer(record, folder)


def record_tokenizer(tokenizer: Tokenizer, folder: Path) -> TokenizerRecord:
    """Describe a tokenizer, and write its definition into the folder."""
    inner = tokenizer
    if isinstance(inner, Ended):
        inner = inner.inner

    sort: Literal["bytes", "chars", "file"]
    file = None
    if isinstance(inner, Bytes):
        sort = "bytes"
    elif isinstance(inner, Characters):
        sort = "chars"
        file = "alphabet.json"
        (folder / file).write_text(
            json.dumps({"alphabet": inner.alphabet}) + "\n", "utf-8"
        )
    else:
        from .huggingface import Learned

        assert isinstance(inner, Learned)
        sort = "file"
        file = "tokenizer.json"
        (folder / file).write_text(inner.definition, "utf-8")
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
            # It was read under the name of its file.
            inner.name = record.name
            # The folder that it came from may have named the end, which tokenizer.json does not.
            if not record.added_end:
                inner.end = record.end
                inner.separator = tuple(record.separator)
    except (OSError, ValueError, KeyError, TypeError, Refused) as error:
        reason = error.strerror if isinstance(error, OSError) else "damaged"
        message = f"{path}: cannot read the tokenizer: {reason}"
        fix = f"run: {SHARDS.command}"
        raise Refused(message, help=fix, code="damaged-file") from None
    tokenizer: Tokenizer = inner
    if record.added_end and inner.end is None:
        tokenizer = Ended(inner)
    check_same(tokenizer, record)
    return tokenizer


def check_same(tokenizer: Tokenizer, record: TokenizerRecord) -> None:
    """Compare a tokenizer with the one that made stored ids.

    Raises:
        Refused: They differ.
    """
    if tokenizer.fingerprint != record.fingerprint:
        size = f"{tokenizer.size:,} ids"
        other = f'"{tokenizer.name}" ({size}, hash {tokenizer.fingerprint[:12]})'
        raise Refused(_differs(record, other))


def check_name(name: str, record: TokenizerRecord, *, end_of_text: bool) -> None:
    """Compare the options `tokenizer` and `end_of_text` with the tokenizer that made stored ids.

    Raises:
        Refused: They differ; an end-of-text id is requested and missing; or there is no such
            tokenizer.
    """
    if end_of_text and record.end is None:
        fix = "prepare the text again with --end-of-text"
        message = "the prepared ids have no end-of-text id"
        raise Refused(message, path=("task", "end_of_text"), help=fix, code="misfit")
    if name in ("auto", record.name):
        return
    # Learned names cannot be compared by what they would learn.
    loadable = (
        name in ("bytes", "gpt2") or name.endswith(".json") or Path(name).is_dir()
    )
    if not loadable:
        raise Refused(_differs(record, f'"{name}"'))
    check_same(load_tokenizer(name, None, end_of_text=record.added_end), record)


def _differs(record: TokenizerRecord, other: str) -> Problem:
    message = f'the ids were made with tokenizer "{record.name}" (hash {record.fingerprint[:12]})'
    fix = "remove tokenizer, or set it in task.data and prepare the text again"
    return Problem(f"{message}, not {other}", path=OPTION, help=fix, code="misfit")
