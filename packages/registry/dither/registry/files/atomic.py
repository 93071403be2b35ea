"""Where prepared data is kept, how a data set that travels as a wheel is fetched, how to write a file whole or not."""

from __future__ import annotations

import hashlib
import os
import secrets
import shutil
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

__all__ = ["atomic_folder", "atomic_write", "fsync", "sha256_of"]


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a path beside `path` to write to; when the block ends well, the file takes its place in one step.

    A reader sees the old file or the new one, never a part, whatever happens in between. The temporary name keeps the
    suffix, and a block that raises leaves nothing behind. Missing folders are made.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    beside = path.with_name(f".{path.stem}-{secrets.token_hex(4)}{path.suffix}")
    try:
        yield beside
        fsync(beside)
        beside.replace(path)
        fsync(path.parent)
    finally:
        beside.unlink(missing_ok=True)


@contextmanager
def atomic_folder(folder: Path) -> Iterator[Path]:
    """Yield a folder beside `folder` to fill; when the block ends well, it takes its place.

    What was there before goes only then. A block that raises leaves nothing behind.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    mark = secrets.token_hex(4)
    beside, former = (folder.with_name(f".{folder.name}-{mark}{end}") for end in ("", "-old"))
    beside.mkdir()
    try:
        yield beside
        fsync(beside)
        if folder.exists():
            folder.replace(former)
        beside.replace(folder)
        fsync(folder.parent)
    finally:
        shutil.rmtree(beside, ignore_errors=True)
        if former.exists() and folder.exists():
            shutil.rmtree(former, ignore_errors=True)


def fsync(path: Path) -> None:
    """Wait until a file, or the names in a folder, are on disk."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
