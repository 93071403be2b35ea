# ruff: noqa: T201
"""The fault matrix: break runs in every way, go on with them, and print what came of it as a table.

    python tests/faults/run.py                       # everything, for every task: two hours on one core
    python tests/faults/run.py --share 0.1           # a tenth of the trials of each row
    python tests/faults/run.py --only kills          # one row (repeat)
    python tests/faults/run.py --task language       # of one task (repeat)

A run is good where it ends as one that nothing happened to, bit for bit, or where it is refused with the file at fault.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import fault_changes
import fault_crowds
import fault_disks
import fault_files
import fault_kills
import fault_numbers
import fault_signals
from fault_damages import DAMAGES
from fault_rows import Row
from fault_tasks import TASKS
from fault_trial import Whole, can_mount, whole_run

Count = Callable[[int, int], int]
"""Makes a number of trials smaller where asked: of the first for the toy, which is fast, of the second for a task."""
Case = Callable[[Whole, Path, Count], Row | None]
ALL = " ".join(TASKS)
REAL = "bubble region language"
ROWS: dict[str, tuple[str, Case]] = {
    "resumed": (ALL, lambda whole, folder, n: fault_kills.resumptions(whole, folder)),
    "kills": (ALL, lambda whole, folder, n: fault_kills.kills(whole, folder, n(50, 34))),
    "inside": (ALL, lambda whole, folder, n: fault_kills.inside_saves(whole, folder, n(70, 45))),
    "points": (ALL, lambda whole, folder, n: fault_kills.crash_points(whole, folder, _points(whole, folder, n))),
    "parts": (ALL, lambda whole, folder, n: fault_kills.half_files(whole, folder)),
    "halves": (ALL, lambda whole, folder, n: fault_kills.halves(whole, folder)),
    "compiled": (REAL, lambda whole, folder, n: fault_kills.compiled(whole, folder)),
    "ones": (ALL, lambda whole, folder, n: fault_kills.overwritten(whole, folder)),
    "same": (ALL, lambda whole, folder, n: fault_changes.same_again(whole, folder, n(20, 7))),
    "elsewhere": (ALL, lambda whole, folder, n: fault_changes.elsewhere(whole, folder)),
    "capability": ("toy", lambda whole, folder, n: fault_changes.real_capability(whole, folder)),
    "settings": (ALL, lambda whole, folder, n: fault_changes.settings(whole, folder)),
    "disks": (ALL, lambda whole, folder, n: fault_disks.full_disks(whole, folder, n(30, 30)) if can_mount() else None),
    "quotas": (ALL, lambda whole, folder, n: fault_disks.largest_files(whole, folder, n(30, 30))),
    "logs": (ALL, lambda whole, folder, n: fault_disks.full_logs(whole, folder)),
    "signals": (ALL, lambda whole, folder, n: fault_signals.signals(whole, folder)),
    "second": (ALL, lambda whole, folder, n: fault_signals.second_signal(whole, folder)),
    "numbers": (ALL, lambda whole, folder, n: fault_numbers.numbers(whole, folder)),
    "data": ("region", lambda whole, folder, n: fault_numbers.data(whole, folder)),
    "stopped-data": ("region", lambda whole, folder, n: fault_files.learned_from(whole, folder)),
    "memory": (REAL, lambda whole, folder, n: fault_numbers.limits(whole, folder, n(7, 7))),
    "needs": ("toy", lambda whole, folder, n: fault_numbers.needs(whole, folder)),
    "eight": (ALL, lambda whole, folder, n: fault_crowds.crowd(whole, folder, 8)),
    "damages": ("toy", lambda whole, folder, n: fault_files.damages(whole, folder, DAMAGES)),
    "damages-real": (REAL, lambda whole, folder, n: fault_files.damages(whole, folder, DAMAGES, _third)),
    "flips": (ALL, lambda whole, folder, n: fault_files.flips(whole, folder, n(1000, 1000))),
    "pickles": ("toy", lambda whole, folder, n: fault_files.pickles(whole, folder)),
    "pickles-real": (REAL, lambda whole, folder, n: fault_files.pickles(whole, folder, lambda _, at: at % 8 == 1)),
    "places": (ALL, lambda whole, folder, n: fault_crowds.places(whole, folder)),
    "killed": (ALL, lambda whole, folder, n: fault_kills.repeated_kills(whole, folder, n(40, 40))),
    "cold": ("toy", lambda whole, folder, n: fault_signals.cold_signals(whole, folder)),
    "cold-real": (
        REAL,
        lambda whole, folder, n: fault_signals.cold_signals(whole, folder, verbs="run evaluate"),
    ),
}
"""Every row by name: the tasks that it is for, and what makes it."""


def _points(whole: Whole, folder: Path, n: Count) -> range:
    """Return the calls to die at: all of them, or evenly some."""
    count = fault_kills.count_points(whole, folder)
    return range(1, count + 1, max(1, count // n(count, count // 4)))


def _third(name: str, number: int) -> bool:
    """Tell whether to try: every third, so that each file is damaged in some ways."""
    return number % 3 == 0


def main() -> int:
    """Read the command line; the exit code is 1 where anything was not good."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--share", type=float, default=1.0, help="share of the trials, where they are drawn")
    parser.add_argument("--only", action="append", choices=list(ROWS), help="the name of a row (repeat)")
    parser.add_argument("--task", action="append", choices=sorted(TASKS), help="a task (repeat)")
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave it there")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dither-faults-")) if given.keep is None else given.keep.absolute()
    failed = 0
    tasks = given.task or list(TASKS)
    try:
        print(f"| {'fault':85} | task | trials | bad | seconds | |\n| {'-' * 85} | --- | ---: | ---: | ---: | --- |")
        for task in tasks:
            whole = whole_run(folder / task, task, " ".join(tasks))
            for name, (wanted, case) in ROWS.items():
                if task in wanted.split() and name in (given.only or ROWS):
                    failed += _shown(whole, folder / task / name, case, given.share)
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return bool(failed)


def _shown(whole: Whole, folder: Path, case: Case, share: float) -> int:
    """Make a row and print it; return how many trials were bad."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        row = case(whole, folder, lambda toy, real: max(3, round(share * (toy if whole.task == "toy" else real))))
    except Exception:  # a row that cannot be made is bad, and the others are made all the same
        row = Row(folder.name, 1, [traceback.format_exc()])
    if row is None:
        return 0
    seconds = time.monotonic() - began
    print(f"| {row.fault:85} | {whole.task} | {row.trials} | {len(row.bad)} | {seconds:.0f} | {row.note} |")
    for line in row.bad[:10]:
        print("    " + line.replace("\n", "\n    "), file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    return len(row.bad)


if __name__ == "__main__":
    sys.exit(main())
