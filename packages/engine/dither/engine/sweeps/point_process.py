"""Run or resume points of a sweep in a process of their own: `python -m dither.engine.sweeps.point_process FOLDER`."""

from __future__ import annotations

import argparse
import ctypes
import json
import os
import signal
import socket
import subprocess
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from contextlib import suppress
from pathlib import Path
from types import FrameType

from dither.registry.config.errors import Refused
from dither.registry.files.limits import read_text
from dither.registry.files.lookup import is_file

from ..files.checksums import checkpoint_folders
from ..files.resource_errors import shortage
from ..runs.run_directory import now
from ..signals import (
    STOPPED,
    Stopped,
    handle_signals,
    kill_suspended_ranks,
    received,
    stop_on_signals,
)
from .directory import PointFolder, write_json

__all__ = [
    "BUSY",
    "ENDS",
    "EXHAUSTED",
    "POINT_MODULE",
    "end_with_parent",
    "exit_code_of",
    "main",
    "parse_arguments",
    "point_arguments",
    "run_point",
]

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


POINT_MODULE = "dither.engine.sweeps.point_process"
RANKS = "ranks.json"
"""The file in which the main rank of a point leaves its process and exit code."""
RANK_OF_POINT = "DITHER_RANK_OF_POINT"
"""Variable of the processes that torchrun starts."""
WITHOUT_USER_SIGNALS = ("sh", "-c", 'trap "" USR1 USR2; exec "$@"', "torchrun")
"""A cluster sends these signals to all processes of a job; torchrun would end at once."""
SET_PARENT_DEATH_SIGNAL = 1
"""The first argument of prctl."""
RANKS_SECONDS = 0.1
"""Seconds between two looks at torchrun."""
SUSPENDED_SECONDS = 1.0
"""Seconds after a signal until ranks that are suspended, and so do not handle it, are killed."""


def run_point(folder: Path, select: Sequence[str] | None = None, ranks: int = 1) -> int:
    """Run or resume the point of a folder, on several GPUs if `ranks` says so; return the exit code of its run."""
    point = PointFolder(folder, {})
    try:
        lock = point.claim()
        if lock is None:
            _print_error(f"{folder}: {ENDS[BUSY]}")
            return BUSY
        with lock:
            return _attempt(point, select, ranks)
    except OSError as error:
        # From status.json or point.lock: the parent process gets the exit code only.
        lacking = shortage(error)
        _print_error(f"stopped: {lacking or error}")
        is_gone = isinstance(error, FileNotFoundError)
        return EXHAUSTED if lacking or is_gone else CRASHED


def _attempt(point: PointFolder, select: Sequence[str] | None, ranks: int) -> int:
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
        code = exit_code_of(lambda: _run(point, select, ranks))
    finally:
        state = {0: "done", STOPPED: "stopped"}.get(code, "failed")
        reason = ENDS.get(code) if code else None
        point.write_status(state, exit_code=code, reason=reason, **facts, ended=now())
    return code


def exit_code_of(work: Callable[[], int]) -> int:
    """Return the exit code of a run, after errors are printed."""
    try:
        # Until the run installs its own handlers.
        with stop_on_signals():
            return work()
    except Stopped:
        return STOPPED
    except Refused as refused:
        _print_error("\n\n".join(map(str, refused.problems)))
        return refused.exit_code
    except Exception:
        _print_error(traceback.format_exc())
        return CRASHED


def _run(point: PointFolder, select: Sequence[str] | None, ranks: int) -> int:
    trained = point.weights_point()
    if trained is not None:
        return _measure(point, trained, select)
    run_directory = point.run_directory()
    if ranks > 1:
        return _run_ranks(point, run_directory, select, ranks)
    return _train(point, run_directory, select)


def _train(
    point: PointFolder, run_directory: Path | None, select: Sequence[str] | None
) -> int:
    from ..config.load_experiment import load_experiment
    from ..runs.run import run

    if run_directory is None:
        file = point.path / "experiment.toml"
        argv = [str(file), "--runs", str(point.path)]
    else:
        file = run_directory / "resolved.toml"
        argv = ["--resume", str(run_directory)]
    loaded = load_experiment(file, select=select or None)
    return run(loaded, point.path, ["dither", "run", *argv], run_directory)


def _run_ranks(
    point: PointFolder,
    run_directory: Path | None,
    select: Sequence[str] | None,
    ranks: int,
) -> int:
    """Train on several ranks of torchrun; return the exit code of the main one."""
    # The process id of an earlier attempt may belong to another process now.
    (point.path / RANKS).unlink(missing_ok=True)
    command = [*WITHOUT_USER_SIGNALS, sys.executable, "-P"]
    command += ["-m", "torch.distributed.run"]
    command += ["--standalone", f"--nproc-per-node={ranks}"]
    command += ["-m", POINT_MODULE, str(point.path), *point_arguments(select)]
    if run_directory is not None:
        # Ranks would not find the same while one of them makes a new one.
        command += ["--resume", str(run_directory)]
    pending: list[int] = []
    signalled = False
    looked: float | None = None

    def remember(number: int, frame: FrameType | None) -> None:
        pending.append(number)
        received.append(signal.Signals(number).name)

    with handle_signals(remember):
        process = subprocess.Popen(
            command,
            env=os.environ | {RANK_OF_POINT: "1", "PYTHONSAFEPATH": "1"},
            # A signal must reach the main rank only, which stops all others after the same step:
            # torchrun kills ranks that take more than 30 seconds for their checkpoint.
            start_new_session=True,
            preexec_fn=end_with_parent,  # noqa: PLW1509 - this process has one thread
        )
        while (code := process.poll()) is None:
            time.sleep(RANKS_SECONDS)
            if looked is None and pending:
                looked = time.monotonic()
            if pending and "pid" in (facts := _read_ranks(point)):
                signalled = True
                # It may have ended before torchrun does.
                with suppress(ProcessLookupError):
                    os.kill(facts["pid"], pending.pop(0))
            if looked is not None and time.monotonic() - looked > SUSPENDED_SECONDS:
                looked = time.monotonic()
                kill_suspended_ranks(process.pid)

    code_of_main = _read_ranks(point).get("code", CRASHED)
    # Another rank failed, so that torchrun stopped the main one. After a signal during the start
    # it is the other way round.
    if code and code_of_main in (0, STOPPED) and not signalled:
        return CRASHED
    return code_of_main


def end_with_parent() -> None:
    """Ask Linux for a SIGTERM when the parent process is gone: the third signal of a user kills it."""
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(SET_PARENT_DEATH_SIGNAL, signal.SIGTERM)


def _read_ranks(point: PointFolder) -> dict[str, int]:
    """Return process and, at the end, exit code of the main rank."""
    if not is_file(point.path / RANKS):
        return {}
    content: dict[str, int] = json.loads(read_text(point.path / RANKS))
    return content


def _run_rank(
    point: PointFolder, run_directory: Path | None, select: Sequence[str] | None
) -> int:
    """Train on this rank; the main one leaves its exit code, of which torchrun makes a 1."""
    is_main = os.environ["RANK"] == "0"
    facts = {"pid": os.getpid()}
    if is_main:
        write_json(point.path / RANKS, facts)
    returned: list[int] = []

    def train() -> int:
        returned.append(_train(point, run_directory, select))
        return returned[0]

    code = exit_code_of(train)
    if is_main:
        write_json(point.path / RANKS, {**facts, "code": code})
    if code == STOPPED:
        kill_suspended_ranks()
    # Otherwise torchrun would end ranks that are about to finish. Before the first step, only the
    # main rank has stopped, and others may wait for it.
    return 0 if returned == [STOPPED] else code


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


def point_arguments(select: Sequence[str] | None, ranks: int = 1) -> list[str]:
    """Return the arguments of this module besides folders."""
    arguments = []
    for name in select or ():
        arguments += ["-p", name]
    if ranks > 1:
        arguments += ["--ranks", str(ranks)]
    return arguments


def parse_arguments(arguments: Sequence[str]) -> argparse.Namespace:
    """Return folders, plugins to select, and ranks."""
    parser = argparse.ArgumentParser()
    parser.add_argument("folders", nargs="+", type=Path)
    parser.add_argument("-p", dest="select", action="append")
    parser.add_argument("--ranks", type=int, default=1)
    parser.add_argument("--resume", type=Path, help="run directory of a rank")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str]) -> int:
    """Run points in order; return the exit code of the last failure."""
    options = parse_arguments(arguments)
    if RANK_OF_POINT in os.environ:
        point = PointFolder(options.folders[0], {})
        return _run_rank(point, options.resume, options.select)
    code = 0
    for folder in options.folders:
        code = run_point(folder, options.select, options.ranks) or code
        if code == STOPPED:
            return code
    return code


def _print_error(text: str) -> None:
    """Print to stderr, unbuffered: a full disk must not change the exit code."""
    with suppress(OSError):
        os.write(2, f"{text}\n".encode(errors="replace"))


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
