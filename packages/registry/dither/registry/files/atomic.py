"""Atomic writes of files and folders, and checksums."""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from pathlib import Path

__all__ = ["atomic_folder", "atomic_write", "follow_umask", "fsync", "sha256_of"]


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path with the same suffix; when the block succeeds, the file replaces `path` atomically.

    Nothing remains if the block raises. Missing folders are created.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield temporary
        fsync(temporary)
        temporary.replace(path)
        fsync(path.parent)
    except OSError as error:  # a full disk has no file name
        if error.errno is not None:
            error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder; when the block succeeds, it replaces `folder`.

    Several processes may do so at once: the last one wins. Nothing remains if the block raises.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(4)
    temporary, former = (folder.with_name(f".{folder.name}-{mark}{end}") for end in ("", "-old"))
    temporary.mkdir()
    try:
        yield temporary
        fsync(temporary)
        _swap(temporary, folder, former)
        fsync(folder.parent)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def _swap(temporary: Path, folder: Path, former: Path) -> None:
    """Move `temporary` to `folder`, which other processes may replace at the same time; delete what was there."""
    while True:
        with suppress(FileNotFoundError):
            folder.replace(former)
        try:
            temporary.replace(folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                with suppress(OSError):
                    former.replace(folder)
                raise
        else:
            shutil.rmtree(former, ignore_errors=True)
            return
        shutil.rmtree(former, ignore_errors=True)  # another process was faster: replace its folder


def follow_umask(path: Path) -> None:
    """Give a file the mode that `open` gives new files; safetensors writes files that only their owner can read."""
    path.chmod(0o666 & ~_umask())


@cache
def _umask() -> int:
    umask = os.umask(0o22)  # it cannot be read without being set
    os.umask(umask)
    return umask


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    if os.name == "nt":  # Windows cannot open folders
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
