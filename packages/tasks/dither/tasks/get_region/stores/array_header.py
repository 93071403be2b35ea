"""What is known of a zarr array before its chunks are read, whichever format says it."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from itertools import product
from typing import Any, Final

import numpy as np

__all__ = ["ArrayHeader", "Shards", "fill_of", "lengths", "must_be_sound"]

MOST: Final = 1 << 34
"""Bytes that one array may take."""
CHUNK: Final = 1 << 31
"""Bytes that one chunk may take."""
CHUNKS: Final = 1 << 20
"""Chunks that an array, or a shard, may have."""


@dataclass(frozen=True)
class Shards:
    """Files that hold many chunks each, and an index of them.

    Attributes:
        shape: Of what one file holds: a multiple of the shape of a chunk.
        counts: Chunks along each axis of a shard.
        at_end: Whether the index stands at the end of the file, not at its start.
        order: Of the bytes of a number of the index: "<" or ">".
        checked: Whether a checksum stands behind the index.
    """

    shape: tuple[int, ...]
    counts: tuple[int, ...]
    at_end: bool
    order: str
    checked: bool


@dataclass(frozen=True)
class ArrayHeader:
    """A header, read and found sound.

    Attributes:
        shape: Of the array.
        chunks: Shape of every chunk; those at the edges are as large as the others on disk.
        dtype: Of the elements; None for text of any length.
        fill: What stands where there is no chunk.
        packings: Names of what chunks were packed with, in the order in which it was done.
        axes: The order in which the axes of a chunk are written.
        prefix: What the name of a file begins with.
        separator: What stands between the numbers of a file.
        shards: Where files hold more than one chunk, how.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any] | None
    fill: Any
    packings: tuple[str, ...]
    axes: tuple[int, ...]
    prefix: str
    separator: str
    shards: Shards | None = None

    def file_name(self, place: Sequence[int]) -> str:
        """Return the path of the file of a chunk below the array."""
        counts = self.shards.counts if self.shards else (1,) * len(self.shape)
        return self.prefix + self.separator.join(str(n // count) for n, count in zip(place, counts, strict=True))

    def places(self) -> Iterator[tuple[int, ...]]:
        """Yield the numbers of all chunks, rows first."""
        return product(*(range(-(-n // c)) for n, c in zip(self.shape, self.chunks, strict=True)))

    def chunk_rows(self, place: Sequence[int]) -> str:
        """Say which rows of the array a chunk holds."""
        first = place[0] * self.chunks[0]
        return f"rows {first} to {min(first + self.chunks[0], self.shape[0]) - 1}"


def lengths(value: Any, what: str) -> tuple[int, ...]:
    """Return the lengths of axes.

    Raises:
        ValueError: They are none, or there are not 1 to 3.
    """
    if not isinstance(value, list) or any(type(n) is not int or not 0 <= n < 1 << 48 for n in value):
        raise ValueError(f"{what} is {str(value)[:60]}, expected a list of lengths")
    if not 1 <= len(value) <= 3:
        raise ValueError(f"{what} has {len(value)} axes, expected 1 to 3")
    return tuple(value)


def fill_of(value: Any, dtype: np.dtype[Any] | None) -> Any:
    """Return a fill value as an element of the array."""
    if dtype is None or dtype.kind in "US":
        return value if isinstance(value, str) and dtype is None else ""
    return dtype.type(0 if value is None else float(value) if isinstance(value, str) else value)


def must_be_sound(header: ArrayHeader) -> None:
    """Refuse what would exhaust the memory, or the patience, of who reads it.

    Raises:
        ValueError: Says what is wrong.
    """
    axes = len(header.shape)
    if len(header.chunks) != axes or any(n < 1 for n in header.chunks):
        raise ValueError(f"chunks of {header.chunks} do not cut an array of {header.shape}")
    if sorted(header.axes) != list(range(axes)):
        raise ValueError(f"the order of its axes is {header.axes}")
    if header.separator not in (".", "/"):
        raise ValueError(f"the numbers of a chunk are separated by {header.separator!r}")
    size = 8 if header.dtype is None else header.dtype.itemsize
    if not size:
        raise ValueError("its texts have no letters")
    for extent, most, what in ((header.shape, MOST, "the array"), (header.chunks, CHUNK, "a chunk")):
        if (total := math.prod(extent) * size) > most:
            raise ValueError(f"{what} would take {total:,} bytes; at most {most:,} are read")
    cut = [-(-n // c) for n, c in zip(header.shape, header.chunks, strict=True)]
    _must_be_few("the array", cut)
    if header.shards is not None:
        _must_fill(header.chunks, header.shards)


def _must_fill(chunks: tuple[int, ...], shards: Shards) -> None:
    shape = shards.shape
    if len(shape) != len(chunks) or any(n < c or n % c for n, c in zip(shape, chunks, strict=True)):
        raise ValueError(f"chunks of {chunks} do not fill shards of {shape}")
    _must_be_few("a shard", shards.counts)


def _must_be_few(what: str, counts: Sequence[int]) -> None:
    if (count := math.prod(counts)) > CHUNKS:
        raise ValueError(f"{what} is cut into {count:,} chunks; at most {CHUNKS:,} are read")
