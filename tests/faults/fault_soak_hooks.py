"""What watches, from within its own process, whether anything grows."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any


def many_checkpoints(every: int, file: str) -> None:
    """Write into a file, each so many checkpoints, the memory and open files of the process, and the bytes on disk."""
    from dither.engine.checkpoint import Checkpoints

    save, seen = Checkpoints.save, [0]

    def counted(self: Any, *given: Any) -> Any:
        result = save(self, *given)
        seen[0] += 1
        if seen[0] % every == 0:
            _tell(file, sum(path.stat().st_size for path in self.folder.rglob("*") if path.is_file()))
        return result

    Checkpoints.save = counted


def many_resumptions(count: int, every: int, file: str, run: str) -> None:
    """Go on with a run so many times, each time by a step, and write the same."""
    import contextlib
    import io

    from dither.engine.cli import main

    for number in range(1, count + 1):
        with contextlib.redirect_stdout(io.StringIO()):
            code = main(["run", "--resume", run, "--set", f"train.steps={number}"])
        assert code == 0, f"resumption {number}: exit code {code}"
        if number % every == 0:
            _tell(file, 0)


def _tell(file: str, size: int) -> None:
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    with open(file, "a") as handle:
        handle.write(f"{resident} {len(os.listdir('/proc/self/fd'))} {size}\n")
