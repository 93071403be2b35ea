"""Run or resume a point of a sweep in its own process: `python -m dither.engine.sweeps.point_process FOLDER`."""

from __future__ import annotations

import os
import socket
import sys
import traceback
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path

from dither.registry.config.errors import Refused

from ..files.resource_errors import shortage
from ..runs.signals import STOPPED, Stopped, stop_on_signals
from .directory import PointFolder, now

__all__ = ["BUSY", "ENDS", "EXHAUSTED", "main", "run_job", "run_point"]

CRASHED = 1
REFUSED = 2
EXHAUSTED = 5
BUSY = 11
"""Exit codes; a point with `EXHAUSTED` (no disk space or memory) can be resumed."""
ENDS = {
    1: "exception, see its output",
    2: "refused, see its output",
    3: "no intact checkpoint, see its output",
    4: "loss or gradient is NaN or inf, see its output",
    5: "out of disk space or memory, see its output",
    75: "stopped",
    BUSY: "another process is running it",
}
"""Meaning of the exit codes of a run."""


def run_point(folder: Path, select: Sequence[str] | None = None) -> int:
    """Run or resume the point of a folder, with plugins as after -p; return the exit code of its run."""
    point = PointFolder(folder, {})
    try:
        if lock := point.claim():
            with lock:
                return _attempt(point, select)
        _print_error(f"{folder}: {ENDS[BUSY]}")
        return BUSY
    except (
        OSError
    ) as error:  # from status.json or point.lock; the parent process gets the exit code
        _print_error(f"stopped: {shortage(error) or error}")
        return EXHAUSTED if shortage(error) else CRASHED


def _attempt(point: PointFolder, select: Sequence[str] | None) -> int:
    before = point.status()
    if before["state"] == "done":  # by another process, between submission and now
        return 0
    facts = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": before.get("started") or now(),
    }
    facts["attempts"] = int(before.get("attempts") or 0) + 1
    point.write_status("running", **facts)
    code = CRASHED
    try:
        with stop_on_signals():  # until the run installs its own handlers
            code = _run(point, select)
    except Stopped:
        code = STOPPED
    except Refused as refused:
        code = REFUSED
        _print_error("\n\n".join(map(str, refused.problems)))
    except Exception:
        _print_error(traceback.format_exc())
    finally:
        state = {0: "done", STOPPED: "stopped"}.get(code, "failed")
        point.write_status(
            state,
            exit_code=code,
            reason=ENDS.get(code) if code else None,
            **facts,
            ended=now(),
        )
    return code


def _run(point: PointFolder, select: Sequence[str] | None) -> int:
    from ..config.load_experiment import load_experiment
    from ..runs.launch import run

    run_directory = point.run_directory()
    file = (run_directory or point.path) / ("resolved.toml" if run_directory else "experiment.toml")
    loaded = load_experiment(file, select=select or None)
    argv = (
        ["--resume", str(run_directory)]
        if run_directory
        else [str(file), "--runs", str(point.path)]
    )
    return run(loaded, point.path, ["dither", "run", *argv], run_directory)


def main(arguments: Sequence[str]) -> int:
    """Run `FOLDER [PLUGIN ...]`."""
    folder, *select = arguments
    return run_point(Path(folder), select)


def run_job(folder: str, arguments: Sequence[str]) -> None:
    """Run a point in the process of a submitit job, which signals of the cluster reach; raise if it is not done."""
    if code := main([folder, *arguments]):
        raise RuntimeError(f"{folder}: {ENDS.get(code, code)}")


def _print_error(text: str) -> None:
    """Print to stderr, unbuffered: a full disk must not change the exit code."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
