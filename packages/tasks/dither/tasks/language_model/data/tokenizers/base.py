"""The base class of tokenizers, and the tokenizers without files: bytes and characters.

Letters: N ids.
"""

from __future__ import annotations

import hashlib
import re
from abc import ABC, abstractmethod
from collections.abc import Sequence
from itertools import pairwise

import numpy as np
from jaxtyping import Integer
from numpy import ndarray

__all__ = [
    "END_MARK",
    "PARAGRAPH",
    "Bytes",
    "Characters",
    "Ended",
    "Ids",
    "Span",
    "Tokenizer",
    "storage_type",
]

Ids = Integer[ndarray, " N"]
"""Ids of a text; of type int64 where they are encoded."""
Span = tuple[int, int]
"""First offset in a text, and the one after the last."""

UNKNOWN = "\ufffd"
END_MARK = "<|endoftext|>"
"""Text of the end-of-text id."""
PIECE = 1 << 20
"""Characters per call of `encode`."""
PARAGRAPH = "\n\n"
"""Separator of documents without an end-of-text id."""


class Tokenizer(ABC):
    """A tokenizer, as the task uses it.

    Attributes:
        name: Name in the experiment.
        size: Number of ids, 0 .. size-1.
        fingerprint: sha256 of everything that determines the encoding.
        end: The end-of-text id, if there is one.
        separator: Ids between two documents without an end-of-text id: an empty line, or nothing.
        unknown: The id of unknown characters or words, if there is one.
        marks: Special tokens as text, which only chat templates may write.
    """

    name: str
    size: int
    fingerprint: str
    end: int | None = None
    separator: tuple[int, ...] = ()
    unknown: int | None = None
    marks: tuple[str, ...] = ()

    @abstractmethod
    def encode(self, text: str) -> Ids:
        """Return the ids of a text, without its end."""

    def encode_marks(self, text: str) -> Ids:
        """Return the ids of a text, with special tokens as ids instead of letters."""
        return self.encode(text)

    def quotes_marks(self, text: str) -> bool:
        """Return whether a text contains special tokens."""
        if not self.marks:
            return False
        # Not by search: a normalizer may make a mark of other letters.
        return not np.array_equal(self.encode_marks(text), self.encode(text))

    def encode_rendered(self, text: str, contents: Sequence[Span] = ()) -> Ids:
        """Return the ids of text of a chat template, whose special tokens are ids, not letters.

        If a message quotes special tokens, the text is cut at those of the template; a tokenizer
        that puts a prefix before a text (Metaspace with prepend_scheme="first") repeats it there.

        Args:
            text: The rendered text.
            contents: Offsets of messages in it, whose special tokens are letters.
        """
        quoting = [span for span in contents if self.quotes_marks(text[slice(*span)])]
        written = []
        if quoting:
            written = self._template_marks(text, contents)

        # Only marks of the template are borders, as they are for the tokenizer: other cuts would
        # change the ids of a message without marks.
        ids = []
        done = 0
        for start, stop in quoting:
            before = max((end for _, end in written if end <= start), default=0)
            after = min(
                (first for first, _ in written if first >= stop), default=len(text)
            )
            # Between the same two marks of the template as the message before.
            if before < done:
                continue
            ids += [
                self.encode_marks(text[done:before]),
                self.encode(text[before:after]),
            ]
            done = after
        return np.concatenate([*ids, self.encode_marks(text[done:])])

    def _template_marks(self, text: str, contents: Sequence[Span]) -> list[Span]:
        """Return the offsets of special tokens that overlap no message."""
        written = []
        for match in re.finditer("|".join(map(re.escape, self.marks)), text):
            first, last = match.span()
            if not any(start < last and first < stop for start, stop in contents):
                written.append((first, last))
        return written

    def encode_each(self, texts: Sequence[str]) -> list[Ids]:
        """Return the ids of each of many texts, in the smallest type that holds every id.

        Long texts are encoded in pieces: tokenizers whose `encode` looks across characters override
        this.
        """
        dtype = storage_type(self)
        ids = []
        for text in texts:
            arrays = [np.zeros(0, dtype)]
            for start in range(0, len(text), PIECE):
                arrays.append(self.encode(text[start : start + PIECE]).astype(dtype))
            ids.append(np.concatenate(arrays))
        return ids

    @abstractmethod
    def decode(self, ids: Ids) -> str:
        """Return the text of ids: U+FFFD for invalid ones, `<|endoftext|>` for an end of text."""

    @abstractmethod
    def characters(self, ids: Ids) -> int:
        """Return the number of characters of the decoded text, without end-of-text ids."""

    def bytes(self, ids: Ids) -> int:
        """Return the number of UTF-8 bytes of the decoded text, without end-of-text ids."""
        text = self.decode(self._without_end(ids))
        return len(text.encode("utf-8", "surrogatepass"))

    def _without_end(self, ids: Ids) -> Ids:
        ids = np.asarray(ids)
        if self.end is None:
            return ids
        return ids[ids != self.end]


def storage_type(tokenizer: Tokenizer) -> np.dtype[np.unsignedinteger]:
    """Return the smallest unsigned type that holds every id."""
    return np.min_scalar_type(tokenizer.size - 1)


class Bytes(Tokenizer):
    """The bytes of UTF-8."""

    name = "bytes"
    size = 256
    separator = tuple(PARAGRAPH.encode())
    fingerprint = hashlib.sha256(b"bytes").hexdigest()

    def encode(self, text: str) -> Ids:
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64)

    def decode(self, ids: Ids) -> str:
        return str(np.asarray(ids).astype(np.uint8).tobytes(), "utf-8", "replace")

    def characters(self, ids: Ids) -> int:
        """Count the bytes that begin a character: all except 0x80 .. 0xBF."""
        return int(np.count_nonzero((np.asarray(ids) & 0xC0) != 0x80))

    def bytes(self, ids: Ids) -> int:
        """A window may cut a character, whose bytes count."""
        return len(ids)


class Characters(Tokenizer):
    """One id per character of a sorted alphabet, and one more for every other character."""

    name = "chars"

    def __init__(self, alphabet: str) -> None:
        if not alphabet or any(a >= b for a, b in pairwise(alphabet)):
            raise ValueError(
                "an alphabet must be sorted, without duplicates, and not empty"
            )
        self.alphabet = alphabet
        self.size = len(alphabet) + 1
        self.unknown = len(alphabet)
        letters = alphabet.encode("utf-8", "surrogatepass")
        self.fingerprint = hashlib.sha256(b"chars " + letters).hexdigest()
        self._points = _code_points(alphabet)
        if "\n" in alphabet:
            self.separator = tuple(self.encode(PARAGRAPH).tolist())

    def encode(self, text: str) -> Ids:
        points = _code_points(text)
        # A character that is not in the alphabet gets the place of the next larger one.
        ids = np.minimum(np.searchsorted(self._points, points), len(self._points) - 1)
        return np.where(self._points[ids] == points, ids, len(self._points))

    def decode(self, ids: Ids) -> str:
        points = np.append(self._points, ord(UNKNOWN))[np.asarray(ids)]
        return str(points.astype("<u4").tobytes(), "utf-32-le")

    def characters(self, ids: Ids) -> int:
        return len(ids)


def _code_points(text: str) -> Ids:
    # Four bytes a character, without a loop over them.
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)


class Ended(Tokenizer):
    """A tokenizer with an added end-of-text id, the last one."""

    def __init__(self, inner: Tokenizer) -> None:
        if inner.end is not None:
            raise ValueError(
                f'"{inner.name}" already has the end-of-text id {inner.end}'
            )
        self.inner = inner
        self.name = inner.name
        self.unknown = inner.unknown
        self.size = inner.size + 1
        self.end = inner.size
        self.marks = (END_MARK, *inner.marks)
        self.fingerprint = hashlib.sha256(
            f"ended {inner.fingerprint}".encode()
        ).hexdigest()

    def encode(self, text: str) -> Ids:
        return self.inner.encode(text)

    def encode_marks(self, text: str) -> Ids:
        # A template writes the end of a text as its mark.
        parts = [self.inner.encode_marks(part) for part in text.split(END_MARK)]
        end = np.array([self.end])
        ids = [parts[0]]
        for part in parts[1:]:
            ids += [end, part]
        return np.concatenate(ids)

    def encode_each(self, texts: Sequence[str]) -> list[Ids]:
        return [
            ids.astype(storage_type(self), copy=False)
            for ids in self.inner.encode_each(texts)
        ]

    def decode(self, ids: Ids) -> str:
        ids = np.asarray(ids)
        # The inner tokenizer does not have the end id, so it decodes the ids between two ends.
        texts = []
        start = 0
        for end in [*np.flatnonzero(ids == self.end).tolist(), len(ids)]:
            texts.append(self.inner.decode(ids[start:end]))
            start = end + 1
        return END_MARK.join(texts)

    def characters(self, ids: Ids) -> int:
        return self.inner.characters(self._without_end(ids))

    def bytes(self, ids: Ids) -> int:
        return self.inner.bytes(self._without_end(ids))
