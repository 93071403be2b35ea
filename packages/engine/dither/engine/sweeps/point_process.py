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

from ..files.checksums import checkpoint_folders
from ..files.resource_errors import shortage
from ..runs.signals import STOPPED, Stopped, stop_on_signals
from .directory import PointFolder, now

__all__ = ["BUSY", "ENDS", "EXHAUSTED", "main", "run_job", "run_point"]

CRASHED = 1
EXHAUSTED = 5
BUSY = 11
"""Exit codes; a point with `EXHAUSTED` (no disk space or memory) can be resumed."""
ENDS = {
    1: "exception, see its output",
    2: "refused, see its output",
    3: "no intact checkpoint, see its output",
    4: "loss or gradient is NaN or inf, see its output",
    5: "out of disk space or memory, or its folder is gone, see its output",
    75: "stopped",
    BUSY: "another process is running it",
}
"""Meaning of the exit codes of a run."""


def run_point(folder: Path, select: Sequence[str] | None = None) -> int:
    """Run or resume the point of a folder; return the exit code of its run."""
    point = PointFolder(folder, {})
    try:
        lock = point.claim()
        if lock is None:
            _print_error(f"{folder}: {ENDS[BUSY]}")
            return BUSY
        with lock:
            return _attempt(point, select)
    except OSError as error:
        # From status.json or point.lock: the parent process gets the exit code only.
        lacking = shortage(error)
        _print_error(f"stopped: {lacking or error}")
        is_gone = isinstance(error, FileNotFoundError)
        return EXHAUSTED if lacking or is_gone else CRASHED


def _attempt(point: PointFolder, select: Sequence[str] | None) -> int:
    before = point.status()
    # Another process may have run it between submission and now.
    if before["state"] == "done":
        return 0
    facts = {
        "pid": os.getpid(),
        "host": socket.gethostname(),
        "started": before.get("started") or now(),
        "attempts": int(before.get("attempts") or 0) + 1,
    }
    point.write_status("running", **facts)
    code = CRASHED
    try:
        # Until the run installs its own handlers.
        with stop_on_signals():
            code = _run(point, select)
    except Stopped:
        code = STOPPED
    except Refused as refused:
        code = refused.exit_code
        _print_error("\n\n".join(map(str, refused.problems)))
    except Exception:
        _print_error(traceback.format_exc())
    finally:
        state = {0: "done", STOPPED: "stopped"}.get(code, "failed")
        reason = ENDS.get(code) if code else None
        point.write_status(state, exit_code=code, reason=reason, **facts, ended=now())
    return code


def _run(point: PointFolder, select: Sequence[str] | None) -> int:
    from ..config.load_experiment import load_experiment
    from ..runs.run import run

    trained = point.weights_point()
    if trained is not None:
        return _measure(point, trained, select)
    run_directory = point.run_directory()
    if run_directory is None:
        file = point.path / "experiment.toml"
        argv = [str(file), "--runs", str(point.path)]
    else:
        file = run_directory / "resolved.toml"
        argv = ["--resume", str(run_directory)]
    loaded = load_experiment(file, select=select or None)
    return run(loaded, point.path, ["dither", "run", *argv], run_directory)


def _measure(
    point: PointFolder, trained: PointFolder, select: Sequence[str] | None
) -> int:
    """Measure the weights of another point with the experiment of this one."""
    from ..config.load_experiment import load_experiment
    from ..runs.measure_run import measure_run

    file = point.path / "experiment.toml"
    loaded = load_experiment(file, select=select or None)
    run = trained.run_directory()
    if run is None or not _is_trained(trained, run, loaded.experiment.train.steps):
        message = f"point {trained.name}, whose weights this one measures, is not done"
        raise Refused(message, code="missing-checkpoint")
    argv = ["dither", "compare", str(file)]
    measure_run(loaded, run, point.path, argv, warn=_print_error)
    return 0


def _is_trained(point: PointFolder, run: Path, steps: int) -> bool:
    """Return whether the weights are final, even if the sampler of their own point failed."""
    if point.status()["state"] == "done":
        return True
    newest = next((step for step, _ in checkpoint_folders(run / "checkpoints")), None)
    return newest == steps


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
