"""A tokenizer by its name in an experiment file."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import TYPE_CHECKING, Literal, Protocol

from dither.registry.config.errors import Problem, Refused

from ..manifest import REMEDY, TokenizerRecord
from .base import Bytes, Characters, Ended, Tokenizer

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

__all__ = ["TextSource", "check_tokenizer", "load_tokenizer", "record_tokenizer", "restore_tokenizer"]


class TextSource(Protocol):
    """What a tokenizer may learn from; a `Corpus` is one."""

    def texts(self, split: Split) -> Iterable[str]:
        """Yield the texts of a split."""
        ...

    def characters(self) -> str:
        """Return every character of the training split once, sorted."""
        ...

    def content(self, split: Split) -> str:
        """Return a digest of the texts of a split."""
        ...


def load_tokenizer(name: str, source: Callable[[], TextSource], *, end_of_text: bool = False) -> Tokenizer:
    """Return a tokenizer by name.

    Args:
        name: "bytes", "chars", "gpt2", "bpe:N", or the path of a `tokenizer.json`.
        source: Returns the text whose training split "chars" and "bpe:N" learn from; asked only then.
        end_of_text: Add an id that ends a text where the tokenizer has none.

    Raises:
        Refused: No such tokenizer, its file is not usable, or there is too little text to learn from.
    """
    found = _named(name, source)
    return Ended(found) if end_of_text and found.end is None else found


def _named(name: str, source: Callable[[], TextSource]) -> Tokenizer:
    if name == "bytes":
        return Bytes()
    if name == "chars":
        return Characters(source().characters())
    if name.startswith("bpe:"):
        return _byte_pairs(name, source)
    from .huggingface import gpt2, read_tokenizer

    return gpt2() if name == "gpt2" else read_tokenizer(name)


def _byte_pairs(name: str, source: Callable[[], TextSource]) -> Tokenizer:
    from .huggingface import byte_pairs
    from .names import byte_pair_ids

    size = byte_pair_ids(name)
    if size is None:
        what = f'"{name}" is no tokenizer: bpe:N wants a number of ids N, such as bpe:4096, from 257 to 1,000,000'
        raise Refused(Problem(what, path=("task", "tokenizer")))
    text = source()
    return byte_pairs(size, text.content("train"), lambda: text.texts("train"))


def record_tokenizer(tokenizer: Tokenizer, folder: Path) -> TokenizerRecord:
    """Describe a tokenizer, and write into the folder what it takes to have it again."""
    from .huggingface import Learned

    inner = tokenizer.inner if isinstance(tokenizer, Ended) else tokenizer
    sort: Literal["bytes", "chars", "file"] = "bytes"
    file = None
    if isinstance(inner, Characters):
        sort, file = "chars", "alphabet.json"
        (folder / file).write_text(json.dumps({"alphabet": inner.alphabet}) + "\n", "utf-8")
    elif isinstance(inner, Learned):
        sort, file = "file", "tokenizer.json"
        (folder / file).write_text(inner.definition, "utf-8")
    elif not isinstance(inner, Bytes):
        raise TypeError(f'tokenizer "{tokenizer.name}" cannot be kept in a file')
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
    """Return the tokenizer of a folder.

    Raises:
        Refused: Its file is missing or is not the one that made the ids.
    """
    path = folder / (record.file or "")
    try:
        inner = _inner(record, path)
    except (OSError, ValueError, KeyError, TypeError, Refused) as error:
        why = error.problems[0].message if isinstance(error, Refused) else "it is damaged"
        why = (error.strerror or "it cannot be opened") if isinstance(error, OSError) else why
        raise Refused(Problem(f"{path}: the tokenizer of the shards cannot be read: {why}", help=REMEDY)) from None
    found = Ended(inner) if record.added_end and inner.end is None else inner
    if found.fingerprint != record.fingerprint:
        what = f"{path} is not the tokenizer that made these shards"
        raise Refused(
            Problem(what, help=f"its hash is {found.fingerprint[:16]}..., {record.fingerprint[:16]}... is due")
        )
    return found


def _inner(record: TokenizerRecord, path: Path) -> Tokenizer:
    if record.sort == "bytes":
        return Bytes()
    if record.sort == "chars":
        return Characters(json.loads(path.read_text("utf-8"))["alphabet"])
    from .huggingface import read_tokenizer

    learned = read_tokenizer(str(path))
    learned.name = record.name
    return learned


def check_tokenizer(name: str, made: TokenizerRecord, *, end_of_text: bool) -> None:
    """Compare the tokenizer that a person names for shards with the one that made them.

    Args:
        name: "auto", the name under which the shards were made, or any tokenizer.
        made: The tokenizer that made the shards.
        end_of_text: Whether an id that ends a text is asked for.

    Raises:
        Refused: They differ; an end is asked for, and the shards have none; or there is no such tokenizer.
    """
    if end_of_text and made.end is None:
        fix = "prepare the text anew with --end-of-text"
        raise Refused(Problem("these shards have no id that ends a text", path=("task", "end_of_text"), help=fix))
    if name in ("auto", made.name):
        return
    given = f'"{name}"'
    if name in ("bytes", "gpt2") or name.endswith(".json"):
        found = load_tokenizer(name, _nothing, end_of_text=made.added_end)
        if found.fingerprint == made.fingerprint:
            return
        given = f'"{found.name}" ({found.size:,} ids, hash {found.fingerprint[:12]})'
    what = f'the tokenizer "{made.name}" (hash {made.fingerprint[:12]}) made these shards, not {given}'
    fix = 'leave tokenizer = "auto", or prepare the text anew'
    raise Refused(Problem(what, path=("task", "tokenizer"), help=fix))


def _nothing() -> TextSource:
    raise Refused("shards hold no text to learn from")
