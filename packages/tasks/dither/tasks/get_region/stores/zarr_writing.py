"""Zarr arrays and groups written with nothing but numpy and zlib, in format 2 or 3."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
from jaxtyping import Shaped

from .codecs import pack

__all__ = ["Format", "ZarrWriter", "write_array", "write_group"]

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
