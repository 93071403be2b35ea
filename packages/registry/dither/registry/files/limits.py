"""The size policy of files that others may have written; docs/reliability.md states it.

Only regular files are opened: a pipe would block, and a device has no end. Errors are an OSError
with the file name.
"""

from __future__ import annotations

import errno
import os
import stat
from io import BufferedReader
from pathlib import Path

from ..config.errors import Refused

__all__ = [
    "EXPANSION",
    "LINE_BYTES",
    "RECORD_BYTES",
    "TABLE_BYTES",
    "max_expanded",
    "open_file",
    "read_bytes",
    "read_text",
    "unreadable",
]

RECORD_BYTES = 1 << 26
"""Most bytes of a JSON or TOML file, a plugin file, or a tokenizer."""
TABLE_BYTES = 1 << 32
"""Most bytes of a file that grows with a run, such as metrics.jsonl."""
LINE_BYTES = 1 << 26
"""Most bytes of a line of text data."""
EXPANSION = 200
"""Most bytes in memory for each byte of a compressed file."""
FREE_BYTES = 1 << 28
"""Bytes to which every compressed file may expand."""
LFS_POINTER = b"version https://git-lfs.github.com/spec/"
"""Start of the file that Git LFS leaves in place of content that was not fetched."""


def max_expanded(size: int) -> int:
    """Return the bytes to which a compressed file of `size` bytes may expand."""
    return max(FREE_BYTES, EXPANSION * size)


def open_file(path: Path, limit: int | None = None) -> BufferedReader:
    """Open a regular file of at most `limit` bytes for reading; OSError for anything else."""

    def opener(name: str, flags: int) -> int:
        # Opening a pipe must not wait for a writer.
        return os.open(name, flags | getattr(os, "O_NONBLOCK", 0))

    file = open(path, "rb", opener=opener)  # noqa: SIM115
    try:
        _require_readable(file, limit)
    except OSError as error:
        file.close()
        # That of a device or a server that fails names no file.
        error.filename = str(path)
        raise
    return file


def _require_readable(file: BufferedReader, limit: int | None) -> None:
    status = os.fstat(file.fileno())
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, "a pipe or a device, not a file")
    if limit is not None and status.st_size > limit:
        raise OSError(errno.EINVAL, f"{status.st_size:,} bytes, more than {limit:,}")
    if file.peek(len(LFS_POINTER)).startswith(LFS_POINTER):
        reason = "a pointer of Git LFS, not its content; run: git lfs pull"
        raise OSError(errno.EINVAL, reason)


def read_bytes(path: Path, limit: int = RECORD_BYTES) -> bytes:
    """Return the content of a regular file of at most `limit` bytes; OSError for any other."""
    with open_file(path, limit) as file:
        return file.read()


def read_text(path: Path, limit: int = RECORD_BYTES, errors: str = "strict") -> str:
    """Return the text of a file in UTF-8 as `read_bytes` does, with universal newlines."""
    return read_bytes(path, limit).decode("utf-8", errors).replace("\r\n", "\n")


def unreadable(path: Path, error: OSError, hint: str | None = None) -> Refused:
    """Return the problem of a file that cannot be opened or read, to be raised."""
    code = "unreadable-file"
    if isinstance(error, FileNotFoundError):
        code = "file-not-found"
    return Refused(f"{path}: {error.strerror or error}", help=hint, code=code)
