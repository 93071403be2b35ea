"""Zarr arrays in folders, read chunk by chunk. A chunk that is not there holds the fill value."""

from __future__ import annotations

import json
import math
import os
import struct
from collections.abc import Sequence
from itertools import product
from pathlib import Path
from typing import Any, Final, Literal

import numpy as np
from jaxtyping import Shaped, UInt64

from dither.registry.config.errors import Problem, Refused

from .raw_arrays import collect_problems
from .zarr_codecs import DamagedError, checked, pack, unpack
from .zarr_header import Shards, read_header

__all__ = ["PACKED", "Format", "Shard", "ZarrArray", "ZarrWriter", "write_array", "write_group"]

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
                with collect_problems(told):
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


Format = Literal[2, 3]
"""Which version of zarr's format is written: get_model reads 2."""


def write_group(folder: Path, version: Format = 2) -> None:
    """Make a folder that is a zarr group."""
    folder.mkdir(parents=True, exist_ok=True)
    if version == 2:
        _write_json(folder / ".zgroup", {"zarr_format": 2})
    else:
        _write_json(folder / "zarr.json", {"zarr_format": 3, "node_type": "group", "attributes": {}})


def write_array(folder: Path, values: Shaped[np.ndarray, "..."], rows: int | None = None, version: Format = 2) -> None:
    """Write an array.

    Args:
        folder: Where to; it is made.
        values: Numbers or text.
        rows: Rows of a chunk; None for one chunk that holds all.
        version: Of the format. Text is of fixed length in format 2, and of any length in 3.
    """
    writer = ZarrWriter(folder, values.shape, values.dtype, rows, version)
    for start in range(0, len(values), writer.chunks[0]):
        writer.write(values[start : start + writer.chunks[0]])


class ZarrWriter:
    """Writes an array chunk after chunk, so that it never has to be in memory as a whole.

    Args:
        folder: Where to; it is made.
        shape: Of the array.
        dtype: Of the elements.
        rows: Rows of a chunk; None for one chunk that holds all.
        version: Of the format.
    """

    def __init__(
        self, folder: Path, shape: Sequence[int], dtype: np.dtype[Any], rows: int | None = None, version: Format = 2
    ) -> None:
        self.folder, self.shape, self.dtype, self.version = folder, tuple(shape), dtype.newbyteorder("<"), version
        self.chunks = (rows or max(shape[0], 1), *(max(n, 1) for n in shape[1:]))
        self.written = 0
        folder.mkdir(parents=True)
        _write_json(folder / (".zarray" if version == 2 else "zarr.json"), self._header())

    def write(self, values: Shaped[np.ndarray, "..."]) -> None:
        """Write the next chunk: as many rows as a chunk has, or those that are left."""
        full = np.zeros(self.chunks, self.dtype)
        full[tuple(slice(0, n) for n in values.shape)] = values
        if self.version == 3 and self.dtype.kind == "U":
            texts = [str(text).encode() for text in full.ravel()]
            content = b"".join(len(text).to_bytes(4, "little") + text for text in texts)
            content = len(texts).to_bytes(4, "little") + content
        else:
            content = full.tobytes()
        name = (".", "/")[self.version == 3].join(map(str, (self.written, *(0 for _ in self.shape[1:]))))
        path = self.folder / ("" if self.version == 2 else "c") / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(pack(content, "zlib" if self.version == 2 else "gzip"))
        self.written += 1

    def _header(self) -> dict[str, Any]:
        text = self.dtype.kind == "U"
        fill: Any = "" if text else 0
        if self.version == 2:
            return {
                "chunks": list(self.chunks),
                "compressor": {"id": "zlib", "level": 1},
                "dtype": self.dtype.str,
                "fill_value": fill,
                "filters": None,
                "order": "C",
                "shape": list(self.shape),
                "zarr_format": 2,
            }
        turn = {"name": "vlen-utf8"} if text else {"name": "bytes", "configuration": {"endian": "little"}}
        return {
            "attributes": {},
            "chunk_grid": {"name": "regular", "configuration": {"chunk_shape": list(self.chunks)}},
            "chunk_key_encoding": {"name": "default", "configuration": {"separator": "/"}},
            "codecs": [turn, {"name": "gzip", "configuration": {"level": 1}}],
            "data_type": "string" if text else self.dtype.name,
            "fill_value": False if self.dtype.kind == "b" else fill,
            "node_type": "array",
            "shape": list(self.shape),
            "zarr_format": 3,
        }


def _write_json(path: Path, said: dict[str, Any]) -> None:
    path.write_text(json.dumps(said, indent=4, sort_keys=True) + "\n", encoding="utf-8")
