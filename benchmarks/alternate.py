"""Alternate steps of several programs, each in its own process, since allocator settings hold for a whole process.

A script called with `serve NAME` runs one step per line of its input, and prints the milliseconds
of CPU time, which other work on the machine changes least, and the peak memory in MB.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, cast

__all__ = ["Step", "alternate", "peak_memory", "serve"]

Step = Callable[[], object]
MIN_ROUNDS = 3
MIN_SECONDS = 0.1
"""Rounds at least; CPU seconds for which short steps are repeated in a turn."""


def serve(steps: Mapping[str, Callable[[], Step]]) -> bool:
    """Serve the step of `serve NAME`; return False if the script was not called so.

    Short steps are repeated, as in a run: after a switch of processes, caches are cold.
    """
    if sys.argv[1:2] != ["serve"]:
        return False
    imported = peak_memory()
    step = steps[sys.argv[2]]()
    for _ in sys.stdin:
        count = 0
        started = time.process_time()
        while (elapsed := time.process_time() - started) < MIN_SECONDS:
            step()
            count += 1
        print(1000 * elapsed / count, peak_memory() - imported, flush=True)
    return True


def peak_memory() -> float:
    """Return the peak memory of this process in MB."""
    match = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(match[1]) / 1000 if match else float("nan")


def alternate(
    names: Sequence[str], seconds: float, warmup: int = 1
) -> tuple[dict[str, list[float]], dict[str, float]]:
    """Run one step of each process in turn, three rounds at least; return milliseconds of steps, and peak memory."""
    processes = [
        subprocess.Popen(
            [sys.executable, sys.argv[0], "serve", name],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        for name in names
    ]
    times: dict[str, list[float]] = {name: [] for name in names}
    peaks = dict.fromkeys(names, 0.0)
    began = time.perf_counter()
    number = -warmup
    while number < MIN_ROUNDS or time.perf_counter() - began < seconds:
        for name, process in zip(names, processes, strict=True):
            print(file=cast(IO[str], process.stdin), flush=True)
            line = cast(IO[str], process.stdout).readline()
            if not line:
                raise SystemExit(f"{name}: the process has ended")
            milliseconds, peaks[name] = map(float, line.split())
            if number >= 0:
                times[name].append(milliseconds)
        number += 1
    for process in processes:
        process.communicate()
    return times, peaks
