"""The rows of the fault matrix: each breaks runs in one way, resumes them, and compares the results."""

from __future__ import annotations

import contextlib
import json
import os
import pickle
import random
import re
import secrets
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Any

import menu
from fault_trial import (
    KILLED,
    ROOT,
    STEPS,
    Command,
    Row,
    Whole,
    arguments,
    begun,
    digest,
    free_port,
    go_on,
    lines_of,
    only,
    resume,
    until,
)
from safetensors.torch import load_file

CHECKPOINTS = "/checkpoints"
ASYNC = ("train.async_save=true", "train.workers=2")
"""Checkpoints are written, and the next batches read, in threads."""
PLAIN: tuple[str, ...] = ()


def _most(more: tuple[str, ...]) -> int:
    """Return how many steps may be repeated: with async_save the newest checkpoint may be the last but one."""
    return 4 if more else 2


def _killed(
    whole: Whole,
    place: Path,
    row: Row,
    *hook: object,
    more: tuple[str, ...] = (),
    most: int = 2,
) -> None:
    """Run with a hook that kills the process, resume, and remove the run if it is good."""
    code = whole.again(place, *hook, more=more).wait(600)
    wrong = go_on(whole, place, most)
    late = (
        code == 0 and hook[0] == "kill_in_save"
    )  # the last save may be shorter than the first
    if late:
        row.note = f"{int(row.note.partition(' ')[0] or 0) + 1} ended before the kill"
    row.add(wrong if late or code in KILLED else f"ended with {code}", f"{hook} {more}")
    shutil.rmtree(place)


def kills(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Kill -9 at random moments, twice a trial; every other trial saves asynchronously."""
    row, dice = Row("kill -9 at random moments, twice each"), random.Random(seed)
    for number in range(trials):
        place, moment = folder / f"kill-{number}", dice.uniform(0, whole.seconds)
        more = ASYNC if number % 2 else PLAIN
        whole.again(place, more=more).kill(moment)
        if run := begun(place / "runs"):
            resume(run, place / "again").kill(moment / 2)
        row.add(go_on(whole, place, _most(more)), f"killed after {moment:.3f} s")
        shutil.rmtree(place)
    return row


def inside_saves(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Kill -9 at random moments while a checkpoint is written; every other trial saves asynchronously."""
    row, dice = Row("kill -9 at random moments within a save"), random.Random(seed)
    for number in range(trials):
        nth, share, more = (
            dice.randint(2, 6),
            dice.uniform(0, 1.1),
            ASYNC if number % 2 else PLAIN,
        )
        _killed(
            whole,
            folder / f"inside-{number}",
            row,
            "kill_in_save",
            nth,
            share,
            more=more,
            most=_most(more),
        )
    return row


def crash_points(whole: Whole, folder: Path, trials: int) -> Row:
    """Kill -9 before evenly spaced disk calls while checkpoints are written and old ones removed."""
    row, file = Row("kill -9 before each disk call in a save"), folder / "calls"
    assert (
        whole.again(folder / "counted", "kill_at", CHECKPOINTS, 0, str(file)).wait()
        == 0
    )
    count = int(file.read_text())
    for point in range(1, count + 1, max(1, count // trials)):
        _killed(whole, folder / f"point-{point}", row, "kill_at", CHECKPOINTS, point)
    row.note = f"{count} calls"
    return row


MOMENTS = ("first", "middle", "boundary", "last", "evaluation", "drawing")
"""Steps after which a run is killed before it is saved; boundary is the end of an epoch."""


def resumptions(whole: Whole, folder: Path, moments: Iterable[str] = MOMENTS) -> Row:
    """Kill -9 in the middle, and resume: bit-equal to an undisturbed run, with and without async_save."""
    row = Row(
        "resumed at step 1, in an epoch, at its end, at the last step, in an evaluation, in sampling"
    )
    for moment in moments:
        for more in (PLAIN, ASYNC):
            _killed(
                whole,
                folder / f"{moment}-{len(more)}",
                row,
                "kill_after",
                moment,
                more=more,
                most=_most(more),
            )
    return row


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
    "sample.seed=5", "train.keep_memory=false", "train.workers=2", "tracking.use=[]",
]  # fmt: skip


def settings(whole: Whole, folder: Path, chosen: slice = slice(None)) -> Row:
    """Resume with another value of an option: refused with both values, or accepted and reported."""
    row = Row(
        "resumed with another value of an option: refused, or accepted and reported"
    )
    base = whole.half(folder / "half")
    every = [(change, 2) for change in (*FIXED, *OF_TASKS[whole.task])] + [
        (change, 0) for change in HARMLESS
    ]
    for number, (change, code) in enumerate(every[chosen]):
        copy = Path(shutil.copytree(base, folder / f"changed-{number}" / base.name))
        command = resume(copy, copy.parent / "log", more=(change,))
        row.add(command.wrong(code, change.partition("=")[0], " -> "), change)
        shutil.rmtree(copy.parent)
    return row


def largest_files(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Runs that may not write files beyond a size, as with a quota or a full disk; then the limit is lifted."""
    row, dice = Row("no file may be larger (EFBIG), then lifted"), random.Random(seed)
    largest = max(
        file.stat().st_size for file in whole.path.rglob("*") if file.is_file()
    )
    for number in range(trials):
        place, size = folder / f"large-{number}", int(largest * dice.uniform(0.05, 1.1))
        command = whole.again(place, "largest_file", size)
        wrong = command.wrong((0, 5))
        if command.process.exitcode and not re.search(
            r"No space left|too large", command.output
        ):
            wrong = wrong or f"no clear message: {command.output[-300:]}"
        row.add(wrong or go_on(whole, place), f"{size:,} bytes")
        shutil.rmtree(place)
    return row


def full_logs(whole: Whole, folder: Path) -> Row:
    """The disk of the logs is full: training continues, and buffered lines are written later."""
    row = Row("disk of the logs full, output to a full disk")
    for before, out, words in (
        (("broken_log",), None, ["buffered in memory"]),
        ((), "/dev/full", []),
    ):
        place = folder / f"log-{len(before)}"
        wrong = whole.again(place, *before, out=out).wrong(0, *words)
        row.add(
            wrong
            or (
                "" if digest(only(place / "runs")) == whole.digest else "another result"
            ),
            out,
        )
    return row


TWICE = (signal.SIGTERM, signal.SIGINT, signal.SIGUSR1, signal.SIGUSR2)
"""Signals that request a stop, and end the process when they are repeated."""
HANGUP = () if signal.getsignal(signal.SIGHUP) is signal.SIG_IGN else (signal.SIGHUP,)
SIGNALS = (*TWICE, *HANGUP)
SLOWED = {"train": (0.05, 4), "evaluate": (0.3, 4), "sample": (0.05, 12)}
"""Seconds by which each step is slowed down, and the logged step after which the signal is sent."""


def signals(whole: Whole, folder: Path, numbers: Iterable[int] = SIGNALS) -> Row:
    """A signal in training, evaluation, sampling: a checkpoint, code 75, and no step is repeated."""
    row, slowest = (
        Row("SIGTERM, Ctrl-C, SIGUSR1, SIGUSR2, SIGHUP in train, evaluate, sample"),
        0.0,
    )
    for number in numbers:
        for activity, (pause, step) in SLOWED.items():
            place = folder / f"signal-{number}-{activity}"
            command = whole.again(place, "slow", pause, activity)
            until(lambda runs=place / "runs", step=step: _last_step(runs) >= step)
            began = time.monotonic()
            command.signal(number)
            wrong = command.wrong(75)
            took = time.monotonic() - began
            slowest = max(slowest, took)
            row.add(
                wrong or ("too slow" if took > 5 else go_on(whole, place, most=0)),
                f"{number} in {activity}",
            )
            shutil.rmtree(place)
    row.note = f"slowest end {slowest:.1f} s"
    return row


def _last_step(runs: Path) -> int:
    run = begun(runs)
    return (
        -1
        if run is None
        else max((step for step, _ in lines_of(run / "metrics.jsonl")), default=0)
    )


def second_signal(whole: Whole, folder: Path, numbers: Iterable[int] = TWICE) -> Row:
    """A second signal ends a run immediately, and it can be resumed."""
    row = Row("a second signal")
    for number in numbers:
        place = folder / f"twice-{number}"
        command = whole.again(place, "slow", 1.0)
        until(
            lambda runs=place / "runs": (
                begun(runs) and (begun(runs) / "metrics.jsonl").exists()
            )
        )
        time.sleep(0.3)
        command.signal(number)
        until(lambda log=command: "repeat to end immediately" in log.output)
        began = time.monotonic()
        command.signal(number)
        wrong = command.wrong(128 + number) or (
            "" if time.monotonic() - began < 1 else "not immediately"
        )
        row.add(wrong or go_on(whole, place), number)
        shutil.rmtree(place)
    return row


def cold_signals(whole: Whole, folder: Path, numbers: Iterable[int] = SIGNALS) -> Row:
    """A signal in the first moments of a command: code 75, or the command was complete."""
    row, place = (
        Row("a signal in the first 2 s of run, evaluate, sample, prepare"),
        folder / "cold",
    )
    commands = {
        "run": arguments(whole.experiment, place / "runs"),
        "evaluate": ["evaluate", str(whole.path)],
        "sample": ["sample", str(whole.path), "--out", str(folder / "samples")],
        "prepare": ["prepare", "shakespeare"],
    }
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    variables = {
        **os.environ,
        "OMP_NUM_THREADS": "1",
        "DITHER_DATA": str(folder / "data"),
        "PYTHONPATH": paths,
    }
    for number, later in zip(numbers, (0.05, 1.8, 0.6), strict=False):
        for name, words in commands.items():
            command = [sys.executable, "-m", "experiments.run", *words]
            with subprocess.Popen(
                command,
                cwd=whole.experiment.parent,
                env=variables,
                stdout=subprocess.PIPE,
                stderr=subprocess.PIPE,
            ) as process:
                until(lambda pid=process.pid, number=number: _catches(pid, number))
                time.sleep(0.05 if name == "prepare" else later)
                process.send_signal(number)
                began = time.monotonic()
                out, err = process.communicate(timeout=60)
            done = place / "runs" if name == "run" else None
            ended = process.returncode == 75 or (
                process.returncode == 0 and _complete(whole, done, out)
            )
            good = ended and b"Traceback" not in err and time.monotonic() - began < 5
            row.add(
                "" if good else f"{process.returncode}: {err[-400:]!r}",
                f"{number} {name}",
            )
        row.add(go_on(whole, place), f"{number} run, resumed")
        shutil.rmtree(place)
    return row


def imports(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Kill -9 at random moments of a cold start, twice a trial."""
    row, dice = (
        Row("kill -9 in the first 4 s of a new process, twice each"),
        random.Random(seed),
    )
    paths = os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))
    for number in range(trials):
        place = folder / f"import-{number}"
        for _ in range(2):
            begin = begun(place / "runs")
            words = (
                ["run", "--resume", str(begin)]
                if begin
                else arguments(whole.experiment, place / "runs")
            )
            with subprocess.Popen(
                [sys.executable, "-m", "experiments.run", *words], cwd=whole.experiment.parent,
                env={**os.environ, "PYTHONPATH": paths}, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
            ) as process:  # fmt: skip
                time.sleep(dice.uniform(0, 4))
                process.kill()
        row.add(go_on(whole, place), number)
        shutil.rmtree(place)
    return row


def clocks(whole: Whole, folder: Path, jumps: Iterable[float] = (3600.0, 4e8)) -> Row:
    """The clock jumps with every reading, in a run and in its resumption."""
    row = Row("the clock jumps by an hour, by 12 years")
    for number, jump in enumerate(jumps):
        place = folder / f"clock-{number}"
        row.add(
            whole.again(place, "jump_clock", jump).wrong(0) or go_on(whole, place), jump
        )
        half = folder / f"clock-half-{number}"
        run = whole.half(half)
        row.add(
            resume(run, half / "on", "jump_clock", jump).wrong(0) or go_on(whole, half),
            f"{jump}, resumed",
        )
    return row


def pauses(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """SIGSTOP at random moments, SIGCONT a second later."""
    row, dice = Row("stopped for a second (SIGSTOP)"), random.Random(seed)
    for number in range(trials):
        place = folder / f"pause-{number}"
        command = whole.again(place)
        time.sleep(dice.uniform(0, whole.seconds))
        command.signal(signal.SIGSTOP)
        time.sleep(1)
        command.signal(signal.SIGCONT)
        row.add(command.wrong(0) or go_on(whole, place), number)
        shutil.rmtree(place)
    return row


SOAK = (
    "train.log_every=1000",
    "train.checkpoint_every=1000",
    "evaluate.every=5000",
    "sample.every=5000",
)


def soak(whole: Whole, folder: Path, steps: int = 20_000) -> Row:
    """Many steps: memory and open files do not grow after the first tenth, two checkpoints are kept."""
    row, place, seen = Row(f"{steps:,} steps"), folder / "soak", []
    command = whole.again(place, more=(f"train.steps={steps}", *SOAK))
    while command.process.is_alive():
        step = max((step for step, _ in lines_of(_metrics(place))), default=0)
        with contextlib.suppress(OSError, TypeError):
            status = Path(f"/proc/{command.process.pid}/status").read_text()
            kib = int(re.search(r"VmRSS:\s*(\d+)", status)[1])
            seen.append((step, kib, len(os.listdir(f"/proc/{command.process.pid}/fd"))))
        time.sleep(0.2)
    row.add(command.wrong(0), "exit code")
    settled = [entry for entry in seen if entry[0] >= steps // 10]
    (_, first, files), (_, last, more) = settled[0], settled[-1]
    row.add("" if last < 1.05 * first else f"{first} KiB became {last}", "memory")
    row.add("" if more <= files else f"{files} open files became {more}", "open files")
    kept = len(list((only(place / "runs") / "checkpoints").iterdir()))
    row.add("" if kept == 2 else f"{kept} checkpoints", "checkpoints")
    row.note = f"{first / 1024:.0f} MiB, then {last / 1024:.0f} MiB"
    return row


def _metrics(place: Path) -> Path:
    return (begun(place / "runs") or place) / "metrics.jsonl"


def ranks(whole: Whole, folder: Path, victims: Iterable[int] = (0, 1)) -> Row:
    """Two ranks: one is killed, or stopped and continued: bit-equal; or stopped for good: resumed by one process."""
    row = Row(
        "a rank of two killed, stopped, stopped for good; resumed by one or two ranks"
    )

    def start(
        place: Path,
        victim: int | None = None,
        *then: object,
        more: tuple[str, ...] = (),
    ) -> list[Command]:
        launch, run = (free_port(), secrets.token_hex(4)), begun(place / "runs")
        words = (
            ["run", "--resume", str(run)]
            if run
            else arguments(whole.experiment, place / "runs", "model.dropout=0", *more)
        )
        hooks = [
            ("be_rank", rank, 2, *launch, *(then if rank == victim else ()))
            for rank in range(2)
        ]
        return [
            Command(
                words, place / f"{launch[1]}-{h[1]}", h, whole.experiment.parent
            ).start()
            for h in hooks
        ]

    def ended(commands: list[Command]) -> str:
        return "; ".join(filter(None, [command.wrong(0) for command in commands]))

    def same(place: Path) -> str:
        wrong, results = ended(start(place)), digest(only(place / "runs"))
        return wrong or "; ".join(
            f"{name} differs"
            for name, value in expected.items()
            if results[name] != value
        )

    two = folder / "two"
    row.add(ended(start(two)), "undisturbed")
    expected = digest(only(two / "runs"))
    for victim in victims:
        place = folder / f"killed-{victim}"
        other = start(place, victim, "kill_after", "middle")[1 - victim]
        row.add(
            other.wrong(1, "stopped: another rank") or same(place),
            f"rank {victim} killed",
        )
        place = folder / f"paused-{victim}"
        both = start(place, victim, "stop_after", 7)
        until(
            lambda log=both[1 - victim], silent=f"waits for rank {victim}": (
                silent in log.output
            )
        )
        both[victim].signal(signal.SIGCONT)
        row.add(ended(both) or same(place), f"rank {victim} stopped and continued")
        place = folder / f"stopped-{victim}"
        both = start(place, victim, "stop_after", 7, more=("train.timeout=6",))
        wrong = both[1 - victim].wrong(
            1, f"waits for rank {victim}", "train.timeout = 6 s"
        )
        both[victim].kill(0)
        alone = resume(only(place / "runs"), place / "alone")
        wrong = wrong or alone.wrong(0)
        losses = [
            [line["loss"] for line in _losses(runs)]
            for runs in (place / "runs", two / "runs")
        ]
        close = len(losses[0]) == len(losses[1]) and all(
            abs(a - b) < 1e-4 for a, b in zip(*losses, strict=True)
        )
        row.add(
            wrong or ("" if close else f"losses {losses}"),
            f"rank {victim} stopped, resumed by one process",
        )
    return row


def _losses(runs: Path) -> list[Any]:
    lines = map(json.loads, (only(runs) / "metrics.jsonl").read_text().splitlines())
    return [line for line in lines if line["kind"] == "valid"]


def _complete(whole: Whole, runs: Path | None, out: bytes) -> bool:
    """Return whether a run has all files of the whole one; other commands print at their end."""
    run = None if runs is None else begun(runs)
    if runs is None or run is None:
        return runs is None and bool(out.strip())
    return (run / "summary.json").exists() and digest(run, whole.steps) == whole.digest


def _catches(pid: int, number: int) -> bool:
    """Return whether a process has a handler for a signal."""
    try:
        status = Path(f"/proc/{pid}/status").read_text()
    except OSError:
        return True
    return bool(int(re.search(r"SigCgt:\s*(\w+)", status)[1], 16) >> (number - 1) & 1)


NAMED = (
    "step 7",
    "training samples",
    "the data: task",
    "the last checkpoint is that of step 6",
)
RATES = (("train.lr_schedule.warmup=0",), ("train.checkpoint_every=1", "train.clip=0"))
KINDS = ("loss nan", "loss inf", "gradient nan", "gradient inf", "gradient -inf")


def numbers(whole: Whole, folder: Path, kinds: Iterable[str] = KINDS) -> Row:
    """Non-finite loss or gradient, and huge learning rates: stopped before this update or the next."""
    row = Row("loss or gradient NaN or infinite; learning rates 1e20 and 1e39")
    for kind in kinds:
        place = folder / kind.replace(" ", "-")
        row.add(
            whole.again(place, "poison", kind, 6).wrong(4, *NAMED)
            or go_on(whole, place),
            kind,
        )
    for rate, more in ((rate, more) for rate in ("1e20", "1e39") for more in RATES):
        place = folder / f"{rate}-{len(more)}"
        command = whole.again(place, more=(f"train.optimizer.lr={rate}", *more))
        wrong = command.wrong(4) or (
            "" if re.search("step [12]:", command.output) else command.output[-500:]
        )
        for file in only(place / "runs").glob("checkpoints/*/*.safetensors"):
            weights = [
                tensor
                for tensor in load_file(file).values()
                if tensor.is_floating_point()
            ]
            wrong = wrong or (
                ""
                if all(weight.isfinite().all() for weight in weights)
                else f"non-finite {file}"
            )
        row.add(wrong, f"learning rate {rate}")
    return row


LARGE = (
    "model.width=512",
    "train.batch_size=16",
    "train.accumulate=1",
    "train.checkpoint_every=6",
)
"""A step takes more than the process has free."""


def limits(whole: Whole, folder: Path, trials: int) -> Row:
    """A run with half to nearly all of the memory that it needs."""
    row, codes = (
        Row("no more than 50 to 95 % of the memory that a run takes (RLIMIT_AS)"),
        {},
    )
    file, large = (
        folder / "taken",
        replace(whole, more=LARGE if whole.task != "toy" else ()),
    )
    assert large.again(folder / "measured", "measure_memory", str(file)).wait() == 0
    whole, taken = (
        replace(large, digest=digest(only(folder / "measured" / "runs"))),
        int(file.read_text()),
    )
    for number in range(trials):
        place, share = (
            folder / f"limit-{number}",
            0.5 + 0.45 * number / max(trials - 1, 1),
        )
        command = whole.again(place, "limit_memory", int(share * taken))
        code = command.wait()
        codes[code] = codes.get(code, 0) + 1
        wrong = (
            ""
            if code < 0
            else command.wrong((0, 5), *(["stopped:"] if code == 5 else []))
        )
        row.add(wrong or go_on(whole, place), f"{share:.3f}")
        shutil.rmtree(place)
    row.note = (
        f"{taken / 2**20:.0f} MiB taken; exit codes {dict(sorted(codes.items()))}"
    )
    return row


def crowd(whole: Whole, folder: Path, count: int) -> Row:
    """Several processes on one run directory: one runs, the others are refused; then its holder is killed."""
    row, place = (
        Row(f"{count} processes on one run directory"),
        folder / f"crowd-{count}",
    )
    first = whole.again(place, "slow", 0.5)
    run = until(lambda: begun(place / "runs"))
    others = [
        (time.monotonic(), resume(run, place / f"other-{number}"))
        for number in range(count - 1)
    ]
    for began, other in others:
        wrong = other.wrong(2, f"process {first.process.pid} ")
        busy = max(1.0, os.getloadavg()[0] / (os.cpu_count() or 1))
        row.add(
            wrong or ("" if time.monotonic() - began <= 3 * busy else "too slow"),
            "one of the others",
        )
    first.kill(0)
    race = [
        resume(run, place / f"race-{number}", "slow", 0.1) for number in range(count)
    ]
    codes = sorted(other.wait() for other in race)
    row.add(
        "" if codes == [0] + [2] * (count - 1) else f"exit codes {codes}",
        "after its holder was killed",
    )
    same = digest(run) == whole.digest and lines_of(run / "metrics.jsonl") == lines_of(
        whole.path / "metrics.jsonl"
    )
    row.add("" if same else "another result", "the one that ran")
    return row


NAMES = (
    "with space",
    "ünïcödé \U0001f9ec",
    "x" * 200,
    "line\nbreak",
    "[brackets] %s {0}",
    "-dash",
)


def places(whole: Whole, folder: Path, names: Iterable[str] = NAMES) -> Row:
    """Runs in folders with odd names, and in read-only folders."""
    row = Row("odd and long paths, read-only folders")
    for number, name in enumerate(names):
        place = folder / f"odd-{number}" / name
        wrong = whole.again(place).wrong(0)
        if not wrong and digest(only(place / "runs")) != whole.digest:
            wrong = "another result"
        for verb in (
            (["evaluate"], ["sample", "--count", "1"], ["runs", "verify"])
            if not wrong
            else ()
        ):
            words = [*verb, str(only(place / "runs"))]
            wrong = wrong or Command(
                words, folder / f"odd-{number}" / "verb"
            ).start().wrong(0)
        row.add(wrong, repr(name[:20]))
    closed = folder / "closed"
    (closed / "log").mkdir(parents=True)
    closed.chmod(0o555)
    row.add(
        whole.again(closed, "bound_by_permissions").wrong(2, "[unwritable-file]"),
        "new run in a read-only folder",
    )
    run = Path(shutil.copytree(whole.path, folder / "sealed"))
    for path in (run, *run.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    command = resume(
        run, folder / "s", "bound_by_permissions", more=(f"train.steps={STEPS + 6}",)
    )
    row.add(command.wrong(2, "sealed"), "resume in a read-only run")
    return row


class Payload:
    """Creates a file when it is unpickled."""

    def __init__(self, flag: str) -> None:
        self.flag = flag

    def __reduce__(self) -> tuple[Callable[..., object], tuple[object, ...]]:
        return os.open, (self.flag, os.O_CREAT | os.O_WRONLY)


def _flip(data: bytes, at: float) -> bytes:
    place = int(len(data) * at)
    return data[:place] + bytes([data[place] ^ 1]) + data[place + 1 :]


DAMAGES: dict[str, Callable[[bytes], bytes]] = {
    "truncated": lambda data: data[: len(data) // 2],
    "emptied": lambda data: b"",
    "zero tail": lambda data: (
        data[: len(data) // 2] + bytes(len(data) - len(data) // 2)
    ),
    "bit flipped": lambda data: _flip(data, 0.6),
    "bit flipped early": lambda data: _flip(data, 0.27),
    "bit flipped last": lambda data: _flip(data, 0.97),
}
KINDS_OF_DAMAGE = (*DAMAGES, "deleted", "a folder", "no permission", "a pickle")


def damage(path: Path, kind: str, flag: Path) -> None:
    """Damage a file; a pickle would create `flag`."""
    if kind in DAMAGES:
        path.write_bytes(
            DAMAGES[kind](path.read_bytes()) if path.stat().st_size else b""
        )
    elif kind == "a pickle":
        path.write_bytes(pickle.dumps(Payload(str(flag))))
    elif kind == "no permission":
        path.chmod(0)
    else:
        path.unlink()
        if kind == "a folder":
            path.mkdir()


def _files(run: Path) -> list[str]:
    return sorted(
        str(path.relative_to(run))
        for path in run.rglob("*")
        if path.is_file() and path.stat().st_size
    )


def damages(whole: Whole, folder: Path, every: int = 1) -> Row:
    """Each file of a killed run damaged in each way: named, or skipped, or not needed."""
    row = Row(
        "every file truncated, emptied, zeroed, flipped, deleted, replaced, no permission"
    )
    flag, base, trial, named = (
        folder / "executed",
        whole.half(folder / "half"),
        folder / "damaged",
        0,
    )
    cases = [(name, kind) for name in _files(base) for kind in KINDS_OF_DAMAGE]
    for name, kind in cases[::every]:
        copy = Path(shutil.copytree(base, trial / base.name))
        damage(copy / name, kind, flag)
        command = resume(
            copy,
            trial / "log",
            *(["bound_by_permissions"] if kind == "no permission" else []),
        )
        wrong, output = command.wrong((0, 2, 3)), command.output
        shown = (
            Path(name).name
            if not name.startswith("checkpoints")
            else Path(name).parts[1]
        )
        named += shown in output
        if not wrong and command.process.exitcode:
            wrong = "" if shown in output else f"not named: {output[-300:]}"
        elif not wrong:
            found = digest(copy)
            excused = (
                {"metrics.jsonl", "state.json"}
                if shown == "metrics.jsonl" and shown in output
                else set()
            )
            differing = [
                key
                for key, value in whole.digest.items()
                if found[key] != value and key not in excused
            ]
            wrong = f"silently {differing}" if differing else ""
        row.add("a pickle was executed" if flag.exists() else wrong, f"{name} {kind}")
        shutil.rmtree(trial)
    row.note = f"{named} named, {row.trials - named} not needed or regenerated"
    return row


def damaged_data(
    whole: Whole, folder: Path, kinds: Iterable[str] = KINDS_OF_DAMAGE
) -> Row:
    """The data file is damaged while the run is stopped: the run refuses to resume and names the file."""
    row, flag = (
        Row("the data of a stopped run truncated, flipped, replaced"),
        folder / "executed",
    )
    base, table = whole.half(folder / "half"), whole.experiment.parent / "regions.csv"
    before = table.read_bytes()
    for kind in kinds:
        damage(table, kind, flag)
        command = resume(
            base,
            folder / "log",
            *(["bound_by_permissions"] if kind == "no permission" else []),
        )
        row.add(
            command.wrong(2, table.name) or ("executed" if flag.exists() else ""), kind
        )
        shutil.rmtree(table) if table.is_dir() else table.unlink(missing_ok=True)
        table.write_bytes(before)
    row.add(go_on(whole, folder / "half"), "restored")
    return row


QUICK: dict[str, Callable[..., Row]] = {
    "kills": lambda *given: kills(*given, 2),
    "inside": lambda *given: inside_saves(*given, 2),
    "resumed": lambda *given: resumptions(*given, ["first", "drawing"]),
    "points": lambda *given: crash_points(*given, 4),
    "imports": lambda *given: imports(*given, 1),
    "clocks": lambda *given: clocks(*given, [4e8]),
    "pauses": lambda *given: pauses(*given, 1),
    "quotas": lambda *given: largest_files(*given, 3),
    "logs": full_logs,
    "signals": lambda *given: signals(*given, SIGNALS[:1]),
    "second": lambda *given: second_signal(*given, SIGNALS[1:2]),
    "cold": lambda *given: cold_signals(*given, SIGNALS[:1]),
    "damages": lambda *given: damages(*given, 11),
    "eight": lambda *given: crowd(*given, 3),
    "places": lambda *given: places(*given, ["\u00fcn\u00ef \U0001f9ec\n[x] %s {0}"]),
    "numbers": lambda *given: numbers(*given, ["loss nan", "gradient -inf"]),
    "settings": lambda *given: settings(*given, slice(0, None, 4)),
    "ranks": lambda *given: ranks(*given, [1]),
    "menu": lambda *given: menu.cross(*given, 499),
    "experiments": lambda *given: menu.experiments(*given, 3),
}
"""A few trials of every row."""
