"""From text to ids and back: what a tokenizer is, and the two that need no file, bytes and characters.

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
"""How the end of a text is written where it has to be read."""
PARAGRAPH = "\n\n"
"""What stands between documents where no id ends a text."""


@runtime_checkable
class Tokenizer(Protocol):
    """What the task asks of a tokenizer."""

    @property
    def name(self) -> str:
        """How it was asked for."""
        ...

    @property
    def size(self) -> int:
        """Number of ids, 0 .. size-1."""
        ...

    @property
    def end(self) -> int | None:
        """The id that ends a text, where there is one."""
        ...

    @property
    def separator(self) -> tuple[int, ...]:
        """What stands between two documents where no id ends a text: an empty line, or nothing."""
        ...

    @property
    def fingerprint(self) -> str:
        """sha256 of all that decides how a text is encoded."""
        ...

    def encode(self, text: str) -> Int64[np.ndarray, " N"]:
        """Return the ids of a text."""
        ...

    def encode_each(self, texts: Sequence[str]) -> list[Integer[np.ndarray, " n"]]:
        """Return the ids of each of many texts, in the smallest type that holds every id."""
        ...

    def decode(self, ids: Integer[np.ndarray, " N"]) -> str:
        """Return the text of ids; what is no text becomes U+FFFD."""
        ...

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the characters that the ids stand for; an end mark stands for none."""
        ...


def storage_type(tokenizer: Tokenizer) -> np.dtype[np.unsignedinteger]:
    """Return the smallest unsigned type that holds every id."""
    return np.min_scalar_type(tokenizer.size - 1)


@dataclass(frozen=True)
class Bytes:
    """The bytes of UTF-8. Nothing is ever unknown."""

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
        """Return the text; a sequence of bytes that is not UTF-8 becomes U+FFFD."""
        return str(np.asarray(ids).astype(np.uint8).tobytes(), "utf-8", "replace")

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the bytes that begin a character: all but 0x80 .. 0xBF."""
        return int(np.count_nonzero((np.asarray(ids) & 0xC0) != 0x80))


@dataclass(frozen=True)
class Characters:
    """One id per character of an alphabet, in its order, and one more for every other character.

    Attributes:
        alphabet: The characters, sorted, each once.
        name: How it was asked for.
        end: None; `Ended` adds one.
    """

    alphabet: str
    name: str = "chars"
    end: int | None = None

    def __post_init__(self) -> None:
        if not self.alphabet or any(a >= b for a, b in pairwise(self.alphabet)):
            raise ValueError("an alphabet holds at least one character, sorted and each once")

    @property
    def size(self) -> int:
        """The characters and <unk>."""
        return len(self.alphabet) + 1

    @property
    def unknown(self) -> int:
        """The id <unk>, which decodes to U+FFFD."""
        return len(self.alphabet)

    @property
    def separator(self) -> tuple[int, ...]:
        """An empty line, or nothing where the alphabet has no line end."""
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
    """A tokenizer with one id more, the last one, which ends a text.

    Args:
        inner: A tokenizer that has no such id.
    """

    def __init__(self, inner: Tokenizer) -> None:
        if inner.end is not None:
            raise ValueError(f'"{inner.name}" ends its texts with {inner.end} already')
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
        """Return the text; ends are written out as `<|endoftext|>`."""
        ids = np.asarray(ids)
        ends = np.flatnonzero(ids == self.end)
        starts = np.concatenate([np.zeros(1, np.int64), ends + 1])
        stops = np.append(ends, len(ids))
        return END_MARK.join(self.inner.decode(ids[a:b]) for a, b in zip(starts, stops, strict=True))

    def characters(self, ids: Integer[np.ndarray, " N"]) -> int:
        """Count the characters; an end stands for none."""
        ids = np.asarray(ids)
        return self.inner.characters(ids[ids != self.end])
