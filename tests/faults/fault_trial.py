"""Runs that are broken on purpose: how one is started in a process of its own, broken, gone on with, and compared.

A process that has imported torch once is forked for each trial, so that a trial takes the time of its run alone.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import re
import signal
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

from fault_tasks import ROOT, STEPS, arguments, write_experiment

FILES = ("model.safetensors", "average.safetensors", "optimizer.safetensors", "state.json")
KILLED = {-signal.SIGKILL, -signal.SIGALRM}
"""Exit codes of a process that was killed; an alarm that nobody handles kills as SIGKILL does."""


@cache
def context(tasks: str = "toy") -> Any:
    """Return what makes processes that have everything imported already; the first call says for which tasks."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["fault_ready"])
    # The process that others are forked from finds modules by this variable alone.
    given = {"PYTHONPATH": str(Path(__file__).parent), "DITHER_FAULT_TASKS": tasks}
    before = {name: os.environ.get(name) for name in given}
    given["PYTHONPATH"] = os.pathsep.join(filter(None, [given["PYTHONPATH"], before["PYTHONPATH"]]))
    os.environ.update(given)
    try:
        forkserver.ensure_running()
    finally:
        for name, value in before.items():
            os.environ.pop(name)
            os.environ.update({} if value is None else {name: value})
    return made


@dataclass
class Command:
    """A command of dither in a process of its own.

    Attributes:
        arguments: As on the command line.
        folder: Where it prints: out.txt and err.txt.
        before: Called in the process first, by name of a function of `fault_hooks` and its arguments.
        cwd: Where it works.
        out: Where its standard output goes, instead of out.txt.
    """

    arguments: list[str]
    folder: Path
    before: tuple[Any, ...] = ()
    cwd: Path = ROOT
    out: str | None = None
    process: Any = field(default=None, repr=False)

    def start(self) -> Command:
        """Begin."""
        self.folder.mkdir(parents=True, exist_ok=True)
        out = self.out or str(self.folder / "out.txt")
        given = (self.arguments, out, str(self.folder / "err.txt"), str(self.cwd), self.before)
        self.process = context().Process(target=work, args=given)
        self.process.start()
        return self

    def wait(self, seconds: float = 300) -> int:
        """Wait for the end, and return the exit code; minus the number of a signal that ended it."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"no end within {seconds} s: {self.arguments}")
        return int(self.process.exitcode)

    def kill(self, after: float) -> None:
        """Kill it after this many seconds if it is still running."""
        self.process.join(after)
        self.process.kill()
        self.process.join()

    def signal(self, number: int) -> None:
        """Send it a signal."""
        os.kill(self.process.pid, number)

    @property
    def said(self) -> str:
        """All that it printed."""
        paths = (self.folder / "out.txt", self.folder / "err.txt")
        return "".join(path.read_text(errors="replace") for path in paths if path.exists())


def work(arguments: list[str], out: str, err: str, cwd: str, before: tuple[Any, ...]) -> None:
    """Be the process of a command."""
    for descriptor, path in ((1, out), (2, err)):
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644)
        os.dup2(handle, descriptor)
        os.close(handle)
    sys.stdout, sys.stderr = open(1, "w", closefd=False), open(2, "w", closefd=False)  # noqa: SIM115
    os.chdir(cwd)
    if before:
        import fault_hooks

        getattr(fault_hooks, before[0])(*before[1:])
    from dither.engine.cli import main

    try:
        code = main(arguments)
    except BaseException:
        import traceback

        traceback.print_exc()
        code = 1
    with contextlib.suppress(OSError):
        sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


@dataclass(frozen=True)
class Whole:
    """A run that nothing happened to.

    Attributes:
        task: Its task.
        experiment: Its file.
        path: Its directory.
        seconds: What it took.
        digest: What it came to.
        more: Settings that it is given beside those of all runs.
        steps: Its last step.
    """

    task: str
    experiment: Path
    path: Path
    seconds: float
    digest: Mapping[str, str]
    more: tuple[str, ...] = ()
    steps: int = STEPS

    def again(self, place: Path, *before: Any, more: tuple[str, ...] = (), out: str | None = None) -> Command:
        """Start the same run in `place`/runs, with something done in its process before."""
        given = arguments(self.experiment, place / "runs", *self.more, *more)
        return Command(given, place / "log", before, self.experiment.parent, out).start()

    def otherwise(self, place: Path, *more: str, steps: int = STEPS) -> Whole:
        """Make a run with other settings, to which nothing happens either."""
        more = (f"train.steps={steps}", *more)
        command = self.again(place, more=more)
        assert command.wait(1200) == 0, command.said
        path = only(place / "runs")
        return replace(self, path=path, digest=digest(path, steps), more=more, steps=steps)

    def half(self, place: Path, more: tuple[str, ...] = ()) -> Path:
        """Return the same run, killed half way."""
        code = self.again(place, "kill_after", "middle", more=more).wait()
        assert code in KILLED, code
        return only(place / "runs")


def whole_run(folder: Path, task: str = "toy", others: str = "") -> Whole:
    """Make a run that nothing happens to; `others` are tasks that come later in the same process."""
    experiment = write_experiment(folder, task)
    context(others or task)
    Command(["--help"], folder / "log-help").start().wait()  # the process that trials are forked from is there now
    command = Command(arguments(experiment, folder / "whole"), folder / "log-whole", cwd=folder)
    began = time.monotonic()
    code = command.start().wait()
    assert code == 0, command.said
    path = only(folder / "whole")
    return Whole(task, experiment, path, time.monotonic() - began, digest(path))


def only(runs: Path) -> Path:
    """Return the one run of a folder."""
    (path,) = [path for path in runs.iterdir() if path.is_dir()]
    return path


def digest(path: Path, steps: int = STEPS) -> dict[str, str]:
    """Return the sha256 of all that a run comes to: weights, optimizer, metrics, samples."""
    last = path / "checkpoints" / f"step-{steps:08d}"
    files = {name: last / name for name in FILES} | {"metrics.jsonl": path / "metrics.jsonl"}
    files["samples"] = path / "samples" / f"step-{steps:08d}" / "samples.safetensors"
    return {
        name: hashlib.sha256(file.read_bytes()).hexdigest() if file.exists() else "missing"
        for name, file in files.items()
    }


def begun(runs: Path) -> Path | None:
    """Return the run of a folder that has begun: its directory holds resolved.toml."""
    return next((path.parent for path in sorted(runs.glob("*/resolved.toml"))), None)


def resume(run: Path, log: Path, *before: Any, more: tuple[str, ...] = ()) -> Command:
    """Go on with a run, from another folder."""
    sets = [word for change in more for word in ("--set", change)]
    return Command(["run", "--resume", str(run), *sets], log, before).start()


def go_on(whole: Whole, place: Path, most: int | None = None) -> str:
    """Go on with the run in `place`/runs, or begin one where none has begun; return what is wrong, or "".

    Args:
        whole: What it has to come to.
        place: Where it is.
        most: Steps that may be done a second time, at most.
    """
    run = begun(place / "runs")
    done = 0 if run is None or most is None else max((step for step, _ in lines_of(run / "metrics.jsonl")), default=0)
    command = whole.again(place) if run is None else resume(run, place / "on")
    code = command.wait(600)
    if code:
        return f"went on with exit code {code}: {command.said[-600:]}"
    run = run or begun(place / "runs")
    found = digest(run, whole.steps)
    wrong = [f"{name} differs" for name, value in whole.digest.items() if found[name] != value]
    wrong += [f"{path.relative_to(run)} left over" for path in run.rglob(".*")]
    if most is not None and (at := re.search(r"resuming from step (\d+)", command.said)) and done - int(at[1]) > most:
        wrong.append(f"{done} steps were done, and it resumed from step {at[1]}")
    return "; ".join(wrong)


def lines_of(path: Path) -> list[Any]:
    """Return the steps and kinds of the lines of a metrics file; of a cut-off line, nothing."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            found.append((json.loads(line)["step"], json.loads(line)["kind"]))
    return found


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.005)
    raise AssertionError("waited in vain")


def moments(seconds: float, count: int, seed: int) -> list[float]:
    """Return random times within this many seconds."""
    dice = random.Random(seed)
    return [dice.uniform(0, seconds) for _ in range(count)]


@cache
def can_mount() -> bool:
    """Tell whether this process may mount a small disk."""
    return os.geteuid() == 0 and os.system("unshare -m true 2>/dev/null") == 0
