"""Runs that are broken on purpose: started in a process of their own, broken, resumed, and compared.

A process that has imported torch once is forked for each trial, so that a trial takes only the time of its run.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import multiprocessing
import os
import random
import re
import shutil
import signal
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import cache
from multiprocessing import forkserver
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parents[2]
TOY = ROOT / "packages/engine/tests/toy_plugin.py"
TASKS = {
    "toy": """
plugins = ["toy_plugin.py"]
seed = 3
task = { use = "toy-words", size = 48 }
process = "toy-mask"
model = "toy-net"
loss = "toy-ce"
sampler = "toy-walk"
train = { ema = 0.9, optimizer = { use = "adamw", lr = 0.02 }, lr_schedule = { use = "cosine", warmup = 3 } }
sample = { every = 7 }
""",
    "bubble": f"""
extends = "{ROOT}/experiments/bubble_diagram/quick.toml"
task = {{ use = "bubble-diagram", data = {{ use = "procedural-plans", train = 48, valid = 8, test = 8 }} }}
model = {{ width = 16, depth = 1, block = {{ heads = 2, dropout = 0.1 }} }}
train = {{ ema = 0.9, lr_schedule = {{ warmup = 3 }} }}
""",
    "region": f"""
extends = "{ROOT}/experiments/get_region/quick.toml"
task = {{ regions = 8, stride = 1, data = {{ use = "region-file", path = "regions.csv" }} }}
model = {{ width = 16, depth = 1, block = {{ heads = 2 }} }}
train = {{ ema = 0.9, lr_schedule = {{ warmup = 3 }} }}
sample = {{ every = 7 }}
""",
    "language": f"""
extends = "{ROOT}/experiments/language_model/markov.toml"
[task]
data = {{ use = "markov-chain", states = 8, concentration = 0.3, length = 768, held = 256 }}
ngrams = 2
[model]
width = 16
depth = 1
block = {{ heads = 2, dropout = 0.1 }}
[train]
ema = 0.9
lr_schedule = {{ warmup = 3 }}
[sample]
every = 7
""",
}
"""An experiment of each task, as small as possible, with everything that has a state."""
STEPS = 12
SETTINGS = [
    f"train.steps={STEPS}", "train.batch_size=8", "train.accumulate=2", "train.log_every=2",
    "train.checkpoint_every=2", "train.threads=1", "train.device=cpu", "evaluate.every=5", "evaluate.samples=16",
    "evaluate.batch_size=8", "sample.count=1",
]  # fmt: skip
"""Overrides of every run; 48 samples are six batches, so an epoch ends in the middle of a run."""
FILES = ("model.safetensors", "ema.safetensors", "optimizer.safetensors", "state.json")
KILLED = {-signal.SIGKILL, -signal.SIGALRM}
"""Exit codes of a killed process; an unhandled alarm kills like SIGKILL."""


def write_experiment(folder: Path, task: str = "toy") -> Path:
    """Write the experiment of a task and its data."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task}.toml"
    path.write_text(TASKS[task], encoding="utf-8")
    if task == "toy":
        shutil.copy(TOY, folder)
    if task == "region":
        _write_regions(folder / "regions.csv")
    return path


def _write_regions(path: Path) -> None:
    """Write a table of 55 training regions, and two windows of held-out ones."""
    dice = random.Random(0)
    lines = [
        "chromosome,start,end,open:K562,"
        + ",".join(f"MOTIF{number}" for number in range(6))
    ]
    for chromosome, count in (("chr1", 16), ("chr2", 16), ("chr3", 55)):
        for place in range(count):
            motifs = ",".join(f"{dice.uniform(0, 9):.2f}" for _ in range(6))
            lines.append(
                f"{chromosome},{place * 1000},{place * 1000 + 500},{dice.randrange(2)},{motifs}"
            )
    path.write_text("\n".join(lines) + "\n", encoding="utf-8")


def arguments(experiment: Path, runs: Path, *more: str) -> list[str]:
    """Return the command line that starts a run."""
    sets = [word for change in (*SETTINGS, *more) for word in ("--set", change)]
    return ["run", str(experiment), "--runs", str(runs), *sets]


@dataclass
class Row:
    """The results of one kind of fault.

    Attributes:
        fault: The fault.
        trials: Number of trials.
        bad: A line for each trial that went wrong.
        note: A number to show.
    """

    fault: str
    trials: int = 0
    bad: list[str] = field(default_factory=list)
    note: str = ""

    def add(self, wrong: str, about: object = "") -> None:
        """Count a trial and what is wrong with it."""
        self.trials += 1
        if wrong:
            self.bad.append(f"{about}: {wrong}")


@cache
def context(tasks: str = "toy") -> Any:
    """Return the context of forked processes; the first call names the tasks to import."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["fault_ready"])
    # The fork server finds modules only through PYTHONPATH.
    paths = os.pathsep.join(
        filter(None, [str(Path(__file__).parent), os.environ.get("PYTHONPATH")])
    )
    before = dict(os.environ)
    os.environ.update({"PYTHONPATH": paths, "DITHER_FAULT_TASKS": tasks})
    try:
        forkserver.ensure_running()
    finally:
        os.environ.clear()
        os.environ.update(before)
    return made


@dataclass
class Command:
    """A command of dither in a process of its own.

    Attributes:
        arguments: As on the command line.
        folder: Folder of its output: out.txt and err.txt.
        before: Name of a function of `fault_hooks` that is called in the process first, and its arguments.
        cwd: Working directory.
        out: File of its standard output in place of out.txt.
    """

    arguments: list[str]
    folder: Path
    before: tuple[Any, ...] = ()
    cwd: Path = ROOT
    out: str | None = None
    process: Any = field(default=None, repr=False)

    def start(self) -> Command:
        """Start the process."""
        self.folder.mkdir(parents=True, exist_ok=True)
        out = self.out or str(self.folder / "out.txt")
        given = (
            self.arguments,
            out,
            str(self.folder / "err.txt"),
            str(self.cwd),
            self.before,
        )
        self.process = context().Process(target=work, args=given)
        self.process.start()
        return self

    def wait(self, seconds: float = 300) -> int:
        """Wait for the end and return the exit code, or minus the number of a signal."""
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
        """Send it a signal if it is still running."""
        with contextlib.suppress(ProcessLookupError):
            os.kill(self.process.pid, number)

    @property
    def output(self) -> str:
        """Everything that it printed."""
        paths = (self.folder / "out.txt", self.folder / "err.txt")
        return "".join(
            path.read_text(errors="replace") for path in paths if path.exists()
        )

    def wrong(self, codes: int | tuple[int, ...], *words: str) -> str:
        """Wait; return what is wrong if it ends with another code, a traceback, or without these words."""
        code, output = self.wait(), self.output
        expected = codes if isinstance(codes, tuple) else (codes,)
        flat = " ".join(output.split())
        good = (
            code in expected
            and "Traceback" not in output
            and all(word in flat for word in words)
        )
        return "" if good else f"exit code {code}: {output[-600:]}"


def work(
    arguments: list[str], out: str, err: str, cwd: str, before: tuple[Any, ...]
) -> None:
    """Run a command in this process."""
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
    """An undisturbed run.

    Attributes:
        task: Its task.
        experiment: Its file.
        path: Its directory.
        seconds: Its duration.
        digest: Its results.
        more: Overrides besides those of all runs.
        steps: Its last step.
    """

    task: str
    experiment: Path
    path: Path
    seconds: float
    digest: Mapping[str, str]
    more: tuple[str, ...] = ()
    steps: int = STEPS

    def again(
        self,
        place: Path,
        *before: Any,
        more: tuple[str, ...] = (),
        out: str | None = None,
    ) -> Command:
        """Start the same run in `place`/runs, after a function of `fault_hooks`."""
        given = arguments(self.experiment, place / "runs", *self.more, *more)
        return Command(
            given, place / "log", before, self.experiment.parent, out
        ).start()

    def half(self, place: Path) -> Path:
        """Return the same run, killed in the middle."""
        code = self.again(place, "kill_after", "middle").wait()
        assert code in KILLED, code
        return only(place / "runs")


def whole_run(folder: Path, task: str = "toy", others: str = "") -> Whole:
    """Make an undisturbed run; `others` are tasks that come later in the same process."""
    experiment = write_experiment(folder, task)
    context(others or task)
    Command(
        ["--help"], folder / "log-help"
    ).start().wait()  # the fork server is running now
    command = Command(
        arguments(experiment, folder / "whole"), folder / "log-whole", cwd=folder
    )
    began = time.monotonic()
    code = command.start().wait()
    assert code == 0, command.output
    path = only(folder / "whole")
    return Whole(task, experiment, path, time.monotonic() - began, digest(path))


def only(runs: Path) -> Path:
    """Return the one run of a folder."""
    (path,) = [
        path for path in runs.iterdir() if path.is_dir() and not path.is_symlink()
    ]
    return path


def digest(path: Path, steps: int = STEPS) -> dict[str, str]:
    """Return the sha256 of the results of a run: weights, optimizer, metrics, samples."""
    from dither.engine.files.metrics_file import without_times

    last = path / "checkpoints" / f"step-{steps:08d}"
    files = {name: last / name for name in FILES} | {
        "metrics.jsonl": path / "metrics.jsonl"
    }
    files["samples"] = path / "samples" / f"step-{steps:08d}" / "samples.safetensors"
    return {
        name: hashlib.sha256(without_times(file.read_bytes())).hexdigest()
        if file.exists()
        else "missing"
        for name, file in files.items()
    }


def begun(runs: Path) -> Path | None:
    """Return the run of a folder whose directory holds resolved.toml."""
    return next((path.parent for path in sorted(runs.glob("*-*/resolved.toml"))), None)


def resume(run: Path, log: Path, *before: Any, more: tuple[str, ...] = ()) -> Command:
    """Resume a run from another folder."""
    sets = [word for change in more for word in ("--set", change)]
    return Command(["run", "--resume", str(run), *sets], log, before).start()


def go_on(whole: Whole, place: Path, most: int | None = None) -> str:
    """Resume the run in `place`/runs, or start one if none has begun; return what is wrong, or "".

    Args:
        whole: The expected result.
        place: Folder of the run.
        most: Largest number of steps that may be repeated.
    """
    run = begun(place / "runs")
    done = (
        0
        if run is None or most is None
        else max((step for step, _ in lines_of(run / "metrics.jsonl")), default=0)
    )
    command = whole.again(place) if run is None else resume(run, place / "on")
    code = command.wait(600)
    if code:
        return f"resumed with exit code {code}: {command.output[-600:]}"
    run = run or begun(place / "runs")
    found = digest(run, whole.steps)
    wrong = [
        f"{name} differs"
        for name, value in whole.digest.items()
        if found[name] != value
    ]
    wrong += [f"{path.relative_to(run)} left over" for path in run.rglob(".*")]
    at = re.search(r"resuming from step (\d+)", command.output)
    if most is not None and at and done - int(at[1]) > most:
        wrong.append(f"{done} steps were done, and it resumed from step {at[1]}")
    return "; ".join(wrong)


def lines_of(path: Path) -> list[Any]:
    """Return the steps and kinds of the complete lines of a metrics file."""
    found = []
    with contextlib.suppress(OSError, ValueError):
        for line in path.read_text().splitlines():
            found.append((json.loads(line)["step"], json.loads(line)["kind"]))
    return found


def free_port() -> int:
    """Return a port of this machine that no process listens on."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until a function returns something true, and return that."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.005)
    raise AssertionError("timeout")
