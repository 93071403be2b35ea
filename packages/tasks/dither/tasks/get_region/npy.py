"""Single arrays on disk, as numpy writes them: mapped, never unpickled, and no longer than the file is."""

from __future__ import annotations

from pathlib import Path

import numpy as np
from jaxtyping import Shaped

from dither.registry.problems import Problem, Refused

__all__ = ["map_npy", "read_npy"]


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
