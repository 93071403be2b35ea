"""Token ids of a corpus, in memory or memory-mapped, and windows over them.

Letters: N ids, V size of the vocabulary, D documents, W windows, P packed windows, B batch, L length.
"""

from __future__ import annotations

import hashlib
import json
import zlib
from abc import ABC, abstractmethod
from array import array
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from jaxtyping import Bool, Int64, Shaped, UInt32
from numpy import ndarray

from dither.registry.config.errors import Refused
from dither.registry.files.cache import cache_folder

from ...prepared.arrays import map_npy
from ...prepared.store import ArrayStream, Writer, open_arrays, verify, write_folder
from ...row_numbers import row_numbers
from ..metrics.baselines import count
from .corpus import SPLITS, Corpus, Document
from .manifest import SHARDS, SplitInfo, StoreInfo, read_store
from .markov import MarkovChain
from .tokenizers.base import Ids, Tokenizer, storage_type
from .tokenizers.factory import check_same, record_tokenizer, restore_tokenizer

if TYPE_CHECKING:
    from dither.registry.contracts.protocols import Split

__all__ = [
    "BLOCK",
    "RESIDENT",
    "Documents",
    "EncodedPart",
    "IdReader",
    "Part",
    "SplitWriter",
    "TokenStore",
    "TokenStream",
    "Windows",
    "encode_corpus",
    "encode_parts",
    "open_store",
    "write_store",
]

_Starts = Int64[ndarray, " D"]
_Ids = Int64[ndarray, "B L"]

RESIDENT = 1 << 20
"""Characters up to which a corpus is encoded at each start; larger ones are cached on disk, as five
million characters of byte pairs take 4 s of CPU, and 3 ms from the cache."""
BATCH = 1 << 22
"""Characters of texts that are encoded together."""
MANY = 4096
"""Number of texts that are encoded together."""
BLOCK = 1 << 15
"""Bytes of ids with a checksum of their own, which are requested from an address together: a window
of 1,024 ids has a tenth of it, and the answer to a shorter request is no faster."""

Documents = Literal["stream", "separate", "ended", "packed"]
Spans = tuple[Int64[ndarray, " W"], Int64[ndarray, " W"]]
"""The offset of each window in a stream, and its number of ids."""


class IdReader(ABC):
    """The ids of a split that is not in memory; a slice of it is."""

    @abstractmethod
    def __len__(self) -> int:
        """Return the number of ids."""

    @abstractmethod
    def slices(self, starts: Sequence[int], sizes: Sequence[int]) -> list[Ids]:
        """Return slices that are read together."""

    def __getitem__(self, part: slice) -> Ids:
        start, stop, _ = part.indices(len(self))
        (ids,) = self.slices([start], [max(stop - start, 0)])
        return ids


@dataclass(frozen=True)
class TokenStream:
    """The ids of a split, the offset of each document, and the number of ids between documents.

    Attributes:
        counts: How often each id occurs, if it is stored.
    """

    ids: Ids | IdReader
    starts: _Starts
    gap: int = 0
    counts: Int64[ndarray, " V"] | None = None

    def slices(self, starts: Sequence[int], sizes: Sequence[int]) -> list[Ids]:
        """Return the ids of slices."""
        if isinstance(self.ids, IdReader):
            return self.ids.slices(starts, sizes)
        return _slices(self.ids, starts, sizes)

    def count(self, size: int) -> Int64[ndarray, " V"]:
        """Return how often each of `size` ids occurs."""
        if self.counts is not None:
            return self.counts
        return count(self.ids, size)

    def stops(self) -> _Starts:
        """Offset after each document."""
        stops = np.append(self.starts[1:] - self.gap, len(self.ids))
        # There may be no document.
        return stops[: len(self.starts)]


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
        self.stream = stream
        self._padding_is_valid = documents == "ended"
        self._table: Spans | None = None

        # Offsets and sizes of consecutive windows follow from their numbers.
        if documents == "stream":
            self._count = -(-len(stream.ids) // length)
            return

        self._table = _windows_of_documents(stream, length)
        if documents == "packed":
            self._table = _packed(self._table, length)
        self._count = len(self._table[0])

    def __len__(self) -> int:
        return self._count

    def ids(self, count: int) -> list[Ids]:
        """Return the ids of the first windows, without padding."""
        starts, sizes = self.spans(np.arange(count))
        return self.stream.slices(starts.tolist(), sizes.tolist())

    def spans(self, rows: Int64[ndarray, " B"]) -> Spans:
        """Return the offset of each window, and its number of ids."""
        if self._table is not None:
            starts, sizes = self._table
            return starts[rows], sizes[rows]
        starts = rows * self.length
        return starts, np.minimum(self.length, len(self.stream.ids) - starts)

    def documents(self, rows: Sequence[int]) -> _Ids:
        """Return the document of each position of windows."""
        starts, _ = self.spans(np.asarray(rows, np.int64))
        offsets = starts[:, None] + np.arange(self.length)
        return np.searchsorted(self.stream.starts, offsets, "right") - 1

    def take(self, rows: Sequence[int]) -> tuple[_Ids, Bool[ndarray, "B L"]]:
        """Return the ids of windows, and which of them are not padding.

        Raises:
            IndexError: A number is out of range.
        """
        # A slice beyond the ids would be padding, not an error.
        numbers = row_numbers(rows, len(self))
        # Stored ids have the smallest type, embeddings of torch take int64.
        x0 = np.full((len(numbers), self.length), self.pad, np.int64)
        self._copy(self.stream.slices, numbers, x0)
        if self._padding_is_valid:
            return x0, np.ones_like(x0, bool)
        _, sizes = self.spans(numbers)
        return x0, np.arange(self.length) < sizes[:, None]

    def mask(
        self, values: Bool[ndarray, " N"], rows: Sequence[int]
    ) -> Bool[ndarray, "B L"]:
        """Return a mask of the stream in windows; False where a window is longer."""
        mask = np.zeros((len(rows), self.length), bool)
        self._copy(partial(_slices, values), np.asarray(rows, np.int64), mask)
        return mask

    def _copy(
        self,
        read: Callable[[Sequence[int], Sequence[int]], list[Shaped[ndarray, " N"]]],
        rows: Int64[ndarray, " B"],
        windows: Shaped[ndarray, "B L"],
    ) -> None:
        """Write slices of the stream into the beginnings of windows."""
        starts, sizes = self.spans(rows)
        values = read(starts.tolist(), sizes.tolist())
        for window, part in zip(windows, values, strict=True):
            window[: len(part)] = part


def _slices(
    values: Shaped[ndarray, " N"], starts: Sequence[int], sizes: Sequence[int]
) -> list[Shaped[ndarray, " M"]]:
    spans = zip(starts, sizes, strict=True)
    return [values[start : start + size] for start, size in spans]


def _windows_of_documents(stream: TokenStream, length: int) -> Spans:
    """Return the offset of each window, and its number of ids."""
    sizes = stream.stops() - stream.starts
    windows = -(-sizes // length)
    # The number of the first window of the same document, for each window.
    first = np.repeat(np.cumsum(windows) - windows, windows)
    into = (np.arange(len(first)) - first) * length
    starts = np.repeat(stream.starts, windows) + into
    return starts, np.minimum(length, np.repeat(sizes, windows) - into)


def _packed(spans: Spans, length: int) -> Spans:
    """Join consecutive windows while they fit into one."""
    starts, sizes = spans
    stops = starts + sizes
    first: list[int] = []
    last: list[int] = []
    for start, stop in zip(starts.tolist(), stops.tolist(), strict=True):
        # Documents follow each other in the stream, so a packed window is one slice of it.
        if first and stop - first[-1] <= length:
            last[-1] = stop
        else:
            first.append(start)
            last.append(stop)
    begin = np.array(first, np.int64)
    return begin, np.array(last, np.int64) - begin


@dataclass(frozen=True)
class TokenStore:
    """Ids by split, their tokenizer, and the distribution of the text, if it is known."""

    name: str
    splits: dict[Split, TokenStream]
    tokenizer: Tokenizer
    distribution: MarkovChain | None = None


def encode_corpus(
    corpus: Corpus, tokenizer: Tokenizer, folder: Path | None = None
) -> TokenStore:
    """Encode a corpus: in memory if it is small, else in a folder of the cache.

    Each document ends with `tokenizer.end`; without such an id `tokenizer.separator` stands between
    two.

    Raises:
        Refused: The cache cannot be written.
    """
    documents: list[tuple[int, Document]] = []
    for number, split in enumerate(SPLITS):
        documents += [(number, document) for document in corpus.splits[split]]

    if sum(document.size for _, document in documents) <= RESIDENT:
        writers = [SplitWriter(tokenizer) for _ in SPLITS]
        for part in encode_parts(_parts(documents), tokenizer):
            writers[part.split].add(part)
        streams = [writer.stream() for writer in writers]
        splits = dict(zip(SPLITS, streams, strict=True))
    else:
        splits = _cached_splits(documents, tokenizer, folder)
    return TokenStore(corpus.name, splits, tokenizer, corpus.distribution)


def _cached_splits(
    documents: Sequence[tuple[int, Document]],
    tokenizer: Tokenizer,
    folder: Path | None,
) -> dict[Split, TokenStream]:
    """Memory-map the ids of documents, which are encoded on the first use."""
    digests = [[number, document.digest] for number, document in documents]
    # The same text and tokenizer give the same ids, whichever experiment uses them.
    key = json.dumps([SHARDS.version, digests, tokenizer.fingerprint])
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    path = (folder or cache_folder() / "tokens") / name
    try:
        store = open_store(path, tokenizer=tokenizer)
    except Refused:
        # Missing or damaged. Several processes may write it at the same time: the folder is
        # replaced in one step, by equal content.
        with write_folder(path, SHARDS, {"documents": name}) as writer:
            encoded = encode_parts(_parts(documents), tokenizer)
            write_store(writer, encoded, tokenizer, sources=len(documents))
        store = open_store(path, tokenizer=tokenizer)
    return store.splits


def _parts(documents: Iterable[tuple[int, Document]]) -> Iterator[Part]:
    for number, document in documents:
        yield Part(number, document.load(), begins=True, ends=True)


def open_store(
    folder: Path,
    check: Literal["once", "always", "never"] = "once",
    tokenizer: Tokenizer | None = None,
    readers: Mapping[Split, IdReader] = MappingProxyType({}),
) -> TokenStore:
    """Memory-map the ids of a folder; `check` says when to compare checksums. Lengths always are.

    Splits in `readers` have their ids elsewhere.

    Raises:
        Refused: A file is missing or damaged.
    """
    manifest, info = read_store(folder)
    if check != "never":
        verify(folder, manifest, SHARDS, once=check == "once")
    tokenizer = tokenizer or restore_tokenizer(info.tokenizer, folder)
    check_same(tokenizer, info.tokenizer)
    gap = len(info.tokenizer.separator)
    splits: dict[Split, TokenStream] = {}
    for split in info.splits:
        names = [f"{split}-starts"]
        # Folders that were prepared earlier lack them.
        if f"{split}-counts" in manifest.arrays:
            names.append(f"{split}-counts")
        if split not in readers:
            names.append(split)
        mapped = open_arrays(folder, manifest, SHARDS, names)
        # plain arrays over the mapped ones: the subclass makes every access slower
        arrays = {name: np.asarray(array) for name, array in mapped.items()}
        splits[split] = TokenStream(
            ids=arrays[split] if split not in readers else readers[split],
            starts=arrays[f"{split}-starts"],
            gap=gap,
            counts=arrays.get(f"{split}-counts"),
        )
    return TokenStore(str(folder), splits, tokenizer)


@dataclass(frozen=True)
class Part:
    """A piece of a document, and whether it begins and ends the document in its split."""

    split: int
    text: str
    begins: bool
    ends: bool


class EncodedPart(NamedTuple):
    """The ids of a part, and its number of characters."""

    split: int
    ids: Ids
    characters: int
    begins: bool
    ends: bool


class SplitWriter:
    """Collects the ids of one split, in memory or in a file, and the offsets of its documents."""

    def __init__(self, tokenizer: Tokenizer, file: ArrayStream | None = None) -> None:
        self.dtype = stored_dtype(tokenizer)
        self.characters = 0
        self.length = 0
        # Eight bytes a document: a corpus may have many millions.
        self._starts = array("q")
        self._file = file
        self._arrays: list[Ids] = [np.zeros(0, self.dtype)]
        self._end = np.zeros(0, self.dtype)
        self._separator = np.zeros(0, self.dtype)
        if tokenizer.end is None:
            self._separator = np.array(tokenizer.separator, self.dtype)
        else:
            self._end = np.array([tokenizer.end], self.dtype)

    def add(self, part: EncodedPart) -> None:
        if part.begins:
            if self._starts:
                self._write(self._separator)
            self._starts.append(self.length)
        self.characters += part.characters
        self._write(part.ids.astype(self.dtype, copy=False))
        if part.ends:
            self._write(self._end)

    def _write(self, ids: Ids) -> None:
        self.length += len(ids)
        if self._file is None:
            self._arrays.append(ids)
        else:
            self._file.append(ids)

    @property
    def starts(self) -> _Starts:
        """Offset of each document."""
        return np.array(self._starts, "<i8")

    def stream(self) -> TokenStream:
        """Return the ids that were collected in memory."""
        return TokenStream(
            np.concatenate(self._arrays), self.starts, len(self._separator)
        )


def stored_dtype(tokenizer: Tokenizer) -> np.dtype[np.unsignedinteger]:
    """Return the type of ids in files, which are little-endian on every machine."""
    return storage_type(tokenizer).newbyteorder("<")


def write_store(
    writer: Writer,
    parts: Iterable[EncodedPart],
    tokenizer: Tokenizer,
    *,
    sources: int,
) -> StoreInfo:
    """Write the ids of documents and their tokenizer. `sources` is for reports."""
    splits: dict[Split, SplitWriter] = {}
    for split in SPLITS:
        splits[split] = SplitWriter(
            tokenizer, writer.stream(split, stored_dtype(tokenizer))
        )
    writers = list(splits.values())
    for part in parts:
        writers[part.split].add(part)

    infos: dict[Split, SplitInfo] = {}
    for split, written in splits.items():
        writer.end(split)
        writer.add(f"{split}-starts", written.starts)
        # What would take all ids later, which may be too many to copy.
        ids = np.asarray(map_npy(writer.folder / f"{split}.npy"))
        writer.add(f"{split}-counts", count(ids, tokenizer.size).astype("<i8"))
        writer.add(f"{split}-checksums", block_checksums(ids))
        infos[split] = SplitInfo(
            documents=len(written.starts),
            characters=written.characters,
            ids=written.length,
        )
    info = StoreInfo(
        vocabulary=tokenizer.size,
        tokenizer=record_tokenizer(tokenizer, writer.folder),
        splits=infos,
        sources=sources,
    )
    writer.info |= info.model_dump()
    return info


def block_checksums(ids: Ids) -> UInt32[ndarray, " B"]:
    """Return the CRC-32 of each block of ids."""
    size = BLOCK // ids.dtype.itemsize
    blocks = range(0, len(ids), size)
    sums = [zlib.crc32(ids[start : start + size].data) for start in blocks]
    return np.array(sums, "<u4")


def encode_parts(parts: Iterable[Part], tokenizer: Tokenizer) -> Iterator[EncodedPart]:
    """Encode parts in batches."""
    for batch in _batches(parts):
        # Together, since tokenizers encode a batch on all cores.
        encoded = tokenizer.encode_each([part.text for part in batch])
        for part, ids in zip(batch, encoded, strict=True):
            yield EncodedPart(part.split, ids, len(part.text), part.begins, part.ends)


def _batches(parts: Iterable[Part]) -> Iterator[list[Part]]:
    batch: list[Part] = []
    characters = 0
    for part in parts:
        batch.append(part)
        characters += len(part.text)
        if characters >= BATCH or len(batch) >= MANY:
            yield batch
            batch = []
            characters = 0
    if batch:
        yield batch
