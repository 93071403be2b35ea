"""The faults: each case breaks runs in one way, goes on with them, and counts those that are not as they should be."""

from __future__ import annotations

import os
import random
import re
import shutil
import signal
import subprocess
import time
from collections.abc import Callable, Iterable
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path

import fault_damages
from fault_trial import (
    KILLED,
    Command,
    Whole,
    arguments,
    digest,
    go_on,
    moments,
    only,
    until,
)

SIGNALS = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1)
CHECKPOINTS = "/checkpoints"


@dataclass
class Row:
    """A line of the matrix.

    Attributes:
        fault: What was done.
        trials: How often.
        bad: What went wrong, one line for each trial that did.
        note: A figure to show.
    """

    fault: str
    trials: int = 0
    bad: list[str] = field(default_factory=list)
    note: str = ""

    def add(self, wrong: str, about: object = "") -> None:
        """Count a trial, and what is wrong with it."""
        self.trials += 1
        if wrong:
            self.bad.append(f"{about}: {wrong}")


def kills(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Kill -9 at random moments; every other run twice."""
    row = Row("kill -9 at random moments")
    for number, moment in enumerate(moments(whole.seconds, trials, seed)):
        place = folder / f"kill-{number}"
        command = Command(arguments(whole.experiment, place / "runs"), place / "log").start()
        command.process.join(moment)
        command.process.kill()
        command.process.join()
        if number % 2 and (begun := _begun(place / "runs")):
            again = Command(["run", "--resume", str(begun)], place / "again").start()
            again.process.join(moment / 2)
            again.process.kill()
            again.process.join()
        row.add(go_on(whole, place / "runs", place / "on"), f"killed after {moment:.3f} s")
        shutil.rmtree(place)
    return row


def crash_points(whole: Whole, folder: Path, points: Iterable[int]) -> Row:
    """Kill -9 before a call to the disk while checkpoints are written and old ones removed."""
    row = Row("kill -9 before each call to the disk in a save")
    for point in points:
        place = folder / f"point-{point}"
        given = arguments(whole.experiment, place / "runs")
        code = Command(given, place / "log", ("kill_at", CHECKPOINTS, point)).start().wait()
        wrong = go_on(whole, place / "runs", place / "on")
        row.add(wrong if code == KILLED else f"ended with {code}", f"call {point}")
        shutil.rmtree(place)
    return row


def count_points(whole: Whole, folder: Path) -> int:
    """Return how many calls to the disk there are in all saves of a run."""
    file = folder / "calls"
    given = arguments(whole.experiment, folder / "counted")
    assert Command(given, folder / "log-count", ("count_calls", CHECKPOINTS, str(file))).start().wait() == 0
    return int(file.read_text())


def half_files(whole: Whole, folder: Path) -> Row:
    """Kill -9 when half of a file is written."""
    row = Row("kill -9 with half of a file written")
    names = ("model.safetensors", "average.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json")
    for name in names:
        for nth in (1, 3):
            place = folder / f"half-{name}-{nth}"
            given = arguments(whole.experiment, place / "runs")
            code = Command(given, place / "log", ("kill_in_file", name, nth)).start().wait()
            wrong = go_on(whole, place / "runs", place / "on")
            row.add(wrong if code == KILLED else f"ended with {code}", name)
            shutil.rmtree(place)
    return row


@contextmanager
def small_disk(place: Path, size: int):
    """Mount a disk of so many bytes; yields a function that makes it larger."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def full_disks(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Runs on disks that are too small, which are enlarged afterwards."""
    row, codes = Row("disk full (tmpfs), then enlarged"), []
    dice = random.Random(seed)
    for number in range(trials):
        place, size = folder / f"disk-{number}", int(_bytes(whole.path) * dice.uniform(0.3, 1.3))
        with small_disk(place, size) as enlarge:
            command = Command(arguments(whole.experiment, place / "runs"), folder / f"log-{number}").start()
            code = command.wait()
            codes.append(code)
            wrong = _full(command, code)
            enlarge()
            row.add(wrong or go_on(whole, place / "runs", folder / f"on-{number}"), f"{size:,} bytes")
    row.note = f"exit codes {sorted(set(codes))}"
    return row


def largest_files(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Runs that may not write files beyond a size, as with a quota."""
    row, codes = Row("no file may be larger (EFBIG), then lifted"), []
    dice = random.Random(seed)
    for number in range(trials):
        place, size = folder / f"large-{number}", int(_largest(whole.path) * dice.uniform(0.05, 1.1))
        command = Command(arguments(whole.experiment, place / "runs"), place / "log", ("largest_file", size)).start()
        code = command.wait()
        codes.append(code)
        row.add(_full(command, code) or go_on(whole, place / "runs", place / "on"), f"{size:,} bytes")
        shutil.rmtree(place)
    row.note = f"exit codes {sorted(set(codes))}"
    return row


def _bytes(path: Path) -> int:
    """Return what a run takes on a disk of pages, and what its checkpoints need more for a moment."""
    return sum(-(-file.stat().st_size // 4096) * 4096 for file in path.rglob("*")) + 65_536


def _largest(path: Path) -> int:
    return max(file.stat().st_size for file in path.rglob("*") if file.is_file())


def _full(command: Command, code: int) -> str:
    """Return what is wrong with how a run ended that found no space."""
    said = command.said
    if code not in (0, 5):
        return f"exit code {code}: {said[-500:]}"
    if "Traceback" in said:
        return f"a traceback: {said[-900:]}"
    if code == 5 and not re.search(r"No space left|too large", said):
        return f"no clear message: {said[-300:]}"
    if code == 5 and "checkpoint" in said.rpartition("stopped:")[2] and "bytes needed" not in said + "kept":
        return f"no figures: {said[-300:]}"
    return ""


def full_logs(whole: Whole, folder: Path) -> Row:
    """The disk of the logs is full: training goes on, and lines that were held back are written later."""
    row = Row("log disk full")
    place = folder / "log-full"
    command = Command(arguments(whole.experiment, place / "runs"), place / "log", ("broken_log",)).start()
    code = command.wait()
    wrong = "" if code == 0 else f"exit code {code}: {command.said[-500:]}"
    if not wrong and digest(only(place / "runs")) != whole.digest:
        wrong = "another result"
    if not wrong and "held back" not in command.said:
        wrong = "not said"
    row.add(wrong, "metrics.jsonl and TensorBoard")
    for number, out in enumerate(("/dev/full",)):
        command = Command(arguments(whole.experiment, place / f"out-{number}"), place / f"o{number}", out=out).start()
        code = command.wait()
        good = code == 0 and digest(only(place / f"out-{number}")) == whole.digest
        row.add("" if good else f"exit code {code}: {command.said[-500:]}", f"output to {out}")
    return row


MOMENTS = {"train": 0.05, "evaluate": 0.3, "sample": 0.05}
"""What is slowed down, so that the signal finds it, and the seconds that each step of it lasts longer."""


def signals(whole: Whole, folder: Path, numbers: Iterable[int] = SIGNALS) -> Row:
    """A signal in training, an evaluation, a drawing: a checkpoint, and code 75."""
    row, slowest = Row("SIGTERM, Ctrl-C, SIGUSR1 in train, evaluate, sample"), 0.0
    for number in numbers:
        for what, pause in MOMENTS.items():
            place = folder / f"signal-{number}-{what}"
            command = Command(arguments(whole.experiment, place / "runs"), place / "log", ("slow", pause, what)).start()
            until(lambda runs=place / "runs", what=what: _at(runs, what))
            began = time.monotonic()
            command.signal(number)
            code = command.wait()
            slowest = max(slowest, time.monotonic() - began)
            wrong = f"exit code {code}: {command.said[-400:]}" if code != 75 else ""
            wrong = wrong or ("too slow" if time.monotonic() - began > 10 else "")
            row.add(wrong or go_on(whole, place / "runs", place / "on"), f"{signal.Signals(number).name} in {what}")
            shutil.rmtree(place)
    row.note = f"slowest end {slowest:.1f} s"
    return row


def _at(runs: Path, what: str) -> bool:
    """Tell whether a run is in training, or in its first evaluation, or in its first drawing."""
    begun = _begun(runs)
    if begun is None:
        return False
    metrics = (begun / "metrics.jsonl").read_text() if (begun / "metrics.jsonl").is_file() else ""
    step = metrics.count('"kind": "train"') * 2
    return {"train": step >= 4, "evaluate": step >= 6, "sample": step >= 10}[what]


def second_signal(whole: Whole, folder: Path) -> Row:
    """A second signal ends a run at once, and it can be gone on with."""
    row = Row("a second signal")
    for number in SIGNALS:
        place = folder / f"twice-{number}"
        command = Command(arguments(whole.experiment, place / "runs"), place / "log", ("slow", 1.0)).start()
        until(lambda runs=place / "runs": _begun(runs) and (_begun(runs) / "metrics.jsonl").exists())
        time.sleep(0.3)
        command.signal(number)
        until(lambda log=command: "once more" in log.said)
        began = time.monotonic()
        command.signal(number)
        code = command.wait()
        wrong = "" if code == 128 + number else f"exit code {code}: {command.said[-300:]}"
        wrong = wrong or ("" if time.monotonic() - began < 1 else "not at once")
        row.add(wrong or go_on(whole, place / "runs", place / "on"), signal.Signals(number).name)
        shutil.rmtree(place)
    return row


def damages(whole: Whole, folder: Path, kinds: Iterable[str], chosen: Callable[[str], bool]) -> Row:
    """Each file of a run that was killed half way, damaged in each way: named, or passed over, or not needed."""
    row = Row("every file truncated, emptied, zeroed, flipped, deleted, replaced")
    flag = folder / "executed"
    place = folder / "half"
    given = arguments(whole.experiment, place / "runs")
    code = Command(given, place / "log", ("kill_after_step", 16)).start().wait()
    assert code == KILLED, code
    base, named, safe = only(place / "runs"), 0, 0
    names = sorted(str(path.relative_to(base)) for path in base.rglob("*") if path.is_file() and path.name != "err.txt")
    for name in filter(chosen, names):
        for kind in kinds:
            trial = folder / "damaged"
            copy = Path(shutil.copytree(base, trial / base.name))
            if not fault_damages.DAMAGES[kind](copy / name, flag):
                shutil.rmtree(trial)
                continue
            command = Command(["run", "--resume", str(copy)], trial / "log").start()
            code = command.wait()
            wrong, told = _judged(whole, copy, name, code, command.said)
            named, safe = named + told, safe + (not told and not wrong)
            row.add("a pickle was executed" if flag.exists() else wrong, f"{name} {kind}")
            shutil.rmtree(trial)
    row.note = f"{named} named, {safe} not needed or made anew"
    return row


def pickles(whole: Whole, folder: Path, chosen: Callable[[str], bool]) -> Row:
    """A pickle in the place of each file of a run, under every verb that reads one: none is executed."""
    row = Row("a pickle in the place of each file, under each verb that reads a run")
    flag = folder / "executed"
    names = sorted(str(path.relative_to(whole.path)) for path in whole.path.rglob("*") if path.is_file())
    for name in filter(chosen, names):
        copy = Path(shutil.copytree(whole.path, folder / "planted" / whole.path.name))
        fault_damages.a_pickle(copy / name, flag)
        verbs = (
            ["evaluate", str(copy)],
            ["sample", str(copy), "--count", "1", "--out", str(folder / "planted" / "drawn")],
            ["runs", "verify", str(copy)],
            ["runs", "list", str(copy.parent)],
            ["report", str(copy), "--out", str(folder / "planted" / "page.html")],
            ["export", str(copy), "--to", str(folder / "planted" / "given")],
            ["diff", str(whole.path), str(copy)],
        )
        for verb in verbs:
            command = Command(verb, folder / "planted-log").start()
            code, said = command.wait(), command.said
            wrong = "executed" if flag.exists() else ""
            if code not in (0, 1, 2, 3) or "Traceback" in said:
                wrong = wrong or f"exit code {code}: {said[-600:]}"
            row.add(wrong, f"{name}, {verb[0]}")
        shutil.rmtree(folder / "planted")
    return row


def _judged(whole: Whole, run: Path, name: str, code: int, said: str) -> tuple[str, bool]:
    """Return what is wrong with how a run went on from a damaged file, and whether the file was named."""
    part = Path(name).name if not name.startswith("checkpoints") else "/".join(Path(name).parts[1:2])
    told = part in said
    if "Traceback" in said or code not in (0, 2, 3):
        return f"exit code {code}: {said[-700:]}", told
    if code:
        return ("" if told else f"not named: {said[-300:]}"), told
    found = digest(run)
    excused = {Path(name).name, "state.json"} if told and name == "metrics.jsonl" else set()  # it holds their hash
    wrong = [key for key, value in whole.digest.items() if found[key] != value and key not in excused]
    return (f"silently {', '.join(wrong)}" if wrong else ""), told


def crowd(whole: Whole, folder: Path, count: int) -> Row:
    """Several processes on one run directory: one runs, the others are refused at once; then its holder is killed."""
    row = Row(f"{count} processes on one run directory")
    place = folder / f"crowd-{count}"
    first = Command(arguments(whole.experiment, place / "runs"), place / "log", ("slow", 0.2)).start()
    run = until(lambda: _begun(place / "runs"))
    for number in range(count - 1):
        began = time.monotonic()
        other = Command(["run", "--resume", str(run)], place / f"other-{number}").start()
        code = other.wait()
        wrong = f"exit code {code}: {other.said[-300:]}" if code != 2 else ""
        wrong = wrong or ("" if f"process {first.process.pid} " in other.said else f"not named: {other.said}")
        row.add(wrong or ("" if time.monotonic() - began <= 3 else "too slow"), f"process {number + 2}")
    first.process.kill()
    first.process.join()
    others = [Command(["run", "--resume", str(run)], place / f"race-{n}", ("slow", 0.02)) for n in range(count)]
    codes = sorted(other.wait() for other in [other.start() for other in others])
    row.add("" if codes == [0] + [2] * (count - 1) else f"exit codes {codes}", "after its holder was killed")
    row.add("" if digest(run) == whole.digest else "another result", "the one that ran")
    return row


def _begun(runs: Path) -> Path | None:
    return next((path.parent for path in runs.glob("*/resolved.toml")), None)


def places(whole: Whole, folder: Path) -> Row:
    """Runs in folders with odd names, and where nothing may be written."""
    row = Row("odd and long paths, read-only folders")
    names = ("with space", "ünïcödé", "emoji \U0001f9ec", "x" * 200, "line\nbreak", "[brackets] %s {0}", "-dash")
    for number, name in enumerate(names):
        place = folder / f"odd-{number}" / name
        wrong = go_on(whole, place, folder / f"odd-{number}" / "log")
        if not wrong:
            run = only(place)
            for verb in (["evaluate", str(run)], ["sample", str(run), "--count", "1"], ["runs", "verify", str(run)]):
                command = Command(verb, folder / f"odd-{number}" / "verb").start()
                wrong = wrong or ("" if command.wait() == 0 else f"{verb[0]}: {command.said[-300:]}")
        row.add(wrong, repr(name[:20]))
    closed = folder / "closed"
    closed.mkdir()
    closed.chmod(0o555)
    command = Command(arguments(whole.experiment, closed / "runs"), folder / "c", ("bound_by_permissions",)).start()
    row.add(_refused(command, "cannot be made"), "new run in a read-only folder")
    run = Path(shutil.copytree(whole.path, folder / "sealed"))
    for path in (run, *run.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    more = ["run", "--resume", str(run), "--set", "train.steps=30"]
    command = Command(more, folder / "s", ("bound_by_permissions",)).start()
    row.add(_refused(command, "sealed"), "resume in a read-only run")
    return row


def _refused(command: Command, words: str) -> str:
    code = command.wait()
    good = code == 2 and words in command.said and "Traceback" not in command.said
    return "" if good else f"exit code {code}: {command.said[-300:]}"


def numbers(whole: Whole, folder: Path) -> Row:
    """A loss or a gradient that is no number: stopped before the update."""
    row = Row("loss or gradient NaN or infinite")
    for kind in ("loss nan", "loss inf", "gradient nan", "gradient inf", "gradient -inf"):
        place = folder / kind.replace(" ", "-")
        command = Command(arguments(whole.experiment, place / "runs"), place / "log", ("poison", kind, 10)).start()
        code, said = command.wait(), command.said
        wrong = "" if code == 4 else f"exit code {code}: {said[-300:]}"
        needed = ("step 11", "training samples", "the data: task", "step 9 is kept")
        missing = [word for word in needed if word not in said]
        wrong = wrong or (f"does not say {missing}: {said[-400:]}" if missing else "")
        row.add(wrong or go_on(whole, place / "runs", place / "on"), kind)
    return row


def memories(whole: Whole, folder: Path) -> Row:
    """Too little memory: a clear end, and the run can go on."""
    row = Row("out of memory (RLIMIT_AS)")
    for kind in ("torch", "numpy", "python"):
        for step in (0, 1, 11):
            place = folder / f"memory-{kind}-{step}"
            command = Command(
                arguments(whole.experiment, place / "runs"), place / "log", ("memory", kind, step)
            ).start()
            code, said = command.wait(), command.said
            wrong = (
                ""
                if code == 5 and "stopped:" in said and "Traceback" not in said
                else f"exit code {code}: {said[-600:]}"
            )
            row.add(wrong or go_on(whole, place / "runs", place / "on"), f"{kind} in step {step + 1}")
    return row


def directories(folder: Path, count: int) -> Row:
    """Many processes make run directories at the same moment."""
    row = Row(f"{count} run directories at once")
    runs = folder / "many"
    script = (
        "import os, sys, time\nfrom pathlib import Path\nfrom dither.engine.rundir import RunDirectory\n"
        "start = time.time() + 1\nchildren = []\n"
        "for _ in range(int(sys.argv[2])):\n"
        "    child = os.fork()\n"
        "    if not child:\n"
        "        time.sleep(max(0, start - time.time()))\n"
        "        with RunDirectory.create(Path(sys.argv[1])) as directory:\n"
        "            directory.write_json('manifest.json', {'pid': os.getpid()})\n"
        "        os._exit(0)\n"
        "    children.append(child)\n"
        "sys.exit(any(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children))\n"
    )
    import sys

    done = subprocess.run([sys.executable, "-c", script, str(runs), str(count)], capture_output=True, check=False)
    made = len(list(runs.glob("*/manifest.json"))) if runs.exists() else 0
    good = not done.returncode and made == count
    row.trials = count
    row.bad = [] if good else [f"exit code {done.returncode}, {made} made: {done.stderr[-300:]!r}"]
    return row


def cold_signals(whole: Whole, folder: Path, numbers: Iterable[int] = SIGNALS) -> Row:
    """A signal in the first moments of a command, and in verbs that only read: code 75, and nothing is lost."""
    import sys

    row, slowest = Row("a signal in the first 2 s, in evaluate, sample, prepare"), 0.0
    verbs = {
        "run": arguments(whole.experiment, folder / "cold"),
        "evaluate": ["evaluate", str(whole.path)],
        "sample": ["sample", str(whole.path), "--out", str(folder / "drawn")],
        "prepare": ["prepare", "shakespeare"],
    }
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "DITHER_DATA": str(folder / "data")}
    for number, later in zip(numbers, (0.05, 0.7, 0.3), strict=False):
        for name, given in verbs.items():
            command = [sys.executable, "-m", "experiments.run", *given]
            process = subprocess.Popen(
                command, cwd=whole.experiment.parent, stdout=subprocess.PIPE, stderr=subprocess.PIPE,
                env={**environment, "PYTHONPATH": str(Path(__file__).parents[2])},
            )  # fmt: skip
            until(lambda pid=process.pid, number=number: _catches(pid, number))
            time.sleep(0.05 if name == "prepare" else later)
            began = time.monotonic()
            process.send_signal(number)
            _, err = process.communicate(timeout=30)
            slowest = max(slowest, time.monotonic() - began)
            good = process.returncode == 75 and b"Traceback" not in err and time.monotonic() - began < 10
            row.add("" if good else f"{process.returncode}: {err[-400:]!r}", f"{signal.Signals(number).name} {name}")
        row.add(go_on(whole, folder / "cold", folder / "cold-on"), f"{signal.Signals(number).name} run, gone on with")
        shutil.rmtree(folder / "cold")
    row.note = f"slowest end {slowest:.1f} s"
    return row


def _catches(pid: int, number: int) -> bool:
    """Tell whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1)
