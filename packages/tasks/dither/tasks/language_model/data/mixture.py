"""Weighted mixtures of texts: the windows of several sources under one numbering.

Letters: S sources, V size of the vocabulary, W windows, B batch, L length.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from functools import cached_property
from hashlib import sha256
from itertools import chain
from typing import TYPE_CHECKING, Any

import numpy as np
from jaxtyping import Bool, Int64
from numpy import ndarray

from ...row_numbers import row_numbers
from .corpus import SPLITS, Corpus, TextSource
from .token_store import (
    Documents,
    IdReader,
    Spans,
    TokenStore,
    TokenStream,
    Windows,
    encode_corpus,
)
from .tokenizers.base import Ids, Tokenizer

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

__all__ = ["MixedStream", "MixedText", "MixedWindows"]


@dataclass(frozen=True)
class MixedText(TextSource):
    """Texts of several sources, or their ids; a tokenizer learns from all of them."""

    name: str
    sources: Sequence[Corpus | TokenStore]

    def texts(self) -> Iterable[str]:
        return chain.from_iterable(corpus.texts() for corpus in self._corpora())

    def content(self) -> str:
        contents = [corpus.content() for corpus in self._corpora()]
        return sha256("".join(contents).encode()).hexdigest()

    def characters(self) -> str:
        """Return every character of the training splits once, sorted."""
        characters = chain.from_iterable(c.characters() for c in self._corpora())
        return "".join(sorted(set(characters)))

    def encode(self, tokenizer: Tokenizer) -> TokenStore:
        """Return the ids of all sources."""
        stores = []
        for source in self.sources:
            if isinstance(source, Corpus):
                stores.append(encode_corpus(source, tokenizer))
            else:
                stores.append(source)
        splits: dict[Split, TokenStream] = {}
        for split in SPLITS:
            parts = tuple(store.splits[split] for store in stores)
            splits[split] = MixedStream.of(parts, interleaved=split != "train")
        return TokenStore(self.name, splits, tokenizer)

    def _corpora(self) -> list[Corpus]:
        return [source for source in self.sources if isinstance(source, Corpus)]


class JoinedIds(IdReader):
    """The ids of several streams one after the other."""

    def __init__(self, parts: Sequence[TokenStream]) -> None:
        self._parts = parts

    def __len__(self) -> int:
        return sum(len(part.ids) for part in self._parts)

    def slices(self, starts: Sequence[int], sizes: Sequence[int]) -> list[Ids]:
        columns = []
        first = 0
        for part in self._parts:
            length = len(part.ids)
            begins = np.clip(np.subtract(starts, first), 0, length)
            ends = np.clip(np.add(starts, sizes) - first, 0, length)
            # One request of all slices, as an answer takes long.
            columns.append(part.slices(begins.tolist(), (ends - begins).tolist()))
            first += length
        return [np.concatenate(pieces) for pieces in zip(*columns, strict=True)]


@dataclass(frozen=True)
class MixedStream(TokenStream):
    """The ids of a split of several sources.

    Attributes:
        parts: The ids of each source.
        interleaved: Whether windows of all sources take turns, in proportion to their numbers, so
            that the first of them represent the split; else those of a source are consecutive.
    """

    parts: tuple[TokenStream, ...] = ()
    interleaved: bool = False

    @classmethod
    def of(cls, parts: tuple[TokenStream, ...], *, interleaved: bool) -> MixedStream:
        ids = JoinedIds(parts)
        starts = np.concatenate([part.starts for part in parts])
        return cls(ids, starts, parts=parts, interleaved=interleaved)

    def count(self, size: int) -> Int64[ndarray, " V"]:
        """Return how often each of `size` ids occurs."""
        total = np.zeros(size, np.int64)
        for part in self.parts:
            total += part.count(size)
        return total


class MixedWindows(Windows):
    """Windows of several sources, by number; none crosses from one source into another."""

    def __init__(
        self,
        stream: MixedStream,
        length: int,
        documents: Documents = "stream",
        pad: int = 0,
    ) -> None:
        self.length = length
        self.pad = pad
        self.parts = [Windows(part, length, documents, pad) for part in stream.parts]
        self.sizes = [len(part) for part in self.parts]
        self._count = sum(self.sizes)
        self._firsts = np.cumsum([0, *self.sizes])[:-1]
        self._interleaved = stream.interleaved

    def sources(
        self, rows: Sequence[int] | Int64[ndarray, " B"]
    ) -> Int64[ndarray, " B"]:
        """Return the source of each window."""
        return np.searchsorted(self._firsts, self._numbers(rows), "right") - 1

    def ids(self, count: int) -> list[Ids]:
        """Return the ids of the first windows, without padding."""
        numbers = self._numbers(range(count))
        sources = self.sources(range(count))
        windows: dict[int, Ids] = {}
        for source, part in enumerate(self.parts):
            place = np.flatnonzero(sources == source)
            starts, sizes = part.spans(numbers[place] - self._firsts[source])
            ids = part.stream.slices(starts.tolist(), sizes.tolist())
            windows.update(zip(place.tolist(), ids, strict=True))
        return [windows[row] for row in range(count)]

    def spans(self, rows: Int64[ndarray, " B"]) -> Spans:
        """Return the offset of each window in its source, and its number of ids."""
        starts, sizes = self._gather(rows, lambda part, numbers: part.spans(numbers))
        return starts, sizes

    def documents(self, rows: Sequence[int]) -> Int64[ndarray, "B L"]:
        """Return the document of each position of windows, numbered within its source."""
        (documents,) = self._gather(
            rows, lambda part, numbers: (part.documents(numbers.tolist()),)
        )
        return documents

    def take(
        self, rows: Sequence[int]
    ) -> tuple[Int64[ndarray, "B L"], Bool[ndarray, "B L"]]:
        """Return the ids of windows, and which of them are not padding.

        Raises:
            IndexError: A number is out of range.
        """
        x0, valid = self._gather(
            rows, lambda part, numbers: part.take(numbers.tolist())
        )
        return x0, valid

    def _gather(
        self,
        rows: Sequence[int] | Int64[ndarray, " B"],
        read: Callable[[Windows, Int64[ndarray, " N"]], tuple[ndarray, ...]],
    ) -> tuple[ndarray, ...]:
        """Read windows from their sources, and return the results in the order of the rows."""
        numbers = self._numbers(rows)
        sources = self.sources(rows)
        places = []
        results = []
        for source, part in enumerate(self.parts):
            place = np.flatnonzero(sources == source)
            places.append(place)
            results.append(read(part, numbers[place] - self._firsts[source]))
        order = np.argsort(np.concatenate(places))
        columns = zip(*results, strict=True)
        return tuple(np.concatenate(column)[order] for column in columns)

    def _numbers(self, rows: Any) -> Int64[ndarray, " B"]:
        """Return the numbers of windows, those of each source after those of the one before."""
        numbers = row_numbers(rows, self._count)
        if self._interleaved:
            return self._turns[numbers]
        return numbers

    @cached_property
    def _turns(self) -> Int64[ndarray, " W"]:
        """The window of each turn: the k-th of W windows of a source comes at the time (k + 1/2) / W."""
        times = [(np.arange(size) + 0.5) / size for size in self.sizes if size]
        return np.argsort(np.concatenate(times), kind="stable")
