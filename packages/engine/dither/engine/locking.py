"""A run directory is held by one process at a time, by a lock of the kernel on its file run.lock."""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from datetime import UTC, datetime
from pathlib import Path

from dither.registry.problems import Refused

__all__ = ["held_by", "lock", "refuse_held"]


def lock(path: Path) -> int:
    """Lock a run directory for as long as this process lives; the lock of a process that was killed is free.

    Returns:
        The descriptor to close when it is given back.

    Raises:
        Refused: Another process holds it; it is named.
    """
    try:
        descriptor = os.open(path / "run.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o644)
    except OSError as error:
        raise Refused(f"the run directory {path} cannot be locked: run.lock: {error.strerror}") from None
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError as error:
        holder = os.read(descriptor, 1000).decode(errors="replace").strip()
        os.close(descriptor)
        if error.errno not in (errno.EWOULDBLOCK, errno.EACCES):
            raise Refused(f"the run directory {path} cannot be locked: run.lock: {error.strerror}") from None
        raise Refused(f"the run directory {path} is held by another process: {holder or 'unknown'}") from None
    who = f"process {os.getpid()} on {socket.gethostname()} since {datetime.now(UTC):%Y-%m-%d %H:%M:%S} UTC\n"
    os.ftruncate(descriptor, 0)
    os.write(descriptor, who.encode())
    return descriptor


def held_by(path: Path) -> str | None:
    """Return the process that holds a run directory, as it wrote itself down; None if none does.

    The lock is looked up in the list of the kernel: to try it would take it away from a run that is just beginning.
    """
    file = path / "run.lock"
    try:
        inode = f":{file.stat().st_ino} "
        held = any("FLOCK" in line and inode in line for line in Path("/proc/locks").read_text().splitlines())
        return (file.read_text(errors="replace").strip() or "unknown") if held else None
    except OSError:
        return None


def refuse_held(run_directory: Path) -> None:
    """Look whether another process holds a run directory, before anything that takes time is begun.

    Raises:
        Refused: One does.
    """
    if held_by(run_directory):  # perhaps: the list of the kernel does not say on which disk
        os.close(lock(run_directory))
