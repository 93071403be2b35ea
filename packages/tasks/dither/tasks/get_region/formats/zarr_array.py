"""Zarr arrays of formats 2 and 3, through zarr, with checks for a store copied in part.

zarr reads a chunk whose file is missing as the fill value, opens arrays of any size, and does not
name damaged files.
"""

from __future__ import annotations

import json
import math
import warnings
from collections.abc import Iterator, Sequence
from dataclasses import replace
from itertools import product
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from dither.registry.config.errors import Refused
from dither.registry.files.limits import read_bytes, unreadable

from .region_checks import line_problems, name_array

__all__ = ["COPY_AGAIN", "ZarrArray", "encoding_type", "is_group"]

MAX_ARRAY = 1 << 34
MAX_CHUNK = 1 << 31
"""Bytes in memory."""
CODECS = frozenset(
    # checksums
    {"adler32", "crc32", "crc32c", "fletcher32", "jenkins_lookup3"}
    # compressors
    | {"blosc", "bz2", "gzip", "lz4", "lzma", "zlib", "zstd"}
    # filters and layouts
    | {
        "astype",
        "bitround",
        "bytes",
        "delta",
        "fixedscaleoffset",
        "json2",
        "packbits",
        "quantize",
    }
    | {"sharding_indexed", "shuffle", "transpose", "vlen-utf8"}
)
"""Codecs that are decoded. Others may execute code: "pickle" of numcodecs loads chunks as
pickles."""
COPY_AGAIN = "copy the store again, all of it"

Chunk = tuple[int, ...]


class ZarrArray:
    """The zarr array in a folder; rows are read on request. Refused if its header is damaged."""

    def __init__(self, folder: Path) -> None:
        # It takes half a second.
        import zarr

        if not any((folder / name).is_file() for name in (".zarray", "zarr.json")):
            message = (
                f"{folder}: neither .zarray nor zarr.json; the store is incomplete"
            )
            raise Refused(message, help=COPY_AGAIN, code="file-not-found")
        # Checked before zarr opens it, which builds the codecs that the header names.
        _check_codecs(folder)
        try:
            # Text in format 3 is not specified yet.
            with warnings.catch_warnings(action="ignore"):
                self._array: Any = zarr.open_array(str(folder), mode="r")
        # zarr raises almost anything for a damaged header.
        except Exception as error:
            message = f"{folder}: cannot be opened: {_text(error)}"
            raise Refused(message, code="damaged-file") from None
        self.folder = folder
        self.fill = self._array.fill_value
        self.shape: tuple[int, ...] = tuple(self._array.shape)
        self.ndim = len(self.shape)
        is_text = self._array.dtype.kind in "TO"
        self.dtype: np.dtype[Any] = np.dtype(np.str_ if is_text else self._array.dtype)
        self.chunks: Chunk = tuple(self._array.chunks)
        self.files: Chunk = tuple(self._array.shards or self.chunks)
        self._check_limits()
        blosc = any(
            "Blosc" in type(codec).__name__ for codec in self._array.compressors
        )
        # Of a shard the chunks have Blosc headers, the file has none.
        self._is_blosc = blosc and not self._array.shards
        self._index_bytes = self._index_at_start()

    def _index_at_start(self) -> int:
        """Return the bytes of the index of a shard, if it is at the start of the file."""
        for codec in getattr(self._array.metadata, "codecs", ()):
            if "start" in str(getattr(codec, "index_location", "")):
                # Offset and length of each chunk.
                chunks = (n // c for n, c in zip(self.files, self.chunks, strict=True))
                return 16 * math.prod(chunks)
        return 0

    def __len__(self) -> int:
        return self.shape[0]

    def __getitem__(self, rows: slice) -> Shaped[ndarray, "..."]:
        """Return consecutive rows; raises Refused with the first damaged files and their rows."""
        low, high, _ = rows.indices(len(self))
        raised = ""
        try:
            if not any(self._damage(place) for place in self.grid(low, high)):
                return self._decode(slice(low, max(low, high)))
        # Codecs raise almost anything for damaged bytes.
        except Exception as error:
            raised = _text(error)
        messages = [*self._damaged_files(low, high)] or [f"{self.folder}: {raised}"]
        problems = line_problems(messages, "damaged-file")
        raise Refused([replace(problem, help=COPY_AGAIN) for problem in problems])

    def missing(self) -> list[Chunk]:
        """Return the grid positions of missing files; zarr reads the fill value for them."""
        return [
            place
            for place in self.grid()
            if not (self.folder / self.file_name(place)).exists()
        ]

    def grid(self, low: int = 0, high: int | None = None) -> Iterator[Chunk]:
        """Yield the grid positions of the files of some rows, all by default."""
        height = self.files[0]
        end = len(self) if high is None else high
        across = (
            range(-(-n // c))
            for n, c in zip(self.shape[1:], self.files[1:], strict=True)
        )
        return product(range(low // height, -(-end // height)), *across)

    def file_name(self, place: Sequence[int]) -> str:
        """Return the path of a file below the folder."""
        # zarr names chunks differently in formats 2 and 3.
        return str(self._array.metadata.encode_chunk_key(tuple(place)))

    def file_rows(self, place: Sequence[int]) -> str:
        """Return which rows a file holds, such as "rows 0 to 999"."""
        first = place[0] * self.files[0]
        return f"rows {first} to {min(first + self.files[0], len(self)) - 1}"

    def _decode(self, *part: slice) -> Shaped[ndarray, "..."]:
        values = np.asarray(self._array[part])
        if self.dtype.kind != "U":
            return values
        return name_array(values.ravel().tolist(), str(self.folder)).reshape(
            values.shape
        )

    def _damaged_files(self, low: int, high: int) -> Iterator[str]:
        """Read the files of some rows one by one, and yield those that cannot be read."""
        for place in self.grid(low, high):
            error = self._damage(place)
            try:
                if not error:
                    ranges = zip(place, self.files, strict=True)
                    self._decode(
                        *(slice(n * size, (n + 1) * size) for n, size in ranges)
                    )
            except Exception as raised:
                error = _text(raised)
            if error:
                file = self.folder / self.file_name(place)
                yield f"{file}: {self.file_rows(place)} cannot be read: {error}"

    def _damage(self, place: Chunk) -> str:
        """Return damage that zarr does not notice: size of file, index, and Blosc data."""
        path = self.folder / self.file_name(place)
        if not path.is_file():
            return "not a regular file" if path.exists() else ""
        size = path.stat().st_size
        # A file of shards may be as large as the array.
        limit = MAX_ARRAY
        if self.files == self.chunks:
            limit = MAX_CHUNK

        if not size:
            return "the file is empty"
        if size > limit:
            return f"it has {size:,} bytes, the limit is {limit:,}"
        declared = size
        with path.open("rb") as file:
            if self._index_bytes:
                ends = np.frombuffer(file.read(self._index_bytes), "<u8").reshape(-1, 2)
                # All bits of an empty chunk are set.
                declared = int(ends[ends[:, 0] < 2**64 - 1].sum(1).max(initial=0))
            elif self._is_blosc:
                # Bytes 12 to 15 of the Blosc header are the compressed size.
                declared = int.from_bytes(file.read(16)[12:], "little")
        return (
            f"it has {size:,} bytes, expected {declared:,}" if declared > size else ""
        )

    def _check_limits(self) -> None:
        if not 1 <= self.ndim <= 3 or 0 in self.chunks:
            found = f"shape {self.shape} in chunks of {self.chunks}"
            message = f"{found}, expected 1 to 3 axes and chunks of at least 1"
            raise Refused(f"{self.folder}: {message}", code="wrong-shape")
        if self.dtype.kind not in "biufUS":
            message = f"{self.folder}: holds {self.dtype}, expected numbers or text"
            raise Refused(message, code="wrong-shape")
        self._check_size("the array", self.shape, MAX_ARRAY)
        self._check_size("a chunk", self.chunks, MAX_CHUNK)

    def _check_size(self, name: str, shape: Chunk, limit: int) -> None:
        size = math.prod(shape) * max(self.dtype.itemsize, 1)
        if size > limit:
            message = (
                f"{self.folder}: {name} takes {size:,} bytes, the limit is {limit:,}"
            )
            raise Refused(message, code="too-large")


def _check_codecs(folder: Path) -> None:
    """Refuse codecs that are not in `CODECS`, in the headers of both formats, before opening."""
    for file, key in ((".zarray", "id"), ("zarr.json", "name")):
        header = _header(folder / file)
        for field in ("compressor", "filters", "codecs", "storage_transformers"):
            for name in _codec_names(header.get(field), key):
                if (
                    not isinstance(name, str)
                    or name.removeprefix("numcodecs.") not in CODECS
                ):
                    known = ", ".join(sorted(CODECS))
                    message = f"codec {str(name)[:100]!r} is not read; known: {known}"
                    raise Refused(f"{folder / file}: {message}", code="unknown-format")


def _codec_names(codec: Any, key: str) -> Iterator[Any]:
    """Yield the names of a codec or a list of codecs, and of the codecs of a shard."""
    if isinstance(codec, list):
        for inner in codec:
            yield from _codec_names(inner, key)
    elif isinstance(codec, dict):
        yield codec.get(key)
        inner = codec.get("configuration")
        if isinstance(inner, dict):
            yield from _codec_names(inner.get("codecs"), key)
            yield from _codec_names(inner.get("index_codecs"), key)
    elif codec is not None:
        yield codec


def _text(error: Exception) -> str:
    name = type(error).__name__

    if str(error):
        return f"{name}: {str(error)[:200]}"
    return name


def is_group(folder: Path) -> bool:
    """Whether a folder holds a zarr group."""
    if (folder / ".zgroup").is_file():
        return True
    return _header(folder / "zarr.json").get("node_type") == "group"


def encoding_type(folder: Path) -> Any:
    """Return the `encoding-type` in the attributes of a group, such as "anndata"; None without one."""
    attributes = _header(folder / "zarr.json").get("attributes")
    if not isinstance(attributes, dict):
        attributes = _header(folder / ".zattrs")
    return attributes.get("encoding-type")


def _header(path: Path) -> dict[str, Any]:
    try:
        header = {}
        if path.is_file():
            header = json.loads(read_bytes(path))
    except OSError as error:
        raise unreadable(path, error) from None
    except (ValueError, RecursionError) as error:
        raise Refused(
            f"{path}: invalid JSON ({str(error)[:100]})", code="damaged-file"
        ) from None
    if not isinstance(header, dict):
        raise Refused(f"{path}: expected a JSON object", code="damaged-file")
    return header
