"""What a full disk says, in one form, whoever says it."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FULL", "disk_errors"]

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a write that found no space: disk, quota, largest file."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Make an OSError of what safetensors says in an exception of its own, "No space left on device (os error 28)"."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        number = next((number for number in FULL if f"os error {number})" in str(error)), errno.EIO)
        raise OSError(number, f"{os.strerror(number)} ({error})", str(path)) from None
