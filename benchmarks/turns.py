"""Steps of several programs by turns, each in a process of its own: what one asks of the allocator is its own affair.

A script that is called with "serve NAME" makes the step of that name for each line it reads, and says how many
milliseconds that took, and the most memory it has held beyond what importing takes, in MB.
"""

from __future__ import annotations

import re
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, NamedTuple, cast

__all__ = ["Turns", "serve", "take_turns"]


class Turns(NamedTuple):
    """What was measured, by name."""

    times: dict[str, list[float]]
    """Milliseconds of each step."""
    peaks: dict[str, float]
    """The most memory, beyond what importing takes, in MB."""


def serve(make: Mapping[str, Callable[[], Callable[[], object]]]) -> bool:
    """Make steps for whoever started this process with "serve NAME"; return False where nobody did."""
    if sys.argv[1:2] != ["serve"]:
        return False
    imported = _most()
    advance = make[sys.argv[2]]()
    for _ in sys.stdin:
        began = time.perf_counter()
        advance()
        print(1000 * (time.perf_counter() - began), _most() - imported, flush=True)
    return True


def _most() -> float:
    """Return the most memory that this process has held, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    return int(found[1]) / 1000 if found else float("nan")


def take_turns(names: Sequence[str], rounds: int, warm: int = 1) -> Turns:
    """Let each process make one step in turn; the first `warm` rounds are not timed."""
    started = [
        subprocess.Popen(
            [sys.executable, sys.argv[0], "serve", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    times: dict[str, list[float]] = {name: [] for name in names}
    peaks = dict.fromkeys(names, 0.0)
    for number in range(rounds + warm):
        for name, process in zip(names, started, strict=True):
            ask, answer = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
            print(file=ask, flush=True)
            line = answer.readline()
            if not line:
                raise SystemExit(f"{name}: the process has ended")
            took, peaks[name] = map(float, line.split())
            if number >= warm:
                times[name].append(took)
    for process in started:
        process.communicate()
    return Turns(times, peaks)
