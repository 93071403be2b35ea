"""Files of numpy, never unpickled: memory-mapped .npy arrays, .npz archives with JSON sidecars."""

from __future__ import annotations

import hashlib
import io
import json
import math
import tokenize
import zipfile
import zlib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np
from jaxtyping import Shaped
from numpy import ndarray

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_write
from dither.registry.files.limits import (
    TABLE_BYTES,
    max_expanded,
    open_file,
    read_bytes,
    unreadable,
)

__all__ = ["LIMIT", "Arrays", "load_npz", "map_npy", "read_archive", "write_archive"]

_Array = Shaped[ndarray, "..."]

DAMAGE = (
    EOFError,
    KeyError,
    OverflowError,
    # Also of an encrypted archive, of another compression, and of a header nested too deeply.
    RuntimeError,
    SyntaxError,
    ValueError,
    tokenize.TokenError,
    zipfile.BadZipFile,
    zlib.error,
)
"""Errors of zipfile and numpy for a damaged file."""


def map_npy(path: Path, help_text: str | None = None) -> Shaped[np.memmap, "..."]:
    """Memory-map an array; `help_text` says what to do when it is missing or damaged."""
    try:
        # A pipe would block, and numpy opens it again by name.
        open_file(path).close()
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise unreadable(path, error, help_text) from None
    except (*DAMAGE, MemoryError) as error:
        message = f"{path}: damaged or cut short ({str(error)[:120]})"
        raise Refused(message, help=help_text, code="damaged-file") from None
    if not isinstance(array, np.memmap):
        raise Refused(
            f"{path}: not a single array", help=help_text, code="damaged-file"
        )
    return array


LIMIT = 1 << 32
"""Bytes in memory that the arrays of one file may take."""

Arrays = dict[str, _Array]


def write_archive(path: Path, arrays: Arrays, about: Mapping[str, Any]) -> None:
    """Write an .npz file, and next to it a .json file: `about`, the sha256, dtypes and shapes."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    # In memory first: the sidecar has length and checksum of the file.
    content = buffer.getvalue()
    sidecar = {
        **about,
        "arrays": {
            name: {"dtype": array.dtype.str, "shape": list(array.shape)}
            for name, array in arrays.items()
        },
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    # The sidecar is last: an archive without one is unfinished.
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    with atomic_write(path.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(sidecar, indent=1) + "\n", encoding="utf-8")


def read_archive(path: Path, help_text: str) -> Arrays:
    """Return the arrays of `write_archive`; raise Refused if a file is missing or damaged."""
    sidecar = path.with_suffix(".json")
    try:
        content = read_bytes(path, TABLE_BYTES)
        about = json.loads(read_bytes(sidecar))
        expected = {
            name: (entry["dtype"], tuple(entry["shape"]))
            for name, entry in about["arrays"].items()
        }
        sha256 = str(about["sha256"])
    except OSError as error:
        raise unreadable(Path(error.filename), error, help_text) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{sidecar}: damaged ({type(error).__name__}: {error})"
        raise Refused(message, help=help_text, code="damaged-file") from None

    if hashlib.sha256(content).hexdigest() != sha256:
        message = f"{path}: damaged: sha256 differs from {sidecar.name} ({len(content):,} bytes)"
        raise Refused(message, help=help_text, code="damaged-file")
    arrays = _load(io.BytesIO(content), path, len(content))
    shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    if shapes != expected:
        message = f"{path}: holds {shapes}, but {sidecar.name} declares {expected}"
        raise Refused(message, help=help_text, code="damaged-file")
    return arrays


def load_npz(path: Path, unread: Container[str] = ()) -> Arrays:
    """Return all arrays of an .npz file; of those in `unread` only dtype and shape."""
    try:
        with open_file(path) as file:
            return _load(file, path, path.stat().st_size, unread)
    except OSError as error:
        raise unreadable(path, error) from None


def _load(file: BinaryIO, path: Path, size: int, unread: Container[str] = ()) -> Arrays:
    """Read an archive of `size` bytes, after checking how large its arrays are."""
    try:
        # A small archive may expand to any size, and a header may declare any shape.
        with zipfile.ZipFile(file) as archive:
            expanded = sum(entry.file_size for entry in archive.infolist())
            limit = min(LIMIT, max_expanded(size))
            if expanded > limit:
                message = (
                    f"{path}: arrays take {expanded:,} bytes, the limit is {limit:,}"
                )
                raise Refused(message, code="too-large")
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            headers = {name: _header(archive, name) for name in names if name in unread}
        file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            arrays = {
                name: _member(archive, name, path)
                for name in archive.files
                if name not in headers
            }
            return arrays | headers
    # A header may declare more than the file holds.
    except MemoryError as error:
        raise Refused(f"{path}: {error}", code="too-large") from None
    except DAMAGE as error:
        raise Refused(
            f"{path}: damaged .npz file ({error})", code="damaged-file"
        ) from None


def _header(archive: zipfile.ZipFile, name: str) -> _Array:
    """Return zeros of the declared dtype and shape, which take no memory."""
    member = f"{name}.npy"
    with archive.open(member) as file:
        if np.lib.format.read_magic(file) == (1, 0):
            shape, _, dtype = np.lib.format.read_array_header_1_0(file)
        else:
            shape, _, dtype = np.lib.format.read_array_header_2_0(file)

    # A header of a few bytes may declare any size.
    size = math.prod(shape) * dtype.itemsize
    if size > archive.getinfo(member).file_size:
        raise ValueError(f'"{name}" declares more than it holds')
    return np.broadcast_to(np.zeros((), dtype), shape)


def _member(archive: Any, name: str, path: Path) -> _Array:
    try:
        array = archive[name]
    except ValueError as error:
        # ValueError is also that of a damaged file, which `_load` reports.
        if "pickle" not in str(error):
            raise
        fix = (
            'objects are never unpickled; save text with .astype("str"), '
            'and numbers with .astype("float32")'
        )
        problem = Problem(
            f'{path}: "{name}" holds objects', help=fix, code="wrong-shape"
        )
        raise Refused(problem) from None
    if not isinstance(array, ndarray):
        raise Refused(f'{path}: "{name}" is not an array', code="damaged-file")
    return array
