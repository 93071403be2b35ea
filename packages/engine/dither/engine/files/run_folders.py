"""The order of run directories, and whether a process works in one."""

from __future__ import annotations

from pathlib import Path

from dither.registry.files.limits import open_file

__all__ = ["by_time", "is_locked"]


def by_time(run: Path) -> tuple[str, list[str]]:
    """Return a sort key of run directories: the points of a sweep in order, then by the time in the name."""
    return str(run.parent), run.name.rsplit("-", 2)[-2:]


def is_locked(file: Path) -> bool:
    """Return whether a process holds a lock, by sharing it for a moment; False where locks cannot be shared."""
    try:
        import fcntl

        with open_file(file) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except (
        ImportError,
        OSError,
    ) as error:  # otherwise there is no such file, or this is Windows
        return isinstance(error, BlockingIOError)
    return False
