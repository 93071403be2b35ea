"""What a zarr array says of itself: its `.zarray` (format 2) or `zarr.json` (format 3)."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from dither.registry.problems import Problem, Refused

__all__ = ["ArrayHeader", "is_array", "is_group", "read_header"]

LONGEST: Final = 1 << 20
MOST: Final = 1 << 34
"""Bytes that one array may take."""
CHUNK: Final = 1 << 31
"""Bytes that one chunk may take."""
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
        prefix: What the name of a chunk begins with.
        separator: What stands between the numbers of a chunk.
    """

    shape: tuple[int, ...]
    chunks: tuple[int, ...]
    dtype: np.dtype[Any] | None
    fill: Any
    packings: tuple[str, ...]
    axes: tuple[int, ...]
    prefix: str
    separator: str

    def chunk_name(self, place: Sequence[int]) -> str:
        """Return the path of a chunk below the array."""
        return self.prefix + self.separator.join(map(str, place))


def is_array(folder: Path) -> bool:
    """Tell whether a folder holds a zarr array."""
    return (folder / ".zarray").is_file() or _node(folder) == "array"


def is_group(folder: Path) -> bool:
    """Tell whether a folder holds a zarr group."""
    return (folder / ".zgroup").is_file() or _node(folder) == "group"


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
        header = _version_2(said) if path is old else _version_3(said)
        _must_be_sound(header)
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
    shape, chunks = _lengths(said["shape"], "shape"), _lengths(said["chunks"], "chunks")
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
    return ArrayHeader(shape, chunks, dtype, _fill(said.get("fill_value"), dtype), packing, axes, "", separator)


def _version_3(said: Mapping[str, Any]) -> ArrayHeader:
    if said["zarr_format"] != 3 or said["node_type"] != "array":
        raise ValueError(f"is {said['node_type']!r} of zarr_format {said['zarr_format']!r}, expected an array of 3")
    grid, keys = said["chunk_grid"], said["chunk_key_encoding"]
    if grid["name"] != "regular":
        raise ValueError(f"chunk_grid is {grid['name']!r}, expected regular")
    shape, chunks = _lengths(said["shape"], "shape"), _lengths(grid["configuration"]["chunk_shape"], "chunk_shape")
    dtype = _data_type(said["data_type"])
    axes, packings = tuple(range(len(shape))), []
    turned = False
    for entry in said["codecs"]:
        name, options = entry["name"], entry.get("configuration") or {}
        if name == "sharding_indexed":
            raise ValueError("its chunks lie in shards, which are not read; write it again without")
        if name == "transpose":
            axes = tuple(axes[axis] for axis in options["order"])
        elif name in ("bytes", "vlen-utf8"):
            turned = (name == "bytes") == (dtype is not None)
            if dtype is not None and options.get("endian") == "big":
                dtype = dtype.newbyteorder(">")
        else:
            packings.append(name)
    if not turned:
        raise ValueError(f"its codecs {[entry['name'] for entry in said['codecs']]} do not fit its data_type")
    names = keys.get("configuration") or {}
    prefix, usual = ("c/", "/") if keys["name"] == "default" else ("", ".")
    separator = names.get("separator", usual)
    if separator == "." and prefix:
        prefix = "c."
    return ArrayHeader(shape, chunks, dtype, _fill(said["fill_value"], dtype), tuple(packings), axes, prefix, separator)


def _lengths(value: Any, what: str) -> tuple[int, ...]:
    if not isinstance(value, list) or any(type(n) is not int or not 0 <= n < 1 << 48 for n in value):
        raise ValueError(f"{what} is {str(value)[:60]}, expected a list of lengths")
    if not 1 <= len(value) <= 3:
        raise ValueError(f"{what} has {len(value)} axes, expected 1 to 3")
    return tuple(value)


def _dtype(value: Any) -> np.dtype[Any]:
    dtype = np.dtype(value) if isinstance(value, str) else None
    if dtype is None or dtype.kind not in "biufUSO":
        raise ValueError(f"dtype is {str(value)[:60]}, expected numbers or text")
    return dtype


def _data_type(value: Any) -> np.dtype[Any] | None:
    """Return numpy's name of a data type of format 3; None for text of any length."""
    if value in ("string", "variable_length_utf8"):
        return None
    name = value["name"] if isinstance(value, dict) else value
    if name in NUMBERS:
        return np.dtype(NUMBERS[name])
    texts = {"fixed_length_utf32": ("U", 4), "null_terminated_bytes": ("S", 1)}
    if name in texts:
        letter, size = texts[name]
        return np.dtype(f"<{letter}{int(value['configuration']['length_bytes']) // size}")
    raise ValueError(f"data_type is {str(value)[:60]}, expected numbers or text")


def _fill(value: Any, dtype: np.dtype[Any] | None) -> Any:
    if dtype is None or dtype.kind in "US":
        return value if isinstance(value, str) and dtype is None else ""
    return dtype.type(0 if value is None else float(value) if isinstance(value, str) else value)


def _must_be_sound(header: ArrayHeader) -> None:
    """Refuse what would exhaust the memory of who reads it."""
    if len(header.chunks) != len(header.shape) or any(n < 1 for n in header.chunks):
        raise ValueError(f"chunks of {header.chunks} do not cut an array of {header.shape}")
    if sorted(header.axes) != list(range(len(header.shape))):
        raise ValueError(f"the order of its axes is {header.axes}")
    if header.separator not in (".", "/"):
        raise ValueError(f"the numbers of a chunk are separated by {header.separator!r}")
    size = 8 if header.dtype is None else header.dtype.itemsize
    if not size:
        raise ValueError("its texts have no letters")
    for lengths, most, what in ((header.shape, MOST, "the array"), (header.chunks, CHUNK, "a chunk")):
        if (total := math.prod(lengths) * size) > most:
            raise ValueError(f"{what} would take {total:,} bytes; at most {most:,} are read")
