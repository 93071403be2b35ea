"""What a sweep and a search survive: killed processes, journals that were cut off, folders that are gone."""

import errno
import fcntl
import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading

import pytest

from dither.engine.cli import main
from dither.engine.runs.signals import SIGNALS
from dither.engine.sweeps import execution as cluster
from dither.engine.sweeps import launch as start
from dither.engine.sweeps import point_process as point_of_sweep
from dither.engine.sweeps import scheduler
from dither.engine.sweeps.directory import PointFolder, SweepDirectory
from dither.engine.sweeps.execution import Settings
from dither.engine.sweeps.launch import resume_sweep, start_sweep
from dither.engine.sweeps.summary import rows_of
from dither.registry.config.errors import Refused

CHILD = """
    import json, sys
    from pathlib import Path
    folder = Path([word for word in sys.argv[1:] if word != "--held"][0])
    run = folder / "20260101T000000Z-000000"
    run.mkdir(exist_ok=True)
    (run / "resolved.toml").write_text((folder / "experiment.toml").read_text())
    (run / "metrics.jsonl").write_text(json.dumps({"step": 3, "kind": "valid", "loss": 0.5}) + "\\n")
    (folder / "status.json").write_text(json.dumps({"state": "done", "exit_code": 0}))
"""
"""Stands for a run that is done at once, with a loss of 0.5."""

SEARCH = """
[sweep.search]
trials = 3
[sweep.search.space]
"train.optimizer.lr" = { low = 0.01, high = 0.49 }
"""


@pytest.fixture(autouse=True)
def _plugins(monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", "engine")


@pytest.fixture(autouse=True)
def child(tmp_path, monkeypatch):
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))
    monkeypatch.setattr(scheduler, "POINT_COMMAND", (sys.executable, "-S", str(script)))
    monkeypatch.setattr(scheduler, "PAUSE", 0.01)
    return script


@pytest.fixture
def begin(experiment_file, tmp_path, console):
    def started(*sweeps, **settings):
        code = start_sweep(experiment_file, (), (), sweeps, tmp_path / "runs", ["x"], Settings(**settings), console)
        (path,) = (tmp_path / "runs").iterdir()
        return code, SweepDirectory.open(path)

    return started


@pytest.fixture
def searched(begin, experiment_file):
    """A search that came to its end."""
    pytest.importorskip("optuna")
    experiment_file.write_text(experiment_file.read_text() + SEARCH)
    code, sweep = begin()
    assert code == 0
    return sweep


def trials_of(sweep, console):
    from dither.engine.config.load_experiment import open_experiment
    from dither.engine.sweeps.search import Trials

    return Trials(sweep, *open_experiment(sweep.path / "base" / "experiment.toml"), console)


def more_trials(sweep, number):
    """Raise the number of trials of a search."""
    base = sweep.path / "base" / "experiment.toml"
    base.write_text(base.read_text().replace("trials = 3", f"trials = {number}"))


def test_a_journal_that_was_cut_off_goes_on(searched, console):
    more_trials(searched, 5)
    with (searched.path / "journal.log").open("ab") as file:
        file.write(b'{"op_code": 5, "worker_i')
    assert resume_sweep(searched.path, Settings(), console) == 0
    assert [row["state"] for row in rows_of(searched)] == ["done"] * 5
    states = {trial.state.name for trial in trials_of(searched, console).study.trials}
    assert states == {"COMPLETE"}


def test_a_damaged_journal_is_refused_with_its_line(searched, capsys):
    journal = searched.path / "journal.log"
    lines = journal.read_text().splitlines()
    lines[2] = lines[2][:10]
    journal.write_text("\n".join(lines) + "\n")
    assert main(["sweep", "--resume", str(searched.path)]) == 2
    said = capsys.readouterr().err
    assert f"{journal} is damaged: line 3" in said.replace("\n", "")
    assert "Traceback" not in said


def test_a_lock_of_the_dead_is_taken_over(searched, console, monkeypatch):
    """Optuna's usual lock hangs for ever where the path is relative, as that of a sweep is."""
    import optuna

    usual = optuna.storages.journal.JournalFileOpenLock
    monkeypatch.setattr(optuna.storages.journal, "JournalFileOpenLock", lambda path: usual(path, grace_period=1))
    monkeypatch.setattr("optuna.storages.journal._file.optuna_warn", lambda text: None)
    monkeypatch.chdir(searched.path.parent)
    (searched.path / "journal.log.lock").touch()
    sweep = SweepDirectory.open(searched.path.relative_to(searched.path.parent))
    assert len(trials_of(sweep, console).study.trials) == 3


def test_a_point_that_ended_after_its_search_was_killed_counts(searched, console):
    more_trials(searched, 4)
    trials = trials_of(searched, console)
    folder = trials.take()
    run = folder.path / "20260101T000000Z-000000"
    run.mkdir()
    (run / "resolved.toml").touch()
    (run / "metrics.jsonl").write_text(json.dumps({"step": 3, "kind": "valid", "loss": 0.125}) + "\n")
    folder.write_status("done", exit_code=0)
    again = trials_of(searched, console)
    assert again.best() == (folder.name, 0.125)
    assert again.take() is None
    assert trials.settle(folder, "done") == "done", "the one that was thought dead may settle it, too"


def test_a_point_whose_status_is_damaged_is_what_the_journal_says(searched, console):
    point = searched.folders()[1]
    (point.path / "status.json").write_text('{"sta')
    assert point.status()["state"] == "lost"
    assert resume_sweep(searched.path, Settings(), console) == 0
    assert [folder.status()["state"] for folder in searched.folders()] == ["done"] * 3


def test_a_folder_that_is_gone_stops_no_other_point(begin, console):
    _, sweep = begin("train.optimizer.lr=[0.1, 0.2, 0.3]")
    for folder in sweep.folders():
        folder.write_status("waiting")
    shutil.rmtree(sweep.folders()[0].path)
    assert resume_sweep(sweep.path, Settings(), console) == 1
    assert [folder.status()["state"] for folder in sweep.folders()] == ["waiting", "done", "done"]
    assert "failed       0-lr=0.1: its folder cannot be used" in console.export_text()


@pytest.fixture
def crowded(monkeypatch):
    """Let no process be started for points whose folder has a word in its name, so many times."""
    usual = scheduler.subprocess.Popen

    def crowded(word, times, number=errno.EAGAIN):
        left = iter(range(times))

        def begun(command, **options):
            if word in command[-1] and next(left, None) is not None:
                raise OSError(number, os.strerror(number))
            return usual(command, **options)

        monkeypatch.setattr(scheduler.subprocess, "Popen", begun)
        monkeypatch.setattr(scheduler, "PATIENCE", 0.1)

    return crowded


def waiting(sweep):
    for folder in sweep.folders():
        folder.write_status("waiting")
    return sweep


@pytest.mark.parametrize("number", [errno.EAGAIN, errno.ENOMEM, errno.EMFILE, errno.ENOSPC])
@pytest.mark.parametrize("jobs", [1, 2])
def test_a_point_that_cannot_be_started_fails_and_the_others_go_on(begin, console, crowded, number, jobs):
    _, sweep = begin("train.optimizer.lr=[0.1, 0.2, 0.3]")
    crowded("lr=0.2", 10**6, number)
    assert resume_sweep(waiting(sweep).path, Settings(jobs=jobs), console) == 1
    assert [folder.status()["state"] for folder in sweep.folders()] == ["done", "failed", "done"]
    reason = sweep.folders()[1].status()["reason"]
    assert reason == f"no process can be started: {os.strerror(number)}"
    assert reason in console.export_text()
    crowded("lr=0.2", 0)
    assert resume_sweep(sweep.path, Settings(), console) == 0


def test_where_there_is_no_room_for_a_process_a_point_is_tried_again(begin, console, crowded):
    _, sweep = begin("train.optimizer.lr=[0.1, 0.2, 0.3]")
    crowded("lr=", 4)
    assert resume_sweep(waiting(sweep).path, Settings(jobs=2), console) == 0
    assert [folder.status()["state"] for folder in sweep.folders()] == ["done"] * 3
    assert console.export_text().count("put off") == 1


def test_every_point_that_cannot_be_started_is_tried_again_for_a_while(begin, console, monkeypatch):
    _, sweep = begin("train.optimizer.lr=[0.1, 0.2]")
    usual, left = scheduler.subprocess.Popen, iter(range(3))

    def begun(command, **options):
        if "lr=0.1" in command[-1] or next(left, None) is not None:
            raise OSError(errno.EAGAIN, os.strerror(errno.EAGAIN))
        return usual(command, **options)

    monkeypatch.setattr(scheduler.subprocess, "Popen", begun)
    monkeypatch.setattr(scheduler, "PATIENCE", 0.2)
    assert resume_sweep(waiting(sweep).path, Settings(), console) == 1
    assert [folder.status()["state"] for folder in sweep.folders()] == ["failed", "done"]


def test_a_trial_that_cannot_be_started_stays_open(searched, console, crowded):
    more_trials(searched, 5)
    crowded("/3-", 10**6)
    assert resume_sweep(searched.path, Settings(), console) == 1
    assert [folder.status()["state"] for folder in searched.folders()] == ["done", "done", "done", "stopped", "done"]
    crowded("/3-", 0)
    assert resume_sweep(searched.path, Settings(), console) == 0
    assert {trial.state.name for trial in trials_of(searched, console).study.trials} == {"COMPLETE"}


def test_a_status_that_cannot_be_written_stops_no_other_point(begin, child, console, monkeypatch):
    """As on a full disk: the process could not say how it ended, nor can the sweep."""
    _, sweep = begin("train.optimizer.lr=[0.1, 0.2]")
    child.write_text("import sys\nif 'lr=0.1' in sys.argv[-1]: sys.exit(1)\n" + child.read_text())
    usual = PointFolder.write_status

    def full(self, state, **facts):
        if "lr=0.1" in self.name:
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        usual(self, state, **facts)

    waiting(sweep)
    monkeypatch.setattr(PointFolder, "write_status", full)
    assert resume_sweep(sweep.path, Settings(), console) == 1
    assert "status.json of 0-lr=0.1 cannot be written: No space left on device" in console.export_text()
    assert sweep.folders()[1].status()["state"] == "done"


def test_a_point_without_space_for_its_status_ends_with_5_and_a_line(tmp_path, monkeypatch, capfd):
    def full(self, state, **facts):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(PointFolder, "write_status", full)
    assert point_of_sweep.run_point(tmp_path) == 5
    assert capfd.readouterr().err == "stopped: [Errno 28] No space left on device\n"


def test_a_point_that_is_done_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(point_of_sweep, "_run", lambda *given: pytest.fail("it runs"))
    PointFolder(tmp_path, {}).write_status("done", exit_code=0)
    assert point_of_sweep.run_point(tmp_path) == 0


@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # submitit's
def test_the_debug_executor_runs_every_point_here_until_one_is_stopped(begin, console, monkeypatch):
    pytest.importorskip("submitit")
    codes = iter([0, 4, 75])

    def runs(point, select, trust):
        os.write(1, b"it runs\n")
        assert (trust, select) == (True, [])
        return next(codes)

    monkeypatch.setattr(point_of_sweep, "_run", runs)
    code, sweep = begin("seed=[1, 2, 3, 4]", executor="debug")
    assert code == 1
    assert [folder.status()["state"] for folder in sweep.folders()] == ["done", "failed", "stopped", "waiting"]
    assert [(folder.path / "output.txt").exists() for folder in sweep.folders()] == [True, True, True, False]
    assert (sweep.folders()[0].path / "output.txt").read_text() == "it runs\n"
    assert f"--resume {sweep.path}" in console.export_text().replace("\n", "")


def test_a_job_stops_its_run_at_the_signal_of_a_cluster_and_is_no_success(tmp_path, monkeypatch):
    """submitit's own handler, which ends a job or has it requeued, must not be what the signal finds."""

    def warned(*given):
        signal.raise_signal(signal.SIGUSR2)

    monkeypatch.setattr(point_of_sweep, "_run", warned)
    former = signal.signal(signal.SIGUSR2, lambda *given: pytest.fail("submitit is asked"))
    try:
        with pytest.raises(RuntimeError, match="stopped"):
            point_of_sweep.run_job(str(tmp_path), [])
    finally:
        signal.signal(signal.SIGUSR2, former)
    assert PointFolder(tmp_path, {}).status()["exit_code"] == 75
    monkeypatch.setattr(point_of_sweep, "_run", lambda *given: 0)
    assert point_of_sweep.run_job(str(tmp_path), []) is None
    lock = PointFolder(tmp_path, {}).claim()
    with pytest.raises(RuntimeError, match="another process works on it"):
        point_of_sweep.run_job(str(tmp_path), [])
    os.close(lock)


def test_a_point_that_is_worked_on_is_not_submitted_again(begin, monkeypatch):
    pytest.importorskip("submitit")
    _, sweep = begin("seed=[1, 2]")
    first, second = waiting(sweep).folders()
    lock = first.claim()
    first.write_status("running")
    asked = []
    monkeypatch.setattr(cluster, "run_job", lambda folder, select: asked.append(folder))
    assert len(cluster.submit_points(sweep, "debug")) == 1
    assert asked == [str(second.path)]
    os.close(lock)
    second.write_status("done")
    first.write_status("done")
    assert cluster.submit_points(sweep, "debug") == []


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (("timeout_min=0.2",), "timeout_min: expected whole minutes, at least 1, got 0.2"),
        (("timeout_min=0",), "at least 1, got 0"),
        (("gpus_per_node=many",), "gpus_per_node"),
        (("nonsense_x=1",), "nonsense"),
    ],
)
def test_what_submitit_refuses_is_refused_before_anything_is_made(begin, tmp_path, options, said):
    pytest.importorskip("submitit")
    with pytest.raises(Refused, match=said):
        begin("seed=[1, 2]", executor="local", options=options)
    assert not (tmp_path / "runs").exists()


def test_what_submitit_is_told_is_checked_before_anything_is_made(begin, tmp_path):
    with pytest.raises(Refused, match="--job nonsense: expected key=value"):
        begin("seed=[1, 2]", executor="local", options=("nonsense",))
    assert not (tmp_path / "runs").exists()


def test_figures_that_nothing_has_are_refused_with_the_nearest_name(begin, capsys):
    _, sweep = begin("train.optimizer.lr=[0.1, 0.2]")
    assert main(["sweep", "status", str(sweep.path), "--sort", "valid/los"]) == 2
    assert 'did you mean "valid/loss"' in capsys.readouterr().err
    assert main(["sweep", "status", str(sweep.path), "--sort", "train.optimizer.lr", "--csv"]) == 0
    assert [line.split(",")[1] for line in capsys.readouterr().out.splitlines()] == ["state", "done", "done"]


def test_runs_of_a_sweep_are_listed_and_a_sweep_is_named_among_runs(begin, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # which would fold the names
    _, sweep = begin("train.optimizer.lr=[0.1, 0.2]")
    assert main(["runs", "list", str(sweep.path.parent)]) == 0
    assert f"{sweep.path.name}  sweep exp: 2 done" in capsys.readouterr().out
    assert main(["runs", "list", str(sweep.path)]) == 0
    said = capsys.readouterr().out
    assert "0-lr=0.1/20260101T000000Z-000000  experiment" in said
    assert main(["runs", "list", str(sweep.path), "--figure", "valid/nothing"]) == 0, "nothing was summed up yet"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (["evaluate", "runs/sweeq"], 'did you mean "runs/sweep"'),
        (["runs", "verify", "runs/sweep"], "it is a sweep: dither sweep status"),
        (["report", "runs/file"], "it is a file"),
        (["sample", "runs/sweep/0-x"], "its run is runs/sweep/0-x/a"),
        (["sweep", "status", "runs/sweep/0-x/a"], "it is a run: dither run --resume runs/sweep/0-x/a"),
        (["sweep", "status", "runs"], "its sweep is runs/sweep"),
        (["sweep", "--resume", "runs/sweeq"], 'did you mean "runs/sweep"'),
        (["diff", "runs/sweep/0-x/b", "runs/sweep/0-x/a"], "it does not exist"),
    ],
)
def test_another_folder_is_told_for_what_it_is(words, said, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/sweep/0-x/a").mkdir(parents=True)
    (tmp_path / "runs/sweep/sweep.json").touch()
    (tmp_path / "runs/sweep/0-x/a/resolved.toml").touch()
    (tmp_path / "runs/file").touch()
    assert main(words) == 2
    assert said in " ".join(capsys.readouterr().err.split())


FULL = """
    import json, sys
    from pathlib import Path
    folder = Path([word for word in sys.argv[1:] if word != "--held"][0])
    (folder / "status.json").write_text(json.dumps({"state": "failed", "exit_code": 5}))
    sys.exit(5)
"""
"""Stands for a run that finds no space."""


def flat(console):
    return " ".join(console.export_text().split())


def test_points_of_a_search_without_space_are_taken_up_again(searched, child, console):
    more_trials(searched, 5)
    good = child.read_text()
    child.write_text(textwrap.dedent(FULL))
    assert resume_sweep(searched.path, Settings(), console) == 1
    assert [folder.status()["state"] for folder in searched.folders()] == ["done"] * 3 + ["failed"] * 2
    said = console.export_text().replace("\n", "")
    assert f"make room, then go on with what is unfinished: dither sweep --resume {searched.path}" in said
    assert resume_sweep(searched.path, Settings(), console) == 1, "there is still no space"
    child.write_text(good)
    assert resume_sweep(searched.path, Settings(), console) == 0
    assert len(searched.folders()) == 5
    assert {trial.state.name for trial in trials_of(searched, console).study.trials} == {"COMPLETE"}


def test_a_trial_whose_end_nobody_could_write_down_stays_open(searched, child, console, monkeypatch):
    more_trials(searched, 4)
    good = child.read_text()
    child.write_text("raise SystemExit(5)")
    monkeypatch.setattr(scheduler._Work, "_write", lambda *given, **facts: None)
    assert resume_sweep(searched.path, Settings(), console) == 1
    child.write_text(good)
    assert resume_sweep(searched.path, Settings(), console) == 0
    assert {trial.state.name for trial in trials_of(searched, console).study.trials} == {"COMPLETE"}


def test_a_point_that_failed_by_itself_counts_and_a_search_says_so_at_every_end(searched, child, console):
    more_trials(searched, 4)
    good = child.read_text()
    child.write_text("raise SystemExit(1)")
    assert resume_sweep(searched.path, Settings(), console) == 1
    child.write_text(good)
    assert resume_sweep(searched.path, Settings(), console) == 1
    assert [folder.status()["state"] for folder in searched.folders()] == ["done"] * 3 + ["failed"]
    assert "go on with" not in flat(console), "there is nothing to go on with"


def test_a_search_that_finds_no_space_itself_stops_its_points_and_says_how_to_go_on(searched, console, monkeypatch):
    more_trials(searched, 4)

    def full(*given):
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), "some/journal.log")

    def broken(sweep):
        raise Refused("report.html cannot be written")

    with monkeypatch.context() as patched:
        patched.setattr(SweepDirectory, "add", full)
        patched.setattr("dither.engine.sweeps.launch.write_summary", broken)
        assert resume_sweep(searched.path, Settings(), console) == 5
    said = console.export_text().replace("\n", "")
    assert "stopped: [Errno 28] No space left on device: 'some/journal.log'" in said
    assert "report.html cannot be written" in said
    assert said.endswith(f"make room, then go on with what is unfinished: dither sweep --resume {searched.path}")


def test_a_misspelt_metric_ends_a_search_after_its_first_point_and_a_corrected_one_goes_on(
    begin, experiment_file, tmp_path, console
):
    pytest.importorskip("optuna")
    experiment_file.write_text(
        experiment_file.read_text() + SEARCH.replace("trials = 3", 'trials = 3\nmetric = "valid/los"')
    )
    with pytest.raises(Refused) as refused:
        begin()
    (path,) = (tmp_path / "runs").iterdir()
    sweep = SweepDirectory.open(path)
    (problem,) = refused.value.problems
    assert 'no figure "valid/los"' in problem.message
    assert 'did you mean "valid/loss"' in problem.help
    base = path / "base" / "experiment.toml"
    assert f"{base}" in problem.help
    assert f"dither sweep --resume {path}" in problem.help
    (folder,) = sweep.folders()
    assert folder.status()["state"] == "done"
    with pytest.raises(Refused, match="valid/los"):
        resume_sweep(path, Settings(), console)
    assert len(sweep.folders()) == 1, "it is refused before another point is begun"
    base.write_text(base.read_text().replace("valid/los", "valid/loss"))
    assert resume_sweep(path, Settings(), console) == 0
    sweep = SweepDirectory.open(path)
    assert sweep.facts["search"]["metric"] == "valid/loss"
    assert {trial.state.name for trial in trials_of(sweep, console).study.trials} == {"COMPLETE"}
    assert len(sweep.folders()) == 3


def test_points_beside_one_that_ends_the_sweep_are_stopped_and_waited_for(begin, child, console):
    _, sweep = begin("seed=[1]")
    child.write_text(
        "import time, signal, sys\nsignal.signal(15, lambda *given: (time.sleep(0.2), sys.exit(75)))\n"
        "if 'seed=1' not in sys.argv[-1]: time.sleep(60)\n" + child.read_text()
    )

    class Broken(scheduler.Listed):
        def settle(self, point, state):
            if point.name.endswith("seed=1"):
                raise Refused("it ends here")
            return state

    folders = [sweep.path / name for name in ("a-seed=1", "b-seed=2", "c-seed=3")]
    for folder in folders:
        folder.mkdir()
        shutil.copy(sweep.folders()[0].path / "experiment.toml", folder)
    points = [PointFolder(folder, {}) for folder in folders]
    with pytest.raises(Refused, match="it ends here"):
        scheduler.run_points(Broken(points), 2, console)
    assert [point.status()["state"] for point in points] == ["done", "stopped", "waiting"]


def test_a_kind_of_figures_that_there_is_not_is_refused_at_once(begin, experiment_file, tmp_path):
    pytest.importorskip("optuna")
    experiment_file.write_text(
        experiment_file.read_text() + SEARCH.replace("trials = 3", 'trials = 3\nmetric = "vaild/loss"')
    )
    with pytest.raises(Refused) as refused:
        begin()
    (problem,) = refused.value.problems
    assert 'did you mean "valid/loss"' in problem.help
    assert problem.origin.line
    assert not (tmp_path / "runs").exists()


def test_a_sweep_is_not_all_done_while_another_process_works_on_a_point(begin, console):
    _, sweep = begin("seed=[1, 2]")
    first, second = waiting(sweep).folders()
    lock = first.claim()
    first.write_status("running")
    assert resume_sweep(sweep.path, Settings(), console) == 75
    assert second.status()["state"] == "done"
    assert "another process still works on 1 of them" in flat(console)
    os.close(lock)
    assert resume_sweep(sweep.path, Settings(), console) == 0


def test_a_look_whether_a_point_is_held_is_in_nobodys_way(tmp_path):
    point = PointFolder(tmp_path, {})
    look = point._lock(fcntl.LOCK_SH)
    assert not point.held(), "others may look at the same time"
    threading.Timer(0.02, os.close, (look,)).start()
    lock = point.claim()
    assert lock is not None
    assert point.held()
    assert point.claim() is None
    os.close(lock)


def test_a_closed_terminal_asks_a_sweep_to_stop_once_however_often_it_is_said(console, monkeypatch):
    work = scheduler._Work(scheduler.Listed([]), 1, (), True, console)
    monkeypatch.setattr(scheduler, "heeded", lambda: SIGNALS)  # also where these tests run under nohup
    with scheduler._signals(work):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert (work.asked, work.signalled) == (1, True)
        signal.raise_signal(signal.SIGUSR2)
        assert work.asked == 2


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="there is no /dev/full here")
def test_a_point_that_can_print_nothing_keeps_its_exit_code(tmp_path):
    """Its status cannot be written, nor can it say so, as on a disk that is full to the last byte."""
    (tmp_path / "status.json").mkdir()
    text = f"""
        import errno, os, sys
        from dither.engine.sweep import point
        def full(*given, **facts):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        point.PointFolder.write_status = full
        sys.exit(point.main([{str(tmp_path)!r}]))
    """
    with open("/dev/full", "w") as output:
        command = [sys.executable, "-c", textwrap.dedent(text)]
        assert subprocess.run(command, stdout=output, stderr=output, check=False).returncode == 5


def test_processes_that_share_a_search_end_one_after_the_other(begin, console, experiment_file):
    pytest.importorskip("optuna")
    experiment_file.write_text(experiment_file.read_text() + SEARCH)
    _, sweep = begin()
    first = sweep.folders()[0]
    lock = first.claim()
    first.write_status("running")
    assert start._next(sweep, 0, console) == 0
    assert "another process still works on 1 of them" in flat(console)
    os.close(lock)
