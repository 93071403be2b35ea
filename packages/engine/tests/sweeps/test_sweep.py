"""Sweeps: points, validation, processes, summary, cluster."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time
from types import SimpleNamespace

import pytest

from dither.engine import signals
from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment, open_experiment
from dither.engine.runs.run import run
from dither.engine.signals import SIGNALS
from dither.engine.sweeps import launch, point_process, scheduler
from dither.engine.sweeps.directory import PointFolder, SweepDirectory, rows_of
from dither.engine.sweeps.launch import (
    Settings,
    check_file,
    check_points,
    resume_sweep,
    start_sweep,
)
from dither.engine.sweeps.points import add_axes, read_points, short_keys
from dither.registry.config.errors import Refused, dotted

LR = "train.optimizer.lr"
SUBMITIT = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture
def points(experiment_file):
    """Add text to the experiment, and return its valid points."""

    def read(text="", axes=(), changes=()):
        experiment_file.write_text(experiment_file.read_text() + textwrap.dedent(text))
        document, plugins = open_experiment(experiment_file, changes)
        add_axes(document, axes)
        return check_points(document, plugins, read_points(document))

    return read


def wait_until(holds, seconds=30):
    """Return whether a condition became true in time."""
    end = time.monotonic() + seconds
    while not holds() and time.monotonic() < end:
        time.sleep(0.01)
    return holds()


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
    values = [
        (e.train.optimizer.lr, e.train.ema, e.seed, e.train.batch_size)
        for e in experiments
    ]
    assert values == [
        (lr, 0.5, seed, size)
        for lr in (1e-4, 3e-4)
        for seed, size in ((1, 8), (2, 16), (3, 32))
    ]
    assert found[0][0].name == "0-seed=1,ema=0.5,batch_size=8,lr=0.0001"
    assert experiments[0].sweep is None


def test_a_component_is_set_before_its_options(points):
    found = points(
        axes=[
            "train.lr_schedule.warmup=[5]",
            "train.lr_schedule=['linear', {use='cosine', final=0.5}]",
        ]
    )
    schedules = [loaded.experiment.train.lr_schedule for _, loaded in found]
    assert [(s.name, s.warmup) for s in schedules] == [("linear", 5), ("cosine", 5)]
    assert schedules[1].final == 0.5
    assert found[1][0].name == "1-lr_schedule=cosine+final=0.5,warmup=5"
    assert short_keys([("a", "lr"), ("b", "lr"), ("lr",), ("seed",)]) == [
        "a.lr",
        "b.lr",
        "lr",
        "seed",
    ]


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
    assert {
        (problem.code, lines[problem.origin.line - 1].partition(" =")[0])
        for problem in problems
    } == {
        ("wrong-type", "seed"),
        ("invalid-value", "plugins"),
        ("out-of-range", '"train.ema"'),
        ("misfit", "[[sweep.zip]]"),
        ("duplicate", "train.steps"),
    }


def test_missing_malformed_and_oversized_sweeps_are_refused(points):
    assert [problem.code for problem in problems_of(points)] == ["missing-key"]
    many = str(list(range(200)))
    assert (
        problems_of(lambda: points(axes=[f"seed={many}", f"sample.seed={many}"]))[
            0
        ].code
        == "too-large"
    )
    (problem,) = problems_of(lambda: points("\n[sweep.gird]\nseed = [1]\n"))
    assert problem.path[0] == "sweep"
    assert problem.origin.line


def test_every_invalid_point_is_listed_at_the_line_of_its_value(
    begin, experiment_file, tmp_path
):
    text = """
        [sweep.grid]
        "train.batch_size" = [8, 7]
        "train.optimizer.lr" = [
            0.1,
            -1.0,
        ]
    """
    problems = {
        problem.path: problem
        for problem in problems_of(lambda: begin(text=textwrap.dedent(text)))
    }
    assert len(problems) == 2
    rate = problems["train", "optimizer", "lr"]
    assert (
        experiment_file.read_text().splitlines()[rate.origin.line - 1].strip()
        == "-1.0,"
    )
    assert "2 of 4 points" in rate.help
    assert "point 1: train.batch_size = 8, train.optimizer.lr = -1" in rate.help
    assert (
        "point 2: train.batch_size = 7, train.optimizer.lr = 0.1"
        in problems["train", "accumulate"].help
    )
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    "sweep",
    ["train.keep_every=[10, 12]", "sample.cond.nothing=[1]", "train.accumulate=[1, 3]"],
)
def test_compatibility_is_checked_at_every_point(points, sweep):
    key = tuple(sweep.partition("=")[0].split("."))
    problems = problems_of(
        lambda: points(axes=[sweep, "seed=[1, 2]"], changes=["train.keep_every=10"])
    )
    assert any(problem.path[:1] == key[:1] for problem in problems)


WRONG = """
    [sweep.grid]
    "model.widht" = [32, 64]
    "train.optimizer.lr" = [
        0.1,
        -1.0,
    ]
    "train.ema" = []
    "seed" = {seeds}
    [[sweep.zip]]
    process = ["absorbing", "unifrom"]
    train.batch_size = [8, "many"]
"""
WRONG_CODES = {
    ("unknown-key", "model.widht"),
    ("out-of-range", "train.optimizer.lr"),
    ("out-of-range", "sweep.grid.train.ema"),
    ("unknown-component", "process"),
    ("wrong-type", "train.batch_size"),
}


@pytest.mark.parametrize(
    "seeds", [[0, 1], pytest.param(list(range(1000)), marks=pytest.mark.slow)]
)
@pytest.mark.parametrize("verb", ["validate", "sweep"])
def test_all_wrong_values_of_a_sweep_are_reported_in_one_pass(
    experiment_file, verb, seeds
):
    """Also those of lists besides an empty one, and of a grid too large to be checked whole."""
    text = textwrap.dedent(WRONG.replace("{seeds}", str(seeds)))
    experiment_file.write_text(experiment_file.read_text() + text)
    document, plugins = open_experiment(experiment_file)

    def check():
        if verb == "validate":
            return check_file(document, plugins)
        return start_sweep(
            experiment_file, [], [], [], experiment_file.parent, [], Settings()
        )

    problems = problems_of(check)
    codes = {(p.code, dotted(p.path).replace('"', "")) for p in problems}
    assert codes == WRONG_CODES
    lines = experiment_file.read_text().splitlines()
    named = {lines[problem.origin.line - 1].strip() for problem in problems}
    assert "-1.0," in named
    assert 'process = ["absorbing", "unifrom"]' in named
    assert '"width"' in next(p for p in problems if p.code == "unknown-key").help


def test_run_refuses_a_sweep(experiment_file, cli):
    experiment_file.write_text(
        experiment_file.read_text() + "[sweep.grid]\nseed = [1]\n"
    )
    assert (
        f"dither sweep {experiment_file}"
        in cli("run", str(experiment_file), code=2).err
    )


# processes


def test_points_run_in_parallel_and_a_failure_stops_no_other(
    begin, monkeypatch, states
):
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


def test_with_stop_a_failure_ends_the_sweep_and_it_can_be_resumed(
    begin, console, states
):
    code, sweep = begin(f"{LR}=[0.5, 0.1, 0.2]", keep_going=False)
    assert (code, states(sweep)) == (1, ["failed", "waiting", "waiting"])
    resume_sweep(sweep.path, Settings(), console)
    assert states(sweep) == ["failed", "done", "done"]


def test_a_signal_stops_every_point_and_resume_runs_the_unfinished(
    begin, console, monkeypatch, states
):
    monkeypatch.setenv("CHILD_SECONDS", "60")
    handler = signal.getsignal(
        signal.SIGINT
    )  # ignored if the tests run in the background
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
    begun = [
        line
        for line in (sweep.path / "log.txt").read_text().splitlines()
        if line.startswith("begin")
    ]
    assert [line.split("-")[0] for line in begun] == ["begin 1", "begin 2"]


def test_a_point_that_ignores_signals_is_killed_by_the_third(
    begin, child, monkeypatch, states, tmp_path
):
    # Also if the tests run under nohup.
    monkeypatch.setattr(signals, "stop_signals", lambda: SIGNALS)
    ready = tmp_path / "ready"
    child.write_text(
        "import pathlib, signal, time\n"
        "signal.signal(15, signal.SIG_IGN)\n"
        f"pathlib.Path({str(ready)!r}).touch()\n"
        "time.sleep(60)\n"
    )

    def send():
        """Send each signal after the one before it was handled."""
        assert wait_until(ready.exists)
        closed = signal.SIGHUP, signal.SIGHUP  # of a closed terminal, which count once
        for number in (*closed, signal.SIGUSR2, signal.SIGTERM):
            count = len(signals.received)
            os.kill(os.getpid(), number)
            wait_until(lambda count=count: len(signals.received) > count)

    threading.Thread(target=send).start()
    code, sweep = begin("seed=[1]")
    assert (code, states(sweep)) == (75, ["stopped"])
    assert sweep.folders()[0].status()["reason"] == "ended by SIGKILL"


@pytest.mark.skipif(sys.platform != "linux", reason="PR_SET_PDEATHSIG is of Linux")
def test_torchrun_ends_with_a_killed_point():
    """A third signal kills the process of a point, which can tell torchrun nothing any more."""
    parent = subprocess.Popen(
        [
            sys.executable,
            "-c",
            "import subprocess, time\n"
            "from dither.engine.sweeps.point_process import end_with_parent\n"
            "child = subprocess.Popen(['sleep', '60'], start_new_session=True, "
            "preexec_fn=end_with_parent)\n"
            "print(child.pid, flush=True)\n"
            "time.sleep(60)\n",
        ],
        stdout=subprocess.PIPE,
        text=True,
    )
    child = int(parent.stdout.readline())
    assert is_alive(child)
    parent.kill()
    parent.wait()
    parent.stdout.close()
    assert wait_until(lambda: not is_alive(child), 20)


def is_alive(pid):
    try:
        with open(f"/proc/{pid}/stat") as file:
            return file.read().rpartition(")")[2].split()[0] != "Z"
    except FileNotFoundError:
        return False


def test_a_sweep_is_unfinished_while_another_process_runs_a_point(
    begin, child, console, output
):
    _, sweep = begin("seed=[1, 2]")
    first, second = sweep.folders()
    second.write_status("waiting")
    with first.claim():
        first.write_status("running")
        assert resume_sweep(sweep.path, Settings(), console) == 75
        assert second.status()["state"] == "done"
    assert "another process is running 1 points" in output()
    assert resume_sweep(sweep.path, Settings(), console) == 0
    second.write_status("waiting")
    child.write_text("raise SystemExit(11)")  # another process locks it meanwhile
    assert resume_sweep(sweep.path, Settings(), console) == 75
    assert second.status()["state"] == "waiting"
    assert "skipped 1-seed=2" in output()


def test_a_running_point_without_a_process_is_lost(tmp_path):
    point = PointFolder(tmp_path, {})
    assert point.status()["state"] == "waiting"
    point.write_status("running", pid=1)
    assert point.status()["state"] == "lost"
    with point.claim():
        assert point.status()["state"] == "running"
    (tmp_path / "status.json").write_text('{"sta')
    assert point.status()["state"] == "lost"


def test_readers_of_the_status_never_prevent_a_process_from_locking(tmp_path):
    point = PointFolder(tmp_path, {})
    point.claim().release()
    point.write_status("running")
    ended = threading.Event()

    def read():
        while not ended.is_set():
            assert point.status()["state"] in ("lost", "running")

    readers = [threading.Thread(target=read) for _ in range(2)]
    for reader in readers:
        reader.start()
    try:
        for _ in range(50):
            with point.claim():
                assert point.status()["state"] == "running"
    finally:
        ended.set()
        for reader in readers:
            reader.join()


# the process of one point


def test_a_finished_or_locked_point_is_not_run(tmp_path, monkeypatch):
    monkeypatch.setattr(point_process, "_run", lambda *_: pytest.fail("it runs"))
    point = PointFolder(tmp_path, {})
    with point.claim():
        assert point_process.run_point(tmp_path) == point_process.BUSY
    point.write_status("done", exit_code=0)
    assert point_process.run_point(tmp_path) == 0


# summary


def test_the_summary_lists_the_best_point_first(begin, cli):
    code, sweep = begin(f"{LR}=[0.1, 0.35, 0.5]")
    assert code == 1
    rows = rows_of(sweep)
    assert [row["values"][LR] for row in rows] == [0.35, 0.1, 0.5]
    assert [row["values"][LR] for row in rows_of(sweep, LR, True)] == [0.5, 0.35, 0.1]
    assert rows[0]["metrics"]["valid/loss"] == pytest.approx(0.0025)
    assert rows[0]["step"] == 3
    assert json.loads((sweep.path / "summary.json").read_text()) == rows
    assert json.loads(cli("sweep", "status", str(sweep.path), "--json").out) == rows
    lines = [
        line.split()[:4]
        for line in cli(
            "sweep", "status", str(sweep.path), "--sort", LR
        ).out.splitlines()[:3]
    ]
    assert lines == [
        ["point", "state", "step", "lr"],
        ["0", "done", "3", "0.1"],
        ["1", "done", "3", "0.35"],
    ]
    assert (
        'did you mean "valid/loss"'
        in cli("sweep", "status", str(sweep.path), "--sort", "valid/los", code=2).err
    )


def test_the_command_writes_a_report_and_runs_are_listed(
    experiment_file, tmp_path, capsys, cli
):
    assert (
        main(
            [
                "sweep",
                str(experiment_file),
                "--sweep",
                f"{LR}=[0.1, 0.2]",
                "--runs",
                str(tmp_path / "runs"),
            ]
        )
        == 0
    )
    (path,) = (tmp_path / "runs").iterdir()
    assert "2 done" in (path / "report.html").read_text()
    capsys.readouterr()
    assert (
        "0-lr=0.1/20260101T000000Z-000000  experiment"
        in cli("runs", "list", str(path)).out
    )


@pytest.mark.parametrize("text", ["[]", '{"points": [{"name": "../x", "values": {}}]}'])
def test_a_damaged_sweep_directory_is_refused(tmp_path, text, cli):
    (tmp_path / "sweep.json").write_text(text)
    assert main(["sweep", "status", str(tmp_path)]) == 2
    assert "[damaged-file]" in cli("sweep", "--resume", str(tmp_path), code=2).err


# clusters


@pytest.mark.parametrize(
    ("executor", "options", "code"),
    [
        ("slrum", (), "unknown-component"),
        ("processes", ("a=1",), "unknown-key"),
        ("local", ("nonsense",), "usage"),
        ("local", ("gpus_per_node=many",), "wrong-type"),
        ("local", ("nonsense_x=1",), "unknown-key"),
        ("slurm", (), "missing-dependency"),
    ],
)
def test_invalid_executors_and_options_are_refused_before_anything_is_written(
    begin, tmp_path, executor, options, code
):
    (problem,) = problems_of(
        lambda: begin("seed=[1, 2]", executor=executor, options=options)
    )
    assert problem.code == code
    assert not (tmp_path / "runs").exists()


@pytest.mark.parametrize(
    ("module", "arguments"),
    [
        ("submitit", {"executor": "local"}),
        ("optuna", {"text": "[sweep.search]\nspace = { seed = [1] }\n"}),
    ],
)
def test_a_missing_library_is_reported(begin, monkeypatch, module, arguments):
    monkeypatch.setitem(sys.modules, module, None)
    (problem,) = problems_of(lambda: begin(**arguments))
    assert problem.code == "missing-dependency"
    assert f"install '{module}>=" in problem.help


def test_a_running_point_is_not_submitted(begin, console, output):
    _, sweep = begin("seed=[1, 2]")
    first, second = sweep.folders()
    second.write_status("waiting")
    queue = SimpleNamespace(submit=lambda commands, folder: map(str, commands))
    with first.claim():
        first.write_status("running")
        launch._submit(sweep, queue, Settings(), console)
    assert output().count("submitted job") == 1
    first.write_status("done")
    second.write_status("done")
    launch._submit(sweep, queue, Settings(), console)
    assert output().count("submitted job") == 1


# real runs


@pytest.fixture
def _real_processes(child, monkeypatch):
    monkeypatch.setattr(scheduler, "POINT_MODULE", point_process.POINT_MODULE)


@pytest.mark.slow
def test_stopped_and_resumed_runs_end_with_the_same_weights(
    experiment_file, tmp_path, console, states
):
    text = (
        experiment_file.read_text()
        .replace("steps = 20", "steps = 400")
        .replace("every = 7", "every = 200")
    )
    text = text.replace("checkpoint_every = 5", "checkpoint_every = 20")
    experiment_file.write_text(
        text + '\n[sweep.grid]\n"train.optimizer.lr" = [0.01, 0.02]\n'
    )
    command = [
        sys.executable,
        "-c",
        "import sys; from dither.engine.cli import main; sys.exit(main())",
        "sweep",
    ]
    log = tmp_path / "output.txt"

    def sweep(*arguments):
        with log.open("ab") as file:
            return subprocess.Popen(
                [*command, *arguments, "--jobs", "2"], stdout=file, stderr=file
            )

    first = sweep(str(experiment_file), "--runs", str(tmp_path / "runs"))
    deadline = time.monotonic() + 300
    while (
        len(list((tmp_path / "runs").glob("*/*/*/checkpoints/step-*"))) < 2
        and time.monotonic() < deadline
    ):
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 75, log.read_text()
    (directory,) = (tmp_path / "runs").iterdir()
    stopped = SweepDirectory.open(directory)
    assert set(states(stopped)) == {"stopped"}
    assert sweep("--resume", str(directory)).wait(300) == 0, log.read_text()
    for folder in stopped.folders():
        loaded = load_experiment(folder.path / "experiment.toml")
        assert run(loaded, tmp_path / folder.name, ["x"], console=console) == 0
        (other,) = (tmp_path / folder.name).iterdir()
        weights = [
            path / "checkpoints/step-00000400/model.safetensors"
            for path in (folder.run_directory(), other)
        ]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        assert folder.status()["attempts"] == 2


@pytest.mark.slow
@SUBMITIT
@pytest.mark.usefixtures("_real_processes")
def test_points_run_as_jobs_of_submitit(begin, monkeypatch, states):
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code, sweep = begin(
        f"{LR}=[0.01, 0.02]", executor="local", options=("timeout_min=5",)
    )
    assert code == 0
    deadline = time.monotonic() + 300
    while set(states(sweep)) != {"done"} and time.monotonic() < deadline:
        time.sleep(0.2)
    assert states(sweep) == ["done", "done"]
    assert len(list((sweep.path / "jobs").glob("*_log.out"))) == 2


@pytest.mark.slow
def test_points_run_no_code_of_the_working_folder(tmp_path):
    folder = tmp_path / "folder"
    folder.mkdir()
    (folder / "tomlkit.py").write_text("raise SystemExit(99)")
    done = subprocess.run(
        [sys.executable, "-P", "-m", point_process.POINT_MODULE, "missing"],
        cwd=folder,
        capture_output=True,
        check=False,
    )
    assert done.returncode == 2
    assert b"missing" in done.stderr


@pytest.mark.parametrize(
    ("axes", "count"),
    [
        (["seed=[1, 2, 1, 2, 1]"], 2),
        (["seed=[1, 1]", "train.optimizer.lr=[0.1, 1e-1, 0.2]"], 2),
        (
            ["train.lr_schedule=['cosine', {use = 'cosine', warmup = 0}]"],
            1,
        ),
    ],
)
def test_equal_points_of_a_grid_are_run_once(begin, output, axes, count):
    code, sweep = begin(*axes)
    assert code == 0
    assert len(sweep.folders()) == count
    assert (sweep.path / "log.txt").read_text().count("begin") == count
    assert f"{count} points, all valid; " in output()


COUNTING = """
from dither.registry import Misfit, hookimpl
SEEDS = []

@hookimpl
def check_experiment(experiment):
    SEEDS.append(experiment.seed)
    yield Misfit("no seed will do", ("seed",))
"""


def test_every_invalid_point_is_checked_once(begin, experiment_file, refused):
    experiment_file.with_name("seen_seeds.py").write_text(COUNTING)
    names = '["toy_plugin.py", "seen_seeds.py"]'
    text = experiment_file.read_text().replace('["toy_plugin.py"]', names)
    experiment_file.write_text(text)
    with refused("misfit", match="2 of 2 points"):
        begin("seed=[4, 5]")
    (counting,) = (
        module
        for name, module in sys.modules.items()
        if name.startswith("dither_plugin_seen_seeds_")
    )
    assert counting.SEEDS == [4, 5]
