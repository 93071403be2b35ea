"""The fault matrix, a part of it that is fast; `python tests/faults/run.py` is all of it, for every task."""

import shutil
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import fault_changes  # noqa: E402
import fault_crowds  # noqa: E402
import fault_disks  # noqa: E402
import fault_files  # noqa: E402
import fault_kills  # noqa: E402
import fault_numbers  # noqa: E402
import fault_signals  # noqa: E402
from fault_damages import DAMAGES  # noqa: E402
from fault_tasks import TASKS  # noqa: E402
from fault_trial import can_mount, whole_run  # noqa: E402

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    return whole_run(tmp_path_factory.mktemp("whole"), "toy", " ".join(TASKS))


def good(row):
    assert row.trials
    assert not row.bad, "\n".join(row.bad[:5])


@pytest.mark.parametrize("task", [task for task in TASKS if task != "toy"])
def test_every_task_goes_on_bit_for_bit(task, whole, tmp_path):
    """At the end of an epoch, with dropout, averaged weights, accumulated gradients, saved beside training."""
    one = whole_run(tmp_path, task)
    good(fault_kills.resumptions(one, tmp_path, ["boundary"]))
    good(fault_kills.inside_saves(one, tmp_path, 2))
    if task == "region":
        good(fault_files.learned_from(one, tmp_path / "data", ["bit flipped", "a pickle"]))


def test_kills_at_random_moments(whole, tmp_path):
    good(fault_kills.kills(whole, tmp_path, 2))
    good(fault_kills.inside_saves(whole, tmp_path, 2))
    good(fault_kills.resumptions(whole, tmp_path, ["first", "drawing"]))


def test_saved_beside_training_are_the_values_of_the_step(whole, tmp_path):
    good(fault_kills.overwritten(whole, tmp_path))


def test_kills_before_calls_to_the_disk(whole, tmp_path):
    count = fault_kills.count_points(whole, tmp_path)
    assert count > 80, "every save makes many"
    good(fault_kills.crash_points(whole, tmp_path, range(2, count, count // 4)))


@pytest.mark.skipif(not can_mount(), reason="a small disk cannot be mounted here")
def test_full_disks(whole, tmp_path):
    good(fault_disks.full_disks(whole, tmp_path, 3))


def test_files_that_may_not_be_larger(whole, tmp_path):
    good(fault_disks.largest_files(whole, tmp_path, 3))
    good(fault_disks.full_logs(whole, tmp_path))


def test_signals(whole, tmp_path):
    good(fault_signals.signals(whole, tmp_path, fault_signals.SIGNALS[:1]))
    good(fault_signals.second_signal(whole, tmp_path, fault_signals.SIGNALS[1:2]))


def test_a_command_is_complete_where_all_of_its_files_are_there(whole, tmp_path):
    def complete(name="run", out=b""):
        return fault_signals._complete(name, whole, tmp_path, out)

    assert not complete()
    run = Path(shutil.copytree(whole.path, tmp_path / "run"))
    assert complete()
    (run / "summary.json").unlink()
    assert not complete()
    shutil.copy(whole.path / "summary.json", run)
    shutil.rmtree(run / "samples")
    assert not complete()
    assert complete("evaluate", b"loss 1")
    assert not complete("evaluate")


def test_signals_to_commands_that_have_just_begun(whole, tmp_path):
    good(fault_signals.cold_signals(whole, tmp_path, fault_signals.SIGNALS[:1]))


def test_damages(whole, tmp_path):
    """Every file in one way, another one for each."""
    good(fault_files.damages(whole, tmp_path, DAMAGES, lambda name, number: number % 11 == 0))
    good(fault_files.flips(whole, tmp_path, 50))


def test_pickles_in_the_place_of_a_file(whole, tmp_path):
    """Every other file under one verb, another one for each."""
    good(fault_files.pickles(whole, tmp_path, lambda name, number: number % 15 == 0))


def test_several_processes_on_one_run(whole, tmp_path):
    good(fault_crowds.crowd(whole, tmp_path, 3))


def test_odd_places(whole, tmp_path):
    good(fault_crowds.places(whole, tmp_path, ["ünï \U0001f9ec\n[x] %s {0}"]))


def test_numbers_that_are_none(whole, tmp_path):
    good(fault_numbers.numbers(whole, tmp_path, ["loss nan", "gradient -inf"]))


def test_too_little_memory(whole, tmp_path):
    good(fault_numbers.needs(whole, tmp_path, [("torch", 7), ("numpy", 1), ("python", 0)]))


def test_other_settings(whole, tmp_path):
    good(fault_changes.settings(whole, tmp_path, slice(0, None, 4)))
    good(fault_changes.elsewhere(whole, tmp_path, ["capability", "optimizer"]))


def test_repeated_kills(whole, tmp_path):
    good(fault_kills.repeated_kills(whole, tmp_path, 2))
