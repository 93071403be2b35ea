"""Single arrays on disk, as numpy writes them: mapped, never unpickled, and no longer than the file is.

They are written as a plain stream: a full disk is then an error that can be said. Through a map it ends the process.
"""

from __future__ import annotations

import hashlib
import io
import json
import os
import zipfile
import zlib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.atomic import atomic_write

__all__ = ["LIMIT", "Arrays", "load_npz", "map_npy", "read_archive", "read_npy", "write_archive", "write_npy"]


def map_npy(path: Path, help_text: str | None = None) -> Shaped[np.memmap, "..."]:
    """Map an array; only what is asked for is read.

    Args:
        path: The file.
        help_text: What a person is to do when it is missing or damaged.

    Raises:
        Refused: It is missing, cut short, or holds objects.
    """
    try:
        if path.exists() and not path.is_file():
            raise Refused(f"{path}: is no plain file")
        found = np.load(path, mmap_mode="r", allow_pickle=False)
    except OSError as error:
        raise Refused(Problem(f"{path}: {error.strerror or error}", help=help_text)) from None
    except (ValueError, EOFError, OverflowError, SyntaxError, RecursionError, MemoryError) as error:
        raise Refused(Problem(f"{path}: is damaged or cut short ({str(error)[:120]})", help=help_text)) from None
    if not isinstance(found, np.memmap):
        raise Refused(Problem(f"{path}: is no single array", help=help_text))
    return found


def read_npy(path: Path, help_text: str | None = None) -> Shaped[np.ndarray, "..."]:
    """Read an array whole; otherwise as `map_npy`."""
    return np.array(map_npy(path, help_text))


def write_npy(
    path: Path, blocks: Iterable[Shaped[np.ndarray, "..."]], dtype: np.dtype[Any], shape: tuple[int, ...]
) -> tuple[int, str]:
    """Write an array that comes in blocks of rows, and wait until it is on disk. Returns its bytes and its sha256."""
    head = io.BytesIO()
    said = {"descr": np.lib.format.dtype_to_descr(dtype), "fortran_order": False, "shape": shape}
    np.lib.format.write_array_header_1_0(head, said)
    seen = hashlib.sha256(head.getvalue())
    with path.open("wb") as file:
        size = file.write(head.getvalue())
        for block in blocks:
            content = np.ascontiguousarray(block, dtype).tobytes()
            seen.update(content)
            size += file.write(content)
        file.flush()
        os.fsync(file.fileno())
    return size, seen.hexdigest()


LIMIT = 1 << 32
"""Bytes that the arrays of one file may take in memory."""

Arrays = dict[str, Shaped[np.ndarray, "..."]]
"""Arrays by name."""


def write_archive(path: Path, arrays: Mapping[str, Shaped[np.ndarray, "..."]], about: Mapping[str, Any]) -> None:
    """Write `path` (.npz) and its sidecar (.json) with dtype and shape of each array, the sha256, and `about`."""
    buffer = io.BytesIO()
    np.savez_compressed(buffer, **arrays)  # type: ignore[arg-type]
    content = buffer.getvalue()
    sidecar = {
        **about,
        "arrays": {name: {"dtype": array.dtype.str, "shape": list(array.shape)} for name, array in arrays.items()},
        "bytes": len(content),
        "sha256": hashlib.sha256(content).hexdigest(),
    }
    with atomic_write(path) as beside:
        beside.write_bytes(content)
    with atomic_write(path.with_suffix(".json")) as beside:
        beside.write_text(json.dumps(sidecar, indent=1) + "\n", encoding="utf-8")


def read_archive(path: Path, help_text: str) -> Arrays:
    """Return the arrays of a file that `write_archive` made.

    Args:
        path: The npz file.
        help_text: What a person is to do when a file is missing or damaged.

    Raises:
        Refused: If either file is missing or damaged: every byte of the npz file is checked against the sidecar.
    """
    sidecar = path.with_suffix(".json")
    try:
        content = path.read_bytes()
        about = json.loads(sidecar.read_bytes())
        expected = {name: (entry["dtype"], tuple(entry["shape"])) for name, entry in about["arrays"].items()}
        sha256 = str(about["sha256"])
    except OSError as error:
        raise Refused(Problem(f"{error.filename}: {error.strerror}", help=help_text)) from None
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise Refused(Problem(f"{sidecar}: is damaged ({type(error).__name__}: {error})", help=help_text)) from None
    if hashlib.sha256(content).hexdigest() != sha256:
        message = f"{path}: is damaged: its sha256 is not the one in {sidecar.name} ({len(content):,} bytes)"
        raise Refused(Problem(message, help=help_text))
    arrays = load_npz(io.BytesIO(content), path)
    found = {name: (array.dtype.str, array.shape) for name, array in arrays.items()}
    if found != expected:
        raise Refused(Problem(f"{path}: holds {found}, but {sidecar.name} says {expected}", help=help_text))
    return arrays


def load_npz(file: io.BytesIO | Path, path: Path) -> Arrays:
    """Return all arrays of an npz file; nothing is unpickled, and sizes are looked at before anything is read.

    Raises:
        Refused: If the file is missing, damaged, cut short, too large, or holds objects.
    """
    if isinstance(file, Path) and file.exists() and not file.is_file():
        raise Refused(f"{path}: is no plain file")
    try:
        with zipfile.ZipFile(file) as archive:
            size = sum(entry.file_size for entry in archive.infolist())
        if size > LIMIT:
            raise Refused(f"{path}: its arrays would take {size:,} bytes, allowed are {LIMIT:,}")
        if isinstance(file, io.BytesIO):
            file.seek(0)
        with np.load(file, allow_pickle=False) as archive:
            return {name: _array(archive, name, path) for name in archive.files}
    except OSError as error:
        raise Refused(f"{path}: {error.strerror or error}") from None
    except MemoryError as error:  # a header may speak of more than the file holds
        raise Refused(f"{path}: {error}") from None
    except (zipfile.BadZipFile, zlib.error, ValueError, EOFError, KeyError, NotImplementedError) as error:
        raise Refused(f"{path}: is no intact npz file ({error})") from None


def _array(archive: Any, name: str, path: Path) -> Shaped[np.ndarray, "..."]:
    try:
        found = archive[name]
    except ValueError as error:
        if "pickle" not in str(error):
            raise
        fix = 'objects are never unpickled; save text with .astype("str"), and numbers with .astype("float32")'
        raise Refused(Problem(f'{path}: is no intact npz file: "{name}" holds objects', help=fix)) from None
    if not isinstance(found, np.ndarray):
        raise Refused(f'{path}: "{name}" is no array')
    return found
