"""What lasts long: nothing may grow with the number of checkpoints or of resumptions."""

from __future__ import annotations

import random
import shutil
from pathlib import Path

from fault_rows import Row
from fault_trial import KILLED, Whole, begun, digest, only, resume

MOST = 1.05
"""How much more there may be in the end than in the beginning."""
NEVER = 1_000_000_000
STEPS = 2
"""That a resumption goes on by."""


def checkpoints(whole: Whole, folder: Path, count: int) -> Row:
    """Write very many checkpoints in one process."""
    row, file = Row("checkpoints written in one process"), folder / "soak"
    more = (f"train.steps={count}", "train.checkpoint_every=1", f"evaluate.every={count}", "train.log_every=100")
    more += (f"sample.every={NEVER}", "sample.count=0")
    command = whole.again(folder / "long", "many_checkpoints", max(count // 20, 1), str(file), more=more)
    return _judged(row, count, command.wait(2400), command.said, only(folder / "long" / "runs"), file)


def resumptions(whole: Whole, folder: Path, count: int) -> Row:
    """Go on very many times in one process."""
    row, file = Row("resumptions in one process, two steps and a checkpoint each"), folder / "soak"
    more = ("train.steps=0", "sample.count=0", f"train.checkpoint_every={NEVER}", f"evaluate.every={NEVER}")
    assert whole.again(folder / "short", more=(*more, "evaluate.samples=8")).wait() == 0
    run = only(folder / "short" / "runs")
    hook = ("many_resumptions", count, STEPS, max(count // 20, 1), str(file), str(run))
    command = resume(run, folder / "often", *hook, more=(f"train.steps={STEPS * count}",))
    return _judged(row, count, command.wait(2400), command.said, run, file)


def kills(whole: Whole, folder: Path, count: int, seed: int = 0) -> Row:
    """Kill one run again and again at random moments; in the end it is one that nothing happened to."""
    row, dice, steps = Row("kill -9 of one run, again and again"), random.Random(seed), 10 * count
    more = (f"train.steps={steps}", "train.checkpoint_every=1", "evaluate.every=50", f"sample.every={NEVER}")
    assert whole.again(folder / "whole", more=more).wait(1200) == 0
    place, seconds = folder / "killed", whole.seconds
    command = whole.again(place, more=more)
    while row.trials < count:
        command.kill(dice.uniform(0.2, 1.2) * seconds)
        if command.process.exitcode in KILLED:
            row.trials += 1
        elif row.trials:
            break
        else:  # it was at its end before: the machine has less to do than when that was measured
            shutil.rmtree(place)
            seconds /= 2
        run = begun(place / "runs")
        command = whole.again(place, more=more) if run is None else resume(run, place / "on")
    code, run = command.wait(1200), begun(place / "runs")
    same = digest(run, steps) == digest(only(folder / "whole" / "runs"), steps)
    left = [path.name for path in run.rglob(".*")]
    row.bad = [] if not code and same and not left else [f"exit code {code}, same {same}, left {left}: {command.said}"]
    return row


def _judged(row: Row, count: int, code: int, said: str, run: Path, file: Path) -> Row:
    """Judge what grew while something was done so many times; the first twentieth is to warm up."""
    row.trials = count
    row.bad = [f"exit code {code}: {said[-900:]}"] if code else []
    seen = [[int(word) for word in line.split()] for line in file.read_text().splitlines()][1:]
    memory, files, threads, disk, whole = zip(*seen, strict=True)
    newest = [sum(file.stat().st_size for file in path.iterdir()) for path in (run / "checkpoints").iterdir()]
    row.note = (
        f"memory {memory[0] / 2**20:.1f} -> {memory[-1] / 2**20:.1f} MiB, open files {files[0]} -> {files[-1]}, "
        f"threads {threads[0]} -> {threads[-1]}, checkpoints {disk[0] / 1024:.1f} -> {disk[-1] / 1024:.1f} KiB; "
        f"the rest of the run {(whole[-1] - disk[-1] - whole[0] + disk[0]) / 1024 / count:.2f} KiB each"
    )
    grown = memory[-1] > memory[0] * MOST or files[-1] > files[0] or threads[-1] > threads[0]
    if grown or len(newest) != 2 or max(disk) > 2 * max(newest) * MOST:
        row.bad.append(f"{row.note}; checkpoints left: {newest}")
    return row
