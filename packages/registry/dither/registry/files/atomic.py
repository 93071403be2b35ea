"""Atomic writes of files and folders, and checksums.

The only renames of the project. A reader sees the old content or the new one, never half of it,
also after a crash: everything is flushed to disk before the rename, and the rename after it.
Temporary files and folders are called `.tmp-...` and are next to their target. Of a killed process,
`atomic_folder` deletes the folders of the same target and host, and `remove_leftovers` everything.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import socket
import stat
import zlib
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from glob import escape
from pathlib import Path

from .lookup import exists, is_folder

__all__ = [
    "atomic_folder",
    "atomic_write",
    "follow_umask",
    "fsync",
    "move",
    "output_file",
    "remove_folder",
    "remove_leftovers",
    "sha256_of",
]

PREFIX = ".tmp-"
TYPES = {
    stat.S_IFIFO: "a FIFO",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
    stat.S_IFDIR: "a folder",
}
"""What a path may be in place of a file: replacing it would destroy it, opening it may never end."""
DEVICES = (Path("/dev"), Path("/dev/fd"), Path("/proc/self/fd"))
"""Folders of devices and of links to open files; /dev/shm has ordinary files."""


@contextmanager
def atomic_write(path: Path) -> Iterator[Path]:
    """Yield a temporary path with the same suffix; when the block succeeds, it replaces `path`.

    Nothing remains if the block raises. Missing folders are created. OSError if the path is a
    folder, a FIFO or a device; a link is replaced.
    """
    if not os.path.islink(path):
        output_file(path)
    path.parent.mkdir(parents=True, exist_ok=True)
    temporary = _temporary(path)
    try:
        yield temporary
        fsync(temporary)
        move(temporary, path)
    except OSError as error:
        # The error of a full disk has no file name.
        if error.errno is not None:
            error.filename = error.filename or str(path)
        raise
    finally:
        temporary.unlink(missing_ok=True)


def output_file(path: Path) -> Path:
    """Return the path of a new or regular file that a user names: of a link, that of its target.

    Raises:
        OSError: The path is anything else.
    """
    reason = None
    if path.absolute().parent in DEVICES:
        reason = f"it is in {path.absolute().parent}"
    # The folder may not be readable, or the name too long; the write reports that.
    with suppress(OSError, ValueError):
        kind = stat.S_IFMT(path.stat().st_mode)
        if kind in TYPES and reason is None:
            reason = f"it is {TYPES[kind]}"
    if reason is not None:
        message = f"{reason}; give the name of a file"
        raise OSError(errno.EINVAL, message, str(path))
    return Path(os.path.realpath(path)) if os.path.islink(path) else path


@contextmanager
def atomic_folder(folder: Path, *, overwrite: bool = True) -> Iterator[Path]:
    """Yield a temporary folder; when the block succeeds, it becomes `folder` with all its content.

    Nothing remains if the block raises. Missing parents are created, and all files are flushed to
    disk. Several processes may write one folder at once: the last one wins.

    Args:
        folder: The target.
        overwrite: Whether to replace an existing folder; else `FileExistsError`, at the start and,
            if another process was faster, at the end.
    """
    # A dangling link does not exist, but would be replaced.
    if not overwrite and (exists(folder) or folder.is_symlink()):
        raise FileExistsError(errno.EEXIST, os.strerror(errno.EEXIST), str(folder))
    # Data may be on another disk, to which a link leads.
    if folder.is_symlink():
        folder = Path(os.path.realpath(folder))
    folder.parent.mkdir(parents=True, exist_ok=True)
    _remove_abandoned(folder)
    temporary = _temporary(_at_this_host(folder))
    # Locked before it has the name that `_remove_abandoned` looks for.
    unlocked = _temporary(folder.with_name("unlocked"))
    lock = None
    try:
        unlocked.mkdir()
        lock = _lock(unlocked)
        unlocked.replace(temporary)
        yield temporary

        for parent, _, files in os.walk(temporary):
            for file in files:
                fsync(Path(parent, file))
            fsync(Path(parent))

        if overwrite:
            _replace_folder(temporary, folder)
        else:
            move(temporary, folder)
    finally:
        for path in (unlocked, temporary):
            shutil.rmtree(path, ignore_errors=True)
        if lock is not None:
            os.close(lock)


def move(source: Path, target: Path) -> None:
    """Rename a file or folder atomically on one file system; a file replaces the file `target`.

    OSError if `target` is a folder that is not empty.
    """
    source.replace(target)
    fsync(target.parent)


def remove_folder(folder: Path) -> None:
    """Delete a folder, or a link to one, so that it is never half there: it is renamed first."""
    doomed = _temporary(folder)
    folder.replace(doomed)
    _delete(doomed)


def remove_leftovers(folder: Path) -> None:
    """Delete temporary files and folders of killed processes; the caller holds a lock."""
    for path in folder.glob(f"{PREFIX}*"):
        _delete(path)


def _delete(path: Path) -> None:
    # rmtree refuses a link, and must not delete its target.
    if is_folder(path) and not path.is_symlink():
        shutil.rmtree(path, ignore_errors=True)
    else:
        path.unlink(missing_ok=True)


def _remove_abandoned(folder: Path) -> None:
    """Delete the temporary folders of killed processes of this host that were writing `folder`."""
    targets = [_at_this_host(folder)]
    # Without the folder, its former content may be the only one.
    if exists(folder):
        targets.append(_former(folder))
    for target in targets:
        pattern = (
            f"{PREFIX}{escape(target.stem)}-{8 * '[0-9a-f]'}{escape(target.suffix)}"
        )
        for path in folder.parent.glob(pattern):
            # The folder of a process that is alive cannot be locked.
            lock = _lock(path)
            if lock is not None:
                shutil.rmtree(path, ignore_errors=True)
                os.close(lock)


def _lock(folder: Path) -> int | None:
    """Lock a folder until the descriptor is closed, or the process killed; None if that is impossible."""
    # Windows has no such locks, and a network disk may have none.
    with suppress(ImportError, OSError):
        import fcntl

        descriptor = os.open(folder, os.O_RDONLY)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(descriptor)
            raise
        return descriptor
    return None


def _at_this_host(folder: Path) -> Path:
    """Return a name with that of the host: on a network disk hosts do not see each other's locks of folders."""
    host = zlib.crc32(socket.gethostname().encode())
    return folder.with_name(f"{host:08x}-{folder.name}")


def _former(folder: Path) -> Path:
    return folder.with_name(f"former-{folder.name}")


def _temporary(path: Path) -> Path:
    return path.with_name(f"{PREFIX}{path.stem}-{secrets.token_hex(4)}{path.suffix}")


def _replace_folder(temporary: Path, folder: Path) -> None:
    former = _temporary(_former(folder))
    while True:
        # A folder cannot be renamed onto one that is not empty, so the former one moves away first.
        with suppress(FileNotFoundError):
            folder.replace(former)
        try:
            move(temporary, folder)
        except OSError as error:
            if error.errno not in (errno.ENOTEMPTY, errno.EEXIST):
                # Without the new folder the old content is worth more than none.
                with suppress(OSError):
                    former.replace(folder)
                raise
        else:
            shutil.rmtree(former, ignore_errors=True)
            return
        # Another process was faster: its folder is replaced in the next round.
        shutil.rmtree(former, ignore_errors=True)


def sha256_of(path: Path) -> str:
    """Return the sha256 of a file as hex."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


def follow_umask(path: Path) -> None:
    """Give a file the mode of new files; safetensors writes files only their owner can read."""
    path.chmod(0o666 & ~_umask())


@cache
def _umask() -> int:
    # It cannot be read without being set.
    umask = os.umask(0o22)
    os.umask(umask)
    return umask


def fsync(path: Path) -> None:
    """Flush a file, or the entries of a folder, to disk."""
    # Windows cannot open folders.
    if os.name == "nt":
        return
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)
