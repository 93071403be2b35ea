"""The order of run directories, whether a process works in one, and whether it is still there."""

from __future__ import annotations

from pathlib import Path

from dither.registry.config.errors import Problem, Refused
from dither.registry.files.limits import open_file

__all__ = ["Vanished", "by_time", "is_locked", "require_folder"]


class Vanished(Refused):
    """The folder of a run or sweep was deleted or renamed. The command line exits with 5."""

    exit_code = 5


def require_folder(folder: Path, mark: str, kind: str = "run") -> None:
    """Raise `Vanished` unless a folder still has the file `mark`, without which nothing reads it.

    Other errors, such as those of a network that fails for a moment, say nothing about the folder.
    """
    try:
        (folder / mark).stat()
    except (FileNotFoundError, NotADirectoryError):
        message = f"the {kind} directory {folder} was deleted, renamed or emptied: no {mark} in it"
        hint = f"if it was renamed, resume the {kind} under its new name"
        raise Vanished(Problem(message, help=hint, code="run-vanished")) from None
    except OSError:
        return


def by_time(run: Path) -> tuple[str, list[str]]:
    """Return a sort key of run directories: the points of a sweep in order, then by the time in the name."""
    return str(run.parent), run.name.rsplit("-", 2)[-2:]


def is_locked(file: Path) -> bool:
    """Return whether a process holds a lock, by sharing it for a moment; False where locks cannot be shared."""
    try:
        import fcntl

        with open_file(file) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    # Otherwise there is no such file, or this is Windows.
    except (ImportError, OSError) as error:
        return isinstance(error, BlockingIOError)
    return False
