"""Token ids by split, memory-mapped from a folder or in memory, and windows of them.

`dither prepare text` writes a folder, and large corpora are cached in one.

Letters: N ids, D documents, W windows, B batch, L length.
"""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Literal

import numpy as np
from jaxtyping import Bool, Int64, Integer

from dither.registry.config.errors import Refused
from dither.registry.files.cache import cache_folder

from ...prepared.store import ArrayStream, Writer, open_arrays, verify, write_folder
from .corpus import SPLITS, Corpus, Document
from .manifest import SHARDS, SplitInfo, StoreInfo, read_store
from .markov import MarkovChain
from .tokenizers.base import Tokenizer, storage_type
from .tokenizers.factory import check_same, record_tokenizer, restore_tokenizer

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

__all__ = [
    "RESIDENT",
    "Documents",
    "Joined",
    "Part",
    "TokenStore",
    "TokenStream",
    "Windows",
    "encode_corpus",
    "open_store",
    "write_store",
]

RESIDENT = 1 << 20
"""Corpora up to this size are encoded in memory each time; larger ones are cached on disk."""
ATTEMPTS = 10  # to open a folder that other processes write at the same time
BATCH = 1 << 22  # characters, and texts, per encoding batch
MANY = 4096

log = logging.getLogger(__name__)


class Joined:
    """Several arrays read as one, by slices, which are copies."""

    def __init__(self, arrays: Sequence[Integer[np.ndarray, " n"]]) -> None:
        self.arrays = tuple(arrays)
        self.edges: Int64[np.ndarray, " n"] = np.cumsum([0, *map(len, arrays)])

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __getitem__(self, part: slice) -> Integer[np.ndarray, " n"]:
        """Return the ids of a slice of step 1."""
        start, stop, _ = part.indices(len(self))
        first, last = np.searchsorted(self.edges, (start, stop), "right") - 1
        parts = [
            array[max(start - edge, 0) : max(stop - edge, 0)]
            for array, edge in zip(
                self.arrays[first : last + 1], self.edges[first:].tolist(), strict=False
            )
        ]
        return parts[0] if len(parts) == 1 else np.concatenate([self.arrays[0][:0], *parts])


@dataclass(frozen=True)
class TokenStream:
    """The ids of a split, in one or several arrays, the offset of each document, and the ids between two documents."""

    arrays: tuple[Integer[np.ndarray, " n"], ...]
    starts: Int64[np.ndarray, " D"]
    gap: int = 0

    @property
    def ids(self) -> Integer[np.ndarray, " N"] | Joined:
        """The ids as one sequence."""
        return self.arrays[0] if len(self.arrays) == 1 else Joined(self.arrays)

    def stops(self) -> Int64[np.ndarray, " D"]:
        """Offset after each document."""
        return np.append(self.starts[1:] - self.gap, len(self.ids))[: len(self.starts)]


Documents = Literal["stream", "separate", "ended", "packed"]


class Windows:
    """Windows of `length` ids over a stream, by number.

    documents = "stream": consecutive windows; only the last one may be shorter. "separate": each
    document begins a window; long ones continue in further windows, and the rest of the last one is
    padding. "ended": the same, but the rest counts as valid. "packed": as many whole documents as
    fit, then padding.
    """

    def __init__(
        self,
        stream: TokenStream,
        length: int,
        documents: Documents = "stream",
        pad: int = 0,
    ) -> None:
        self.length = length
        self.pad = pad
        self._ids = stream.ids
        self._ended = documents == "ended"
        self._stream = stream
        self._table = None if documents == "stream" else _windows_of_documents(stream, length)
        if documents == "packed" and self._table is not None:
            self._table = _packed(*self._table, length)
        self._count = -(-len(self._ids) // length) if self._table is None else len(self._table[0])

    def __len__(self) -> int:
        return self._count

    def ids(self, count: int) -> list[Integer[np.ndarray, " n"]]:
        """Return the ids of the first windows, without padding."""
        starts, sizes = self.spans(np.arange(count))
        return [
            self._ids[start : start + size]
            for start, size in zip(starts.tolist(), sizes.tolist(), strict=True)
        ]

    def spans(
        self, rows: Int64[np.ndarray, " B"]
    ) -> tuple[Int64[np.ndarray, " B"], Int64[np.ndarray, " B"]]:
        """Return the offsets of windows, and how many ids they hold."""
        if self._table is not None:
            return self._table[0][rows], self._table[1][rows]
        starts = rows * self.length
        return starts, np.minimum(self.length, len(self._ids) - starts)

    def documents(
        self, rows: Sequence[int]
    ) -> tuple[Int64[np.ndarray, "B L"], Int64[np.ndarray, "B L"]]:
        """Return the document of each position of windows, and its offset in that document."""
        places = self.spans(np.asarray(rows, np.int64))[0][:, None] + np.arange(self.length)
        number = np.searchsorted(self._stream.starts, places, "right") - 1
        return number, places - self._stream.starts[number]

    def take(self, rows: Sequence[int]) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Return the ids of windows, and which of them are not padding.

        Raises:
            IndexError: A number is out of range.
        """
        numbers = np.asarray(rows, np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"windows are numbered 0..{len(self) - 1}, not {numbers.tolist()}")
        starts, sizes = self.spans(numbers)
        x0 = np.full((len(numbers), self.length), self.pad, np.int64)
        for row, start, size in zip(x0, starts.tolist(), sizes.tolist(), strict=True):
            row[:size] = self._ids[start : start + size]
        valid = np.arange(self.length) < sizes[:, None]
        return x0, np.ones_like(valid) if self._ended else valid


def _windows_of_documents(
    stream: TokenStream, length: int
) -> tuple[Int64[np.ndarray, " W"], Int64[np.ndarray, " W"]]:
    """Return the offset of each window, and how many ids it holds."""
    sizes = stream.stops() - stream.starts
    windows = -(-sizes // length)
    first = np.repeat(np.cumsum(windows) - windows, windows)
    into = (np.arange(len(first)) - first) * length
    return np.repeat(stream.starts, windows) + into, np.minimum(
        length, np.repeat(sizes, windows) - into
    )


def _packed(
    starts: Int64[np.ndarray, " W"], sizes: Int64[np.ndarray, " W"], length: int
) -> tuple[Int64[np.ndarray, " P"], Int64[np.ndarray, " P"]]:
    """Join consecutive windows while they fit into one."""
    packed: list[list[int]] = []
    for start, stop in zip(starts.tolist(), (starts + sizes).tolist(), strict=True):
        if packed and stop - packed[-1][0] <= length:
            packed[-1][1] = stop
        else:
            packed.append([start, stop])
    table = np.array(packed, np.int64).reshape(-1, 2)
    return table[:, 0], table[:, 1] - table[:, 0]


@dataclass(frozen=True)
class TokenStore:
    """Ids by split, their tokenizer, and the distribution of the text, if it is known."""

    name: str
    splits: dict[Split, TokenStream]
    tokenizer: Tokenizer
    distribution: MarkovChain | None = None


def encode_corpus(corpus: Corpus, tokenizer: Tokenizer, folder: Path | None = None) -> TokenStore:
    """Encode a corpus, in memory if it is small, else in a folder of the cache, which several processes may share.

    Each document ends with `tokenizer.end`; without such an id `tokenizer.separator` stands between
    two.

    Raises:
        Refused: The cache cannot be written.
    """
    documents = [
        (number, document)
        for number, split in enumerate(SPLITS)
        for document in corpus.splits[split]
    ]
    if sum(document.size for _, document in documents) <= RESIDENT:
        writers = [SplitWriter(tokenizer) for _ in SPLITS]
        _encode_into(writers, _parts(documents), tokenizer)
        splits = {split: writer.stream() for split, writer in zip(SPLITS, writers, strict=True)}
        return TokenStore(corpus.name, splits, tokenizer, corpus.distribution)
    key = json.dumps(
        [[[number, document.digest] for number, document in documents], tokenizer.fingerprint]
    )
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    path = (folder or cache_folder() / "tokens") / name
    for _ in range(ATTEMPTS):
        if path.exists():
            try:
                store = open_store(path, "once", tokenizer)
                return TokenStore(corpus.name, store.splits, tokenizer, corpus.distribution)
            except (Refused, OSError) as error:
                log.warning("%s is damaged (%s) and is written again", path, error)
        try:
            with write_folder(path, SHARDS, {"documents": name}) as writer:
                write_store(writer, _parts(documents), tokenizer, sources=len(documents))
        except Refused:
            if not path.is_dir():  # else another process was faster
                raise
    raise Refused(f"{path} does not hold what was just written to it", code="damaged-file")


def _parts(documents: Iterable[tuple[int, Document]]) -> Iterator[Part]:
    return (Part(number, document.load(), True, True) for number, document in documents)


def open_store(
    folder: Path,
    check: Literal["once", "always", "never"] = "once",
    tokenizer: Tokenizer | None = None,
) -> TokenStore:
    """Memory-map the ids of a folder; `check` says when to compare checksums. Lengths always are.

    Raises:
        Refused: A file is missing or damaged.
    """
    manifest, info = read_store(folder)
    if check != "never":
        verify(folder, manifest, SHARDS, once=check == "once")
    tokenizer = tokenizer or restore_tokenizer(info.tokenizer, folder)
    check_same(tokenizer, info.tokenizer)
    splits: dict[Split, TokenStream] = {}
    for split, record in info.splits.items():
        names = [*(f"{split}-{number:05d}" for number in range(record.files)), f"{split}-starts"]
        mapped = open_arrays(folder, manifest, SHARDS, names)
        # plain arrays over the mapped ones: the subclass makes every access slower
        *arrays, starts = (np.asarray(mapped[name]) for name in names)
        empty = np.zeros(0, storage_type(tokenizer))
        splits[split] = TokenStream(
            tuple(arrays) or (empty,), starts, len(info.tokenizer.separator)
        )
    return TokenStore(str(folder), splits, tokenizer)


@dataclass(frozen=True)
class Part:
    """A piece of a document on its way to a split, with whether it begins and ends the document there."""

    split: int
    text: str
    begins: bool
    ends: bool


class SplitWriter:
    """Collects the ids of one split in memory."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.dtype = storage_type(tokenizer).newbyteorder("<")
        self._end = np.array([] if tokenizer.end is None else [tokenizer.end], self.dtype)
        self._separator = np.array(tokenizer.separator if tokenizer.end is None else [], self.dtype)
        self._starts = array("q")
        self.length = 0
        self.characters = 0
        self._arrays: list[Integer[np.ndarray, " n"]] = [np.zeros(0, self.dtype)]

    def add(self, part: Part, ids: Integer[np.ndarray, " n"]) -> None:
        if part.begins:
            if self._starts:
                self._write(self._separator)
            self._starts.append(self.length)
        self.characters += len(part.text)
        self._write(ids.astype(self.dtype, copy=False))
        if part.ends:
            self._write(self._end)

    def _write(self, ids: Integer[np.ndarray, " n"]) -> None:
        self._arrays.append(ids)
        self.length += len(ids)

    @property
    def starts(self) -> Int64[np.ndarray, " D"]:
        """Offset of each document."""
        return np.array(self._starts, "<i8")

    def stream(self) -> TokenStream:
        """Return the ids."""
        return TokenStream((np.concatenate(self._arrays),), self.starts, len(self._separator))


class SplitFiles(SplitWriter):
    """Writes the ids of one split to arrays of `shard` ids."""

    def __init__(
        self,
        tokenizer: Tokenizer,
        writer: Writer,
        split: str,
        shard: int,
    ) -> None:
        super().__init__(tokenizer)
        self._writer = writer
        self._split = split
        self._shard = shard
        self._stream: ArrayStream | None = None
        self._files = 0

    def _write(self, ids: Integer[np.ndarray, " n"]) -> None:
        while len(ids):
            if self._stream is None:
                self._stream = self._writer.stream(f"{self._split}-{self._files:05d}", self.dtype)
                self._files += 1
            room = self._shard - self._stream.rows
            self._stream.append(ids[:room])
            self.length += len(ids[:room])
            ids = ids[room:]
            if self._stream.rows == self._shard:
                self._writer.end(self._stream.path.stem)
                self._stream = None

    def close(self) -> SplitInfo:
        """Write the offsets, and return what was written."""
        self._writer.add(f"{self._split}-starts", self.starts)
        count = len(self._starts)
        return SplitInfo(
            documents=count,
            characters=self.characters,
            ids=self.length,
            files=self._files,
        )


def _encode_into(
    writers: Sequence[SplitWriter], parts: Iterable[Part], tokenizer: Tokenizer
) -> None:
    """Encode parts in batches, each into the writer of its split."""
    batch: list[Part] = []

    def encode() -> None:
        for part, ids in zip(
            batch, tokenizer.encode_each([part.text for part in batch]), strict=True
        ):
            writers[part.split].add(part, ids)
        batch.clear()

    characters = 0
    for part in parts:
        batch.append(part)
        characters += len(part.text)
        if characters >= BATCH or len(batch) >= MANY:
            encode()
            characters = 0
    encode()


def write_store(
    writer: Writer,
    parts: Iterable[Part],
    tokenizer: Tokenizer,
    *,
    sources: int,
    shard: int = 1 << 27,
) -> StoreInfo:
    """Encode documents; write their ids, at most `shard` in a file, and their tokenizer. `sources` is for reports."""
    splits = {split: SplitFiles(tokenizer, writer, split, shard) for split in SPLITS}
    _encode_into(list(splits.values()), parts, tokenizer)
    info = StoreInfo(
        vocabulary=tokenizer.size,
        tokenizer=record_tokenizer(tokenizer, writer.folder),
        splits={split: files.close() for split, files in splits.items()},
        sources=sources,
    )
    writer.info |= info.model_dump()
    return info
