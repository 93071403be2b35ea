"""What watches, from within its own process, whether anything grows."""

from __future__ import annotations

import os
import resource
from pathlib import Path
from typing import Any


def many_checkpoints(every: int, file: str) -> None:
    """Write into a file, each so many checkpoints, what the process and its run take."""
    from dither.engine.checkpoints.checkpoint import Checkpoints

    save, seen = Checkpoints.save, [0]

    def counted(self: Any, *given: Any) -> Any:
        result = save(self, *given)
        seen[0] += 1
        if seen[0] % every == 0:
            _tell(file, self.folder.parent)
        return result

    Checkpoints.save = counted


def many_resumptions(count: int, steps: int, every: int, file: str, run: str) -> None:
    """Go on with a run so many times, each time by some steps and a checkpoint, as from Python; and write the same."""
    import io

    from rich.console import Console

    from dither.engine.config.load_experiment import load_experiment
    from dither.engine.runs.launch import run as go_on

    path = Path(run)
    for number in range(1, count + 1):
        loaded = load_experiment(path / "resolved.toml", [f"train.steps={steps * number}"])
        code = go_on(loaded, path.parent, resume=path, console=Console(file=io.StringIO()))
        assert code == 0, f"resumption {number}: exit code {code}"
        if number % every == 0:
            _tell(file, path)


def _tell(file: str, run: Path) -> None:
    """Write a line: bytes of memory, open files, threads, bytes of all checkpoints, bytes of the run."""
    resident = int(Path("/proc/self/statm").read_text().split()[1]) * resource.getpagesize()
    files, threads = (len(os.listdir(f"/proc/self/{name}")) for name in ("fd", "task"))
    sizes = [sum(path.stat().st_size for path in of.rglob("*") if path.is_file()) for of in (run / "checkpoints", run)]
    with open(file, "a") as handle:
        print(resident, files, threads, *sizes, file=handle)
