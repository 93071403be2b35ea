"""Sweeps: points, validation, processes, summary, cluster."""

import json
import os
import shutil
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.launch import run
from dither.engine.runs.signals import SIGNALS
from dither.engine.sweeps import cluster, point_process, scheduler
from dither.engine.sweeps.directory import PointFolder, SweepDirectory
from dither.engine.sweeps.execution import Settings
from dither.engine.sweeps.launch import load_sweep, resume_sweep
from dither.engine.sweeps.points import short_keys
from dither.engine.sweeps.scheduler import PointList, run_points
from dither.engine.sweeps.summary import as_csv, rows_of
from dither.registry.config.errors import Refused

LR = "train.optimizer.lr"
SUBMITIT = pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")


def states(sweep):
    return [folder.status()["state"] for folder in sweep.folders()]


def output(console):
    """Return everything printed so far, on one line."""
    return " ".join(console.export_text(clear=False).split())


@pytest.fixture
def points(experiment_file):
    """Add text to the experiment, and return its points."""

    def read(text="", **arguments):
        experiment_file.write_text(experiment_file.read_text() + textwrap.dedent(text))
        return load_sweep(experiment_file, **arguments)

    return read


def problems_of(work):
    with pytest.raises(Refused) as info:
        work()
    return info.value.problems


# points


def test_grids_are_crossed_and_zipped_lists_advance_together(points):
    found = points("""
        [sweep.grid]
        "train.optimizer.lr" = [1e-4, 3e-4]
        [sweep.grid.train]
        ema = [0.5]
        [[sweep.zip]]
        seed = [1, 2, 3]
        train.batch_size = [8, 16, 32]
    """)
    experiments = [loaded.experiment for _, loaded in found]
    values = [(e.train.optimizer.lr, e.train.ema, e.seed, e.train.batch_size) for e in experiments]
    assert values == [(lr, 0.5, seed, size) for lr in (1e-4, 3e-4) for seed, size in ((1, 8), (2, 16), (3, 32))]
    assert found[0][0].name == "0-seed=1,ema=0.5,batch_size=8,lr=0.0001"
    assert experiments[0].sweep is None


def test_command_line_values_join_the_grid(points):
    found = points("\n[sweep.grid]\nseed = [1, 2]\n", sweeps=["train.ema=[0.1, 0.2]", "seed=[7]"])
    assert [point.by_key for point, _ in found] == [{"seed": 7, "train.ema": 0.1}, {"seed": 7, "train.ema": 0.2}]


def test_a_component_is_set_before_its_options(points):
    found = points(sweeps=["train.lr_schedule.warmup=[5]", "train.lr_schedule=['linear', {use='cosine', final=0.5}]"])
    schedules = [loaded.experiment.train.lr_schedule for _, loaded in found]
    assert [(s.name, s.warmup) for s in schedules] == [("linear", 5), ("cosine", 5)]
    assert schedules[1].final == 0.5
    assert found[1][0].name == "1-lr_schedule=cosine+final=0.5,warmup=5"


def test_short_keys_are_unique():
    assert short_keys([("a", "lr"), ("b", "lr"), ("lr",), ("seed",)]) == ["a.lr", "b.lr", "lr", "seed"]


def test_every_problem_of_the_table_is_reported_with_its_line(points, experiment_file):
    problems = problems_of(
        lambda: points("""
        [sweep.grid]
        seed = 3
        plugins = [["a"]]
        "train.ema" = []
        "train.steps" = [1, 2]
        [[sweep.zip]]
        train.steps = [1, 2, 3]
        train.batch_size = [8, 16]
    """)
    )
    lines = experiment_file.read_text().splitlines()
    assert {(problem.code, lines[problem.origin.line - 1].partition(" =")[0]) for problem in problems} == {
        ("wrong-type", "seed"),
        ("invalid-value", "plugins"),
        ("out-of-range", '"train.ema"'),
        ("misfit", "[[sweep.zip]]"),
        ("duplicate", "train.steps"),
    }


@pytest.mark.parametrize("table", ["[sweep.gird]\nseed = [1]", "sweep = 3", "[sweep]\ngrid = [1]"])
def test_malformed_tables_are_refused(experiment_file, table):
    text = experiment_file.read_text()
    experiment_file.write_text(f"{text}\n{table}\n" if table[0] == "[" else f"{table}\n{text}")
    (problem,) = problems_of(lambda: load_sweep(experiment_file))
    assert problem.path[0] == "sweep"
    assert problem.origin.line


def test_a_missing_and_an_oversized_sweep_are_refused(points):
    assert [problem.code for problem in problems_of(points)] == ["missing-key"]
    many = str(list(range(200)))
    assert problems_of(lambda: points(sweeps=[f"seed={many}", f"sample.seed={many}"]))[0].code == "too-large"


def test_every_invalid_point_is_listed_at_the_line_of_its_value(points, experiment_file, tmp_path):
    text = """
        [sweep.grid]
        "train.batch_size" = [8, 7]
        "train.optimizer.lr" = [
            0.1,
            -1.0,
        ]
    """
    problems = {problem.path: problem for problem in problems_of(lambda: points(text))}
    assert len(problems) == 2
    rate = problems["train", "optimizer", "lr"]
    assert experiment_file.read_text().splitlines()[rate.origin.line - 1].strip() == "-1.0,"
    assert "2 of 4 points" in rate.help
    assert "point 1: train.batch_size = 8, train.optimizer.lr = -1" in rate.help
    assert "point 2: train.batch_size = 7, train.optimizer.lr = 0.1" in problems["train", "accumulate"].help
    assert not (tmp_path / "runs").exists()


def test_a_problem_of_many_points_lists_the_first_ones(points):
    (problem,) = problems_of(lambda: points(sweeps=["train.batch_size=[7]", f"seed={list(range(50))}"]))
    assert problem.help.splitlines()[-1] == "  and 30 more"


def test_nothing_starts_if_one_point_is_invalid(begin, tmp_path):
    assert problems_of(lambda: begin(f"{LR}=[0.1, 'x']"))
    assert not (tmp_path / "runs").exists()


def test_three_hundred_points_are_validated_quickly(points):
    started = time.process_time()
    assert len(points(sweeps=[f"seed={list(range(150))}", "train.ema=[0.1, 0.2]"])) == 300
    assert time.process_time() - started < 5


@pytest.mark.parametrize(
    "sweep",
    ["train.keep_every=[10, 12]", "train.checkpoint_every=[5, 7]", "train.gather=['float32', 'bfloat16']",
     "train.start_layout=['get']", "sample.cond.nothing=[1]", "train.accumulate=[1, 3]"],
)  # fmt: skip
def test_compatibility_is_checked_at_every_point(points, sweep):
    key = tuple(sweep.partition("=")[0].split("."))
    problems = problems_of(lambda: points(sweeps=[sweep, "seed=[1, 2]"], changes=["train.keep_every=10"]))
    assert any(problem.path[:1] == key[:1] for problem in problems)


def test_run_refuses_a_sweep(experiment_file, capsys):
    experiment_file.write_text(experiment_file.read_text() + "[sweep.grid]\nseed = [1]\n")
    assert main(["run", str(experiment_file)]) == 2
    assert f"dither sweep {experiment_file}" in capsys.readouterr().err


# processes


def test_points_run_in_parallel_and_a_failure_stops_no_other(begin, monkeypatch):
    monkeypatch.setenv("CHILD_SECONDS", "0.05")
    code, sweep = begin(f"{LR}=[0.1, 0.5, 0.2, 0.3, 0.4]", jobs=2)
    assert code == 1
    running = most = 0
    for line in (sweep.path / "log.txt").read_text().splitlines():
        running += 1 if line.startswith("begin") else -1
        most = max(most, running)
    assert most in (2, 3)  # the crashed point never logged its end
    assert states(sweep) == ["done", "failed", "done", "done", "done"]
    assert sweep.folders()[1].status()["exit_code"] == 9


def test_with_stop_a_failure_ends_the_sweep_and_it_can_be_resumed(begin, console):
    code, sweep = begin(f"{LR}=[0.5, 0.1, 0.2]", keep_going=False)
    assert (code, states(sweep)) == (1, ["failed", "waiting", "waiting"])
    resume_sweep(sweep.path, Settings(), console)
    assert states(sweep) == ["failed", "done", "done"]


def test_a_signal_stops_every_point_and_resume_runs_the_unfinished(begin, console, monkeypatch):
    monkeypatch.setenv("CHILD_SECONDS", "60")
    handler = signal.getsignal(signal.SIGINT)  # ignored if the tests run in the background
    threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT)).start()
    started = time.monotonic()
    code, sweep = begin(f"{LR}=[0.1, 0.2, 0.3]", jobs=2)
    assert (code, states(sweep)) == (75, ["stopped", "stopped", "waiting"])
    assert time.monotonic() - started < 20
    assert signal.getsignal(signal.SIGINT) is handler, "handlers are restored"
    monkeypatch.setenv("CHILD_SECONDS", "0")
    sweep.folders()[0].write_status("done", exit_code=0)
    (sweep.path / "log.txt").unlink()
    assert resume_sweep(sweep.path, Settings(), console) == 0
    begun = [line for line in (sweep.path / "log.txt").read_text().splitlines() if line.startswith("begin")]
    assert [line.split("-")[0] for line in begun] == ["begin 1", "begin 2"]


def test_sighup_counts_once(console, monkeypatch):
    pool = scheduler._Pool(PointList([]), 1, (), True, console)
    monkeypatch.setattr(scheduler, "stop_signals", lambda: SIGNALS)  # also if the tests run under nohup
    with scheduler._signals(pool):
        signal.raise_signal(signal.SIGHUP)
        signal.raise_signal(signal.SIGHUP)
        assert (pool.stop_requests, pool.signalled) == (1, True)
        signal.raise_signal(signal.SIGUSR2)
        assert pool.stop_requests == 2


def test_a_locked_point_is_skipped(begin, console):
    _, sweep = begin(f"{LR}=[0.5, 0.1]")
    point = sweep.folders()[0]
    with point.claim():
        assert point.held()
        assert point.claim() is None
        assert run_points(PointList(sweep.folders()), 1, console) == 0
    assert not point.held()
    assert "skipped 0-lr=0.5" in output(console)


def test_a_point_that_another_process_locks_meanwhile_is_skipped(begin, child, console):
    _, sweep = begin("seed=[1]")
    sweep.folders()[0].write_status("waiting")
    child.write_text("raise SystemExit(11)")
    assert run_points(PointList(sweep.folders()), 1, console) == 0
    assert states(sweep) == ["waiting"]


def test_a_check_whether_a_point_is_locked_does_not_prevent_locking(tmp_path):
    point = PointFolder(tmp_path, {})
    checking = point.claim()
    threading.Timer(0.02, checking.release).start()
    lock = point.claim()
    assert lock is not None
    assert point.held()
    lock.release()


def test_a_running_point_without_a_process_is_lost(tmp_path):
    point = PointFolder(tmp_path, {})
    assert point.status()["state"] == "waiting"
    point.write_status("running", pid=1)
    assert point.status()["state"] == "lost"
    with point.claim():
        assert point.status()["state"] == "running"
    (tmp_path / "status.json").write_text('{"sta')
    assert point.status()["state"] == "lost"


def test_a_missing_folder_fails_one_point_only(begin, console):
    _, sweep = begin(f"{LR}=[0.1, 0.2, 0.3]")
    for folder in sweep.folders():
        folder.write_status("waiting")
    shutil.rmtree(sweep.folders()[0].path)
    assert resume_sweep(sweep.path, Settings(), console) == 1
    assert states(sweep)[1:] == ["done", "done"]
    assert "failed 0-lr=0.1: cannot start" in output(console)


def test_a_point_whose_process_cannot_be_started_fails_and_is_resumed(begin, console, monkeypatch):
    _, sweep = begin(f"{LR}=[0.1, 0.2]")
    for folder in sweep.folders():
        folder.write_status("waiting")
    real = subprocess.Popen

    def popen(command, **options):
        if "lr=0.1" in command[-1]:
            raise OSError(11, os.strerror(11))
        return real(command, **options)

    with monkeypatch.context() as patched:
        patched.setattr(scheduler.subprocess, "Popen", popen)
        assert resume_sweep(sweep.path, Settings(), console) == 1
    assert states(sweep) == ["failed", "done"]
    assert resume_sweep(sweep.path, Settings(), console) == 0


def test_an_error_of_the_source_stops_the_other_points(begin, child, console):
    _, sweep = begin("seed=[1]")
    child.write_text(
        "import time, signal, sys\nsignal.signal(15, lambda *_: (time.sleep(0.2), sys.exit(75)))\n"
        "if 'seed=1' not in sys.argv[-1]: time.sleep(60)\n" + child.read_text()
    )

    class Broken(PointList):
        def finish(self, point, state):
            if point.name.endswith("seed=1"):
                raise Refused("it ends here", code="usage")
            return state

    folders = [PointFolder(sweep.path / name, {}) for name in ("a-seed=1", "b-seed=2", "c-seed=3")]
    for folder in folders:
        folder.path.mkdir()
        shutil.copy(sweep.folders()[0].path / "experiment.toml", folder.path)
    assert problems_of(lambda: run_points(Broken(folders), 2, console))[0].code == "usage"
    assert [point.status()["state"] for point in folders] == ["done", "stopped", "waiting"]


def test_a_sweep_is_unfinished_while_another_process_runs_a_point(begin, console):
    _, sweep = begin("seed=[1, 2]")
    first, second = sweep.folders()
    second.write_status("waiting")
    with first.claim():
        first.write_status("running")
        assert resume_sweep(sweep.path, Settings(), console) == 75
        assert second.status()["state"] == "done"
    assert "another process is running 1 points" in output(console)
    assert resume_sweep(sweep.path, Settings(), console) == 0


# the process of one point


def test_a_signal_before_the_run_starts_stops_the_point(tmp_path, monkeypatch):
    monkeypatch.setattr(point_process, "_run", lambda *_: signal.raise_signal(signal.SIGTERM))
    assert point_process.run_point(tmp_path) == 75
    assert PointFolder(tmp_path, {}).status()["state"] == "stopped"


def test_a_finished_point_is_not_run_again(tmp_path, monkeypatch):
    monkeypatch.setattr(point_process, "_run", lambda *_: pytest.fail("it runs"))
    PointFolder(tmp_path, {}).write_status("done", exit_code=0)
    assert point_process.run_point(tmp_path) == 0


def test_a_locked_point_exits_with_busy(tmp_path, monkeypatch):
    with PointFolder(tmp_path, {}).claim():
        assert point_process.run_point(tmp_path) == point_process.BUSY


@pytest.mark.skipif(not os.path.exists("/dev/full"), reason="requires /dev/full")
def test_a_full_disk_exits_with_5_even_if_nothing_can_be_printed(tmp_path):
    text = f"""
        import errno, os, sys
        from dither.engine.sweeps import point_process
        def full(*_, **facts):
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        point_process.PointFolder.write_status = full
        sys.exit(point_process.main([{str(tmp_path)!r}]))
    """
    with open("/dev/full", "w") as full:
        command = [sys.executable, "-c", textwrap.dedent(text)]
        assert subprocess.run(command, stdout=full, stderr=full, check=False).returncode == 5


# summary


def test_the_summary_lists_the_best_point_first(begin, capsys):
    code, sweep = begin(f"{LR}=[0.1, 0.35, 0.5]")
    assert code == 1
    rows = rows_of(sweep)
    assert [row["values"][LR] for row in rows] == [0.35, 0.1, 0.5]
    assert [row["values"][LR] for row in rows_of(sweep, LR, True)] == [0.5, 0.35, 0.1]
    assert rows[0]["figures"]["valid/loss"] == pytest.approx(0.0025)
    assert rows[0]["step"] == 3
    header, first, *_ = as_csv(rows).splitlines()
    assert header == f"point,state,step,{LR},valid/loss"
    assert first.startswith("1-lr=0.35,done,3,0.35,0.0024")
    assert {"summary.csv", "summary.json"} <= {path.name for path in sweep.path.iterdir()}
    assert main(["sweep", "status", str(sweep.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "1-lr=0.35"
    assert main(["sweep", "status", str(sweep.path), "--sort", LR, "--csv"]) == 0
    assert [line.split(",")[1] for line in capsys.readouterr().out.splitlines()] == ["state", "done", "done", "failed"]
    assert main(["sweep", "status", str(sweep.path), "--sort", "valid/los"]) == 2
    assert 'did you mean "valid/loss"' in capsys.readouterr().err


def test_the_command_writes_a_report(begin, experiment_file, tmp_path, capsys):
    assert main(["sweep", str(experiment_file), "--sweep", "seed=[1, 2]", "--runs", str(tmp_path / "runs")]) == 0
    (path,) = (tmp_path / "runs").iterdir()
    assert "2 done" in (path / "report.html").read_text()


def test_sweeps_are_listed_with_runs(begin, capsys, monkeypatch):
    monkeypatch.delenv("COLUMNS", raising=False)  # which would fold the names
    _, sweep = begin(f"{LR}=[0.1, 0.2]")
    assert main(["runs", "list", str(sweep.path.parent)]) == 0
    assert f"{sweep.path.name}  sweep exp: 2 done" in capsys.readouterr().out
    assert main(["runs", "list", str(sweep.path)]) == 0
    assert "0-lr=0.1/20260101T000000Z-000000  experiment" in capsys.readouterr().out


@pytest.mark.parametrize("text", ["", "[]", '{"points": [{"name": "../x", "values": {}}]}', '{"points": 3}'])
def test_a_damaged_sweep_directory_is_refused(tmp_path, text, capsys):
    (tmp_path / "sweep.json").write_text(text)
    assert main(["sweep", "status", str(tmp_path)]) == 2
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert "[damaged-file]" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "hint"),
    [
        (["evaluate", "runs/sweeq"], 'did you mean "runs/sweep"'),
        (["runs", "verify", "runs/sweep"], "dither sweep status"),
        (["report", "runs/file"], "file"),
        (["sample", "runs/sweep/0-x"], "runs/sweep/0-x/a"),
        (["sweep", "status", "runs/sweep/0-x/a"], "dither run --resume runs/sweep/0-x/a"),
        (["sweep", "status", "runs"], "runs/sweep"),
        (["sweep", "--resume", "runs/sweeq"], 'did you mean "runs/sweep"'),
    ],
)
def test_another_kind_of_folder_is_recognised(words, hint, tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "runs/sweep/0-x/a").mkdir(parents=True)
    for file in ("runs/sweep/sweep.json", "runs/sweep/0-x/a/resolved.toml", "runs/file"):
        (tmp_path / file).touch()
    assert main(words) == 2
    assert hint in " ".join(capsys.readouterr().err.split())


# clusters


@pytest.mark.parametrize(
    ("executor", "options", "code"),
    [
        ("slrum", (), "unknown-value"),
        ("processes", ("a=1",), "usage"),
        ("local", ("nonsense",), "usage"),
        ("local", ("timeout_min=0.2",), "out-of-range"),
        ("local", ("timeout_min=0",), "out-of-range"),
        ("local", ("gpus_per_node=many",), "invalid-value"),
        ("local", ("nonsense_x=1",), "invalid-value"),
    ],
)
def test_invalid_executors_and_options_are_refused_before_anything_is_written(begin, tmp_path, executor, options, code):
    (problem,) = problems_of(lambda: begin("seed=[1, 2]", executor=executor, options=options))
    assert problem.code == code
    assert not (tmp_path / "runs").exists()


def test_a_missing_submitit_is_reported(begin, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    (problem,) = problems_of(lambda: begin("seed=[1]", executor="slurm"))
    assert problem.code == "missing-dependency"
    assert "dither-engine[slurm]" in problem.help


@SUBMITIT
def test_the_debug_executor_runs_points_in_this_process_until_one_is_stopped(begin, console, monkeypatch):
    codes = iter([0, 4, 75])

    def runs(point, select, trust):
        os.write(1, b"it runs\n")
        assert (trust, select) == (True, [])
        return next(codes)

    monkeypatch.setattr(point_process, "_run", runs)
    code, sweep = begin("seed=[1, 2, 3, 4]", executor="debug")
    assert (code, states(sweep)) == (1, ["done", "failed", "stopped", "waiting"])
    assert [(folder.path / "output.txt").exists() for folder in sweep.folders()] == [True, True, True, False]
    assert (sweep.folders()[0].path / "output.txt").read_text() == "it runs\n"
    assert f"--resume {sweep.path}" in output(console).replace(" ", "").replace("--resume", "--resume ")


def test_a_signal_of_the_cluster_stops_a_job_which_then_fails(tmp_path, monkeypatch):
    monkeypatch.setattr(point_process, "_run", lambda *_: signal.raise_signal(signal.SIGUSR2))
    previous = signal.signal(signal.SIGUSR2, lambda *_: pytest.fail("submitit's handler is called"))
    try:
        with pytest.raises(RuntimeError, match="stopped"):
            point_process.run_job(str(tmp_path), [])
    finally:
        signal.signal(signal.SIGUSR2, previous)
    assert PointFolder(tmp_path, {}).status()["exit_code"] == 75
    monkeypatch.setattr(point_process, "_run", lambda *_: 0)
    assert point_process.run_job(str(tmp_path), []) is None


@SUBMITIT
def test_a_running_point_is_not_submitted(begin, monkeypatch):
    _, sweep = begin("seed=[1, 2]")
    first, second = sweep.folders()
    second.write_status("waiting")
    submitted = []
    monkeypatch.setattr(cluster, "run_job", lambda folder, arguments: submitted.append(folder))
    with first.claim():
        first.write_status("running")
        assert len(cluster.submit_points(sweep, "debug")) == 1
    assert submitted == [str(second.path)]
    first.write_status("done")
    second.write_status("done")
    assert cluster.submit_points(sweep, "debug") == []


# real runs


@pytest.fixture
def _real_processes(child, monkeypatch):
    command = (sys.executable, "-m", "dither.engine.sweeps.point_process")
    monkeypatch.setattr(scheduler, "POINT_COMMAND", command)


@pytest.mark.slow
def test_stopped_and_resumed_runs_end_with_the_same_weights(experiment_file, tmp_path, console):
    text = experiment_file.read_text().replace("steps = 20", "steps = 400").replace("every = 7", "every = 200")
    text = text.replace("checkpoint_every = 5", "checkpoint_every = 20")
    experiment_file.write_text(text + '\n[sweep.grid]\n"train.optimizer.lr" = [0.01, 0.02]\n')
    command = [sys.executable, "-c", "import sys; from dither.engine.cli import main; sys.exit(main())", "sweep"]
    log = tmp_path / "output.txt"

    def sweep(*arguments):
        with log.open("ab") as file:
            return subprocess.Popen([*command, *arguments, "--jobs", "2"], stdout=file, stderr=file)

    first = sweep(str(experiment_file), "--runs", str(tmp_path / "runs"))
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "runs").glob("*/*/*/checkpoints/step-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 75, log.read_text()
    (directory,) = (tmp_path / "runs").iterdir()
    stopped = SweepDirectory.open(directory)
    assert set(states(stopped)) == {"stopped"}
    assert sweep("--resume", str(directory)).wait(120) == 0, log.read_text()
    for folder in stopped.folders():
        loaded = load_experiment(folder.path / "experiment.toml")
        assert run(loaded, tmp_path / folder.name, ["x"], console=console) == 0
        (other,) = (tmp_path / folder.name).iterdir()
        weights = [path / "checkpoints/step-00000400/model.safetensors" for path in (folder.run_directory(), other)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        assert folder.status()["attempts"] == 2


@pytest.mark.slow
@SUBMITIT
@pytest.mark.usefixtures("_real_processes")
def test_points_run_as_jobs_of_submitit(begin, monkeypatch):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code, sweep = begin(f"{LR}=[0.01, 0.02]", executor="local", options=("timeout_min=5",))
    assert code == 0
    deadline = time.monotonic() + 120
    while set(states(sweep)) != {"done"} and time.monotonic() < deadline:
        time.sleep(0.2)
    assert states(sweep) == ["done", "done"]
    assert all("step 20/20" in (folder.path / "output.txt").read_text() for folder in sweep.folders())
