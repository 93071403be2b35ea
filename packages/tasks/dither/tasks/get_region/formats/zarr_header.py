"""What is known of a zarr array before its chunks are read, whichever format says it."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any, Final

import numpy as np

from dither.registry.config.errors import Problem, Refused

__all__ = [
    "ArrayHeader",
    "Shards",
    "fill_of",
    "is_array",
    "is_group",
    "lengths",
    "listed",
    "must_be_sound",
    "read_header",
    "read_version_3",
]

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


NUMBERS: Final = {
    "bool": "|b1",
    **{
        f"{sort}{bits}": f"<{sort[0]}{bits // 8}"
        for sort, bits in (
            *(("int", bits) for bits in (8, 16, 32, 64)),
            *(("uint", bits) for bits in (8, 16, 32, 64)),
            *(("float", bits) for bits in (16, 32, 64)),
        )
    },
}
"""Kinds of number of format 3, and how numpy writes them."""
SHARDS: Final = "sharding_indexed"


def read_version_3(said: Mapping[str, Any]) -> ArrayHeader:
    """Read the header of an array of format 3.

    Raises:
        ValueError, KeyError, TypeError: It is damaged, or of a sort that cannot be read.
    """
    if said["zarr_format"] != 3 or said["node_type"] != "array":
        raise ValueError(f"is {said['node_type']!r} of zarr_format {said['zarr_format']!r}, expected an array of 3")
    (grid, sizes), (keys, names) = _named(said["chunk_grid"]), _named(said["chunk_key_encoding"])
    if grid != "regular":
        raise ValueError(f"chunk_grid is {grid!r}, expected regular")
    shape, chunks = lengths(said["shape"], "shape"), lengths(sizes["chunk_shape"], "chunk_shape")
    dtype = _data_type(said["data_type"])
    codecs = [_named(entry) for entry in said["codecs"]]
    shards = None
    if SHARDS in dict(codecs):
        if len(codecs) > 1:
            raise ValueError(f"its shards went through {_list(codecs, SHARDS)} as well, which is not read")
        (_, inner), whole = codecs[0], chunks
        chunks, codecs = lengths(inner["chunk_shape"], "chunk_shape"), [_named(entry) for entry in inner["codecs"]]
        shards = _shards(whole, chunks, inner)
    dtype, axes, packings = _chain(codecs, dtype, len(shape))
    prefix, usual = ("c/", "/") if keys == "default" else ("", ".")
    separator = names.get("separator", usual)
    prefix = "c." if prefix and separator == "." else prefix
    return ArrayHeader(
        shape, chunks, dtype, fill_of(said["fill_value"], dtype), packings, axes, prefix, separator, shards
    )


def _named(entry: Any) -> tuple[str, Mapping[str, Any]]:
    """Return the name and the options of what may be written with or without options."""
    if isinstance(entry, str):
        return entry, {}
    return entry["name"], entry.get("configuration") or {}


def _list(codecs: Sequence[tuple[str, Any]], *without: str) -> str:
    return ", ".join(name for name, _ in codecs if name not in without)


def _shards(shape: tuple[int, ...], chunks: tuple[int, ...], options: Mapping[str, Any]) -> Shards:
    index = dict(_named(entry) for entry in options["index_codecs"])
    if [*index] not in (["bytes"], ["bytes", "crc32c"]):
        raise ValueError(f"the index of its shards is packed with {_list([*index.items()])}; expected bytes and crc32c")
    counts = tuple(n // c if c else 0 for n, c in zip(shape, chunks, strict=False))
    order = ">" if index["bytes"].get("endian") == "big" else "<"
    place = options.get("index_location", "end")
    if place not in ("start", "end"):
        raise ValueError(f"index_location is {place!r}, expected start or end")
    return Shards(shape, counts, place == "end", order, "crc32c" in index)


def _chain(
    codecs: Sequence[tuple[str, Mapping[str, Any]]], dtype: np.dtype[Any] | None, ndim: int
) -> tuple[np.dtype[Any] | None, tuple[int, ...], tuple[str, ...]]:
    """Return the type of the elements, the order of the axes, and the packings that follow."""
    axes, packings, turned = tuple(range(ndim)), [], False
    for name, options in codecs:
        if name == SHARDS:
            raise ValueError("its shards hold shards, which are not read")
        if name == "transpose":
            axes = tuple(axes[axis] for axis in options["order"])
        elif name in ("bytes", "vlen-utf8"):
            turned = (name == "bytes") == (dtype is not None)
            if dtype is not None and options.get("endian") == "big":
                dtype = dtype.newbyteorder(">")
        else:
            packings.append(name)
    if not turned:
        raise ValueError(f"its codecs {[name for name, _ in codecs]} do not fit its data_type")
    return dtype, axes, tuple(packings)


def _data_type(value: Any) -> np.dtype[Any] | None:
    """Return numpy's name of a data type of format 3; None for text of any length."""
    if value in ("string", "variable_length_utf8"):
        return None
    name, options = _named(value)
    if name in NUMBERS:
        return np.dtype(NUMBERS[name])
    texts = {"fixed_length_utf32": ("U", 4), "null_terminated_bytes": ("S", 1)}
    if name in texts:
        letter, size = texts[name]
        return np.dtype(f"<{letter}{int(options['length_bytes']) // size}")
    raise ValueError(f"data_type is {str(value)[:60]}, expected numbers or text")


LONGEST: Final = 1 << 24
"""Bytes that a header may have; that of a group may list the headers of all its arrays."""


def is_array(folder: Path) -> bool:
    """Tell whether a folder holds a zarr array."""
    return (folder / ".zarray").is_file() or _node(folder) == "array"


def is_group(folder: Path) -> bool:
    """Tell whether a folder holds a zarr group."""
    return (folder / ".zgroup").is_file() or _node(folder) == "group"


def listed(folder: Path) -> list[str]:
    """Return the arrays that a group says it has, where its headers were consolidated; otherwise none.

    Raises:
        Refused: The list is damaged.
    """
    path = next((path for name in (".zmetadata", "zarr.json") if (path := folder / name).is_file()), None)
    if path is None:
        return []
    said = _json(path)
    try:
        if path.name == ".zmetadata":
            return sorted(name.removesuffix("/.zarray") for name in said["metadata"] if name.endswith("/.zarray"))
        headers = (said.get("consolidated_metadata") or {}).get("metadata") or {}
        return sorted(name for name, header in headers.items() if header["node_type"] == "array")
    except (KeyError, TypeError, AttributeError):
        raise Refused(f"{path}: its list of arrays is damaged") from None


def _node(folder: Path) -> Any:
    path = folder / "zarr.json"
    return _json(path).get("node_type") if path.is_file() else None


def read_header(folder: Path) -> ArrayHeader:
    """Read the header of an array.

    Raises:
        Refused: There is none, it is damaged, or the array is of a sort that cannot be read; names the file.
    """
    old, new = folder / ".zarray", folder / "zarr.json"
    path = old if old.is_file() else new
    if not path.is_file():
        fix = "copy the store again, all of it"
        raise Refused(Problem(f"{folder}: has neither .zarray nor zarr.json; the store was cut short", help=fix))
    said = _json(path)
    try:
        header = _version_2(said) if path is old else read_version_3(said)
        must_be_sound(header)
    except (KeyError, TypeError, ValueError, IndexError, AttributeError, OverflowError) as error:
        what = f"has no {error}" if isinstance(error, KeyError) else str(error)
        raise Refused(f"{path}: {what}") from None
    return header


def _json(path: Path) -> dict[str, Any]:
    try:
        if path.stat().st_size > LONGEST:
            raise Refused(f"{path}: is longer than {LONGEST:,} bytes")
        said = json.loads(path.read_bytes())
    except OSError as error:
        raise Refused(f"{path}: {error.strerror}") from None
    except (ValueError, RecursionError) as error:
        raise Refused(f"{path}: is no JSON ({str(error)[:100]}); the store is damaged") from None
    if not isinstance(said, dict):
        raise Refused(f"{path}: holds no table")
    return said


def _version_2(said: Mapping[str, Any]) -> ArrayHeader:
    if said["zarr_format"] != 2:
        raise ValueError(f"zarr_format is {said['zarr_format']!r}, expected 2")
    shape, chunks = lengths(said["shape"], "shape"), lengths(said["chunks"], "chunks")
    filters = [entry["id"] for entry in said.get("filters") or ()]
    dtype: np.dtype[Any] | None = _dtype(said["dtype"])
    if said["dtype"] == "|O":
        if filters != ["vlen-utf8"]:
            raise ValueError(f"holds objects packed with {', '.join(filters) or 'nothing'}; expected text (vlen-utf8)")
        dtype, filters = None, []
    if filters:
        raise ValueError(f"its numbers went through {', '.join(filters)}, which is not known")
    packing = (said["compressor"]["id"],) if said.get("compressor") else ()
    axes = tuple(range(len(shape)))
    separator = said.get("dimension_separator", ".")
    if said.get("order", "C") == "F":
        axes = axes[::-1]
    return ArrayHeader(shape, chunks, dtype, fill_of(said.get("fill_value"), dtype), packing, axes, "", separator)


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = np.dtype(value) if isinstance(value, str) else None
    if dtype is None or dtype.kind not in "biufUSO":
        raise ValueError(f"dtype is {str(value)[:60]}, expected numbers or text")
    return dtype
