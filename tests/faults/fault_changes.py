"""Runs that go on under other settings, or elsewhere: refused where they would be other runs, told where they may."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from collections.abc import Iterable
from pathlib import Path

from fault_rows import Row
from fault_tasks import ROOT
from fault_trial import Whole, digest, only, resume

FIXED = [
    "seed=9", "train.batch_size=4", "train.accumulate=4", "train.clip=0.5", "train.ema=0.5", "train.ema=0",
    "train.precision=bfloat16", "train.optimizer.lr=0.5", "train.optimizer.weight_decay=0.3",
    "train.optimizer.betas=[0.8,0.9]", "train.optimizer.eps=1e-6", "train.optimizer={use='muon'}",
    "train.lr_schedule={use='constant'}", "train.lr_schedule.warmup=7", "train.freeze=['*bias']",
]  # fmt: skip
OF_TASKS = {
    "toy": ["task.size=40"],
    "bubble": ["model.width=32", "model.depth=2", "model.block.heads=1", "model.block.dropout=0.2",
               "task.data.train=40", "process.schedule={use='cosine'}"],
    "region": ["model.width=32", "model.depth=2", "model.block.heads=1", "task.regions=7", "task.stride=2",
               "process.ratio=0.5"],
    "language": ["model.width=32", "model.depth=2", "model.block.heads=1", "task.length=8", "task.data.states=4",
                 "process.estimator=time"],
}  # fmt: skip
HARMLESS = [
    "name=other", "train.log_every=3", "train.keep=4", "train.keep_best=true", "train.async_save=true",
    "train.steps=14", "train.checkpoint_every=4", "evaluate.every=4", "evaluate.samples=8", "sample.count=2",
    "sample.seed=5", "train.keep_memory=false", "train.workers=2", "train.trackers=[]",
]  # fmt: skip


def settings(whole: Whole, folder: Path, chosen: slice = slice(None)) -> Row:
    """A run goes on with another value of a key: refused with both values, or accepted and told."""
    row = Row("resumed with another value of a key: refused, or accepted and told")
    base = whole.half(folder / "half")
    every = [(change, 2) for change in (*FIXED, *OF_TASKS[whole.task])] + [(change, 0) for change in HARMLESS]
    for number, (change, wanted) in enumerate(every[chosen]):
        copy = Path(shutil.copytree(base, folder / f"changed-{number}" / base.name))
        command = resume(copy, copy.parent / "log", more=(change,))
        code, said = command.wait(), command.said
        key = change.partition("=")[0]
        good = code == wanted and key in said and " -> " in said and "Traceback" not in said
        row.add("" if good else f"exit code {code}, not {wanted}: {said[-400:]}", change)
        shutil.rmtree(copy.parent)
    return row


def same_again(whole: Whole, folder: Path, trials: int) -> Row:
    """The same file twice."""
    row = Row("the same file once more")
    for number in range(trials):
        place = folder / f"same-{number}"
        code = whole.again(place).wait()
        row.add("" if code == 0 and digest(only(place / "runs")) == whole.digest else f"exit code {code}, or otherwise")
        shutil.rmtree(place)
    return row


SAID = "the environment changed, so results may differ in the last bits: "


def elsewhere(whole: Whole, folder: Path, kinds: Iterable[str] = ("torch", "python", "capability", "optimizer")) -> Row:
    """Resume with other threads, another processor, torch, Python or optimizer: the change is reported."""
    row = Row("resumed with another torch, Python, ATen capability, optimizer, number of threads: told")
    base = whole.half(folder / "half-elsewhere")
    for kind in (*kinds, "threads"):
        copy = Path(shutil.copytree(base, folder / f"elsewhere-{kind}" / base.name))
        more = ("train.threads=2",) if kind == "threads" else ()
        before = () if kind == "threads" else ("pretend", kind)
        command = resume(copy, copy.parent / "log", *before, more=more)
        code, said = command.wait(), " ".join(command.said.split())
        word = "cpu_capability" if kind == "capability" else kind
        good = code == 0 and f"{SAID}{word}: " in said
        row.add("" if good else f"exit code {code}: {said[-500:]}", kind)
    return row


def real_capability(whole: Whole, folder: Path) -> Row:
    """The same with fewer CPU features, in a new process."""
    row, base = Row("resumed under ATEN_CPU_CAPABILITY=default: told"), whole.half(folder / "half-real")
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    known = {"OMP_NUM_THREADS": "1", "ATEN_CPU_CAPABILITY": "default", "PYTHONPATH": paths}
    done = subprocess.run(
        [sys.executable, "-m", "experiments.run", "run", "--resume", str(base)], env={**os.environ, **known},
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    said = " ".join((done.stdout + done.stderr).split())
    good = done.returncode == 0 and f"{SAID}cpu_capability: " in said
    row.add("" if good else f"exit code {done.returncode}: {said[-500:]}")
    return row
