"""What a full disk and a full memory say, in one form, whoever says it. No torch."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["FULL", "disk_errors", "exhausted", "shortage"]

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


def exhausted(error: BaseException | None) -> bool:
    """Tell whether there was too little space or memory: what an error says, or the one that it came from."""
    while error is not None:
        if isinstance(error, OSError) and error.errno in (*FULL, errno.ENOMEM):
            return True
        if isinstance(error, MemoryError) or type(error).__name__ == "OutOfMemoryError":
            return True
        if any(words in str(error) for words in NO_MEMORY):
            return True
        error = error.__cause__
    return False


def shortage(error: BaseException) -> str:
    """Return what was lacking, as a line for people; for an error that is `exhausted`."""
    said = str(error)
    if isinstance(error, OSError) and error.errno in FULL:
        return said
    return f"out of memory: {said}" if said else "out of memory"
