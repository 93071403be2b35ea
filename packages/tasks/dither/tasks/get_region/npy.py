"""Single arrays on disk, as numpy writes them: mapped, never unpickled, and no longer than the file is.

They are written as a plain stream: a full disk is then an error that can be said. Through a map it ends the process.
"""

from __future__ import annotations

import hashlib
import io
import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from jaxtyping import Shaped

from dither.registry.problems import Problem, Refused

__all__ = ["map_npy", "read_npy", "write_npy"]


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
