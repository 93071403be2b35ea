"""Ids to files of bounded size.

Letters: N ids.
"""

from __future__ import annotations

import hashlib
from array import array
from pathlib import Path
from typing import BinaryIO

import numpy as np
from jaxtyping import Integer

from dither.registry.storage import sync

from ..tokenizers import Tokenizer, storage_type
from .record import ShardRecord, SplitRecord

__all__ = ["SplitWriter"]


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
        sync(path)
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
        sync(path)
        said = ShardRecord(file=path.name, ids=self._here, sha256=self._digest.hexdigest(), largest=self._largest)
        self._shards.append(said)
        self._file, self._digest, self._here, self._largest = None, hashlib.sha256(), 0, -1
