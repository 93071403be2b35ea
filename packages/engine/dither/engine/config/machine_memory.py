"""The memory of this machine, asked without torch."""

from __future__ import annotations

import os
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from functools import cache
from pathlib import Path

__all__ = ["available_memory", "gpu_memory", "size", "total_memory"]

UNITS = ("bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB", "ZiB", "YiB")
CONTROL = Path("/sys/fs/cgroup")
PROCESSES = Path("/proc")


@cache
def total_memory() -> int:
    """Return the most bytes that this process can ever have: those of the machine, or of its control group."""
    return min([os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE"), *_limits()])


def available_memory() -> int:
    """Return the bytes that are free now, or could be made free; all there are where the system does not say."""
    with suppress(OSError, ValueError, IndexError):
        for line in (PROCESSES / "meminfo").read_text().splitlines():
            if line.startswith("MemAvailable:"):
                return min(int(line.split()[1]) * 1024, total_memory())
    return total_memory()


def _limits() -> Iterator[int]:
    """Yield the limits of the control groups that this process is in, of either version, and of those around them."""
    groups: list[tuple[Path, str]] = []
    with suppress(OSError, ValueError):
        for line in (PROCESSES / "self/cgroup").read_text().splitlines():
            _, controllers, path = line.split(":", 2)
            if not controllers:
                groups.append((CONTROL / path.lstrip("/"), "memory.max"))
            elif "memory" in controllers.split(","):
                groups.append((CONTROL / "memory" / path.lstrip("/"), "memory.limit_in_bytes"))
    for folder, name in groups:
        for place in (folder, *folder.parents):
            with suppress(OSError, ValueError):  # "max" is no number: no limit
                yield int((place / name).read_text())


@cache
def gpu_memory() -> int | None:
    """Return the bytes of the largest GPU as its driver tells them, or None where there is none."""
    if not any(Path("/dev").glob("nvidia[0-9]*")):
        return None
    command = ["nvidia-smi", "--query-gpu=memory.total", "--format=csv,noheader,nounits"]
    with suppress(OSError, subprocess.SubprocessError, ValueError):
        told = subprocess.run(command, capture_output=True, text=True, check=True, timeout=5).stdout
        return max(int(line) for line in told.split()) * 2**20
    return None


def size(count: int) -> str:
    """Write bytes as a person reads them: 3.2 TiB."""
    power = min(max(count.bit_length() - 1, 0) // 10, len(UNITS) - 1)
    shown = count >> 10 * max(power - 1, 0)
    if power == 0:
        return f"{count} bytes"
    return f"{shown / 1024:.1f} {UNITS[power]}" if shown.bit_length() < 64 else f"over a thousand {UNITS[-1]}"
