# ruff: noqa: T201
"""The fault matrix: break runs in every way, go on with them, and print what came of it as a table.

    python tests/faults/run.py                 # 50 random kills and everything else, some ten minutes on one core
    python tests/faults/run.py --trials 5      # fewer of everything that is drawn at random
    python tests/faults/run.py --only kills    # one row; --task language: of another task

A run is good where it ends as one that nothing happened to, bit for bit, or where it is refused with the file at fault.
"""

from __future__ import annotations

import argparse
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))

import fault_cases as cases
from fault_damages import DAMAGES
from fault_trial import TASKS, Whole, can_mount, whole_run


def rows(whole: Whole, folder: Path, trials: int) -> Iterator[tuple[str, Callable[[], cases.Row]]]:
    """Yield every row by name."""
    yield "kills", lambda: cases.kills(whole, folder, trials)
    yield "points", lambda: cases.crash_points(whole, folder, _points(whole, folder, trials))
    yield "halves", lambda: cases.half_files(whole, folder)
    if can_mount():
        yield "disks", lambda: cases.full_disks(whole, folder, max(3, trials * 3 // 5))
    yield "limits", lambda: cases.largest_files(whole, folder, max(3, trials * 3 // 5))
    yield "logs", lambda: cases.full_logs(whole, folder)
    yield "signals", lambda: cases.signals(whole, folder)
    yield "cold", lambda: cases.cold_signals(whole, folder)
    yield "second", lambda: cases.second_signal(whole, folder)
    kinds = DAMAGES if trials >= 20 else ("truncated", "bit flipped", "a pickle")
    yield "damages", lambda: cases.damages(whole, folder, kinds, lambda name: True)
    yield "pickles", lambda: cases.pickles(whole, folder, lambda name: True)
    yield "two", lambda: cases.crowd(whole, folder, 2)
    yield "eight", lambda: cases.crowd(whole, folder, 8)
    yield "places", lambda: cases.places(whole, folder)
    yield "numbers", lambda: cases.numbers(whole, folder)
    yield "memory", lambda: cases.memories(whole, folder)
    yield "directories", lambda: cases.directories(folder, 500)


def _points(whole: Whole, folder: Path, trials: int) -> range:
    """Return the calls to die at: all of them, or evenly some."""
    count = cases.count_points(whole, folder)
    return range(1, count + 1, 1 if trials >= 50 else max(1, count // (2 * trials)))


def main() -> int:
    """Read the command line; the exit code is 1 where anything was not good."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--trials", type=int, default=50, help="random trials in a row")
    parser.add_argument("--only", action="append", help="the name of a row (repeat)")
    parser.add_argument("--task", default="toy", choices=sorted(TASKS))
    parser.add_argument("--keep", type=Path, help="work in this folder, and leave it there")
    given = parser.parse_args()
    folder = Path(tempfile.mkdtemp(prefix="dither-faults-")) if given.keep is None else given.keep.absolute()
    folder.mkdir(parents=True, exist_ok=True)
    failed = 0
    try:
        whole = whole_run(folder, given.task)
        print(f"a run of {given.task} takes {whole.seconds:.2f} s\n")
        print(f"| {'fault':70} | trials | bad | seconds | |\n| {'-' * 70} | ---: | ---: | ---: | --- |")
        for name, case in rows(whole, folder, given.trials):
            if given.only and name not in given.only:
                continue
            began = time.monotonic()
            row = case()
            failed += len(row.bad)
            print(f"| {row.fault:70} | {row.trials} | {len(row.bad)} | {time.monotonic() - began:.0f} | {row.note} |")
            for line in row.bad[:10]:
                print("    " + line.replace("\n", "\n    "), file=sys.stderr)
            sys.stdout.flush()
    finally:
        if given.keep is None:
            shutil.rmtree(folder, ignore_errors=True)
    return bool(failed)


if __name__ == "__main__":
    sys.exit(main())
