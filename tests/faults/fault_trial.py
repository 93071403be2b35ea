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
import shutil
import signal
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
task = "toy-words"
process = "toy-mask"
model = "toy-net"
loss = "toy-ce"
sampler = "toy-walk"
train = { ema = 0.9, optimizer = { use = "adamw", lr = 0.02 }, lr_schedule = { use = "cosine", warmup = 3 } }
""",
    "bubble": f"""
extends = "{ROOT}/experiments/bubble_diagram/quick.toml"
task = {{ use = "bubble-diagram", data = {{ use = "procedural-plans", train = 64, valid = 16, test = 8 }} }}
model = {{ width = 16, depth = 1, block = {{ heads = 2, dropout = 0.1 }} }}
""",
    "language": f"""
extends = "{ROOT}/experiments/language_model/markov.toml"
[task]
data = {{ use = "markov-chain", states = 8, concentration = 0.3, length = 4096, held = 1024 }}
ngrams = 2
[model]
width = 16
depth = 1
block = {{ heads = 2, dropout = 0.1 }}
""",
}
SETTINGS = [
    "train.steps=24", "train.batch_size=8", "train.accumulate=2", "train.log_every=2", "train.checkpoint_every=3",
    "train.threads=1", "train.device=cpu", "evaluate.every=7", "evaluate.samples=16", "evaluate.batch_size=8",
    "sample.count=2", "sample.every=10",
]  # fmt: skip
STEPS = 24
FILES = ("model.safetensors", "average.safetensors", "optimizer.safetensors", "state.json")


@cache
def context() -> Any:
    """Return what makes processes that have everything imported already."""
    made = multiprocessing.get_context("forkserver")
    made.set_forkserver_preload(["fault_ready"])
    before = os.environ.get("PYTHONPATH")
    # The process that others are forked from finds modules by this variable alone.
    os.environ["PYTHONPATH"] = os.pathsep.join(filter(None, [str(Path(__file__).parent), before]))
    try:
        forkserver.ensure_running()
    finally:
        os.environ.pop("PYTHONPATH")
        os.environ.update({} if before is None else {"PYTHONPATH": before})
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

    def wait(self, seconds: float = 120) -> int:
        """Wait for the end, and return the exit code; minus the number of a signal that ended it."""
        self.process.join(seconds)
        if self.process.exitcode is None:
            self.process.kill()
            self.process.join()
            raise AssertionError(f"no end within {seconds} s: {self.arguments}")
        return int(self.process.exitcode)

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
    """A run that nothing happened to."""

    experiment: Path
    path: Path
    seconds: float
    digest: Mapping[str, str]


def write_experiment(folder: Path, task: str = "toy") -> Path:
    """Write the experiment of a task, small."""
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"{task}.toml"
    path.write_text(TASKS[task], encoding="utf-8")
    if task == "toy":
        shutil.copy(TOY, folder)
    return path


def arguments(experiment: Path, runs: Path, *more: str) -> list[str]:
    """Return the command line that starts a run."""
    sets = [word for change in (*SETTINGS, *more) for word in ("--set", change)]
    return ["run", str(experiment), "--runs", str(runs), *sets]


def whole_run(folder: Path, task: str = "toy", *more: str) -> Whole:
    """Make a run that nothing happens to."""
    experiment = write_experiment(folder, task)
    Command(["--help"], folder / "log-help").start().wait()  # the process that trials are forked from is there now
    command = Command(arguments(experiment, folder / "whole", *more), folder / "log-whole")
    began = time.monotonic()
    code = command.start().wait()
    assert code == 0, command.said
    path = only(folder / "whole")
    return Whole(experiment, path, time.monotonic() - began, digest(path))


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


def go_on(whole: Whole, runs: Path, log: Path, *more: str) -> str:
    """Go on with the run of a folder, or begin one where none has begun; return what is wrong, or "".

    A run has begun once its directory holds resolved.toml.
    """
    begun = [path for path in runs.glob("*/") if (path / "resolved.toml").is_file()]
    given = ["run", "--resume", str(begun[0])] if begun else arguments(whole.experiment, runs, *more)
    command = Command(given, log)
    code = command.start().wait()
    if code:
        return f"went on with exit code {code}: {command.said[-600:]}"
    path = max((path for path in runs.glob("*/") if (path / "resolved.toml").is_file()), key=lambda p: p.name)
    found = digest(path)
    wrong = [name for name, value in whole.digest.items() if found[name] != value]
    left = [left.name for left in (path / "checkpoints").glob(".tmp-*")]
    return "; ".join([f"{name} differs" for name in wrong] + [f"{name} left over" for name in left])


def lines_of(path: Path) -> list[Any]:
    """Return the steps and kinds of the lines of a metrics file."""
    return [(line["step"], line["kind"]) for line in map(json.loads, path.read_text().splitlines())]


def until(true: Callable[[], Any], seconds: float = 60) -> Any:
    """Wait until something is true, and return it."""
    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        if found := true():
            return found
        time.sleep(0.005)
    raise AssertionError("waited in vain")


def moments(seconds: float, count: int, seed: int) -> list[float]:
    """Return random moments in so many seconds."""
    dice = random.Random(seed)
    return [dice.uniform(0, seconds) for _ in range(count)]


@cache
def can_mount() -> bool:
    """Tell whether this process may mount a small disk."""
    return os.geteuid() == 0 and os.system("unshare -m true 2>/dev/null") == 0


KILLED = -signal.SIGKILL
"""Exit code of a process that was killed."""
