"""Zarr arrays in folders, read chunk by chunk. A chunk that is not there holds the fill value."""

from __future__ import annotations

import math
import struct
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np
from jaxtyping import Shaped

from dither.registry.problems import Problem, Refused

from .codecs import DamagedError, unpack
from .header import read_header

__all__ = ["ZarrArray"]

TEXT: Final = 1 << 30
"""Bytes that a chunk of texts of any length may take."""
PACKED: Final = 1 << 31
"""Bytes that a chunk may take on disk."""
CHECKSUM: Final = 4


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
        self._newest: tuple[tuple[int, ...], Shaped[np.ndarray, "..."]] | None = None

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Shaped[np.ndarray, "..."]:
        """Return consecutive rows.

        Raises:
            Refused: A chunk is damaged or cut short; names it, and the rows it holds.
        """
        low, high, step = rows.indices(len(self))
        if step != 1:
            raise ValueError("rows are read one after another")
        header, high = self.header, max(low, high)
        found = np.full((high - low, *self.shape[1:]), header.fill, object if header.dtype is None else header.dtype)
        size = header.chunks[0]
        across = [range(-(-n // c)) for n, c in zip(self.shape[1:], header.chunks[1:], strict=True)]
        for number in range(low // size, -(-high // size)):
            first, last = max(low, number * size), min(high, (number + 1) * size)
            for rest in product(*across):
                chunk = self._chunk((number, *rest))
                if chunk is not None:
                    lengths = zip(rest, header.chunks[1:], self.shape[1:], strict=True)
                    place = tuple(slice(n * c, min((n + 1) * c, total)) for n, c, total in lengths)
                    inner = tuple(slice(0, part.stop - part.start) for part in place)
                    here = slice(first - number * size, last - number * size)
                    found[(slice(first - low, last - low), *place)] = chunk[(here, *inner)]
        return found if header.dtype is not None else found.astype(np.str_)

    def missing(self) -> list[str]:
        """Return the names of chunks that are not there; what they would hold is the fill value."""
        counts = [range(-(-n // c)) for n, c in zip(self.shape, self.header.chunks, strict=True)]
        names = map(self.header.chunk_name, product(*counts))
        return [name for name in names if not (self.folder / name).exists()]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> Shaped[np.ndarray, "..."]:
        return self[:] if dtype is None else self[:].astype(dtype)

    def _chunk(self, place: tuple[int, ...]) -> Shaped[np.ndarray, "..."] | None:
        if self._newest is not None and self._newest[0] == place:
            return self._newest[1]
        path = self.folder / self.header.chunk_name(place)
        try:
            if not path.exists():
                return None
            if not path.is_file() or path.stat().st_size > PACKED:
                raise DamagedError("it is no plain file, or too large")
            chunk = self._read(path.read_bytes())
        except OSError as error:
            raise Refused(f"{path}: {error.strerror or error}") from None
        except DamagedError as error:
            first = place[0] * self.header.chunks[0]
            rows = f"rows {first} to {min(first + self.header.chunks[0], len(self)) - 1}"
            raise Refused(Problem(f"{path}: {rows} cannot be read: {error}", help="copy the store again")) from None
        except Refused as refused:
            raise Refused([Problem(f"{path}: {p.message}", help=p.help) for p in refused.problems]) from None
        self._newest = (place, chunk)
        return chunk

    def _read(self, content: bytes) -> Shaped[np.ndarray, "..."]:
        header = self.header
        count = math.prod(header.chunks)
        exact = None if header.dtype is None else count * header.dtype.itemsize
        most = (TEXT if exact is None else exact) + CHECKSUM * header.packings.count("crc32c")
        for name in reversed(header.packings):
            content = unpack(name, content, most)
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
