"""Token ids by split, memory-mapped from a folder or in memory.

A folder holds, for each split, files of ids (SPLIT-00000.bin, ...) and of the offsets at which documents begin
(SPLIT-starts.bin), and `shards.json`. `dither prepare text` writes one, and large corpora are cached in one.

Letters: N ids.
"""

from __future__ import annotations

import hashlib
import json
import logging
from array import array
from collections import deque
from collections.abc import Iterable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Literal

import numpy as np
from jaxtyping import Integer

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_folder, atomic_write, fsync
from dither.registry.files.cache import cache_folder

from ...prepared.rejected import RejectedRows
from .corpus import SPLITS, Corpus, Document
from .manifest import MANIFEST, TYPES, FileRecord, SplitRecord, StoreManifest, read_manifest
from .markov import SourceDistribution
from .streams import TokenStream
from .tokenizers.base import Tokenizer, storage_type
from .tokenizers.chunks import encode_texts
from .tokenizers.factory import check_same, record_tokenizer, restore_tokenizer

if TYPE_CHECKING:
    from dither.registry.flow.protocols import Split

__all__ = [
    "RESIDENT",
    "Part",
    "TokenStore",
    "encode_corpus",
    "open_store",
    "verify_store",
    "write_store",
]

RESIDENT = 1 << 20
"""Corpora up to this size are encoded in memory each time; larger ones are cached on disk."""

BLOCK = 1 << 24
"""Ids per read when computing a checksum."""

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class TokenStore:
    """Ids by split, and their tokenizer.

    Attributes:
        name: Name of the source, or the folder.
        splits: The ids of "train", "valid" and "test".
        tokenizer: The tokenizer of the ids.
        distribution: The distribution of the text, if it is known.
    """

    name: str
    splits: dict[Split, TokenStream]
    tokenizer: Tokenizer
    distribution: SourceDistribution | None = None


def encode_corpus(corpus: Corpus, tokenizer: Tokenizer, folder: Path | None = None) -> TokenStore:
    """Encode a corpus, in memory if it is small, else in a folder of the cache, which several processes may share.

    Each document ends with `tokenizer.end`; without such an id `tokenizer.separator` stands between two.

    Args:
        corpus: The documents.
        tokenizer: The tokenizer.
        folder: Folder of the cache.

    Raises:
        Refused: The cache cannot be written.
    """
    documents = [(number, document) for number, split in enumerate(SPLITS) for document in corpus.splits[split]]
    if sum(document.size for _, document in documents) <= RESIDENT:
        writers = [SplitWriter(tokenizer) for _ in SPLITS]
        _encode_into(writers, _parts(documents), tokenizer)
        splits = {split: writer.stream() for split, writer in zip(SPLITS, writers, strict=True)}
        return TokenStore(corpus.name, splits, tokenizer, corpus.distribution)
    key = json.dumps([[[number, document.digest] for number, document in documents], tokenizer.fingerprint])
    name = hashlib.sha256(key.encode()).hexdigest()[:32]
    path = (folder or cache_folder() / "tokens") / name
    for _ in range(ATTEMPTS):
        store = _open_cached(path, tokenizer)
        if store is not None:
            return TokenStore(corpus.name, store.splits, tokenizer, corpus.distribution)
        try:
            with atomic_folder(path) as temporary:
                write_store(temporary, _parts(documents), tokenizer, made={"documents": name}, sources=len(documents))
        except OSError as error:
            if not path.is_dir():  # else another process was faster
                what = f"{path.parent} cannot be written ({error.strerror}); DITHER_DATA names another folder"
                raise Refused(what, code="unwritable-file") from error
    raise Refused(f"{path} does not hold what was just written to it", code="damaged-file")


def _parts(documents: Iterable[tuple[int, Document]]) -> Iterator[Part]:
    return (Part(number, document.load(), True, True) for number, document in documents)


ATTEMPTS = 10
"""Attempts to open a folder that other processes write at the same time."""


def _open_cached(path: Path, tokenizer: Tokenizer) -> TokenStore | None:
    """Open a cached store; None if it is missing or damaged and must be written."""
    if not (path / MANIFEST).exists():
        return None
    try:
        return open_store(path, "always", tokenizer)
    except (Refused, OSError) as error:
        log.warning("%s is damaged (%s) and is written again", path, error)
        return None


Verify = Literal["once", "always", "never"]


def open_store(folder: Path, verify: Verify = "once", tokenizer: Tokenizer | None = None) -> TokenStore:
    """Memory-map the ids of a folder.

    Args:
        folder: Written by `write_store`.
        verify: When to compare checksums: on first use and after a change, always, or never. Lengths always are.
        tokenizer: Its tokenizer, if that is at hand.

    Raises:
        Refused: A file is missing, damaged, or holds ids outside the vocabulary.
    """
    manifest = read_manifest(folder)
    if verify == "always" or (verify == "once" and not _is_verified(folder, manifest)):
        verify_store(folder, manifest)
    splits: dict[Split, TokenStream] = {}
    for split, record in manifest.splits.items():
        arrays = tuple(_map(folder, shard, manifest.dtype) for shard in record.shards)
        starts = _map(folder, record.starts, "<i8")
        gap = len(manifest.tokenizer.separator)
        splits[split] = TokenStream(arrays or (np.zeros(0, manifest.dtype),), starts, gap)
    if tokenizer is None:
        tokenizer = restore_tokenizer(manifest.tokenizer, folder)
    check_same(tokenizer, manifest.tokenizer)
    return TokenStore(str(folder), splits, tokenizer)


def verify_store(folder: Path, manifest: StoreManifest) -> None:
    """Read every file and compare its checksum and its ids with the manifest; notes success for `verify="once"`.

    Raises:
        Refused: Names every damaged file, and the position of the first id outside the vocabulary.
    """
    problems = []
    for split in manifest.splits.values():
        for record in split.shards:
            problems += _file_problems(folder, record, manifest.dtype, manifest.vocabulary)
        problems += _file_problems(folder, split.starts, "<i8", None)
    if problems:
        raise Refused(problems)
    with suppress(OSError), atomic_write(_stamp(folder)) as temporary:
        temporary.write_text(json.dumps(_state(folder, manifest)), "utf-8")


def _file_problems(folder: Path, record: FileRecord, dtype: str, vocabulary: int | None) -> list[Problem]:
    path, digest, outside = folder / record.file, hashlib.sha256(), None
    ids = _map(folder, record, dtype)
    for start in range(0, len(ids), BLOCK):
        block = ids[start : start + BLOCK]
        digest.update(block.tobytes())
        if vocabulary is not None and outside is None and block.max() >= vocabulary:
            outside = start + int(np.argmax(block >= vocabulary))
    fix = "copy it again, or prepare the text again"
    problems = []
    if outside is not None and vocabulary is not None:
        what = f"{path}: id {ids[outside]} at position {outside:,} is outside the vocabulary 0..{vocabulary - 1}"
        problems.append(Problem(what, help=fix, code="out-of-range"))
    if digest.hexdigest() != record.sha256:
        problems.append(Problem(f"{path}: checksum differs from {MANIFEST}", help=fix, code="damaged-file"))
    return problems


def _map(folder: Path, record: FileRecord, dtype: str) -> Integer[np.ndarray, " N"]:
    if not record.ids:
        return np.zeros(0, dtype)
    try:  # a plain array over the mapped one: the subclass makes every access slower
        return np.asarray(np.memmap(folder / record.file, dtype, "r", shape=(record.ids,)))
    except (OSError, ValueError) as error:
        raise Refused(f"{folder / record.file}: {error}", code="unreadable-file") from None


def _stamp(folder: Path) -> Path:
    """File that notes that the checksums of this folder were verified."""
    name = hashlib.sha256(str(folder.resolve()).encode("utf-8", "surrogateescape")).hexdigest()[:32]
    return cache_folder() / "verified" / f"{name}.json"


def _state(folder: Path, manifest: StoreManifest) -> list[Any]:
    """Return checksum, size, time and inode of each file: a file that was touched has another state."""
    records = [record for split in manifest.splits.values() for record in (*split.shards, split.starts)]
    files = [(record, (folder / record.file).stat()) for record in records]
    state = [[record.file, record.sha256, stat.st_size, stat.st_mtime_ns, stat.st_ino] for record, stat in files]
    return [manifest.vocabulary, *state]


def _is_verified(folder: Path, manifest: StoreManifest) -> bool:
    try:
        return bool(json.loads(_stamp(folder).read_text("utf-8")) == _state(folder, manifest))
    except (OSError, ValueError):
        return False


@dataclass(frozen=True)
class Part:
    """A piece of a document on its way to a split, with whether it begins and ends the document there."""

    split: int
    text: str
    begins: bool
    ends: bool


class SplitWriter:
    """Collects the ids of one split in memory.

    Args:
        tokenizer: The tokenizer.
    """

    def __init__(self, tokenizer: Tokenizer) -> None:
        self.dtype = storage_type(tokenizer).newbyteorder("<")
        self._end = np.array([] if tokenizer.end is None else [tokenizer.end], self.dtype)
        self._separator = np.array(tokenizer.separator if tokenizer.end is None else [], self.dtype)
        self.starts, self.length, self.characters = array("q"), 0, 0
        self._arrays: list[Integer[np.ndarray, " n"]] = [np.zeros(0, self.dtype)]

    def add(self, part: Part, ids: Integer[np.ndarray, " n"]) -> None:
        """Add a part of a document."""
        if part.begins:
            if self.starts:
                self._write(self._separator)
            self.starts.append(self.length)
        self.characters += len(part.text)
        self._write(ids.astype(self.dtype, copy=False))
        if part.ends:
            self._write(self._end)

    def _write(self, ids: Integer[np.ndarray, " n"]) -> None:
        self._arrays.append(ids)
        self.length += len(ids)

    def stream(self) -> TokenStream:
        """Return the ids."""
        starts = np.frombuffer(self.starts, np.int64) if self.starts else np.zeros(0, np.int64)
        return TokenStream((np.concatenate(self._arrays),), starts, len(self._separator))


class SplitFiles(SplitWriter):
    """Writes the ids of one split to files.

    Args:
        tokenizer: The tokenizer.
        folder: Where the files go.
        split: Name of the split.
        shard: Ids per file.
    """

    def __init__(self, tokenizer: Tokenizer, folder: Path, split: str, shard: int) -> None:
        super().__init__(tokenizer)
        self._folder, self._split, self._shard = folder, split, shard
        self._records: list[FileRecord] = []
        self._file: BinaryIO | None = None
        self._digest, self._written, self._largest = hashlib.sha256(), 0, -1

    def _write(self, ids: Integer[np.ndarray, " n"]) -> None:
        while len(ids):
            if self._file is None:
                self._file = self._path().open("wb")
            part, ids = ids[: self._shard - self._written], ids[self._shard - self._written :]
            content = part.tobytes()
            self._file.write(content)
            self._digest.update(content)
            self._largest = max(self._largest, int(part.max()))
            self._written += len(part)
            self.length += len(part)
            if self._written == self._shard:
                self._end_file()

    def _path(self) -> Path:
        return self._folder / f"{self._split}-{len(self._records):05d}.bin"

    def _end_file(self) -> None:
        if self._file is None:
            return
        self._file.close()
        path, sha256 = self._path(), self._digest.hexdigest()
        fsync(path)
        self._records.append(FileRecord(file=path.name, ids=self._written, sha256=sha256, largest=self._largest))
        self._file, self._digest, self._written, self._largest = None, hashlib.sha256(), 0, -1

    def close(self) -> SplitRecord:
        """Finish the files and return their records."""
        self._end_file()
        starts = np.frombuffer(self.starts, np.int64).astype("<i8").tobytes() if self.starts else b""
        path = self._folder / f"{self._split}-starts.bin"
        path.write_bytes(starts)
        sha256 = hashlib.sha256(starts).hexdigest()
        record = FileRecord(file=path.name, ids=len(self.starts), sha256=sha256, largest=-1)
        return SplitRecord(documents=len(self.starts), characters=self.characters, shards=self._records, starts=record)


def _encode_into(writers: Sequence[SplitWriter], parts: Iterable[Part], tokenizer: Tokenizer) -> None:
    """Encode parts in batches, each into the writer of its split."""
    ahead: deque[Part] = deque()

    def texts() -> Iterator[str]:
        for part in parts:
            ahead.append(part)
            yield part.text

    for ids in encode_texts(texts(), tokenizer):
        part = ahead.popleft()
        writers[part.split].add(part, ids)


def write_store(
    folder: Path,
    parts: Iterable[Part],
    tokenizer: Tokenizer,
    *,
    made: dict[str, Any],
    sources: int,
    shard: int = 1 << 27,
    rejected: RejectedRows | None = None,
) -> StoreManifest:
    """Encode documents and write ids and manifest into an empty folder.

    Args:
        folder: The folder.
        parts: Parts of documents, in order.
        tokenizer: The tokenizer.
        made: Options and digests by which the folder is recognised.
        sources: Number of files or documents.
        shard: Ids per file.
        rejected: Documents that were not taken; complete once `parts` is exhausted.
    """
    writers = [SplitFiles(tokenizer, folder, split, shard) for split in SPLITS]
    _encode_into(writers, parts, tokenizer)
    manifest = StoreManifest(
        dtype=TYPES[storage_type(tokenizer).itemsize],
        vocabulary=tokenizer.size,
        tokenizer=record_tokenizer(tokenizer, folder),
        splits={split: writer.close() for split, writer in zip(SPLITS, writers, strict=True)},
        made=made,
        sources=sources,
        left_out={} if rejected is None else dict(rejected.counts),
    )
    (folder / MANIFEST).write_text(manifest.model_dump_json(indent=1) + "\n", "utf-8")
    for path in folder.iterdir():
        fsync(path)
    return manifest
