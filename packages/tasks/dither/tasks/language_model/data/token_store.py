"""The ids of a split as one stream, in memory or mapped from one or several files, and windows of it.

Letters: N ids, D documents, W windows, B batch, L length.
"""

from __future__ import annotations

import hashlib
import json
from array import array
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from jaxtyping import Bool, Int64, Integer

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_write, fsync
from dither.registry.files.cache import cache_folder

from .manifest import SIDECAR, FolderRecord, ShardRecord, SplitRecord, find_record
from .markov import SourceDistribution
from .tokenizers.base import Tokenizer, storage_type
from .tokenizers.factory import restore_tokenizer

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

__all__ = [
    "Documents",
    "Joined",
    "SplitWriter",
    "Stream",
    "TokenShards",
    "Verify",
    "Windows",
    "open_shards",
    "verify_shards",
]

Documents = Literal["stream", "separate", "ended"]
"""Whether windows run across the borders of documents or hold one document each, and whether the rest counts."""


class Joined:
    """Several arrays read as one. A slice is copied; the whole is never held."""

    def __init__(self, arrays: Sequence[Integer[np.ndarray, " n"]]) -> None:
        self.arrays = tuple(arrays)
        self.edges: Int64[np.ndarray, " n"] = np.cumsum([0, *map(len, arrays)])

    def __len__(self) -> int:
        return int(self.edges[-1])

    def __getitem__(self, part: slice) -> Integer[np.ndarray, " n"]:
        """Return the ids of a slice of step 1."""
        start, stop, step = part.indices(len(self))
        if step != 1:
            raise ValueError(f"a slice of step 1 is wanted, not {step}")
        found = [
            array[max(start - edge, 0) : max(stop - edge, 0)]
            for array, edge in zip(self.arrays, self.edges.tolist(), strict=False)
        ]
        return np.concatenate([self.arrays[0][:0], *found])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Integer[np.ndarray, " N"]:
        """Return all ids in memory, for whoever insists."""
        whole = self[:]
        return whole if dtype is None else whole.astype(dtype)


@dataclass(frozen=True)
class Stream:
    """The ids of a split, and where its documents begin.

    Attributes:
        arrays: The ids, in one or several pieces.
        starts: Where each document begins, ascending.
        gap: Ids between two documents that belong to neither; an id that ends a document belongs to it.
    """

    arrays: tuple[Integer[np.ndarray, " n"], ...]
    starts: Int64[np.ndarray, " D"]
    gap: int = 0

    @property
    def ids(self) -> Integer[np.ndarray, " N"] | Joined:
        """The ids as one sequence."""
        return self.arrays[0] if len(self.arrays) == 1 else Joined(self.arrays)

    def stops(self) -> Int64[np.ndarray, " D"]:
        """Where each document ends."""
        return np.append(self.starts[1:] - self.gap, len(self.ids))[: len(self.starts)]


class Windows:
    """Windows of equal length over a stream, by number.

    Args:
        stream: Where the ids are.
        length: Ids per window L.
        documents: "stream": every L ids in turn, only the last window may be shorter. "separate": each document begins
            a window; a longer one goes on in further windows, and the rest of its last window is padding. "ended": the
            same, but the rest counts as the document's own.
        pad: The id in that rest.
    """

    def __init__(self, stream: Stream, length: int, documents: Documents = "stream", pad: int = 0) -> None:
        self.length, self.pad = length, pad
        # plain arrays over the mapped ones: the subclass would make every access slower
        self._arrays = [np.asarray(array) for array in stream.arrays]
        self._edges: Int64[np.ndarray, " n"] = np.cumsum([0, *map(len, self._arrays)])
        self._views = [
            np.lib.stride_tricks.sliding_window_view(array, length) if len(array) >= length else None
            for array in self._arrays
        ]
        self._ended = documents == "ended"
        self._table = None if documents == "stream" else _windows_of_documents(stream, length)
        self._count = -(-int(self._edges[-1]) // length) if self._table is None else len(self._table[0])

    def __len__(self) -> int:
        return self._count

    def spans(self, rows: Int64[np.ndarray, " B"]) -> tuple[Int64[np.ndarray, " B"], Int64[np.ndarray, " B"]]:
        """Return where windows begin, and how many ids they hold."""
        if self._table is not None:
            return self._table[0][rows], self._table[1][rows]
        starts = rows * self.length
        return starts, np.minimum(self.length, self._edges[-1] - starts)

    def take(self, rows: Sequence[int]) -> tuple[Int64[np.ndarray, "B L"], Bool[np.ndarray, "B L"]]:
        """Return the ids of windows, and which of them are no padding.

        Raises:
            IndexError: There is no window of that number.
        """
        numbers = np.asarray(rows, np.int64)
        if numbers.size and not (numbers.min() >= 0 and numbers.max() < len(self)):
            raise IndexError(f"windows are numbered 0..{len(self) - 1}, asked for {numbers.tolist()}")
        starts, sizes = self.spans(numbers)
        ids = self._gather(starts)
        if numbers.size and sizes.min() == self.length:
            return ids, np.ones(ids.shape, bool)
        valid = np.arange(self.length) < sizes[:, None]
        ids[~valid] = self.pad
        return ids, np.ones_like(valid) if self._ended else valid

    def _gather(self, starts: Int64[np.ndarray, " B"]) -> Int64[np.ndarray, "B L"]:
        """Copy L ids from each start on, across the borders of arrays; what lies behind the last id is anything."""
        found = np.empty((len(starts), self.length), np.int64)
        piece = np.searchsorted(self._edges[1:-1], starts, "right")
        inside = starts + self.length <= self._edges[piece + 1]
        for number in np.unique(piece[inside]).tolist():
            chosen = np.flatnonzero(inside & (piece == number))
            found[chosen] = self._views[number][starts[chosen] - self._edges[number]]
        if not inside.all():
            rest = np.flatnonzero(~inside)
            places = np.minimum(starts[rest, None] + np.arange(self.length), self._edges[-1] - 1)
            found[rest] = self._each(places)
        return found

    def _each(self, places: Int64[np.ndarray, "b L"]) -> Int64[np.ndarray, "b L"]:
        found = np.empty(places.shape, np.int64)
        piece = np.searchsorted(self._edges[1:-1], places, "right")
        for number in np.unique(piece).tolist():
            chosen = piece == number
            found[chosen] = self._arrays[number][places[chosen] - self._edges[number]]
        return found


def _windows_of_documents(stream: Stream, length: int) -> tuple[Int64[np.ndarray, " W"], Int64[np.ndarray, " W"]]:
    """Where the windows of each document begin and how many ids they hold."""
    sizes = stream.stops() - stream.starts
    windows = -(-sizes // length)
    first = np.repeat(np.cumsum(windows) - windows, windows)
    into = (np.arange(len(first)) - first) * length
    return np.repeat(stream.starts, windows) + into, np.minimum(length, np.repeat(sizes, windows) - into)


Verify = Literal["once", "always", "never"]
"""When the bytes are read through for their checksums: on first use and after a change, each time, or not at all."""

BLOCK = 1 << 24


@dataclass(frozen=True)
class TokenShards:
    """Ids by split, and the tokenizer that made them.

    Attributes:
        name: Where they come from.
        splits: The ids of "train", "valid" and "test".
        tokenizer: What they decode with.
        law: None; the distribution of a text from files is not known.
    """

    name: str
    splits: dict[Split, Stream]
    tokenizer: Tokenizer
    law: SourceDistribution | None = None

    def encoded(self, tokenizer: Tokenizer) -> dict[Split, Stream]:
        """Return the ids of every split.

        Raises:
            Refused: Another tokenizer made them.
        """
        if tokenizer.fingerprint != self.tokenizer.fingerprint:
            made = f'"{self.tokenizer.name}" ({self.tokenizer.size:,} ids, hash {self.tokenizer.fingerprint[:12]})'
            given = f'"{tokenizer.name}" ({tokenizer.size:,} ids, hash {tokenizer.fingerprint[:12]})'
            what = f"{self.name}: the tokenizer {made} made these shards, not {given}"
            fix = 'leave tokenizer = "auto", or prepare the text anew'
            raise Refused(Problem(what, path=("task", "tokenizer"), help=fix))
        return self.splits


def open_shards(folder: Path, verify: Verify = "once") -> TokenShards:
    """Map the shards of a folder.

    Args:
        folder: Where `prepare text` has put them.
        verify: Lengths are always compared; this says when checksums are.

    Raises:
        Refused: Something is missing, cut short, changed, or outside the vocabulary.
    """
    record = find_record(folder)
    if verify == "always" or (verify == "once" and not _is_verified(folder, record)):
        verify_shards(folder, record)
    splits: dict[Split, Stream] = {}
    for split, said in record.splits.items():
        arrays = tuple(_map(folder, shard, record.dtype) for shard in said.shards)
        starts = _map(folder, said.starts, "<i8")
        splits[split] = Stream(arrays or (np.zeros(0, record.dtype),), starts, len(record.tokenizer.separator))
    return TokenShards(str(folder), splits, restore_tokenizer(record.tokenizer, folder))


def verify_shards(folder: Path, record: FolderRecord) -> None:
    """Read every file, compare its checksum, and see that no id is outside the vocabulary; note that it was done.

    Raises:
        Refused: Names each file at fault, and the place of the first id outside the vocabulary.
    """
    problems = []
    for said in record.splits.values():
        for shard in said.shards:
            problems += _check(folder, shard, record.dtype, record.vocabulary)
        problems += _check(folder, said.starts, "<i8", None)
    if problems:
        raise Refused(problems)
    with suppress(OSError), atomic_write(_stamp(folder)) as aside:  # without it the next run only reads them again
        aside.write_text(json.dumps([record.vocabulary, *_state(folder, record)]), "utf-8")


def _check(folder: Path, shard: ShardRecord, dtype: str, vocabulary: int | None) -> list[Problem]:
    path, digest, place, strange = folder / shard.file, hashlib.sha256(), 0, None
    ids = _map(folder, shard, dtype)
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        digest.update(block.tobytes())
        if vocabulary is not None and strange is None and block.max() >= vocabulary:
            place = start + int(np.argmax(block >= vocabulary))
            strange = int(ids[place])
    fix = "copy it again, or prepare the text anew"
    found = []
    if strange is not None:
        what = f"{path}: the id {strange} at place {place:,} is outside the vocabulary 0..{(vocabulary or 0) - 1}"
        found.append(Problem(what, help=fix))
    if digest.hexdigest() != shard.sha256:
        found.append(Problem(f"{path} is damaged: its checksum is not the one in {SIDECAR}", help=fix))
    return found


def _map(folder: Path, shard: ShardRecord, dtype: str) -> Integer[np.ndarray, " N"]:
    if not shard.ids:
        return np.zeros(0, dtype)
    try:
        return np.asarray(np.memmap(folder / shard.file, dtype, "r", shape=(shard.ids,)))
    except (OSError, ValueError) as error:
        raise Refused(f"{folder / shard.file} cannot be read: {error}") from None


def _stamp(folder: Path) -> Path:
    """Where it is noted that the checksums of this folder were right."""
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return cache_folder() / "verified" / f"{name}.json"


def _state(folder: Path, record: FolderRecord) -> list[list[str | int]]:
    """Every file with its checksum and what the file system knows of it; a file that was touched has another state."""
    shards = [shard for split in record.splits.values() for shard in (*split.shards, split.starts)]
    facts = [(shard, (folder / shard.file).stat()) for shard in shards]
    return [[shard.file, shard.sha256, known.st_size, known.st_mtime_ns, known.st_ino] for shard, known in facts]


def _is_verified(folder: Path, record: FolderRecord) -> bool:
    try:
        noted = json.loads(_stamp(folder).read_text("utf-8"))
        return bool(noted == [record.vocabulary, *_state(folder, record)])
    except (OSError, ValueError):
        return False


class SplitWriter:
    """Writes the shards of one split: documents one after the other, as `encode_documents` has them.

    Args:
        folder: Where the files go.
        split: Name of the split.
        tokenizer: What makes the ids, and ends or divides documents.
        most: Ids per file.
    """

    def __init__(self, folder: Path, split: str, tokenizer: Tokenizer, most: int) -> None:
        self._folder, self._split, self._most = folder, split, most
        dtype = storage_type(tokenizer).newbyteorder("<")
        self._dtype = dtype
        self._ending = np.array([] if tokenizer.end is None else [tokenizer.end], dtype)
        self._between = np.array(tokenizer.separator if tokenizer.end is None else [], dtype)
        self._starts = array("q")
        self._shards: list[ShardRecord] = []
        self._file: BinaryIO | None = None
        self._digest = hashlib.sha256()
        self._here = self._written = self._characters = 0
        self._largest = -1

    def begin(self) -> None:
        """Begin a document."""
        if self._starts:
            self._write(self._between)
        self._starts.append(self._written)

    def add(self, ids: Integer[np.ndarray, " N"], characters: int) -> None:
        """Add ids to the document, and how many characters they stand for."""
        self._characters += characters
        self._write(ids.astype(self._dtype, copy=False))

    def end(self) -> None:
        """End the document."""
        self._write(self._ending)

    def close(self) -> SplitRecord:
        """Finish the last file, write where documents begin, and return what the record says."""
        self._close_shard()
        starts = np.frombuffer(self._starts, np.int64).astype("<i8")
        path = self._folder / f"{self._split}-starts.bin"
        path.write_bytes(starts.tobytes())
        fsync(path)
        said = ShardRecord(
            file=path.name, ids=len(starts), sha256=hashlib.sha256(starts.tobytes()).hexdigest(), largest=-1
        )
        return SplitRecord(documents=len(starts), characters=self._characters, shards=self._shards, starts=said)

    def _write(self, ids: Integer[np.ndarray, " N"]) -> None:
        while len(ids):
            if self._file is None:
                self._file = self._path().open("wb")
            part, ids = ids[: self._most - self._here], ids[self._most - self._here :]
            raw = part.tobytes()
            self._file.write(raw)
            self._digest.update(raw)
            self._largest = max(self._largest, int(part.max()))
            self._here += len(part)
            self._written += len(part)
            if self._here == self._most:
                self._close_shard()

    def _path(self) -> Path:
        return self._folder / f"{self._split}-{len(self._shards):05d}.bin"

    def _close_shard(self) -> None:
        if self._file is None:
            return
        self._file.close()
        path = self._path()
        fsync(path)
        said = ShardRecord(file=path.name, ids=self._here, sha256=self._digest.hexdigest(), largest=self._largest)
        self._shards.append(said)
        self._file, self._digest, self._here, self._largest = None, hashlib.sha256(), 0, -1
