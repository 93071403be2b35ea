"""Kill -9 at every moment that there is; a run goes on as if nothing had happened."""

from __future__ import annotations

import random
import shutil
from collections.abc import Iterable
from pathlib import Path

from fault_rows import Row
from fault_trial import FILES, KILLED, Whole, begun, digest, go_on, only, resume
from fault_trial import moments as random_moments

CHECKPOINTS = "/checkpoints"
ASYNC = ("train.async_save=true", "train.workers=2")
"""Checkpoints are written, and the next batches read, in threads while training goes on."""
PLAIN: tuple[str, ...] = ()


def _most(more: tuple[str, ...]) -> int:
    """Return how many steps may be lost: since the newest checkpoint, which saved beside may be the last but one."""
    return 4 if more else 2


def kills(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Kill -9 at random moments, twice a trial; every other trial saves beside training."""
    row = Row("kill -9 at random moments, twice each")
    for number, moment in enumerate(random_moments(whole.seconds, trials, seed)):
        place = folder / f"kill-{number}"
        more = ASYNC if number % 2 else PLAIN
        whole.again(place, more=more).kill(moment)
        if run := begun(place / "runs"):
            resume(run, place / "again").kill(moment / 2)
        row.add(go_on(whole, place, _most(more)), f"killed after {moment:.3f} s")
        shutil.rmtree(place)
    return row


def inside_saves(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Kill -9 at random moments while a checkpoint is written; every other trial saves beside training."""
    row, dice = Row("kill -9 at random moments within a save"), random.Random(seed)
    for number in range(trials):
        place, nth, share = folder / f"inside-{number}", dice.randint(2, 6), dice.uniform(0, 1.1)
        more = ASYNC if number % 2 else PLAIN
        code = whole.again(place, "kill_in_save", nth, share, more=more).wait()
        wrong = go_on(whole, place, _most(more))
        row.add(wrong if code in KILLED else f"ended with {code}", f"{share:.2f} of save {nth}")
        shutil.rmtree(place)
    return row


def crash_points(whole: Whole, folder: Path, points: Iterable[int]) -> Row:
    """Kill -9 before a call to the disk while checkpoints are written and old ones removed."""
    row = Row("kill -9 before each call to the disk in a save")
    for point in points:
        place = folder / f"point-{point}"
        code = whole.again(place, "kill_at", CHECKPOINTS, point).wait()
        wrong = go_on(whole, place, _most(PLAIN))
        row.add(wrong if code in KILLED else f"ended with {code}", f"call {point}")
        shutil.rmtree(place)
    return row


def count_points(whole: Whole, folder: Path) -> int:
    """Return how many calls to the disk there are in all saves of a run."""
    file = folder / "calls"
    assert whole.again(folder / "counted", "count_calls", CHECKPOINTS, str(file)).wait() == 0
    return int(file.read_text())


def half_files(whole: Whole, folder: Path) -> Row:
    """Kill -9 when half of a file is written."""
    row = Row("kill -9 with half of a file written")
    names = ("model.safetensors", "average.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json")
    for name in names:
        for nth in (1, 3):
            place = folder / f"half-{name}-{nth}"
            code = whole.again(place, "kill_in_file", name, nth).wait()
            wrong = go_on(whole, place)
            row.add(wrong if code in KILLED else f"ended with {code}", name)
            shutil.rmtree(place)
    return row


STEPS = ("first", "middle", "boundary", "last", "evaluation", "drawing")
"""Steps after which a run is killed: before it is saved; at the end of an epoch; in what comes between steps."""


def resumptions(whole: Whole, folder: Path, steps: Iterable[str] = STEPS) -> Row:
    """Half a run, kill -9, the other half: bit for bit a whole one, saved in the loop and beside it."""
    row = Row("resumed at step 1, in an epoch, at its end, at the last step, in an evaluation, in a drawing")
    for step in steps:
        for more in (PLAIN, ASYNC):
            place = folder / f"resumed-{step}-{len(more)}"
            code = whole.again(place, "kill_after", step, more=more).wait()
            wrong = go_on(whole, place, _most(more))
            row.add(wrong if code in KILLED else f"ended with {code}", f"{step} {more}")
            shutil.rmtree(place)
    return row


def halves(whole: Whole, folder: Path, steps: int = 200, moments: Iterable[str] = ("1", "100", "boundary")) -> Row:
    """100 steps, kill -9, 100 more: bit for bit 200; and so after step 1, at the end of an epoch, after the last."""
    row = Row("200 steps, kill -9 after step 1, 100, an epoch, the last")
    settings = ("train.checkpoint_every=20", "train.log_every=1", "evaluate.every=50", "sample.every=1000")
    longer = whole.otherwise(folder / "longer", *settings, steps=steps)
    for step in (*moments, str(steps)):
        for more in (PLAIN, ASYNC):
            place = folder / f"half-{step}-{len(more)}"
            code = longer.again(place, "kill_after", step, more=more).wait(600)
            wrong = go_on(longer, place, 10 * _most(more))
            row.add(wrong if code in KILLED else f"ended with {code}", f"{step} {more}")
            shutil.rmtree(place)
    return row


def compiled(whole: Whole, folder: Path, ways: Iterable[str] = ("true", "'blocks'")) -> Row:
    """The same with a compiled model; needs a C++ compiler."""
    row = Row("compiled: kill -9 in the middle, gone on with")
    for way in ways:
        other = whole.otherwise(folder / f"compiled-{len(way)}", f"train.compile={way}")
        place = folder / f"killed-{len(way)}"
        code = other.again(place, "kill_after", "middle").wait(600)
        wrong = go_on(other, place, _most(PLAIN))
        row.add(wrong if code in KILLED else f"ended with {code}", way)
    return row


def overwritten(whole: Whole, folder: Path) -> Row:
    """Whatever a checkpoint refers to becomes ones as soon as the loop goes on: none is written."""
    row = Row("async_save, and all weights made ones while a checkpoint is written")
    keep = ("train.keep_every=2",)
    plain, ones = whole.otherwise(folder / "plain", *keep), folder / "ones"
    command = whole.again(ones, "ones_after_saves", more=(*keep, *ASYNC))
    code = command.wait()
    for path in sorted((plain.path / "checkpoints").iterdir()):
        other = only(ones / "runs") / "checkpoints" / path.name
        same = [(path / name).read_bytes() == (other / name).read_bytes() for name in FILES]
        row.add("" if all(same) and not code else f"exit code {code}, same {same}: {command.said[-300:]}", path.name)
    return row


def repeated_kills(whole: Whole, folder: Path, count: int, seed: int = 0) -> Row:
    """Kill one run repeatedly at random moments; it ends like an undisturbed run."""
    row, dice, steps = Row("kill -9 of one run, repeatedly"), random.Random(seed), 10 * count
    more = (f"train.steps={steps}", "train.checkpoint_every=1", "evaluate.every=50", "sample.every=1000000000")
    assert whole.again(folder / "whole", more=more).wait(1200) == 0
    place, seconds = folder / "killed", whole.seconds
    command = whole.again(place, more=more)
    while row.trials < count:
        command.kill(dice.uniform(0.2, 1.2) * seconds)
        if command.process.exitcode in KILLED:
            row.trials += 1
        elif row.trials:
            break
        else:  # the run finished first: the machine is faster than when it was measured
            shutil.rmtree(place)
            seconds /= 2
        run = begun(place / "runs")
        command = whole.again(place, more=more) if run is None else resume(run, place / "on")
    code, run = command.wait(1200), begun(place / "runs")
    same = digest(run, steps) == digest(only(folder / "whole" / "runs"), steps)
    left = [path.name for path in run.rglob(".*")]
    row.bad = [] if not code and same and not left else [f"exit code {code}, same {same}, left {left}: {command.said}"]
    return row
