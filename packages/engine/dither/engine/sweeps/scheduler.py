"""Runs points as local processes, so many at a time; a signal stops all of them, each with a checkpoint."""

from __future__ import annotations

import errno
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any, Protocol

from rich.console import Console

from dither.registry.config.errors import Refused

from ..runs.progress import say
from ..runs.signals import STOPPED, heeded
from .directory import UNFINISHED, PointFolder, now
from .point_process import ENDS

__all__ = ["FAILED", "NOT_BEGUN", "POINT_COMMAND", "PointList", "PointSource", "run_points"]

FAILED = 1
"""Exit code where a point failed."""
POINT_COMMAND = (sys.executable, "-m", "dither.engine.sweeps.point_process")
"""What runs a point; its folder comes after it."""
UNUSABLE = frozenset({errno.ENOENT, errno.ENOTDIR, errno.ESTALE, errno.EACCES, errno.EPERM, errno.EROFS})
"""Error numbers of a folder that is gone or may not be written; any other, such as of a fork, may pass."""
NOT_BEGUN = "not begun"
"""What a source is told of a point for which no process could be started."""
PATIENCE = 5.0
"""Seconds in which such a point is tried again where no other one runs that could make room by its end."""
PAUSE = 0.1
"""Seconds between two looks at the processes."""
LOOK = 1.0
"""Seconds between two looks at what they have measured."""


class PointSource(Protocol):
    """Where points come from."""

    def take(self) -> PointFolder | None:
        """Return the next point, or None where there is none (at present)."""

    def hopeless(self, point: PointFolder) -> bool:
        """Tell whether a running point should be ended early."""

    def settle(self, point: PointFolder, state: str) -> str:
        """Take note that a point has ended, or is `NOT_BEGUN`; return its state, which may become "pruned"."""

    def outcome(self) -> str | None:
        """Return what came of it, in a line."""


class PointList:
    """The points of a list that are not finished, in order.

    Args:
        folders: All of them.
    """

    def __init__(self, folders: Sequence[PointFolder]) -> None:
        self._left = [folder for folder in folders if folder.status()["state"] in UNFINISHED]
        self.total = len(self._left)

    def take(self) -> PointFolder | None:
        """Return the next point."""
        return self._left.pop(0) if self._left else None

    def hopeless(self, point: PointFolder) -> bool:
        """Every point of a list is run to its end."""
        return False

    def settle(self, point: PointFolder, state: str) -> str:
        """Keep the state as it is."""
        return "failed" if state == NOT_BEGUN else state

    def outcome(self) -> None:
        """The table of the points says it all."""


@dataclass
class _Job:
    point: PointFolder
    process: subprocess.Popen[bytes]
    slot: int
    ended_early: bool = False


@dataclass
class _Pool:
    """What is under way.

    Attributes:
        asked: Times that a signal, or a failing point, asked to stop.
        told: Times that the processes were told.
        put_off: A point for which no process could be started, to be tried again.
        until: When to give that up.
    """

    source: PointSource
    jobs: int
    select: Sequence[str]
    keep_going: bool
    console: Console
    running: list[_Job] = field(default_factory=list)
    states: dict[str, int] = field(default_factory=dict)
    asked: int = 0
    told: int = 0
    signalled: bool = False
    look: float = 0
    put_off: PointFolder | None = None
    until: float = 0

    def go(self) -> None:
        error: Refused | OSError | None = None
        more = True
        while more or self.running:
            try:
                more = self._go_round()
            except (Refused, OSError) as raised:  # by the source: the points stop, each with a checkpoint
                more, error, self.asked = False, error or raised, self.asked or 1
            if self.running or self.put_off:
                time.sleep(PAUSE)
        if error is not None:
            raise error

    def _go_round(self) -> bool:
        """Start what can be started, see to what has ended; tell whether there may be more to start."""
        more = self._fill() if not self.asked else False
        if self.asked > self.told:
            self._tell()
        for job in [job for job in self.running if job.process.poll() is not None]:
            self.running.remove(job)
            self._settle(job)
        if time.monotonic() > self.look:
            self._end_early()
        return more

    def _end_early(self) -> None:
        self.look = time.monotonic() + LOOK
        for job in self.running:
            if not job.ended_early and self.source.hopeless(job.point):
                job.ended_early = True
                job.process.terminate()

    def _fill(self) -> bool:
        """Start as many points as there is room for; tell whether there may be more."""
        while len(self.running) < self.jobs and not self.asked:
            point = self.put_off or self.source.take()
            if point is None:
                return False
            try:
                self._begin(point)
            except OSError as error:
                if not self._refused(point, error):
                    return True
            self.put_off, self.until = None, 0
        return True

    def _refused(self, point: PointFolder, error: OSError) -> bool:
        """Give up a point that cannot be started, or put it off, for there may be room for it later; tell which."""
        if error.errno in UNUSABLE:  # its folder is gone, or the like: the other points have theirs
            self._count(self.source.settle(point, "failed"), point.name, f"its folder cannot be used: {error}")
            return True
        reason = f"no process can be started: {error.strerror}"
        if self.put_off is None:
            say(self.console, f"put off      {point.name}: {reason}")
            self.put_off, self.until = point, time.monotonic() + PATIENCE
        if self.running:
            self.until = time.monotonic() + PATIENCE
        if time.monotonic() < self.until:
            return False
        state = self.source.settle(point, NOT_BEGUN)
        self._write(point, state, reason=reason, ended=now())
        self._count("failed", point.name, reason)
        return True

    def _write(self, point: PointFolder, state: str, **facts: Any) -> None:
        """Write down how a point is, unless its disk is full or gone; what it printed is told all the same."""
        try:
            point.write_status(state, **facts)
        except OSError as error:
            say(self.console, f"status.json of {point.name} cannot be written: {error.strerror}", "yellow")

    def _begin(self, point: PointFolder) -> None:
        lock = point.claim()
        if lock is None:
            say(self.console, f"passed over  {point.name}: another process works on it")
            return
        slot = min(set(range(self.jobs)) - {job.slot for job in self.running})
        try:
            self.running.append(_Job(point, self._start(point, lock, slot), slot))
        finally:
            os.close(lock)  # the process has it now
        say(self.console, f"started      {point.name}")

    def _count(self, state: str, name: str, reason: str | None) -> None:
        self.states[state] = self.states.get(state, 0) + 1
        say(self.console, f"{state:12} {name}" + (f": {reason}" if reason else ""))
        if state == "failed" and not self.keep_going and not self.asked:
            self.asked = 1

    def _start(self, point: PointFolder, lock: int, slot: int) -> subprocess.Popen[bytes]:
        # A session of its own: Ctrl-C on the terminal would reach the point too, and count as a second signal.
        with (point.path / "output.txt").open("ab") as output:
            return subprocess.Popen(
                [*POINT_COMMAND, "--held", str(point.path), *self.select],
                stdin=subprocess.DEVNULL,
                stdout=output,
                stderr=subprocess.STDOUT,
                start_new_session=True,
                pass_fds=(lock,),
                env=_point_environment(self.jobs, slot),
            )

    def _tell(self) -> None:
        """Hand a signal on; the third one kills."""
        self.told += 1
        for job in self.running:
            if self.told > 2:
                job.process.kill()
            else:
                job.process.terminate()
        if self.running:
            hint = "once more to end them at once" if self.told == 1 else "once more to kill them"
            say(self.console, f"stopping {len(self.running)} points, each with a checkpoint; {hint}")

    def _settle(self, job: _Job) -> None:
        point, code = job.point, int(job.process.returncode)
        status = point.status()
        state = str(status["state"])
        if state in ("running", "waiting", "lost"):  # it had no time to say how it ended
            state = "stopped" if self.asked or job.ended_early else "failed"
            how = f"ended by {signal.Signals(-code).name}" if code < 0 else ENDS.get(code, f"exit code {code}")
            facts = {key: status.get(key) for key in ("pid", "host", "started", "attempts")}
            status = {"state": state, "exit_code": code, "reason": how, **facts, "ended": now()}
            self._write(point, **status)
        settled = "pruned" if job.ended_early and state == "stopped" else state
        settled = self.source.settle(point, settled)
        if settled != status["state"]:
            self._write(point, **{**status, "state": settled})
        self._count(settled, point.name, status.get("reason") if settled == "failed" else None)


def run_points(
    source: PointSource, jobs: int, console: Console, select: Sequence[str] = (), keep_going: bool = True
) -> int:
    """Run every point that a source gives; return the exit code: 0 all done, 1 some failed, 75 stopped.

    Args:
        source: Where points come from.
        jobs: Processes at a time; they share the CPU threads, and CUDA_VISIBLE_DEVICES where it names several.
        console: Where it is shown.
        select: Plugins as after -p.
        keep_going: Whether to go on after a point has failed; otherwise the others are stopped, each with a checkpoint.

    Raises:
        Refused: By the source, once all points have been stopped.
        OSError: The same.
    """
    work = _Pool(source, jobs, select, keep_going, console)
    with _signals(work):
        try:
            work.go()
        finally:
            for job in work.running:
                job.process.terminate()
    if work.signalled:
        return STOPPED
    return FAILED if work.states.get("failed") else 0


@contextmanager
def _signals(work: _Pool) -> Iterator[None]:
    def handle(number: int, frame: Any) -> None:
        work.asked += number != signal.SIGHUP or not work.signalled  # a closed terminal says so twice
        work.signalled = True

    former = {number: signal.signal(number, handle) for number in heeded()}
    try:
        yield
    finally:
        for number, handler in former.items():
            signal.signal(number, handler)


def _point_environment(jobs: int, slot: int) -> dict[str, str]:
    """Return the environment of a process: its share of the threads, and one device where several are named."""
    variables = dict(os.environ)
    share = max(1, len(os.sched_getaffinity(0)) // jobs) if hasattr(os, "sched_getaffinity") else 1
    if jobs > 1:
        variables.setdefault("OMP_NUM_THREADS", str(share))
    devices = [device for device in variables.get("CUDA_VISIBLE_DEVICES", "").split(",") if device.strip()]
    if len(devices) > 1 and jobs > 1:
        variables["CUDA_VISIBLE_DEVICES"] = devices[slot % len(devices)]
    return variables
