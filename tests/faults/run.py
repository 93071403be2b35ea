# ruff: noqa: T201
"""The fault matrix: break runs in every way, resume them, and print the results as a table.

    python tests/faults/run.py --quick               # a few trials of every row, of the toy task: two minutes
    python tests/faults/run.py --full                # every row, of the toy task: an hour at a load of 10
    python tests/faults/run.py --share 0.1           # a tenth of the trials of each row
    python tests/faults/run.py --only kills          # one row (repeatable)
    python tests/faults/run.py --task language       # of a task of dither: hours (repeatable)

A run is good if its result is bit-equal to an undisturbed run, or if it is refused with the name of the file at fault.
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

import fault_rows as rows
import menu
from fault_trial import TASKS, Row, Whole, whole_run

Count = Callable[[int, int], int]
"""Scales a number of trials: of the toy, which is fast, and of the other tasks."""
Case = Callable[[Whole, Path, Count], Row]
ALL = " ".join(TASKS)
REAL = "bubble region language"
ROWS: dict[str, tuple[str, Case]] = {
    "resumed": (ALL, lambda whole, folder, n: rows.resumptions(whole, folder)),
    "kills": (ALL, lambda whole, folder, n: rows.kills(whole, folder, n(50, 34))),
    "inside": (
        ALL,
        lambda whole, folder, n: rows.inside_saves(whole, folder, n(70, 45)),
    ),
    "points": (
        ALL,
        lambda whole, folder, n: rows.crash_points(whole, folder, n(200, 25)),
    ),
    "settings": (ALL, lambda whole, folder, n: rows.settings(whole, folder)),
    "quotas": (
        ALL,
        lambda whole, folder, n: rows.largest_files(whole, folder, n(30, 30)),
    ),
    "logs": (ALL, lambda whole, folder, n: rows.full_logs(whole, folder)),
    "imports": ("toy", lambda whole, folder, n: rows.imports(whole, folder, n(20, 0))),
    "clocks": (ALL, lambda whole, folder, n: rows.clocks(whole, folder)),
    "pauses": (ALL, lambda whole, folder, n: rows.pauses(whole, folder, n(10, 5))),
    "soak": ("toy", lambda whole, folder, n: rows.soak(whole, folder)),
    "ranks": ("toy", lambda whole, folder, n: rows.ranks(whole, folder)),
    "signals": (ALL, lambda whole, folder, n: rows.signals(whole, folder)),
    "second": (ALL, lambda whole, folder, n: rows.second_signal(whole, folder)),
    "cold": (ALL, lambda whole, folder, n: rows.cold_signals(whole, folder)),
    "numbers": (ALL, lambda whole, folder, n: rows.numbers(whole, folder)),
    "stopped-data": (
        "region",
        lambda whole, folder, n: rows.damaged_data(whole, folder),
    ),
    "memory": (REAL, lambda whole, folder, n: rows.limits(whole, folder, n(7, 7))),
    "eight": (ALL, lambda whole, folder, n: rows.crowd(whole, folder, 8)),
    "damages": (
        ALL,
        lambda whole, folder, n: rows.damages(
            whole, folder, 1 if whole.task == "toy" else 3
        ),
    ),
    "menu": ("toy", lambda whole, folder, n: menu.cross(whole, folder)),
    "experiments": (
        "toy",
        lambda whole, folder, n: menu.experiments(whole, folder, n(300, 0)),
    ),
    "places": (ALL, lambda whole, folder, n: rows.places(whole, folder)),
}
"""Every row by name: its tasks, and the function that measures it."""


def main() -> int:
    """Print the table; the exit code is 1 if a trial was bad."""
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument(
        "--share",
        type=float,
        default=1.0,
        help="share of the trials that are drawn at random",
    )
    parser.add_argument(
        "--only", action="append", choices=list(ROWS), help="name of a row (repeatable)"
    )
    parser.add_argument(
        "--task",
        action="append",
        choices=sorted(TASKS),
        help="toy by default (repeatable)",
    )
    parser.add_argument("--keep", type=Path, help="work in this folder and keep it")
    parser.add_argument(
        "--quick", action="store_true", help="a few trials of every row"
    )
    parser.add_argument(
        "--full", action="store_true", help="every row and trial, the default"
    )
    options = parser.parse_args()
    folder = (
        Path(tempfile.mkdtemp(prefix="dither-faults-"))
        if options.keep is None
        else options.keep.absolute()
    )
    failed = 0
    tasks = options.task or ["toy"]
    cases = {
        name: ("toy", lambda w, f, n, case=case: case(w, f))
        for name, case in rows.QUICK.items()
    }
    cases = cases if options.quick else ROWS
    try:
        print(
            f"| {'fault':85} | task | trials | bad | seconds | |\n| {'-' * 85} | --- | ---: | ---: | ---: | --- |"
        )
        for task in tasks:
            whole = whole_run(folder / task, task, " ".join(tasks))
            for name, (wanted, case) in cases.items():
                if task in wanted.split() and name in (options.only or cases):
                    failed += _show(whole, folder / task / name, case, options.share)
    finally:
        if options.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return bool(failed)


def _show(whole: Whole, folder: Path, case: Case, share: float) -> int:
    """Measure a row and print it; return the number of bad trials."""
    folder.mkdir(parents=True, exist_ok=True)
    began = time.monotonic()
    try:
        row = case(
            whole,
            folder,
            lambda toy, real: max(
                3, round(share * (toy if whole.task == "toy" else real))
            ),
        )
    except Exception:  # the other rows are measured nevertheless
        row = Row(folder.name, 1, [traceback.format_exc()])
    seconds = time.monotonic() - began
    print(
        f"| {row.fault:85} | {whole.task} | {row.trials} | {len(row.bad)} | {seconds:.0f} | {row.note} |",
        flush=True,
    )
    for line in row.bad[:10]:
        print("    " + line.replace("\n", "\n    "), file=sys.stderr, flush=True)
    return len(row.bad)


if __name__ == "__main__":
    sys.exit(main())
