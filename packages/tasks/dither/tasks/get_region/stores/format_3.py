"""Zarr's format 3: what a `zarr.json` says of an array, and of the shards that its chunks may lie in."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, Final

import numpy as np

from .array_header import ArrayHeader, Shards, fill_of, lengths

__all__ = ["read_version_3"]

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
