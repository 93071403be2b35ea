"""Every task resumes; `python tests/faults/run.py` measures the fault matrix, a fast part of it with --quick."""

import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parent))

import fault_rows as rows
from fault_trial import TASKS, whole_run

pytestmark = pytest.mark.slow


def good(row):
    assert row.trials
    assert not row.bad, "\n".join(row.bad[:5])


@pytest.mark.parametrize("task", [task for task in TASKS if task != "toy"])
def test_every_task_resumes_bit_for_bit(task, tmp_path):
    """At the end of an epoch, with dropout, EMA, accumulated gradients, and async_save."""
    run = whole_run(tmp_path, task, " ".join(TASKS))
    good(rows.resumptions(run, tmp_path, ["boundary"]))
    good(rows.inside_saves(run, tmp_path, 2))
    if task == "region":
        good(rows.damaged_data(run, tmp_path / "data", ["bit flipped", "a pickle"]))
