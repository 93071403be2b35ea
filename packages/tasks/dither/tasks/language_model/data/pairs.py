"""Prompts with responses and conversations from files of records: supervised fine-tuning, and labelled text. No torch.

Letters: N ids, D documents.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, NamedTuple

from dither.registry.config.errors import Problem, Refused

from .chat import ChatTemplate, Piece, encode_piece, read_messages
from .corpus import Corpus, Document
from .file_formats import record_format
from .published_splits import splits_of_sources
from .records import TABLES, Record, read_records
from .text_files import CODES_OF, NotText, check_encodable

if TYPE_CHECKING:
    from jaxtyping import Bool, Int64
    from numpy import ndarray

    from dither.registry.contracts.protocols import Split

    from .token_store import TokenStore
    from .tokenizers.base import Ids, Tokenizer

__all__ = ["Example", "ExampleIds", "Keys", "Long", "encode_examples", "read_examples"]


Long = Literal["truncate", "skip", "refuse"]
"""Treatment of examples longer than a window."""


class Keys(NamedTuple):
    """Keys of a record; with `messages`, prompt and response are not read."""

    prompt: str
    response: str
    label: str | None = None
    messages: str | None = None


@dataclass(frozen=True)
class Example(Document):
    """A document of known and learned pieces; perhaps with a label."""

    pieces: tuple[Piece, ...] = ()
    label: str | None = None


@dataclass(frozen=True)
class ExampleIds:
    """Known ids of a split, and the label of each document; -1 without a label."""

    known: Bool[ndarray, " N"]
    labels: Int64[ndarray, " D"]


@lru_cache(maxsize=2)
def read_examples(
    files: tuple[tuple[Path, int], ...], keys: Keys, template: str | None
) -> tuple[Example, ...]:
    """Return the examples of files, given with their modification times.

    Raises:
        Refused: Names all wrong lines.
    """
    chat = None
    if template is not None:
        chat = ChatTemplate(Path(template))

    examples: list[Example] = []
    problems: list[Problem] = []
    published = splits_of_sources([path for path, _ in files])
    for (path, _), split in zip(files, published, strict=True):
        # Files of other names are JSON lines, too.
        form = record_format(path) or "lines"
        try:
            for where, record in read_records(path, form):
                place = f"{path}:{where.removeprefix('line ')}"
                try:
                    example = _example(place, record, keys, chat, table=form in TABLES)
                except NotText as error:
                    message = f"{place}: {error.message}"
                    code = CODES_OF.get(error.sort, "invalid-value")
                    problems.append(Problem(message, ("paths",), code=code))
                else:
                    examples.append(replace(example, published=split))
        except NotText as error:
            message = f"{path}: {error.message.removeprefix(f'{path}: ')}"
            code = CODES_OF.get(error.sort, "unreadable-file")
            problems.append(Problem(message, ("paths",), help=error.help, code=code))
    if problems:
        raise Refused(problems)
    return tuple(examples)


def _example(
    place: str,
    record: Record,
    keys: Keys,
    chat: ChatTemplate | None,
    *,
    table: bool,
) -> Example:
    """Return the example of a record.

    Raises:
        NotText: It is not one.
    """
    if isinstance(record, NotText):
        raise record
    label = _string(record, keys.label)
    if keys.messages is not None:
        assert chat is not None
        messages = record.get(keys.messages)
        if not isinstance(messages, list):
            raise NotText("key", f'no list of messages under the key "{keys.messages}"')
        pieces = [*chat.pieces(read_messages(messages, table=table))]
        if not pieces:
            raise NotText("key", "no message of the assistant")
    else:
        pieces = _prompt_and_response(record, keys, chat)

    texts = [piece.text for piece in pieces]
    text = "".join(texts)
    # In pieces: the same text with another border, or label, is another example.
    digest = hashlib.sha256(json.dumps([*texts, label]).encode()).hexdigest()
    return Example(
        place,
        digest,
        size=len(text),
        load=partial(str, text),
        pieces=tuple(pieces),
        label=label,
    )


def _prompt_and_response(
    record: Mapping[str, Any], keys: Keys, chat: ChatTemplate | None
) -> list[Piece]:
    prompt = _string(record, keys.prompt) or ""
    response = _string(record, keys.response)
    if not response:
        raise NotText("key", f'no text under the key "{keys.response}"')
    before = Piece(prompt)
    if chat is not None and prompt:
        before = chat.prompt(prompt)
    return [before, Piece(response, learned=True)]


def _string(record: Mapping[str, Any], key: str | None) -> str | None:
    """Return the text under a key; None if there is none, as a table has a null there."""
    value = None
    if key is not None:
        value = record.get(key)

    if value is None:
        return None
    if not isinstance(value, str):
        raise NotText("key", f'"{key}" is {type(value).__name__}, not a string')
    check_encodable(value)
    return value


def encode_examples(
    corpus: Corpus,
    tokenizer: Tokenizer,
    labels: Sequence[str] = (),
    *,
    length: int,
    long: Long = "truncate",
) -> tuple[TokenStore, Mapping[Split, ExampleIds], Mapping[Split, int]]:
    """Encode the pieces of examples separately, so that the borders between them are those of ids.

    Returns:
        The ids, which of them are known, labels, and the number of examples longer than a window.

    Raises:
        Refused: Examples whose template changes quoted special tokens; with `long = "refuse"`, such
            that are longer; no example is left.
    """
    import numpy as np

    from .token_store import EncodedPart, SplitWriter, TokenStore

    index = {name: number for number, name in enumerate(labels)}
    streams = {}
    examples = {}
    counts: dict[Split, int] = {}
    too_long: list[Problem] = []
    invalid: list[Problem] = []
    for split, documents in corpus.splits.items():
        writer = SplitWriter(tokenizer)
        masks = []
        numbers = []
        counts[split] = 0
        for example, ids, known in _encode_all(documents, tokenizer, invalid):
            # The writer adds the end-of-text id.
            size = len(ids) + (tokenizer.end is not None)
            if size > length:
                counts[split] += 1
                message = f"{example.name}: {size} ids, more than a window of {length}"
                too_long.append(Problem(message, ("task", "length"), code="too-large"))
                # Of a prompt that fills its window nothing would be learned.
                if long == "skip" or known[:length].all():
                    continue
            # A cut answer does not end where it is cut.
            ends = size <= length
            characters = len(example.load())
            writer.add(EncodedPart(0, ids[:length], characters, begins=True, ends=ends))
            masks.append(known[:length])
            numbers.append(index.get(example.label or "", -1))

        stream = writer.stream()
        known = np.zeros(len(stream.ids), bool)
        for start, mask in zip(stream.starts.tolist(), masks, strict=True):
            # Not the end-of-text id, which is not in the mask: it is learned.
            known[start : start + len(mask)] = mask
        streams[split] = stream
        examples[split] = ExampleIds(known, np.array(numbers, np.int64))

    if long == "refuse":
        invalid += too_long
    if invalid:
        raise Refused(invalid)
    for split in ("train", "valid"):
        if not len(streams[split].starts):
            message = (
                f'no example of the split "{split}" fits into a window of {length}'
            )
            raise Refused(message, ("task", "length"), code="no-samples")
    return TokenStore(corpus.name, streams, tokenizer), examples, counts


def _encode_all(
    documents: Iterable[Document], tokenizer: Tokenizer, problems: list[Problem]
) -> Iterator[tuple[Example, Ids, Bool[ndarray, " N"]]]:
    """Yield examples with their ids; those that have none go to `problems`."""
    for example in documents:
        assert isinstance(example, Example)
        try:
            ids, known = _encode(example, tokenizer)
        except NotText as error:
            message = f"{example.name}: {error.message}"
            problems.append(Problem(message, ("paths",), code="invalid-value"))
        else:
            yield example, ids, known


def _encode(example: Example, tokenizer: Tokenizer) -> tuple[Ids, Bool[ndarray, " N"]]:
    """Return the ids of an example without its end, and which are known; perhaps NotText."""
    import numpy as np

    ids = []
    known = []
    for piece in example.pieces:
        ids.append(encode_piece(piece, tokenizer))
        known.append(np.full(len(ids[-1]), not piece.learned))
    # Where the template ends answers with the end of texts, that of the last one is not doubled.
    if tokenizer.end is not None:
        ends = np.flatnonzero(ids[-1] == tokenizer.end)
        if len(ends):
            ids[-1] = ids[-1][: ends[-1]]
            known[-1] = known[-1][: ends[-1]]
    return np.concatenate(ids), np.concatenate(known)
