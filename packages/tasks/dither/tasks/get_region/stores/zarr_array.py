"""Zarr arrays in folders, read chunk by chunk. A chunk that is not there holds the fill value."""

from __future__ import annotations

import math
import os
import struct
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped

from dither.registry.problems import Problem, Refused

from ..found import noted
from .array_header import Shards
from .codecs import DamagedError, unpack
from .header import read_header
from .shard import PACKED, Shard

__all__ = ["ZarrArray"]

TEXT: Final = 1 << 30
"""Bytes that a chunk of texts of any length may take."""
SLACK: Final = 1 << 16
"""Bytes by which a packing may make longer what it cannot make shorter."""
SHOWN: Final = 5
AGAIN: Final = "copy the store again"

Numbers = tuple[int, ...]
Chunk = Shaped[np.ndarray, "..."]


class ZarrArray:
    """A zarr array, of format 2 or 3, whose rows are read when they are asked for.

    Args:
        folder: Where it is.

    Raises:
        Refused: There is no array, or none that can be read.
    """

    def __init__(self, folder: Path) -> None:
        self.folder, self.header = folder, read_header(folder)
        self.shape, self.ndim = self.header.shape, len(self.header.shape)
        self.dtype: np.dtype[Any] = self.header.dtype or np.dtype(np.str_)
        self._row: tuple[int, dict[Numbers, Chunk | None]] = (-1, {})
        self._shard: Shard | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Chunk:
        """Return consecutive rows.

        Raises:
            Refused: Chunks are damaged or cut short; names the first of them, and the rows they hold.
        """
        low, high, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("rows are read one after another")
        header, high = self.header, max(low, high)
        found = np.full((high - low, *self.shape[1:]), header.fill, object if header.dtype is None else header.dtype)
        size = header.chunks[0]
        told: list[Problem] = []
        across = [range(-(-n // c)) for n, c in zip(self.shape[1:], header.chunks[1:], strict=True)]
        for number in range(low // size, -(-high // size)):
            first, last = max(low, number * size), min(high, (number + 1) * size)
            for rest in product(*across):
                chunk = None
                with noted(told):
                    chunk = self._chunk((number, *rest))
                if chunk is not None:
                    extents = zip(rest, header.chunks[1:], self.shape[1:], strict=True)
                    place = tuple(slice(n * c, min((n + 1) * c, total)) for n, c, total in extents)
                    inner = tuple(slice(0, part.stop - part.start) for part in place)
                    here = slice(first - number * size, last - number * size)
                    found[(slice(first - low, last - low), *place)] = chunk[(here, *inner)]
        if told:
            more = [Problem(f"{self.folder}: ... and {len(told) - SHOWN:,} more chunks")] if len(told) > SHOWN else []
            raise Refused([*told[:SHOWN], *more])
        return found if header.dtype is not None else found.astype(np.str_)

    def missing(self) -> list[Numbers]:
        """Return the numbers of chunks that are not there; what they would hold is the fill value."""
        names = {place: os.path.join(self.folder, self.header.file_name(place)) for place in self.header.places()}
        there = {name: os.path.exists(name) for name in {*names.values()}}
        return [place for place, name in names.items() if not there[name] or not self._holds(place)]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Chunk:
        return self[:] if dtype is None else self[:].astype(dtype)

    def _chunk(self, place: Numbers) -> Chunk | None:
        """Return a chunk; those of the newest row of chunks are kept, since rows are read in blocks of any size."""
        if self._row[0] != place[0]:
            self._row = (place[0], {})
        kept = self._row[1]
        if place not in kept:
            kept[place] = self._told(place)
        return kept[place]

    def _told(self, place: Numbers) -> Chunk | None:
        """Read a chunk, and say of what goes wrong which file and which rows it is about."""
        path = self.folder / self.header.file_name(place)
        try:
            content = self._content(path, place)
            return None if content is None else self._unpacked(content)
        except OSError as error:
            raise Refused(f"{path}: {error.strerror or error}") from None
        except DamagedError as error:
            what = f"{path}: {self.header.chunk_rows(place)} cannot be read: {error}"
            raise Refused(Problem(what, help=AGAIN)) from None
        except Refused as refused:
            raise Refused([Problem(f"{path}: {p.message}", help=p.help) for p in refused.problems]) from None

    def _holds(self, place: Numbers) -> bool:
        """Tell whether a shard holds a chunk; of one that is damaged, that is said when it is read."""
        path = self.folder / self.header.file_name(place)
        try:
            return self.header.shards is None or self._opened(path, self.header.shards).holds(place)
        except (OSError, DamagedError):
            return True

    def _content(self, path: Path, place: Numbers) -> bytes | None:
        """Return the packed bytes of a chunk; None if it is not there."""
        if not path.exists():
            return None
        if not path.is_file():
            raise DamagedError("it is no plain file")
        if self.header.shards is not None:
            return self._opened(path, self.header.shards).read(place)
        if path.stat().st_size > PACKED:
            raise DamagedError("it is too large")
        return path.read_bytes()

    def _opened(self, path: Path, shards: Shards) -> Shard:
        if self._shard is None or self._shard.path != path:
            self._shard = Shard(path, shards)
        return self._shard

    def _unpacked(self, content: bytes) -> Chunk:
        header = self.header
        count = math.prod(header.chunks)
        exact = None if header.dtype is None else count * header.dtype.itemsize
        most = TEXT if exact is None else exact
        for number, name in reversed([*enumerate(header.packings)]):
            content = unpack(name, content, most + SLACK * (number > 0))
        if exact is not None and len(content) != exact:
            raise DamagedError(f"it holds {len(content):,} bytes, expected {exact:,}")
        values = _texts(content, count) if header.dtype is None else np.frombuffer(content, header.dtype)
        written = values.reshape([header.chunks[axis] for axis in header.axes])
        return written.transpose(np.argsort(header.axes))


def _texts(content: bytes, count: int) -> Shaped[np.ndarray, " n"]:
    """Read texts of any length: their number, then the length and the letters of each."""
    try:
        if struct.unpack_from("<I", content)[0] != count:
            raise DamagedError(f"it holds {struct.unpack_from('<I', content)[0]:,} texts, expected {count:,}")
        found, place = np.empty(count, object), 4
        for number in range(count):
            (length,) = struct.unpack_from("<I", content, place)
            text = content[place + 4 : place + 4 + length]
            if len(text) != length:
                raise DamagedError("it is cut short")
            found[number] = text.decode("utf-8")
            place += 4 + length
    except (struct.error, UnicodeDecodeError) as error:
        raise DamagedError(f"its texts are damaged or cut short ({error})") from None
    return found
