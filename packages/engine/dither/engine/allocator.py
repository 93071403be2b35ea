"""How the C library keeps memory."""

from __future__ import annotations

import ctypes
import sys

__all__ = ["keep_freed_memory"]

TRIM_THRESHOLD, MMAP_MAX = -1, -4  # of mallopt(3) in glibc


def keep_freed_memory() -> bool:
    """Let freed memory stay with the process for the next step.

    A training step frees and asks for the same large pieces over and over, and each new one costs a fault per page. The
    peak may rise where pieces differ in size. Returns whether the C library could be told so; glibc can.
    """
    if not sys.platform.startswith("linux"):
        return False
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError):
        return False
    return bool(mallopt(MMAP_MAX, 0) and mallopt(TRIM_THRESHOLD, 2**31 - 1))
