"""The tokenizer protocol, and the tokenizers without files: bytes and characters.

Letters: N ids.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cached_property
from itertools import pairwise
from typing import Protocol, runtime_checkable

import numpy as np
from jaxtyping import Int64, Integer

__all__ = ["END_MARK", "PARAGRAPH", "Bytes", "Characters", "Ended", "Tokenizer", "storage_type"]

UNKNOWN = "\ufffd"
END_MARK = "<|endoftext|>"
"""Text of the end-of-text id."""
PARAGRAPH = "\n\n"
"""Separator of documents without an end-of-text id."""


@runtime_checkable
class Tokenizer(Protocol):
    """A tokenizer, as the task uses it."""

    @property
    def name(self) -> str:
        """Name in the experiment."""
        ...

    @property
    def size(self) -> int:
        """Number of ids, 0 .. size-1."""
        ...

    @property
    def end(self) -> int | None:
        """The end-of-text id, if there is one."""
        ...

    @property
    def separator(self) -> tuple[int, ...]:
        """Ids between two documents without an end-of-text id: an empty line, or nothing."""
        ...

    @property
    def fingerprint(self) -> str:
        """sha256 of everything that determines the encoding."""
        ...

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return the ids of a text."""
        ...

    def encode_each(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " n"]]:
        """Return the ids of each of many texts, in the smallest type that holds every id."""
        ...

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        """Return the text of ids; invalid sequences become U+FFFD."""
        ...

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Return the number of characters of the decoded text, without end-of-text ids."""
        ...


def storage_type(tokenizer: Tokenizer) -> np.dtype[np.unsignedinteger]:
    """Return the smallest unsigned type that holds every id."""
    return np.min_scalar_type(tokenizer.size - 1)


@dataclass(frozen=True)
class Bytes:
    """The bytes of UTF-8."""

    name: str = "bytes"
    size: int = 256
    end: int | None = None
    separator: tuple[int, ...] = tuple(PARAGRAPH.encode())
    fingerprint: str = hashlib.sha256(b"bytes").hexdigest()

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return the bytes of a text."""
        return np.frombuffer(text.encode("utf-8"), np.uint8).astype(np.int64)

    def encode_each(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " n"]]:
        """Return the bytes of each text."""
        return [np.frombuffer(text.encode("utf-8"), np.uint8) for text in texts]

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        """Return the text; invalid UTF-8 becomes U+FFFD."""
        return str(np.asarray(ids).astype(np.uint8).tobytes(), "utf-8", "replace")

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the bytes that begin a character: all except 0x80 .. 0xBF."""
        return int(np.count_nonzero((np.asarray(ids) & 0xC0) != 0x80))


@dataclass(frozen=True)
class Characters:
    """One id per character of an alphabet, in its order, and one more for every other character.

    Attributes:
        alphabet: The characters, sorted, each once.
        name: Name in the experiment.
        end: None; `Ended` adds one.
    """

    alphabet: str
    name: str = "chars"
    end: int | None = None

    def __post_init__(self) -> None:
        if not self.alphabet or any(a >= b for a, b in pairwise(self.alphabet)):
            raise ValueError("an alphabet must be sorted, without duplicates, and not empty")

    @property
    def size(self) -> int:
        """The characters and <unk>."""
        return len(self.alphabet) + 1

    @property
    def unknown(self) -> int:
        """The id of unknown characters, which decodes to U+FFFD."""
        return len(self.alphabet)

    @property
    def separator(self) -> tuple[int, ...]:
        """An empty line, or nothing if the alphabet has no line end."""
        return tuple(int(i) for i in self.encode(PARAGRAPH)) if "\n" in self.alphabet else ()

    @cached_property
    def fingerprint(self) -> str:
        """sha256 of the alphabet."""
        return hashlib.sha256(b"chars " + self.alphabet.encode("utf-8", "surrogatepass")).hexdigest()

    @cached_property
    def _points(self) -> Int64[np.ndarray, " alphabet"]:
        return _code_points(self.alphabet)

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return one id per character."""
        points = _code_points(text)
        ids = np.minimum(np.searchsorted(self._points, points), self.unknown - 1)
        return np.where(self._points[ids] == points, ids, self.unknown)

    def encode_each(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " n"]]:
        """Return one id per character of each text."""
        return [self.encode(text).astype(storage_type(self)) for text in texts]

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        """Return one character per id."""
        points = np.append(self._points, ord(UNKNOWN))[np.asarray(ids)]
        return str(points.astype("<u4").tobytes(), "utf-32-le")

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the ids."""
        return len(ids)


def _code_points(text: str) -> Int64[np.ndarray, " N"]:
    return np.frombuffer(text.encode("utf-32-le"), "<u4").astype(np.int64)


class Ended:
    """A tokenizer with an added end-of-text id, the last one.

    Args:
        inner: A tokenizer without such an id.
    """

    def __init__(self, inner: Tokenizer) -> None:
        if inner.end is not None:
            raise ValueError(f'"{inner.name}" already has the end-of-text id {inner.end}')
        self.inner = inner
        self.name = inner.name
        self.size = inner.size + 1
        self.end: int | None = inner.size
        self.separator: tuple[int, ...] = ()
        self.unknown: int | None = getattr(inner, "unknown", None)
        self.fingerprint = hashlib.sha256(f"ended {inner.fingerprint}".encode()).hexdigest()

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return the ids of a text, without its end."""
        return self.inner.encode(text)

    def encode_each(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " n"]]:
        """Return the ids of each text, without its end."""
        return [ids.astype(storage_type(self), copy=False) for ids in self.inner.encode_each(texts)]

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        """Return the text; end-of-text ids become `<|endoftext|>`."""
        ids = np.asarray(ids)
        ends = np.flatnonzero(ids == self.end)
        starts = np.concatenate([np.zeros(1, np.int64), ends + 1])
        stops = np.append(ends, len(ids))
        return END_MARK.join(self.inner.decode(ids[a:b]) for a, b in zip(starts, stops, strict=True))

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the characters, without end-of-text ids."""
        ids = np.asarray(ids)
        return self.inner.characters(ids[ids != self.end])
