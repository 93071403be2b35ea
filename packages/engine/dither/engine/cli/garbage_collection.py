"""Garbage collection in a process that runs one command.

Imports leave few cycles, and searching for them takes 18 % of the CPU time of `dither validate`.
"""

from __future__ import annotations

import atexit
import gc
import sys
from collections.abc import Iterator
from contextlib import contextmanager

__all__ = ["disable_collection", "resume_collection", "without_collection"]

THRESHOLDS = (10_000, 10, 10)
"""Allocations before a search, once collection is resumed; Python's default is 700."""


def disable_collection() -> None:
    """Disable garbage collection until a command begins, and skip the search at the exit."""
    gc.disable()
    gc.set_threshold(*THRESHOLDS)
    atexit.register(_freeze)


def _freeze() -> None:
    # triton reports objects that are left as leaks.
    if "triton" not in sys.modules:
        gc.freeze()


def resume_collection() -> None:
    """Enable garbage collection if it is disabled, without the objects that exist until now."""
    if not gc.isenabled():
        # A search need not visit what the imports have made.
        gc.freeze()
        gc.enable()


@contextmanager
def without_collection() -> Iterator[None]:
    """Disable garbage collection during imports, if `disable_collection` was called before."""
    if gc.get_freeze_count():
        gc.disable()
    try:
        yield
    finally:
        resume_collection()
