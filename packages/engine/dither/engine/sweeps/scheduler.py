"""Run points with an executor, a fixed number at a time; a signal stops all of them, each with a checkpoint."""

from __future__ import annotations

import signal
import threading
import time
from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass
from types import FrameType
from typing import Any

from rich.console import Console

from dither.registry.contracts.jobs import Command, Executor, Job

from ..runs.progress import say
from ..runs.run_directory import now
from ..signals import STOPPED, handle_signals, received
from .directory import RESUMABLE, PointFolder
from .point_process import BUSY, ENDS, EXHAUSTED, POINT_MODULE

__all__ = ["FAILED", "PointList", "Pool"]

FAILED = 1
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


@dataclass
class Pool:
    """Threads that start jobs and wait for them.

    After a failure, unless `keep_going`, and after an exception of the source, which is raised at
    the end, the other points are stopped with a checkpoint.

    Attributes:
        jobs: Points that run at the same time.
        arguments: Those of a command after the folder of its point.
        limit: Largest number of points to run.
    """

    source: PointList
    executor: Executor
    console: Console
    jobs: int = 1
    ranks: int = 1
    arguments: Sequence[str] = ()
    keep_going: bool = True
    limit: int | None = None

    def __post_init__(self) -> None:
        self.points = self.source.points()
        self.lock = threading.Lock()
        # Signals, and failures that end the sweep.
        self.stops = 0
        self.signalled = False
        self.failed = False

    def run(self) -> int:
        """Run every point of the source; return 0 if all are done, 1 if some failed, 75 if stopped."""
        with handle_signals(self.stop), ThreadPoolExecutor(self.jobs) as threads:
            workers = [threads.submit(self.work, slot) for slot in range(self.jobs)]
            for worker in workers:
                worker.result()
        if self.signalled:
            return STOPPED
        return FAILED if self.failed else 0

    def stop(self, number: int, frame: FrameType | None) -> None:
        """Handle a signal."""
        name = signal.Signals(number).name
        received.append(name)
        # A closed terminal sends this signal twice.
        repeated = name == "SIGHUP" and self.signalled
        if not repeated:
            self.stops += 1
        self.signalled = True

    def work(self, slot: int) -> None:
        """Run points until none is left; an error of the source stops all points."""
        try:
            while (point := self._next()) is not None:
                self._run(point, slot)
        except BaseException:
            self.stops = self.stops or 1
            raise

    def _next(self) -> PointFolder | None:
        # Two threads must not advance the generator at once.
        with self.lock:
            if self.stops or self.limit == 0:
                return None
            if self.limit is not None:
                self.limit -= 1
            return next(self.points, None)

    def _run(self, point: PointFolder, slot: int) -> None:
        try:
            job = self.executor.start(self._command(point, slot))
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
        try:
            code, pruned = self._wait(job, point)
        except BaseException:
            # A job that outlived this process would hold the lock of its point.
            job.stop()
            while job.poll() is None:
                time.sleep(POLL_SECONDS)
            raise
        if code == BUSY:
            say(self.console, f"skipped      {point.name}: {ENDS[BUSY]}")
            # A point that another process runs does not count as one of ours.
            if self.limit is not None:
                self.limit += 1
            return
        # A point that was killed has written no end.
        written = point.status()
        status = self._ended(written, code, pruned)
        state = status["state"]
        if pruned and state == "stopped":
            state = "pruned"
        state = self.source.finish(point, state)
        if state != written["state"]:
            # The folder of the point may be gone; the other points continue.
            with suppress(FileNotFoundError):
                point.write_status(**status | {"state": state})
        self._report(state, point, status.get("reason") if state == "failed" else None)

    def _command(self, point: PointFolder, slot: int) -> Command:
        return Command(
            module=POINT_MODULE,
            arguments=(str(point.path), *self.arguments),
            name=point.name,
            output=point.path / "output.txt",
            ranks=self.ranks,
            slot=slot,
            parallel=self.jobs,
        )

    def _ended(self, status: dict[str, Any], code: int, pruned: bool) -> dict[str, Any]:
        """Return the status of a point whose process ended, perhaps before it could write it."""
        if status["state"] not in ("running", "waiting", "lost"):
            return status
        reason = ENDS.get(code, f"exit code {code}")
        if code < 0:
            # An executor of a plugin may return any number.
            with suppress(ValueError):
                reason = f"ended by {signal.Signals(-code).name}"
        state = "stopped" if self.stops or pruned else "failed"
        return status | {
            "state": state,
            "exit_code": code,
            "reason": reason,
            "ended": now(),
        }

    def _wait(self, job: Job, point: PointFolder) -> tuple[int, bool]:
        """Wait for a job and pass stops on; return its exit code and whether it was pruned.

        The first stop requests a checkpoint, the second an immediate end, the third kills.
        """
        sent = 0
        pruned = False
        next_prune = 0.0
        while (code := job.poll()) is None:
            if self.stops > sent:
                sent += 1
                job.stop(force=sent > 2)
                if sent == 1:
                    hint = "signal again to end it without a checkpoint"
                    say(self.console, f"stopping     {point.name}; {hint}")
            elif sent == 0 and time.monotonic() > next_prune:
                next_prune = time.monotonic() + PRUNE_SECONDS
                pruned = self.source.should_prune(point)
                # A pruned point is stopped with a checkpoint, as by a first signal.
                if pruned:
                    sent = 1
                    job.stop()
            time.sleep(POLL_SECONDS)
        return code, pruned

    def _report(self, state: str, point: PointFolder, reason: str | None) -> None:
        message = f"{state:12} {point.name}"
        if reason:
            message += f": {reason}"
        say(self.console, message)
        if state == "failed":
            self.failed = True
            if not self.keep_going:
                self.stops = self.stops or 1
