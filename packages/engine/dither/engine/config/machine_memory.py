"""The memory of this machine, and byte counts as text. No torch."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["size", "total_memory"]

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")
CONTROL = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")


@cache
def total_memory() -> int:
    """Return the bytes available to this process: those of the machine or of its control group."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_limits()])


def _limits() -> Iterator[int]:
    """Yield the memory limits of the cgroup (v2) of this process and its parents."""
    with suppress(OSError, ValueError):
        lines = (PROCESSES / "self/cgroup").read_text().splitlines()
        group = next(
            (line.removeprefix("0::/") for line in lines if line.startswith("0::")), ""
        )
        for folder in (CONTROL / group, *(CONTROL / group).parents):
            # "max" means unlimited.
            with suppress(OSError, ValueError):
                yield int((folder / "memory.max").read_text())


def size(count: int) -> str:
    """Format bytes: 3.2 TiB."""
    power = min(max(count.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    return f"{count / 1024**power:.1f} {UNITS[power]}" if power else f"{count} bytes"
