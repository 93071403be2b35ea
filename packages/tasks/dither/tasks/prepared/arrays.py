"""Files of numpy: memory-mapped .npy arrays, and .npz archives with a JSON sidecar. Nothing is unpickled."""

from __future__ import annotations

import hashlib
import io
import json
import math
import zipfile
import zlib
from collections.abc import Container, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_write
from dither.registry.files.limits import TABLE_BYTES, max_expanded, read_bytes

__all__ = ["LIMIT", "Arrays", "load_npz", "map_npy", "read_archive", "read_npy", "write_archive"]


def map_npy(path: Path, help_text: str | None = None) -> Shaped[np.memmap, "..."]:
    """Memory-map an array; `help_text` says what to do when it is missing or damaged."""
    try:
        if path.exists() and not path.is_file():
            raise Refused(f"{path}: not a regular file", code="unreadable-file")
        array = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        code = "file-not-found" if isinstance(error, FileNotFoundError) else "unreadable-file"
        raise Refused(
            Problem(f"{path}: {error.strerror or error}", help=help_text, code=code)
        ) from None
    except (ValueError, EOFError, OverflowError, SyntaxError, RecursionError, MemoryError) as error:
        message = f"{path}: damaged or cut short ({str(error)[:120]})"
        raise Refused(Problem(message, help=help_text, code="damaged-file")) from None
    if not isinstance(array, np.memmap):
        raise Refused(Problem(f"{path}: not a single array", help=help_text, code="damaged-file"))
    return array


def read_npy(path: Path, help_text: str | None = None) -> Shaped[np.ndarray, "..."]:
    """Read an array into memory; see `map_npy`."""
    return np.array(map_npy(path, help_text))


LIMIT = 1 << 32
"""Bytes in memory that the arrays of one file may take."""

Arrays = dict[str, Shaped[np.ndarray, "..."]]


def write_archive(
    path: Path, arrays: Mapping[str, Shaped[np.ndarray, "..."]], about: Mapping[str, Any]
) -> None:
    """Write an .npz file, and a .json file with `about`, the sha256, and dtype and shape of each array."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
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
    with atomic_write(path) as temporary:
        temporary.write_bytes(content)
    with atomic_write(path.with_suffix(".json")) as temporary:
        temporary.write_text(json.dumps(sidecar, indent=1) + "\n", encoding="utf-8")


def read_archive(path: Path, help_text: str) -> Arrays:
    """Return the arrays that `write_archive` wrote; raises Refused if either file is missing or damaged."""
    sidecar = path.with_suffix(".json")
    try:
        content = read_bytes(path, TABLE_BYTES)
        about = json.loads(read_bytes(sidecar))
        expected = {
            name: (entry["dtype"], tuple(entry["shape"])) for name, entry in about["arrays"].items()
        }
        sha256 = str(about["sha256"])
    except OSError as error:
        problem = Problem(
            f"{error.filename}: {error.strerror}", help=help_text, code="file-not-found"
        )
        raise Refused(problem) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        message = f"{sidecar}: damaged ({type(error).__name__}: {error})"
        raise Refused(Problem(message, help=help_text, code="damaged-file")) from None
    if hashlib.sha256(content).hexdigest() != sha256:
        message = f"{path}: damaged: sha256 differs from {sidecar.name} ({len(content):,} bytes)"
        raise Refused(Problem(message, help=help_text, code="damaged-file"))
    arrays = load_npz(io.BytesIO(content), path)
    shapes = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    if shapes != expected:
        message = f"{path}: holds {shapes}, but {sidecar.name} declares {expected}"
        raise Refused(Problem(message, help=help_text, code="damaged-file"))
    return arrays


def load_npz(file: io.BytesIO | Path, path: Path, unread: Container[str] = ()) -> Arrays:
    """Return all arrays of an .npz file, after checking their total size; of those in `unread` dtype and shape only."""
    if isinstance(file, Path) and file.exists() and not file.is_file():
        raise Refused(f"{path}: not a regular file", code="unreadable-file")
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
            names = [name.removesuffix(".npy") for name in archive.namelist()]
            headers = {name: _header(archive, name) for name in names if name in unread}
        packed = path.stat().st_size if isinstance(file, Path) else len(file.getbuffer())
        if size > (limit := min(LIMIT, max_expanded(packed))):
            raise Refused(
                f"{path}: arrays take {size:,} bytes, the limit is {limit:,}", code="too-large"
            )
        if isinstance(file, io.BytesIO):
            file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            return {
                name: _member(archive, name, path) for name in archive.files if name not in headers
            } | headers
    except OSError as error:
        code = "file-not-found" if isinstance(error, FileNotFoundError) else "unreadable-file"
        raise Refused(f"{path}: {error.strerror or error}", code=code) from None
    except MemoryError as error:  # a header may declare more than the file holds
        raise Refused(f"{path}: {error}", code="too-large") from None
    except (
        zipfile.BadZipFile,
        zlib.error,
        ValueError,
        EOFError,
        KeyError,
        NotImplementedError,
    ) as error:
        raise Refused(f"{path}: damaged .npz file ({error})", code="damaged-file") from None


def _header(archive: zipfile.ZipFile, name: str) -> Shaped[np.ndarray, "..."]:
    """Return zeros of the declared dtype and shape, which take no memory."""
    with archive.open(f"{name}.npy") as file:
        version = np.lib.format.read_magic(file)
        read = (
            np.lib.format.read_array_header_1_0
            if version == (1, 0)
            else np.lib.format.read_array_header_2_0
        )
        shape, _, dtype = read(file)
    if math.prod(shape) * dtype.itemsize > archive.getinfo(f"{name}.npy").file_size:
        raise ValueError(f'"{name}" declares more than it holds')
    return np.broadcast_to(np.zeros((), dtype), shape)


def _member(archive: Any, name: str, path: Path) -> Shaped[np.ndarray, "..."]:
    try:
        array = archive[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        fix = 'objects are never unpickled; save text with .astype("str"), and numbers with .astype("float32")'
        raise Refused(
            Problem(f'{path}: "{name}" holds objects', help=fix, code="wrong-shape")
        ) from None
    if not isinstance(array, np.ndarray):
        raise Refused(f'{path}: "{name}" is not an array', code="damaged-file")
    return array
