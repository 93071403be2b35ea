"""Shards of zarr 3: files of many chunks, with an index that says where each begins and how long it is."""

from __future__ import annotations

import math
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import numpy as np
from jaxtyping import UInt64

from .array_header import Shards
from .codecs import DamagedError, checked

__all__ = ["PACKED", "Shard"]

NOTHING: Final = 2**64 - 1
"""Where a chunk begins, and how long it is, that is not there."""
CHECKSUM: Final = 4
PACKED: Final = 1 << 31
"""Bytes that a chunk may take on disk."""


class Shard:
    """A file of many chunks, of which the index has been read.

    Args:
        path: The file.
        layout: How shards are laid out.

    Raises:
        DamagedError: The index is damaged, or points outside the file.
        OSError: The file cannot be read.
    """

    def __init__(self, path: Path, layout: Shards) -> None:
        self.path, self.layout = path, layout
        length = 16 * math.prod(layout.counts) + CHECKSUM * layout.checked
        with path.open("rb") as file:
            size = os.fstat(file.fileno()).st_size
            if size < length:
                raise DamagedError(f"its shard is cut short: {size:,} bytes do not hold an index of {length:,}")
            file.seek(size - length if layout.at_end else 0)
            content = file.read(length)
        try:
            content = checked(content) if layout.checked else content
        except DamagedError:
            raise DamagedError("the index of its shard is damaged, or the shard is cut short") from None
        index: UInt64[np.ndarray, "n 2"] = np.frombuffer(content, layout.order + "u8").reshape(-1, 2)
        there = index[:, 0] != NOTHING
        begin, long = index[there].T
        if ((begin > size) | (long > size) | (begin + long > size)).any():
            raise DamagedError(f"the index of its shard points behind its end at {size:,} bytes; it was cut short")
        self.index = index.reshape(*layout.counts, 2)

    def read(self, place: Sequence[int]) -> bytes | None:
        """Return the packed bytes of a chunk, given by its numbers in the array; None if it is not there."""
        begin, long = self._entry(place)
        if begin == NOTHING:
            return None
        if long > PACKED:
            raise DamagedError("it is too large")
        with self.path.open("rb") as file:
            file.seek(begin)
            content = file.read(long)
        if len(content) < long:
            raise DamagedError("its shard is cut short")
        return content

    def holds(self, place: Sequence[int]) -> bool:
        """Tell whether a chunk is there."""
        return self._entry(place)[0] != NOTHING

    def _entry(self, place: Sequence[int]) -> tuple[int, int]:
        inside = tuple(n % count for n, count in zip(place, self.layout.counts, strict=True))
        begin, long = self.index[inside].tolist()
        return begin, long
