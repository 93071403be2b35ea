"""Recognise a full disk and exhausted memory in the exceptions of any library. No torch."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from dither.registry.files.write_errors import FULL
from dither.registry.plugins.status import causes_of, describe_exception

__all__ = ["disk_errors", "shortage", "shortage_code"]

NO_MEMORY = (
    "allocate memory",
    "start new thread",
    "map segment",
    "bad_alloc",
    "bad alloc",
    "could not create a primitive",
)
"""Messages of exceptions that libraries raise without memory; the last is oneDNN's."""
LOWER = "lower train.batch_size or raise train.accumulate; for samples, lower sample.batch_size"


@contextmanager
def disk_errors(path: Path) -> Iterator[None]:
    """Turn a SafetensorError such as "No space left on device (os error 28)" into an OSError."""
    from safetensors import SafetensorError

    try:
        yield
    except SafetensorError as error:
        known = (*FULL, errno.ENOMEM)
        number = next(
            (number for number in known if f"os error {number})" in str(error)),
            errno.EIO,
        )
        raise OSError(number, f"{os.strerror(number)} ({error})", str(path)) from None


def shortage(error: BaseException | None) -> str | None:
    """Return which resource an error, or one of its causes, reports as exhausted; None for any other error."""
    for cause in causes_of(error):
        if isinstance(cause, OSError) and cause.errno in FULL:
            return str(cause)
        if _is_memory(cause):
            reason = "out of memory"
            if str(cause):
                reason += f": {cause}"
            return f"{reason}\n  help: {LOWER}"
    return None


def _is_memory(error: BaseException) -> bool:
    if isinstance(error, MemoryError):
        return True
    # It is torch's, which is not imported here.
    if type(error).__name__ == "OutOfMemoryError":
        return True
    if isinstance(error, OSError) and error.errno == errno.ENOMEM:
        return True
    # `__str__` of a third party may fail.
    text = describe_exception(error)
    return any(words in text for words in NO_MEMORY)


def shortage_code(reason: str) -> str:
    """Return the code of a problem for a reason of `shortage`."""
    return "out-of-memory" if reason.startswith("out of memory") else "disk-full"
