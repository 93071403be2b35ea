"""Searches with Optuna: trials, pruning, damage, resume."""

import errno
import json
import os
import signal
import threading

import pytest

from dither.engine.sweeps import scheduler, search
from dither.engine.sweeps.directory import SweepDirectory, rows_of
from dither.engine.sweeps.launch import Settings, resume_sweep
from dither.engine.sweeps.search import Trials
from dither.registry.config.errors import Refused

SPACE = """
[sweep.search]
trials = 8
warmup = 100
[sweep.search.space]
"train.optimizer.lr" = { low = 0.01, high = 0.49 }
train.lr_schedule = ["cosine", { use = "linear", final = 0.5 }]
train.accumulate = { low = 1, high = 3 }
"""
SMALL = """
[sweep.search]
trials = 3
[sweep.search.space]
"train.optimizer.lr" = { low = 0.01, high = 0.49 }
"""
FULL = """
import json, sys
from pathlib import Path
(Path(sys.argv[1]) / "status.json").write_text(json.dumps({"state": "failed", "exit_code": 5}))
sys.exit(5)
"""
"""Stands for a run without disk space."""


@pytest.fixture
def searched(begin):
    """A search of three trials that has finished."""
    code, sweep = begin(text=SMALL)
    assert code == 0
    return sweep


def complete(sweep, console):
    """Whether the study counts every trial as complete."""
    return {trial.state.name for trial in Trials(sweep, console).study.trials} == {
        "COMPLETE"
    }


def more_trials(sweep, number):
    base = sweep.path / "base" / "experiment.toml"
    base.write_text(base.read_text().replace("trials = 3", f"trials = {number}"))


def test_a_search_runs_its_trials_and_lists_the_best_first(begin):
    code, sweep = begin(text=SPACE, jobs=3)
    assert code == 0
    rows = rows_of(sweep)
    assert [row["state"] for row in rows] == ["done"] * 8
    losses = [row["metrics"]["valid/loss"] for row in rows]
    assert losses == sorted(losses)
    assert {row["values"]["train.accumulate"] for row in rows} <= {1, 2}, (
        "3 does not divide the batch size 8"
    )
    assert (sweep.path / "journal.log").is_file()


@pytest.mark.slow
def test_a_stopped_search_is_resumed_to_its_number_of_trials(
    begin, console, monkeypatch, states
):
    monkeypatch.setenv("CHILD_SECONDS", "60")
    threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGTERM)).start()
    code, sweep = begin(text=SPACE, jobs=2)
    begun = {folder.name for folder in sweep.folders()}
    assert (code, states(sweep)) == (75, ["stopped", "stopped"])
    monkeypatch.setenv("CHILD_SECONDS", "0")
    assert resume_sweep(sweep.path, Settings(jobs=2), console) == 0
    assert states(sweep) == ["done"] * 8
    assert begun <= {folder.name for folder in sweep.folders()}


@pytest.mark.slow
def test_a_search_prunes_by_the_metric_of_the_run(begin, monkeypatch):
    monkeypatch.setenv("CHILD_SECONDS", "0.7")
    monkeypatch.setattr(scheduler, "PRUNE_SECONDS", 0.1)
    text = SPACE.replace("warmup = 100", "warmup = 1").replace(
        "low = 0.01, high = 0.49", "low = 0.3, high = 0.4"
    )
    code, sweep = begin(text=text.replace("trials = 8", "trials = 4"))
    losses = {"done": [], "pruned": []}
    for row in rows_of(sweep):
        losses[row["state"]].append(row["metrics"]["valid/loss"])
    assert code == 0
    assert min(losses["done"]) <= min(losses["pruned"])


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("low = 0.01, high = 0.49", "low = -1.0, high = 0.49"),
        ("low = 0.01, high = 0.49", "low = 0.5, high = 0.49"),
        ("low = 0.01, high = 0.49", "low = 0.0, high = 0.49, log = true"),
        ("low = 0.01, high = 0.49", "low = 0.01"),
        ("low = 1, high = 3", "low = 1, high = 3, step = 0.5"),
        ('"cosine"', '"cosinus"'),
        ("trials = 8", "trails = 8"),
        ("trials = 8", 'trials = 8\nmetric = "vaild/loss"'),
        ("[sweep.search]", "[sweep.grid]\nseed = [1]\n[sweep.search]"),
    ],
)
def test_an_invalid_search_is_refused_with_its_line(begin, tmp_path, old, new, refusal):
    assert old in SPACE
    assert refusal(begin, text=SPACE.replace(old, new)).problems[0].origin.line
    assert not (tmp_path / "runs").exists()


def test_an_incomplete_last_line_of_the_journal_is_dropped_and_other_damage_refused(
    searched, console, states, cli
):
    more_trials(searched, 5)
    journal = searched.path / "journal.log"
    with journal.open("ab") as file:
        file.write(b'{"op_code": 5, "worker_i')
    assert resume_sweep(searched.path, Settings(), console) == 0
    assert states(searched) == ["done"] * 5
    assert complete(searched, console)
    lines = journal.read_text().splitlines()
    lines[2] = lines[2][:10]
    journal.write_text("\n".join(lines) + "\n")
    assert "[damaged-file]" in cli("sweep", "--resume", str(searched.path), code=2).err


def test_the_lock_of_a_dead_process_is_taken_over(searched, console, monkeypatch):
    import optuna

    real = optuna.storages.journal.JournalFileOpenLock
    monkeypatch.setattr(
        optuna.storages.journal,
        "JournalFileOpenLock",
        lambda path: real(path, grace_period=1),
    )
    monkeypatch.setattr("optuna.storages.journal._file.optuna_warn", lambda text: None)
    monkeypatch.chdir(searched.path.parent)
    (searched.path / "journal.log.lock").touch()
    sweep = SweepDirectory.open(searched.path.relative_to(searched.path.parent))
    assert len(Trials(sweep, console).study.trials) == 3


def test_a_point_that_ends_after_its_search_was_killed_counts(searched, console):
    more_trials(searched, 4)
    trials = Trials(searched, console)
    folder = next(trials.points())
    run = folder.path / "20260101T000000Z-000000"
    run.mkdir()
    (run / "resolved.toml").touch()
    (run / "metrics.jsonl").write_text(
        json.dumps({"step": 3, "kind": "valid", "loss": -0.125}) + "\n"
    )
    folder.write_status("done", exit_code=0)
    again = Trials(searched, console)
    assert again.study.best_value == -0.125
    assert list(again.points()) == []
    assert trials.finish(folder, "done") == "done", (
        "the first process may report it as well"
    )


def test_points_without_disk_space_are_resumed_and_crashed_ones_count(
    searched, child, console, states, output
):
    more_trials(searched, 5)
    works = child.read_text()
    child.write_text(FULL)
    for _ in range(2):
        assert resume_sweep(searched.path, Settings(), console) == 1
        assert states(searched) == ["done"] * 3 + ["failed"] * 2
    assert "dither sweep --resume" in output()
    child.write_text(works)
    assert resume_sweep(searched.path, Settings(), console) == 0
    assert len(searched.folders()) == 5
    assert complete(searched, console)
    base = searched.path / "base" / "experiment.toml"
    base.write_text(base.read_text().replace("trials = 5", "trials = 6"))
    child.write_text("raise SystemExit(1)")
    assert resume_sweep(searched.path, Settings(), console) == 1
    child.write_text(works)
    assert resume_sweep(searched.path, Settings(), console) == 1
    assert states(searched) == ["done"] * 5 + ["failed"]


def test_a_search_without_disk_space_ends_with_5(
    searched, console, monkeypatch, output
):
    more_trials(searched, 4)

    def full(*_):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some/journal.log")

    def no_page(*_):
        raise Refused("report.html cannot be written")

    monkeypatch.setattr(SweepDirectory, "add", full)
    assert resume_sweep(searched.path, Settings(write_page=no_page), console) == 5
    for text in (
        "some/journal.log",
        "report.html cannot be written",
        "dither sweep --resume",
    ):
        assert text in output()


def test_a_misspelled_metric_ends_a_search_after_its_first_point(
    begin, tmp_path, console, states, refusal
):
    info = refusal(
        begin, text=SMALL.replace("trials = 3", 'trials = 3\nmetric = "valid/los"')
    )
    (path,) = (tmp_path / "runs").iterdir()
    sweep, base = SweepDirectory.open(path), path / "base" / "experiment.toml"
    (problem,) = info.problems
    assert problem.code == "unknown-metric"
    assert 'did you mean "valid/loss"' in problem.help
    assert f"{base}" in problem.message, "where to correct it"
    assert states(sweep) == ["done"]
    with pytest.raises(Refused):
        resume_sweep(path, Settings(), console)
    assert len(sweep.folders()) == 1, "it is refused before another point is started"
    base.write_text(base.read_text().replace("valid/los", "valid/loss"))
    assert resume_sweep(path, Settings(), console) == 0
    sweep = SweepDirectory.open(path)
    assert sweep.facts["search"]["metric"] == "valid/loss"
    assert len(sweep.folders()) == 3
    assert complete(sweep, console)


def test_a_point_that_ends_with_nan_has_no_value(begin, child, console, output):
    text = child.read_text()
    finite = "(lr - 0.3) ** 2"
    assert finite in text
    # Files of metrics have null for NaN and inf.
    child.write_text(text.replace(finite, f"None if step == 3 else {finite}"))
    _, sweep = begin(text=SMALL)
    trials = Trials(sweep, console).study.trials
    assert [trial.state.name for trial in trials] == ["FAIL"] * 3
    assert output().count("valid/loss is NaN or inf") == 3


def test_nan_does_not_prune_a_point(begin, console):
    _, sweep = begin(text=SMALL.replace("trials = 3", "trials = 3\nwarmup = 1"))
    more_trials(sweep, 4)
    trials = Trials(sweep, console)
    point = next(trials.points())
    with (point.path / "metrics.jsonl").open("w") as file:
        for step, loss in enumerate(["null", "1.0"], 1):
            line = f'{{"kind": "valid", "step": {step}, "loss": {loss}}}'
            print(line, file=file, flush=True)
            assert not trials.should_prune(point)
    assert trials.study.trials[-1].intermediate_values == {2: 1.0}


@pytest.mark.parametrize("text", ["{", "[]", "{}", '{"values": 3}'])
def test_a_damaged_point_has_no_values(tmp_path, text):
    (tmp_path / "001").mkdir()
    (tmp_path / "001/point.json").write_text(text)
    assert [
        folder.values
        for folder in SweepDirectory(
            tmp_path, {"search": SMALL, "points": []}
        ).folders()
    ] == [{}]


FINITE = """
[sweep.search]
trials = 9
sampler = "SAMPLER"
warmup = 100
[sweep.search.space]
SPACE
"""
SPACES = {
    '"train.optimizer.lr" = [0.1, 0.2]': 2,
    '"train.optimizer.lr" = { low = 0.1, high = 0.3, step = 0.1 }': 3,
    '"train.optimizer.lr" = { low = 0.2, high = 0.2 }': 1,
    'seed = { low = 1, high = 2 }\n"train.accumulate" = [1, 2]': 4,
    # A batch of 8 is not divisible by 3.
    '"train.accumulate" = [1, 3, 2]': 2,
    '"train.lr_schedule" = ["cosine", { use = "linear", final = 0.5 }]': 2,
}


@pytest.mark.parametrize(
    ("tried", "message"),
    [
        (2, "all 2 points of the search are invalid, such as train.accumulate = 5"),
        # A space of more points than are tried
        (1, "nearly all points are invalid"),
    ],
)
def test_a_search_without_valid_points_is_refused(begin, monkeypatch, tried, message):
    monkeypatch.setattr(search, "MAX_TRIED", tried)
    # A batch of 8 is not divisible by 3 or 5.
    text = FINITE.replace("SPACE", '"train.accumulate" = [3, 5]')
    with pytest.raises(Refused, match=message):
        begin(text=text.replace("SAMPLER", "random"))


@pytest.mark.slow
@pytest.mark.parametrize(("sampler", "jobs"), [("tpe", 1), ("random", 2)])
@pytest.mark.parametrize("space", SPACES)
def test_no_point_of_a_search_is_run_twice(
    begin, console, output, space, sampler, jobs
):
    text = FINITE.replace("SPACE", space).replace("SAMPLER", sampler)
    code, sweep = begin(text=text, jobs=jobs)
    assert code == 0, output()
    values = [json.dumps(folder.values) for folder in sweep.folders()]
    assert len(values) == len(set(values)) == SPACES[space]
    assert "points of the space are known" in output()
    log = (sweep.path / "log.txt").read_text()
    assert log.count("begin") == SPACES[space]

    # A second time on top, nothing is left to do.
    assert resume_sweep(sweep.path, Settings(jobs=jobs), console) == 0
    assert (sweep.path / "log.txt").read_text() == log


def test_a_large_discrete_space_gives_distinct_points(begin):
    space = "seed = { low = 1, high = 12 }"
    code, sweep = begin(text=FINITE.replace("SPACE", space).replace("SAMPLER", "tpe"))
    assert code == 0
    seeds = [folder.values["seed"] for folder in sweep.folders()]
    assert len(set(seeds)) == len(seeds) == 9
