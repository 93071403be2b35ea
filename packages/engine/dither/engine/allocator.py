"""The allocator of the C library, told to keep what one step has freed for the next one."""

from __future__ import annotations

import ctypes
from functools import cache

__all__ = ["keep_freed_memory"]

M_TRIM_THRESHOLD = -1
"""glibc: bytes that may lie free at the end of the heap before they go back to the system."""
M_MMAP_MAX = -4
"""glibc: how many large pieces may be asked of the system one by one, to go back when they are freed."""


@cache
def keep_freed_memory() -> bool:
    """Let freed memory stay with this process; where the C library is not glibc, nothing happens.

    As it is, glibc asks the system for every large tensor and gives it back when it is freed, and the system fills each
    page with zeros before the process may touch it again: in every step anew.

    Returns:
        Whether the library has taken it.
    """
    try:
        mallopt = ctypes.CDLL(None).mallopt
    except (OSError, AttributeError, TypeError):
        return False
    return bool(mallopt(M_MMAP_MAX, 0)) and bool(mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
