"""A fast part of the fault matrix; `python tests/faults/run.py` measures all of it for every task."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fault_rows as rows
from fault_trial import TASKS, whole_run

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """An undisturbed run of the toy task."""
    return whole_run(tmp_path_factory.mktemp("whole"), "toy", " ".join(TASKS))


def good(row):
    assert row.trials
    assert not row.bad, "\n".join(row.bad[:5])


@pytest.mark.parametrize("task", [task for task in TASKS if task != "toy"])
def test_every_task_resumes_bit_for_bit(task, whole, tmp_path):
    """At the end of an epoch, with dropout, EMA, accumulated gradients, and async_save."""
    run = whole_run(tmp_path, task)
    good(rows.resumptions(run, tmp_path, ["boundary"]))
    good(rows.inside_saves(run, tmp_path, 2))
    if task == "region":
        good(rows.damaged_data(run, tmp_path / "data", ["bit flipped", "a pickle"]))


CASES = {
    "kills": lambda *given: rows.kills(*given, 2),
    "inside saves": lambda *given: rows.inside_saves(*given, 2),
    "resumptions": lambda *given: rows.resumptions(*given, ["first", "drawing"]),
    "crash points": lambda *given: rows.crash_points(*given, 4),
    "largest files": lambda *given: rows.largest_files(*given, 3),
    "full logs": rows.full_logs,
    "signals": lambda *given: rows.signals(*given, rows.SIGNALS[:1]),
    "second signal": lambda *given: rows.second_signal(*given, rows.SIGNALS[1:2]),
    "cold signals": lambda *given: rows.cold_signals(*given, rows.SIGNALS[:1]),
    "damages": lambda *given: rows.damages(*given, 11),
    "crowd": lambda *given: rows.crowd(*given, 3),
    "places": lambda *given: rows.places(*given, ["ünï \U0001f9ec\n[x] %s {0}"]),
    "numbers": lambda *given: rows.numbers(*given, ["loss nan", "gradient -inf"]),
    "settings": lambda *given: rows.settings(*given, slice(0, None, 4)),
}


@pytest.mark.parametrize("name", CASES)
def test_a_row(whole, tmp_path, name):
    good(CASES[name](whole, tmp_path))
