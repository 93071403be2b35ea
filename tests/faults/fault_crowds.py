"""Many processes at once, odd folders."""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterable
from pathlib import Path

from fault_rows import Row
from fault_tasks import STEPS
from fault_trial import Command, Whole, begun, digest, lines_of, only, resume, until


def crowd(whole: Whole, folder: Path, count: int) -> Row:
    """Several processes on one run directory: one runs, the others are refused at once; then its holder is killed."""
    row = Row(f"{count} processes on one run directory")
    place = folder / f"crowd-{count}"
    first = whole.again(place, "slow", 0.5)
    run = until(lambda: begun(place / "runs"))
    others = []
    for number in range(count - 1):
        others.append((time.monotonic(), resume(run, place / f"other-{number}")))
    for began, other in others:
        code = other.wait()
        wrong = f"exit code {code}: {other.said[-300:]}" if code != 2 else ""
        wrong = wrong or ("" if f"process {first.process.pid} " in other.said else f"not named: {other.said}")
        row.add(wrong or ("" if time.monotonic() - began <= 3 else "too slow"), "one of the others")
    first.kill(0)
    others = [resume(run, place / f"race-{number}", "slow", 0.1) for number in range(count)]
    codes = sorted(other.wait() for other in others)
    row.add("" if codes == [0] + [2] * (count - 1) else f"exit codes {codes}", "after its holder was killed")
    same = digest(run) == whole.digest and lines_of(run / "metrics.jsonl") == lines_of(whole.path / "metrics.jsonl")
    row.add("" if same else "another result", "the one that ran")
    return row


NAMES = ("with space", "ünïcödé", "emoji \U0001f9ec", "x" * 200, "line\nbreak", "[brackets] %s {0}", "-dash")


def places(whole: Whole, folder: Path, names: Iterable[str] = NAMES) -> Row:
    """Runs in folders with odd names, and where nothing may be written."""
    row = Row("odd and long paths, read-only folders")
    for number, name in enumerate(names):
        place = folder / f"odd-{number}" / name
        command = whole.again(place)
        wrong = "" if command.wait() == 0 and digest(only(place / "runs")) == whole.digest else command.said[-300:]
        if not wrong:
            run = only(place / "runs")
            for verb in (["evaluate", str(run)], ["sample", str(run), "--count", "1"], ["runs", "verify", str(run)]):
                command = Command(verb, folder / f"odd-{number}" / "verb").start()
                wrong = wrong or ("" if command.wait() == 0 else f"{verb[0]}: {command.said[-300:]}")
        row.add(wrong, repr(name[:20]))
    closed = folder / "closed"
    closed.mkdir()
    (closed / "log").mkdir()
    closed.chmod(0o555)
    row.add(_refused(whole.again(closed, "bound_by_permissions"), "[unreadable-file]"), "new run in a read-only folder")
    run = Path(shutil.copytree(whole.path, folder / "sealed"))
    for path in (run, *run.rglob("*")):
        path.chmod(0o555 if path.is_dir() else 0o444)
    command = resume(run, folder / "s", "bound_by_permissions", more=(f"train.steps={STEPS + 6}",))
    row.add(_refused(command, "sealed"), "resume in a read-only run")
    return row


def _refused(command: Command, words: str) -> str:
    code = command.wait()
    good = code == 2 and words in command.said and "Traceback" not in command.said
    return "" if good else f"exit code {code}: {command.said[-300:]}"
