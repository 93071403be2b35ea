"""Steps of several programs by turns, each in a process of its own: what one asks of the allocator is its own affair.

A script that is called with "serve NAME" makes the step of that name for each line it reads.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from typing import IO, cast

__all__ = ["serve", "take_turns"]


def serve(make: Mapping[str, Callable[[], Callable[[], object]]]) -> bool:
    """Make steps for whoever started this process with "serve NAME"; return False where nobody did."""
    if sys.argv[1:2] != ["serve"]:
        return False
    advance = make[sys.argv[2]]()
    for _ in sys.stdin:
        began = time.perf_counter()
        advance()
        print(1000 * (time.perf_counter() - began), flush=True)
    return True


def take_turns(names: Sequence[str], rounds: int, warm: int = 1) -> dict[str, list[float]]:
    """Let each process make one step in turn; return milliseconds, without the first `warm` rounds."""
    started = [
        subprocess.Popen(
            [sys.executable, sys.argv[0], "serve", name], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for name in names
    ]
    times: dict[str, list[float]] = {name: [] for name in names}
    for number in range(rounds + warm):
        for name, process in zip(names, started, strict=True):
            ask, answer = cast(IO[str], process.stdin), cast(IO[str], process.stdout)
            print(file=ask, flush=True)
            line = answer.readline()
            if not line:
                raise SystemExit(f"{name}: the process has ended")
            if number >= warm:
                times[name].append(float(line))
    for process in started:
        process.communicate()
    return times
