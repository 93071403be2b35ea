"""Signals that ask a run to stop, at every moment: a checkpoint, exit code 75, and nothing is done twice."""

from __future__ import annotations

import os
import re
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterable
from pathlib import Path

from fault_rows import Row
from fault_tasks import ROOT, arguments
from fault_trial import Whole, begun, digest, go_on, lines_of, until

TWICE = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that ask to stop, and to end at once when they come again."""
HANGUP = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
SIGNALS = (*TWICE, *HANGUP)
MOMENTS = {"train": 0.05, "evaluate": 0.3, "sample": 0.05}
"""What is slowed down, so that the signal finds it, and the seconds that each step of it lasts longer."""


def signals(whole: Whole, folder: Path, numbers: Iterable[int] = SIGNALS) -> Row:
    """A signal in training, an evaluation, a drawing: a checkpoint, code 75, and no step is done again."""
    row, slowest = Row("SIGTERM, Ctrl-C, SIGUSR1, SIGUSR2, SIGHUP in train, evaluate, sample"), 0.0
    for number in numbers:
        for what, pause in MOMENTS.items():
            place = folder / f"signal-{number}-{what}"
            command = whole.again(place, "slow", pause, what)
            until(lambda runs=place / "runs", what=what: _at(runs, what))
            began = time.monotonic()
            command.signal(number)
            code = command.wait()
            slowest = max(slowest, time.monotonic() - began)
            wrong = f"exit code {code}: {command.said[-400:]}" if code != 75 else ""
            wrong = wrong or ("too slow" if time.monotonic() - began > 5 else "")
            row.add(wrong or go_on(whole, place, most=0), f"{signal.Signals(number).name} in {what}")
            shutil.rmtree(place)
    row.note = f"slowest end {slowest:.1f} s"
    return row


def _at(runs: Path, what: str) -> bool:
    """Tell whether a run is in training, or in its first evaluation, or in its last drawing."""
    run = begun(runs)
    step = 0 if run is None else max((step for step, _ in lines_of(run / "metrics.jsonl")), default=0)
    return step >= {"train": 4, "evaluate": 4, "sample": 12}[what]


def second_signal(whole: Whole, folder: Path, numbers: Iterable[int] = TWICE) -> Row:
    """A second signal ends a run at once, and it can be gone on with."""
    row = Row("a second signal")
    for number in numbers:
        place = folder / f"twice-{number}"
        command = whole.again(place, "slow", 1.0)
        until(lambda runs=place / "runs": begun(runs) and (begun(runs) / "metrics.jsonl").exists())
        time.sleep(0.3)
        command.signal(number)
        until(lambda log=command: "repeat to end immediately" in log.said)
        began = time.monotonic()
        command.signal(number)
        code = command.wait()
        wrong = "" if code == 128 + number else f"exit code {code}: {command.said[-300:]}"
        wrong = wrong or ("" if time.monotonic() - began < 1 else "not at once")
        row.add(wrong or go_on(whole, place), signal.Signals(number).name)
        shutil.rmtree(place)
    return row


def cold_signals(whole: Whole, folder: Path, numbers: Iterable[int] = SIGNALS, verbs: str = "") -> Row:
    """A signal in the first moments of a command, and in verbs that only read: code 75, and nothing is lost."""
    row, slowest = Row("a signal in the first 2 s of run, evaluate, sample, prepare"), 0.0
    place = folder / "cold"
    given = {
        "run": arguments(whole.experiment, place / "runs"),
        "evaluate": ["evaluate", str(whole.path)],
        "sample": ["sample", str(whole.path), "--out", str(folder / "drawn")],
        "prepare": ["prepare", "shakespeare"],
    }
    for number, later in zip(numbers, (0.05, 1.8, 0.6), strict=False):
        for name in verbs.split() or given:
            began, process = _cold(given[name], whole, folder, number, 0.05 if name == "prepare" else later)
            out, err = process.communicate(timeout=60)
            took = time.monotonic() - began
            slowest = max(slowest, took)
            code = process.returncode
            ended = code == 75 or (code == 0 and _complete(name, whole, place / "runs", out))
            good = ended and b"Traceback" not in err and took < 5
            row.add("" if good else f"{code}: {err[-400:]!r}", f"{signal.Signals(number).name} {name}")
        if place.exists():
            row.add(go_on(whole, place), f"{signal.Signals(number).name} run, gone on with")
            shutil.rmtree(place)
    row.note = f"slowest end {slowest:.2f} s"
    return row


def _complete(name: str, whole: Whole, runs: Path, out: bytes) -> bool:
    """Tell whether a command had come to its end: a run to all files of the whole one; what others say comes last."""
    if name != "run":
        return bool(out.strip())
    run = begun(runs)
    return run is not None and (run / "summary.json").exists() and digest(run, whole.steps) == whole.digest


def _cold(given: list[str], whole: Whole, folder: Path, number: int, later: float) -> tuple[float, subprocess.Popen]:
    """Start a command and send it a signal some time after its handlers are installed; return the time."""
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    known = {"OMP_NUM_THREADS": "1", "DITHER_DATA": str(folder / "data"), "PYTHONPATH": paths}
    process = subprocess.Popen(
        [sys.executable, "-m", "experiments.run", *given], cwd=whole.experiment.parent, env={**os.environ, **known},
        stdout=subprocess.PIPE, stderr=subprocess.PIPE,
    )  # fmt: skip
    until(lambda: _catches(process.pid, number))
    time.sleep(later)
    process.send_signal(number)
    return time.monotonic(), process


def _catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1)
