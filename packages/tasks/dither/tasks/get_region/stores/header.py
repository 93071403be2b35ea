"""What a zarr array says of itself: its `.zarray` (format 2) or `zarr.json` (format 3)."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import numpy as np

from dither.registry.problems import Problem, Refused

from .array_header import ArrayHeader, fill_of, lengths, must_be_sound
from .format_3 import read_version_3

__all__ = ["is_array", "is_group", "listed", "read_header"]

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
