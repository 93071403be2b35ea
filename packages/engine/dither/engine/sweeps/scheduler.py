"""Run points as local processes, a fixed number at a time; a signal stops all of them, each with a checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager, suppress
from typing import Any

from rich.console import Console

from ..runs.progress import say
from ..runs.signals import STOPPED, stop_signals
from .directory import RESUMABLE, PointFolder, now
from .point_process import BUSY, ENDS, EXHAUSTED

__all__ = ["FAILED", "POINT_COMMAND", "PointList", "run_points"]

FAILED = 1
POINT_COMMAND = (sys.executable, "-P", "-m", "dither.engine.sweeps.point_process")
POLL_SECONDS = 0.1
PRUNE_SECONDS = 1.0
"""Seconds between two calls of `PointList.should_prune`."""


class PointList:
    """The points of a list; a search is a subclass. Its methods are called from several threads."""

    def __init__(self, folders: Sequence[PointFolder]) -> None:
        self.folders = folders

    def points(self) -> Iterator[PointFolder]:
        # The state is read late: another process may have run the point in the meantime.
        for folder in self.folders:
            if folder.status()["state"] in RESUMABLE:
                yield folder

    def should_prune(self, point: PointFolder) -> bool:
        """Return whether a running point should be stopped early."""
        return False

    def finish(self, point: PointFolder, state: str) -> str:
        """Record that a point ended; return its state, which may change."""
        return state


class _Pool:
    """Threads that start processes and wait for them; `stops` counts signals, and failures that end the sweep."""

    def __init__(
        self,
        source: PointList,
        arguments: Sequence[str],
        keep_going: bool,
        console: Console,
    ) -> None:
        self.source = source
        self.points = source.points()
        self.arguments = arguments
        self.keep_going = keep_going
        self.console = console
        self.lock = threading.Lock()
        self.stops = 0
        self.signalled = False
        self.failed = False

    def work(self, environment: dict[str, str]) -> None:
        """Run points until none is left; an error of the source stops all points."""
        try:
            while (point := self._next()) is not None:
                self._run(point, environment)
        except BaseException:
            self.stops = self.stops or 1
            raise

    def _next(self) -> PointFolder | None:
        with self.lock:
            return None if self.stops else next(self.points, None)

    def _run(self, point: PointFolder, environment: dict[str, str]) -> None:
        try:
            process = self._start(point, environment)
        except OSError as error:
            # No process, or the folder is gone: the other points continue.
            reason = f"cannot start: {error.strerror or error}"
            with suppress(OSError):
                point.write_status(
                    "failed", exit_code=EXHAUSTED, reason=reason, ended=now()
                )
            self._report("failed", point, reason)
            return

        say(self.console, f"started      {point.name}")
        with process:
            try:
                pruned = self._wait(process, point)
            except BaseException:
                process.terminate()
                raise
        if process.returncode == BUSY:
            say(self.console, f"skipped      {point.name}: {ENDS[BUSY]}")
            return
        # A point that was killed has written no end.
        written = point.status()
        status = self._ended(written, process.returncode, pruned)
        state = status["state"]
        if pruned and state == "stopped":
            state = "pruned"
        state = self.source.finish(point, state)
        if state != written["state"]:
            # The folder of the point may be gone; the other points continue.
            with suppress(FileNotFoundError):
                point.write_status(**status | {"state": state})
        self._report(state, point, status.get("reason") if state == "failed" else None)

    def _start(
        self, point: PointFolder, environment: dict[str, str]
    ) -> subprocess.Popen[bytes]:
        with (point.path / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [*POINT_COMMAND, str(point.path), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=output,
                env=environment,
                # Otherwise Ctrl-C would reach the point as well, as a second signal.
                start_new_session=True,
            )

    def _ended(self, status: dict[str, Any], code: int, pruned: bool) -> dict[str, Any]:
        """Return the status of a point whose process ended, perhaps before it could write it."""
        if status["state"] not in ("running", "waiting", "lost"):
            return status
        reason = ENDS.get(code, f"exit code {code}")
        if code < 0:
            reason = f"ended by {signal.Signals(-code).name}"
        state = "stopped" if self.stops or pruned else "failed"
        return status | {
            "state": state,
            "exit_code": code,
            "reason": reason,
            "ended": now(),
        }

    def _wait(self, process: subprocess.Popen[bytes], point: PointFolder) -> bool:
        """Wait for a process and pass stops on; return whether it was pruned.

        The first stop asks for a checkpoint, the second for an immediate end, the third kills.
        """
        sent = 0
        pruned = False
        next_prune = 0.0
        while process.poll() is None:
            if self.stops > sent:
                sent += 1
                # A process that hangs in a driver may ignore two signals.
                if sent > 2:
                    process.kill()
                else:
                    process.terminate()
                if sent == 1:
                    hint = "signal again to end it without a checkpoint"
                    say(self.console, f"stopping     {point.name}; {hint}")
            elif sent == 0 and time.monotonic() > next_prune:
                next_prune = time.monotonic() + PRUNE_SECONDS
                pruned = self.source.should_prune(point)
                if pruned:
                    sent = 1
                    process.terminate()
            time.sleep(POLL_SECONDS)
        return pruned

    def _report(self, state: str, point: PointFolder, reason: str | None) -> None:
        message = f"{state:12} {point.name}"
        if reason:
            message += f": {reason}"
        say(self.console, message)
        if state == "failed":
            self.failed = True
            if not self.keep_going:
                self.stops = self.stops or 1


def run_points(
    source: PointList,
    jobs: int,
    console: Console,
    arguments: Sequence[str] = (),
    keep_going: bool = True,
) -> int:
    """Run every point of a source, `jobs` at a time; return 0 if all are done, 1 if some failed, 75 if stopped.

    Processes get `arguments` after the folder of their point. After a failure, unless `keep_going`,
    and after an exception of the source, which is raised at the end, the other points are stopped
    with a checkpoint.
    """
    pool = _Pool(source, arguments, keep_going, console)
    with _signals(pool), ThreadPoolExecutor(jobs) as threads:
        workers = [
            threads.submit(pool.work, _environment(jobs, slot)) for slot in range(jobs)
        ]
        for worker in workers:
            worker.result()
    if pool.signalled:
        return STOPPED
    return FAILED if pool.failed else 0


@contextmanager
def _signals(pool: _Pool) -> Iterator[None]:
    def handle(number: int, frame: Any) -> None:
        # A closed terminal sends this signal twice.
        repeated = signal.Signals(number).name == "SIGHUP" and pool.signalled
        if not repeated:
            pool.stops += 1
        pool.signalled = True

    previous = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _environment(jobs: int, slot: int) -> dict[str, str]:
    """Return the environment of a process: its share of the CPU threads, and one CUDA device."""
    variables = dict(os.environ)
    # A single process may use all threads and devices.
    if jobs == 1:
        return variables
    variables.setdefault("OMP_NUM_THREADS", str(max(1, cpu_cores() // jobs)))
    listed = variables.get("CUDA_VISIBLE_DEVICES", "").split(",")
    devices = [device for device in listed if device.strip()]
    if devices:
        variables["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return variables


def cpu_cores() -> int:
    """Return the number of cores that this process may use."""
    # Only Linux has affinities; elsewhere points get one thread each.
    if sys.platform == "linux":
        return len(os.sched_getaffinity(0))
    return 1
