"""Problems of files that cannot be written: a full disk has an exit code of its own."""

from __future__ import annotations

import errno

from ..config.errors import Refused

__all__ = ["FULL", "DiskFull", "is_full", "unwritable"]

FULL = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG})
"""Error numbers of a full disk, a full quota, and the file-size limit."""


class DiskFull(Refused):
    """There is too little disk space for a file. The command line exits with 5."""

    exit_code = 5


def is_full(error: BaseException) -> bool:
    """Return whether an error reports a full disk."""
    return isinstance(error, OSError) and error.errno in FULL


def unwritable(path: object, error: Exception, help: str | None = None) -> Refused:
    """Return the problem of a file or folder that cannot be written, to be raised."""
    reason: object = error
    # Without the name, which may be that of a temporary file.
    if isinstance(error, OSError) and error.strerror:
        reason = error.strerror
    message = f"{path} cannot be written: {reason}"
    if is_full(error):
        return DiskFull(message, help=help, code="disk-full")
    return Refused(message, help=help, code="unwritable-file")
