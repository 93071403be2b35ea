"""Run points as local processes, a fixed number at a time; a signal stops all of them, each with a checkpoint."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console

from dither.registry.config.errors import Refused

from ..runs.progress import say
from ..runs.signals import STOPPED, stop_signals
from .directory import UNFINISHED, PointFolder, now
from .point_process import BUSY, ENDS

__all__ = ["FAILED", "NOT_STARTED", "POINT_COMMAND", "PointList", "PointSource", "run_points"]

FAILED = 1
"""Exit code if a point failed."""
POINT_COMMAND = (sys.executable, "-m", "dither.engine.sweeps.point_process")
"""Command that runs a point; its folder follows."""
NOT_STARTED = "not started"
"""State passed to `PointSource.finish` if no process could be started, or another process runs the point."""
POLL_SECONDS = 0.1
PRUNE_SECONDS = 1.0
"""Seconds between two calls of `PointSource.should_prune`."""


class PointSource(Protocol):
    """Supplies points, and is notified how they end."""

    def next_point(self) -> PointFolder | None:
        """Return the next point, or None if there is none at present."""

    def should_prune(self, point: PointFolder) -> bool:
        """Return whether a running point should be stopped early."""

    def finish(self, point: PointFolder, state: str) -> str:
        """Record that a point ended, or is `NOT_STARTED`; return its state, which may change."""

    def best_line(self) -> str | None:
        """Return a line on the best point."""


class PointList:
    """The unfinished points of a list, in order."""

    def __init__(self, folders: Sequence[PointFolder]) -> None:
        self._remaining = [folder for folder in folders if folder.status()["state"] in UNFINISHED]
        self.total = len(self._remaining)

    def next_point(self) -> PointFolder | None:
        """Return the next point."""
        return self._remaining.pop(0) if self._remaining else None

    def should_prune(self, point: PointFolder) -> bool:
        """Return False."""
        return False

    def finish(self, point: PointFolder, state: str) -> str:
        """Return the state."""
        return "failed" if state == NOT_STARTED else state

    def best_line(self) -> None:
        """Return None: the table of points suffices."""


@dataclass
class _Job:
    point: PointFolder
    process: subprocess.Popen[bytes]
    slot: int
    pruned: bool = False


@dataclass
class _Pool:
    """Running processes.

    Attributes:
        stop_requests: Signals, or failures with `keep_going = False`, so far.
        stops_sent: How many of them were passed on to the processes.
        signalled: Whether a signal was received.
    """

    source: PointSource
    jobs: int
    arguments: Sequence[str]
    keep_going: bool
    console: Console
    running: list[_Job] = field(default_factory=list)
    failed: bool = False
    stop_requests: int = 0
    stops_sent: int = 0
    signalled: bool = False
    next_prune: float = 0

    def run(self) -> None:
        """Run until the source has no more points; stop all points if it raises."""
        error: Refused | OSError | None = None
        more = True
        while more or self.running:
            try:
                more = self._iterate()
            except (Refused, OSError) as raised:
                more, error, self.stop_requests = False, error or raised, self.stop_requests or 1
            if self.running:
                time.sleep(POLL_SECONDS)
        if error is not None:
            raise error

    def _iterate(self) -> bool:
        """Start, stop and collect processes; return whether the source may have more points."""
        more = self._start_points()
        if self.stop_requests > self.stops_sent:
            self._send_stop()
        for job in [job for job in self.running if job.process.poll() is not None]:
            self.running.remove(job)
            self._collect(job)
        if time.monotonic() > self.next_prune:
            self.next_prune = time.monotonic() + PRUNE_SECONDS
            for job in self.running:
                if not job.pruned and self.source.should_prune(job.point):
                    job.pruned = True
                    job.process.terminate()
        return more

    def _start_points(self) -> bool:
        while not self.stop_requests:
            if len(self.running) >= self.jobs:
                return True
            point = self.source.next_point()
            if point is None:
                return False
            if point.held():
                self._skip(point)
                continue
            slot = min(set(range(self.jobs)) - {job.slot for job in self.running})
            try:
                self.running.append(_Job(point, self._start(point, slot), slot))
            except OSError as error:  # no process, or the folder is gone: the other points continue
                reason = f"cannot start: {error.strerror or error}"
                state = self.source.finish(point, NOT_STARTED)
                with suppress(OSError):
                    point.write_status(state, reason=reason, ended=now())
                self._report("failed", point, reason)
            else:
                say(self.console, f"started      {point.name}")
        return False

    def _start(self, point: PointFolder, slot: int) -> subprocess.Popen[bytes]:
        # In a new session: Ctrl-C on the terminal would reach the point as well, and count as a second signal.
        with (point.path / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [*POINT_COMMAND, str(point.path), *self.arguments],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                env=_environment(self.jobs, slot),
            )

    def _send_stop(self) -> None:
        """Pass one signal on; the third one kills."""
        self.stops_sent += 1
        for job in self.running:
            if self.stops_sent > 2:
                job.process.kill()
            else:
                job.process.terminate()
        if self.running:
            again = "end them immediately" if self.stops_sent == 1 else "kill them"
            say(self.console, f"stopping {len(self.running)} points with a checkpoint; signal again to {again}")

    def _collect(self, job: _Job) -> None:
        """Record how a process ended."""
        point, code = job.point, int(job.process.returncode)
        if code == BUSY:
            self.source.finish(point, NOT_STARTED)
            self._skip(point)
            return
        status = point.status()
        state = status["state"]
        if state in ("running", "waiting", "lost"):  # it was killed before it could write its status
            state = "stopped" if self.stop_requests or job.pruned else "failed"
            reason = f"ended by {signal.Signals(-code).name}" if code < 0 else ENDS.get(code, f"exit code {code}")
            facts = {key: status.get(key) for key in ("pid", "host", "started", "attempts")}
            status = {"state": "", "exit_code": code, "reason": reason, **facts, "ended": now()}
        state = self.source.finish(point, "pruned" if job.pruned and state == "stopped" else state)
        if state != status["state"]:
            point.write_status(**{**status, "state": state})
        self._report(state, point, status.get("reason") if state == "failed" else None)

    def _skip(self, point: PointFolder) -> None:
        say(self.console, f"skipped      {point.name}: {ENDS[BUSY]}")

    def _report(self, state: str, point: PointFolder, reason: str | None) -> None:
        say(self.console, f"{state:12} {point.name}" + (f": {reason}" if reason else ""))
        if state == "failed":
            self.failed = True
            if not self.keep_going:
                self.stop_requests = self.stop_requests or 1


def run_points(
    source: PointSource, jobs: int, console: Console, arguments: Sequence[str] = (), keep_going: bool = True
) -> int:
    """Run every point of a source; return the exit code: 0 all done, 1 some failed, 75 stopped.

    Args:
        source: Supplies the points.
        jobs: Number of simultaneous processes; they share the CPU threads, and the devices of CUDA_VISIBLE_DEVICES.
        console: For progress messages.
        arguments: Passed to each process after the folder of its point.
        keep_going: Whether to continue after a failure; otherwise the other points are stopped with a checkpoint.

    Raises:
        Refused: From the source, after all points have been stopped.
        OSError: Likewise.
    """
    pool = _Pool(source, jobs, arguments, keep_going, console)
    with _signals(pool):
        try:
            pool.run()
        finally:
            for job in pool.running:
                job.process.terminate()
    return STOPPED if pool.signalled else FAILED if pool.failed else 0


@contextmanager
def _signals(pool: _Pool) -> Iterator[None]:
    def handle(number: int, frame: Any) -> None:
        pool.stop_requests += number != signal.SIGHUP or not pool.signalled  # a closed terminal sends SIGHUP twice
        pool.signalled = True

    previous = {number: signal.signal(number, handle) for number in stop_signals()}
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _environment(jobs: int, slot: int) -> dict[str, str]:
    """Return the environment of a process: its share of the CPU threads, and one of several CUDA devices."""
    variables = dict(os.environ)
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else 1
    if jobs > 1:
        variables.setdefault("OMP_NUM_THREADS", str(max(1, cores // jobs)))
    devices = [device for device in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    if len(devices) > 1 and jobs > 1:
        variables["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return variables
