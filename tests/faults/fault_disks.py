"""Disks that are full, or quotas: a clear message, the last checkpoint intact, and the run can go on later."""

from __future__ import annotations

import random
import re
import shutil
import subprocess
from contextlib import contextmanager
from pathlib import Path

from fault_rows import Row
from fault_trial import Command, Whole, begun, digest, go_on, only, resume


@contextmanager
def small_disk(place: Path, size: int):
    """Mount a disk of this size in bytes; yields a function that enlarges it."""
    place.mkdir(parents=True)
    subprocess.run(["mount", "-t", "tmpfs", "-o", f"size={size}", "tmpfs", str(place)], check=True)
    try:
        yield lambda: subprocess.run(["mount", "-o", "remount,size=64m", str(place)], check=True)
    finally:
        subprocess.run(["umount", "-l", str(place)], check=True)


def full_disks(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Runs on disks that are too small, gone on with there once more, and again when the disks are larger."""
    row, codes = Row("disk full (tmpfs), then enlarged"), []
    dice = random.Random(seed)
    for number in range(trials):
        place, size = folder / f"disk-{number}", int(_bytes(whole.path) * dice.uniform(0.3, 1.3))
        with small_disk(place, size) as enlarge:
            (place / "log").symlink_to(folder)  # what is printed goes elsewhere
            (place / "on").symlink_to(folder)
            command = whole.again(place)
            code = command.wait()
            codes.append(code)
            wrong = _full(command, code)
            if code and (run := begun(place / "runs")):  # while it is still full
                again = resume(run, place / "on")
                wrong = wrong or _full(again, again.wait())
            enlarge()
            row.add(wrong or go_on(whole, place), f"{size:,} bytes")
    row.note = f"exit codes {sorted(set(codes))}"
    return row


def largest_files(whole: Whole, folder: Path, trials: int, seed: int = 0) -> Row:
    """Runs that may not write files beyond a size, as with a quota."""
    row, codes = Row("no file may be larger (EFBIG), then lifted"), []
    dice = random.Random(seed)
    for number in range(trials):
        place, size = folder / f"large-{number}", int(_largest(whole.path) * dice.uniform(0.05, 1.1))
        command = whole.again(place, "largest_file", size)
        code = command.wait()
        codes.append(code)
        row.add(_full(command, code) or go_on(whole, place), f"{size:,} bytes")
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
    if code == 5 and "/checkpoints/" in said.rpartition("stopped:")[2] and "a checkpoint needs " not in said:
        return f"no figures: {said[-300:]}"
    return ""


def full_logs(whole: Whole, folder: Path) -> Row:
    """The disk of the logs is full: training goes on, and lines that were buffered are written later."""
    row = Row("disk of the logs full, output to a full disk")
    for name, before, out in (("metrics.jsonl, TensorBoard", ("broken_log",), None), ("output", (), "/dev/full")):
        place = folder / f"log-{len(before)}"
        command = whole.again(place, *before, out=out)
        code = command.wait()
        wrong = "" if code == 0 else f"exit code {code}: {command.said[-500:]}"
        if not wrong and digest(only(place / "runs")) != whole.digest:
            wrong = "another result"
        if not wrong and before and "buffered in memory" not in command.said:
            wrong = "not said"
        row.add(wrong, name)
    return row
