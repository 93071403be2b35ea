"""Ways to damage a file; each tells whether there was anything to damage."""

from __future__ import annotations

import os
import pickle
from collections.abc import Callable
from pathlib import Path


class Payload:
    """Unpickled, it makes a file."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.open, (self.flag, os.O_CREAT | os.O_WRONLY)


def truncated(path: Path, flag: Path) -> bool:
    """Leave half of it."""
    size = path.stat().st_size
    os.truncate(path, size // 2)
    return size > 0


def emptied(path: Path, flag: Path) -> bool:
    """Leave nothing of it."""
    size = path.stat().st_size
    os.truncate(path, 0)
    return size > 0


def zero_tail(path: Path, flag: Path) -> bool:
    """Make the second half zeros, as a loss of power does."""
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)
    return size > 0


def flipped(path: Path, flag: Path, at: float = 0.6) -> bool:
    """Flip a bit."""
    data = bytearray(path.read_bytes())
    if data:
        data[int(len(data) * at)] ^= 1
        path.write_bytes(data)
    return bool(data)


def flipped_early(path: Path, flag: Path) -> bool:
    """Flip a bit elsewhere."""
    return flipped(path, flag, 0.27)


def flipped_last(path: Path, flag: Path) -> bool:
    """Flip a bit near the end."""
    return flipped(path, flag, 0.97)


def deleted(path: Path, flag: Path) -> bool:
    """Take it away."""
    path.unlink()
    return True


def folder(path: Path, flag: Path) -> bool:
    """Put a folder in its place."""
    path.unlink()
    path.mkdir()
    return True


def closed(path: Path, flag: Path) -> bool:
    """Let nobody read it."""
    path.chmod(0)
    return True


def a_pickle(path: Path, flag: Path) -> bool:
    """Put a pickle in its place that would make a file."""
    path.write_bytes(pickle.dumps(Payload(str(flag))))
    return True


DAMAGES = {
    "truncated": truncated,
    "emptied": emptied,
    "zero tail": zero_tail,
    "bit flipped": flipped,
    "bit flipped early": flipped_early,
    "bit flipped last": flipped_last,
    "deleted": deleted,
    "a folder": folder,
    "no permission": closed,
    "a pickle": a_pickle,
}
