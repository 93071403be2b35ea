"""Token ids at addresses of fsspec, requested block by block, and a cache of bounded size."""

from __future__ import annotations

import hashlib
import io
import logging
import os
import shutil
import weakref
import zlib
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from functools import lru_cache
from itertools import chain
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from jaxtyping import UInt32
from numpy import ndarray
from pydantic import ValidationError

from dither.registry.config.errors import Refused
from dither.registry.files.addresses import CHECK_ADDRESS
from dither.registry.files.atomic import atomic_folder
from dither.registry.files.cache import cache_folder
from dither.registry.files.limits import RECORD_BYTES
from dither.registry.files.write_errors import is_full, unwritable

from ...prepared.arrays import map_npy
from ...prepared.manifest import MANIFEST, ArrayRecord, Manifest, read_manifest
from .corpus import SPLITS
from .manifest import SHARDS, StoreInfo
from .remote_files import (
    ChangedError,
    RandomReader,
    RangeReader,
    RemotePath,
    RemoteReader,
    exact_path,
)
from .token_store import BLOCK, IdReader, TokenStore, open_store
from .tokenizers.base import Ids, Tokenizer

if TYPE_CHECKING:
    from typing import Literal

    from dither.registry.contracts.protocols import Split

__all__ = ["fetch_store", "open_remote"]

logger = logging.getLogger(__name__)

BLOCKS = "blocks"
"""File of the cached blocks of ids, next to the copied files."""
NUMBER = 8
"""Bytes of the number of a block, before its content."""


@lru_cache(maxsize=64)
def fetch_store(address: str) -> Path:
    """Return a copy, made on the first use, of all but the ids of a folder of `dither prepare text`.

    Its manifest is that of the copied files; `made` has the records of the others. A folder with
    another manifest has another copy, so that data do not change during a run.

    Raises:
        Refused: It is not such a folder, or cannot be read or written.
    """
    root = _root(address)
    try:
        with RemoteReader(RemotePath(f"{root}/{MANIFEST}")) as reader:
            content = io.BufferedReader(reader).read(RECORD_BYTES)
    except OSError as error:
        message = f"{root}/{MANIFEST}: {error.strerror or error}"
        raise Refused(message, help=CHECK_ADDRESS, code="download-failed") from None
    try:
        manifest = Manifest.model_validate_json(content)
        info = StoreInfo.model_validate(manifest.info)
    except ValidationError:
        message = f"{root}/{MANIFEST} is not one of prepared {SHARDS.name}"
        raise Refused(message, code="damaged-file") from None
    if any(f"{split}-checksums" not in manifest.arrays for split in info.splits):
        message = f"{root} has no checksums of blocks, with which parts are read"
        fix = f"prepare it again ({SHARDS.command}), or copy it to a local folder"
        raise Refused(message, help=fix, code="other-version")

    name = hashlib.sha256(root.encode() + content).hexdigest()[:32]
    folder = cache_folder() / "remote" / name
    if (folder / MANIFEST).is_file():
        return folder
    elsewhere = {}
    copied = {}
    for name, record in manifest.arrays.items():
        if name in info.splits:
            elsewhere[name] = record.model_dump(mode="json")
        else:
            copied[name] = record
    names = [record.file for record in copied.values()]
    # No other name: it may lead out of the folder.
    names += [file for file in SHARDS.files if file == info.tokenizer.file]
    # Not the address: the data may move.
    made = {**manifest.made, "elsewhere": elsewhere}
    manifest = manifest.model_copy(update={"arrays": copied, "made": made})
    try:
        with atomic_folder(folder) as temporary:
            for name in names:
                path = RemotePath(f"{root}/{name}")
                with (
                    RemoteReader(path) as reader,
                    (temporary / name).open("wb") as file,
                ):
                    shutil.copyfileobj(reader, file, 1 << 20)
            (temporary / MANIFEST).write_text(manifest.model_dump_json(), "utf-8")
    except OSError as error:
        if is_full(error):
            raise unwritable(folder, error) from None
        message = f"{address}: cannot be copied: {error.strerror or error}"
        raise Refused(message, code="download-failed") from None
    return folder


def _root(address: str) -> str:
    return str(exact_path(address.rstrip("/")))


def open_remote(
    address: str,
    check: Literal["once", "always", "never"],
    limit: int | None,
    tokenizer: Tokenizer | None = None,
) -> TokenStore:
    """Open the ids of a folder at an address, with a cache of at most `limit` bytes.

    Without a limit, it is at most half of the space that is free at the first use: checkpoints need
    the rest.

    Raises:
        Refused: A file is missing or damaged.
    """
    folder = fetch_store(address)
    made = read_manifest(folder, SHARDS).made
    records = {
        split: ArrayRecord.model_validate(record)
        for split, record in made["elsewhere"].items()
    }
    ids = sum(record.bytes for record in records.values())
    cache = BlockCache(folder / BLOCKS, ids, limit)
    readers: dict[Split, IdReader] = {}
    first = 0
    for split, record in records.items():
        checksums = np.asarray(map_npy(folder / f"{split}-checksums.npy"))
        path = RemotePath(f"{_root(address)}/{record.file}")
        readers[split] = RemoteIds(path, record, checksums, cache, first)
        first += len(checksums)
    return open_store(folder, check, tokenizer, readers)


class BlockCache:
    """Blocks in a file, each at the one place that follows from its number.

    Training reads the windows of an epoch in random order, where no rule of replacement has more
    hits than this one, which needs no index: each block is compared with its checksum, so that one
    that another process is writing, or a killed one has not written to its end, is missing.

    Args:
        path: The file, with holes where no block is.
        size: Bytes of all blocks.
        limit: Most bytes of the file; None for that of an existing file, or half of the free space.
    """

    def __init__(self, path: Path, size: int, limit: int | None) -> None:
        self.places = 0
        try:
            self._file = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
            weakref.finalize(self, os.close, self._file)
            self.places = self._open(path.parent, size, limit)
        # A folder of another user, or a full disk.
        except OSError as error:
            logger.warning("%s: no cache: %s", path, error.strerror)

    def _open(self, folder: Path, size: int, limit: int | None) -> int:
        """Return the number of places, of which the file has the size."""
        length = os.fstat(self._file).st_size
        if limit is None and length:
            return length // (NUMBER + BLOCK)
        if limit is None:
            limit = shutil.disk_usage(folder).free // 2
        # Each split ends with a shorter block.
        blocks = size // BLOCK + len(SPLITS)
        places = min(limit // (NUMBER + BLOCK), blocks)
        os.ftruncate(self._file, places * (NUMBER + BLOCK))
        return places

    def read(self, number: int, size: int, checksum: int) -> bytes | None:
        """Return a block of `size` bytes, or None if it is not there."""
        if not self.places:
            return None
        try:
            entry = os.pread(self._file, NUMBER + size, self._offset(number))
        # Of a disk that fails, or a server that is gone: the block is requested again.
        except OSError:
            return None
        content = entry[NUMBER:]
        is_it = entry[:NUMBER] == number.to_bytes(NUMBER, "little")
        return content if is_it and zlib.crc32(content) == checksum else None

    def write(self, number: int, content: bytes) -> None:
        """Put a block in its place."""
        if not self.places:
            return
        entry = number.to_bytes(NUMBER, "little") + content
        offset = self._offset(number)
        # On a full disk, it is requested again.
        with suppress(OSError):
            # Another process may have made the file smaller.
            if offset + NUMBER + BLOCK <= os.fstat(self._file).st_size:
                os.pwrite(self._file, entry, offset)

    def _offset(self, number: int) -> int:
        return number % self.places * (NUMBER + BLOCK)


class RemoteIds(IdReader):
    """The ids of a split at an address, in blocks with checksums.

    Args:
        path: The address of the file.
        record: Type and number of the ids.
        checksums: The CRC-32 of each block.
        cache: Blocks on this machine.
        first: The number of the first block in the cache.

    Raises:
        Refused: The file cannot be read, has changed, or is damaged.
    """

    def __init__(
        self,
        path: RemotePath,
        record: ArrayRecord,
        checksums: UInt32[ndarray, " B"],
        cache: BlockCache,
        first: int,
    ) -> None:
        self.path = path
        self.dtype = np.dtype(record.dtype)
        self._count = record.shape[0]
        self._checksums = checksums
        self._cache = cache
        self._first = first
        self._size = self._count * self.dtype.itemsize
        self._header = record.bytes - self._size
        self._require_ranges()
        self._reader = RangeReader(path)

    def __len__(self) -> int:
        return self._count

    def slices(self, starts: Sequence[int], sizes: Sequence[int]) -> list[Ids]:
        """Return slices, of which blocks that are not in the cache are requested together."""
        width = self.dtype.itemsize
        places = []
        for start, size in zip(starts, sizes, strict=True):
            stop = -(-(start + size) * width // BLOCK) if size else 0
            places.append(range(start * width // BLOCK, stop))
        blocks = self._blocks(sorted({*chain.from_iterable(places)}))
        slices = []
        for start, size, numbers in zip(starts, sizes, places, strict=True):
            content = b"".join(map(blocks.__getitem__, numbers))
            offset = start - numbers.start * BLOCK // width
            slices.append(np.frombuffer(content, self.dtype)[offset : offset + size])
        return slices

    def _blocks(self, numbers: Sequence[int]) -> dict[int, bytes]:
        blocks: dict[int, bytes] = {}
        missing: list[range] = []
        for number in numbers:
            part = self._bytes_of(number)
            checksum = int(self._checksums[number])
            content = self._cache.read(self._first + number, len(part), checksum)
            if content is not None:
                blocks[number] = content
            # Consecutive blocks are one request.
            elif missing and missing[-1].stop == part.start:
                missing[-1] = range(missing[-1].start, part.stop)
            else:
                missing.append(part)

        def use(part: range, content: bytes) -> None:
            for start in range(0, len(part), BLOCK):
                number = (part.start + start - self._header) // BLOCK
                block = content[start : start + BLOCK]
                self._require_same(number, block)
                blocks[number] = block
                self._cache.write(self._first + number, block)

        if missing:
            with self._readable():
                self._reader.read(missing, use)
        return blocks

    def _bytes_of(self, number: int) -> range:
        stop = min((number + 1) * BLOCK, self._size)
        return range(self._header + number * BLOCK, self._header + stop)

    def _require_same(self, number: int, content: bytes) -> None:
        if zlib.crc32(content) != self._checksums[number]:
            part = self._bytes_of(number)
            message = f"bytes {part.start:,} to {part.stop:,} differ from {MANIFEST}"
            raise ChangedError(f"has changed or is damaged: {message}")

    def _require_ranges(self) -> None:
        """Read the end of the file, of which a server without ranges would send all."""
        last = len(self._checksums) - 1
        with self._readable():
            if last != (self._size - 1) // BLOCK:
                raise ChangedError(f"the number of its blocks differs from {MANIFEST}")
            if not self._count:
                return
            with RandomReader(self.path) as reader:
                reader.seek(self._bytes_of(last).start)
                self._require_same(last, reader.read(BLOCK))

    @contextmanager
    def _readable(self) -> Iterator[None]:
        try:
            yield
        except OSError as error:
            code = "download-failed"
            fix = "copy the folder to this machine if the server has no ranges"
            if isinstance(error, ChangedError):
                code = "damaged-file"
                fix = f"run: {SHARDS.command}"
            if isinstance(error, FileNotFoundError):
                code = "file-not-found"
            message = f"{self.path}: {error.strerror or error}"
            raise Refused(message, help=fix, code=code) from None
