"""The fault matrix, a part of it that is fast; `python tests/faults/run.py` is all of it."""

import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
sys.path.insert(0, str(HERE))

import fault_cases as cases  # noqa: E402
from fault_damages import DAMAGES  # noqa: E402
from fault_trial import can_mount, whole_run  # noqa: E402


@pytest.fixture(scope="module")
def whole(tmp_path_factory):
    """A run that nothing happened to."""
    return whole_run(tmp_path_factory.mktemp("whole"))


def good(row):
    assert row.trials
    assert not row.bad, "\n".join(row.bad[:5])


def test_kills_at_random_moments(whole, tmp_path):
    good(cases.kills(whole, tmp_path, 4))


def test_kills_before_calls_to_the_disk(whole, tmp_path):
    count = cases.count_points(whole, tmp_path)
    assert count > 100, "every save makes many"
    good(cases.crash_points(whole, tmp_path, range(2, count, count // 4)))


@pytest.mark.slow
def test_kills_before_every_call_to_the_disk(whole, tmp_path):
    good(cases.crash_points(whole, tmp_path, range(1, cases.count_points(whole, tmp_path) + 1, 3)))
    good(cases.half_files(whole, tmp_path))


@pytest.mark.slow
@pytest.mark.skipif(not can_mount(), reason="a small disk cannot be mounted here")
def test_full_disks(whole, tmp_path):
    good(cases.full_disks(whole, tmp_path, 8))


def test_files_that_may_not_be_larger(whole, tmp_path):
    good(cases.largest_files(whole, tmp_path, 3))


def test_full_disks_of_logs(whole, tmp_path):
    good(cases.full_logs(whole, tmp_path))


def test_a_signal(whole, tmp_path):
    good(cases.signals(whole, tmp_path, cases.SIGNALS[:1]))


@pytest.mark.slow
def test_signals(whole, tmp_path):
    good(cases.signals(whole, tmp_path))
    good(cases.second_signal(whole, tmp_path))
    good(cases.cold_signals(whole, tmp_path))


def test_damages_of_a_file_each(whole, tmp_path):
    good(cases.damages(whole, tmp_path, ["bit flipped", "a pickle"], lambda name: "/" not in name))


@pytest.mark.slow
def test_damages(whole, tmp_path):
    good(cases.damages(whole, tmp_path, DAMAGES, lambda name: True))


def test_pickles_in_the_place_of_a_file(whole, tmp_path):
    good(cases.pickles(whole, tmp_path, lambda name: name in ("manifest.json", "scores.json", "resolved.toml")))


@pytest.mark.slow
def test_pickles(whole, tmp_path):
    good(cases.pickles(whole, tmp_path, lambda name: True))


def test_two_processes_on_one_run(whole, tmp_path):
    good(cases.crowd(whole, tmp_path, 2))


@pytest.mark.slow
def test_eight_processes_on_one_run(whole, tmp_path):
    good(cases.crowd(whole, tmp_path, 8))


@pytest.mark.slow
def test_odd_places(whole, tmp_path):
    good(cases.places(whole, tmp_path))


def test_numbers_that_are_none(whole, tmp_path):
    good(cases.numbers(whole, tmp_path))


@pytest.mark.slow
def test_too_little_memory(whole, tmp_path):
    good(cases.memories(whole, tmp_path))


def test_many_directories_at_once(tmp_path):
    good(cases.directories(tmp_path, 500))
