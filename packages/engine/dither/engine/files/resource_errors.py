"""What a full disk and a full memory say, in one form, whoever says it. No torch."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FULL", "disk_errors", "shortage"]

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a write that found no space: disk, quota, largest file."""
NO_MEMORY = (
    "allocate memory",
    "start new thread",
    "map segment",
    "bad_alloc",
    "bad alloc",
    "could not create a primitive",
)
"""What libraries say in exceptions of their own where there is no memory, each in its words; the last is oneDNN's."""


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Make an OSError of what safetensors says in an exception of its own, "No space left on device (os error 28)"."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        known = (*FULL, errno.ENOMEM)
        number = next((number for number in known if f"os error {number})" in str(error)), errno.EIO)
        raise OSError(number, f"{os.strerror(number)} ({error})", str(path)) from None


def shortage(error: BaseException | None) -> str | None:
    """Return what space or memory was lacking, as a line for people; None where that was not what went wrong.

    It is worded from what says so: an error, or the one that it came from.
    """
    while error is not None and not _lacks(error):
        error = error.__cause__
    if error is None:
        return None
    said = str(error)
    if isinstance(error, OSError) and error.errno in FULL:
        return said
    return f"out of memory: {said}" if said else "out of memory"


def _lacks(error: BaseException) -> bool:
    """Tell whether an error itself says that there was too little space or memory."""
    if isinstance(error, OSError) and error.errno in (*FULL, errno.ENOMEM):
        return True
    if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
        return True
    return any(words in str(error) for words in NO_MEMORY)
