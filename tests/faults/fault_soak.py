"""What lasts long: nothing may grow with the number of checkpoints or of resumptions."""

from __future__ import annotations

from pathlib import Path

from fault_rows import Row
from fault_trial import Whole, only, resume

MOST = 1.05
"""How much more there may be in the end than in the beginning."""


def checkpoints(whole: Whole, folder: Path, count: int) -> Row:
    """Write very many checkpoints in one process."""
    row, file, every = Row("checkpoints written in one process"), folder / "soak", count // 20
    more = (f"train.steps={count}", "train.checkpoint_every=1", f"evaluate.every={count}", "train.log_every=100")
    more += ("sample.every=1000000000", "sample.count=0")
    command = whole.again(folder / "long", "many_checkpoints", every, str(file), more=more)
    code = command.wait(1400)
    run = only(folder / "long" / "runs")
    sizes = [_size(path) for path in sorted((run / "checkpoints").iterdir())]
    row.trials = count
    row.bad = [f"exit code {code}: {command.said[-500:]}"] if code else []
    row.note, bad = _grown(file)
    row.bad += bad
    disk = [int(line.split()[2]) for line in file.read_text().splitlines()]
    if len(sizes) != 2 or max(disk) > 2 * max(sizes) * MOST:
        row.bad.append(f"{max(disk):,} bytes on disk for two checkpoints of {max(sizes, default=0):,}")
    return row


def resumptions(whole: Whole, folder: Path, count: int) -> Row:
    """Go on very many times in one process."""
    row, file = Row("resumptions in one process, a step each"), folder / "soak"
    more = ("train.steps=0", "sample.count=0", "train.checkpoint_every=1000000", "evaluate.every=1000000")
    assert whole.again(folder / "short", more=(*more, "evaluate.samples=1")).wait() == 0
    run = only(folder / "short" / "runs")
    hook = ("many_resumptions", count, max(count // 20, 1), str(file), str(run))
    command = resume(run, folder / "often", *hook, more=(f"train.steps={count + 1}",))
    code = command.wait(1400)
    row.trials = count
    row.bad = [f"exit code {code}: {command.said[-500:]}"] if code else []
    row.note, bad = _grown(file)
    row.bad += bad
    return row


def _size(path: Path) -> int:
    return sum(file.stat().st_size for file in path.iterdir())


def _grown(file: Path) -> tuple[str, list[str]]:
    """Return by how much memory and open files have grown, and what is too much; the first tenth is to warm up."""
    seen = [[int(word) for word in line.split()] for line in file.read_text().splitlines()]
    memory, files = [line[0] for line in seen[1:]], [line[1] for line in seen[1:]]
    note = f"memory {memory[0] / 2**20:.0f} -> {memory[-1] / 2**20:.0f} MiB, open files {files[0]} -> {files[-1]}"
    bad = [note] if memory[-1] > memory[0] * MOST or files[-1] > files[0] else []
    return note, bad
