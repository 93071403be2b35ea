"""Executors: third-party ones, SLURM (a stand-in), several ranks of a point."""

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import pytest

from dither.engine.runs.run_directory import read_manifest
from dither.engine.sweeps import executors, point_process, scheduler
from dither.engine.sweeps.directory import PointFolder, write_json
from dither.engine.sweeps.launch import Settings, resume_sweep
from dither.registry.contracts.jobs import Command
from dither.testing.fake_slurm import write_fake_slurm

LR = "train.optimizer.lr"
SUBMITIT = pytest.mark.filterwarnings(
    "ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning"
)
LONG = ("train.steps=[600]", "train.checkpoint_every=[100]", "evaluate.every=[600]")
PLUGIN = """
import subprocess
from dither.registry import hookimpl
from dither.registry.kinds import ExecutorSpec


class Counting(ExecutorSpec):
    \"\"\"Processes that are counted in a file.\"\"\"

    name = "counting"
    to: str

    def build(self):
        return Start(self.to)


class Start:
    def __init__(self, to):
        self.to = to

    def start(self, command):
        with open(self.to, "a") as file:
            print(command.name, command.slot, command.ranks, file=file)
        process = subprocess.Popen(command.argv)
        process.stop = lambda force=False: process.terminate()
        return process


@hookimpl
def register_components():
    return [Counting]
"""


@pytest.fixture
def slurm(tmp_path, monkeypatch):
    folder = write_fake_slurm(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{folder}:{os.environ['PATH']}")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    return folder


@pytest.fixture
def real(child, monkeypatch):
    """Real runs in place of the stand-in."""
    monkeypatch.setattr(scheduler, "POINT_MODULE", point_process.POINT_MODULE)


def wait(done, seconds=400):
    deadline = time.monotonic() + seconds
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.1)


def test_a_plugin_adds_an_executor_to_sweeps_and_their_resumption(
    begin, tmp_path, console, states
):
    (tmp_path / "counting.py").write_text(PLUGIN)
    to = tmp_path / "count.txt"
    settings = {
        "executor": "counting",
        "options": (f"to={to}",),
        "select": (str(tmp_path / "counting.py"),),
    }
    code, sweep = begin("seed=[1, 2]", jobs=2, ranks=3, **settings)
    assert code == 0
    assert states(sweep) == ["done", "done"]
    lines = to.read_text().split("\n")
    assert sorted(line.split()[1:] for line in lines[:2]) == [["0", "3"], ["1", "3"]]
    sweep.folders()[1].write_status("stopped")
    assert resume_sweep(sweep.path, Settings(**settings), console) == 0
    assert to.read_text().split("\n")[2].split() == [sweep.folders()[1].name, "0", "1"]


@pytest.mark.parametrize(
    ("command", "devices"),
    [
        ({"slot": 1, "parallel": 2}, "3"),
        ({"slot": 1, "parallel": 2, "ranks": 2}, "1,0"),
        ({"ranks": 2}, "2,3"),
        ({}, "2,3,1,0"),
    ],
)
def test_devices_are_divided_among_points(monkeypatch, tmp_path, command, devices):
    monkeypatch.setenv("CUDA_VISIBLE_DEVICES", "2,3,1,0")
    shared = executors._share_of_machine(Command("m", (), "n", tmp_path, **command))
    assert shared["CUDA_VISIBLE_DEVICES"] == devices


@pytest.mark.parametrize(
    ("number", "requeued"), [(signal.SIGUSR2, True), (signal.SIGTERM, False)]
)
def test_only_a_signal_of_the_cluster_puts_a_job_back(
    tmp_path, monkeypatch, number, requeued
):
    reached = []
    former = signal.signal(signal.SIGUSR2, lambda *_: reached.append(1))
    monkeypatch.setattr(point_process, "_run", lambda *_: signal.raise_signal(number))
    monkeypatch.setattr(
        executors.runpy,
        "run_module",
        lambda *_, **__: sys.exit(point_process.main(sys.argv[1:])),
    )
    monkeypatch.setattr(sys, "argv", sys.argv)
    point = PointFolder(tmp_path, {})
    command = Command("point", (str(tmp_path),), "n", tmp_path / "output.txt")
    try:
        with pytest.raises(RuntimeError, match="75"):
            executors._QueuedCommand(command)()
    finally:
        signal.signal(signal.SIGUSR2, former)
    assert point.status()["state"] == "stopped"
    assert bool(reached) == requeued


def test_jobs_that_cannot_be_submitted_have_a_code(tmp_path, refused):
    (tmp_path / "file").write_text("in the way")
    with refused("unwritable-file"):
        executors.SubmititCluster("local", {}, 1).submit([], tmp_path / "file" / "jobs")
    unknown = executors.SubmititCluster("local", {"local_unknown": 1}, 1)
    with refused("invalid-value"):
        unknown.submit([], tmp_path)


@pytest.mark.parametrize(
    ("code", "reason"), [(-9, "ended by SIGKILL"), (-100, "exit code -100")]
)
def test_any_exit_code_of_an_executor_ends_a_point(code, reason):
    pool = SimpleNamespace(stops=0)
    status = scheduler.Pool._ended(pool, {"state": "running"}, code, pruned=False)
    assert (status["state"], status["reason"]) == ("failed", reason)


def test_a_signal_to_a_point_on_several_ranks_is_known_to_its_job(
    tmp_path, monkeypatch
):
    class Torchrun:
        def __init__(self, *_, **__):
            signal.raise_signal(signal.SIGUSR2)
            write_json(tmp_path / point_process.RANKS, {"pid": 0, "code": 75})

        def poll(self):
            return 0

    monkeypatch.setattr(point_process.subprocess, "Popen", Torchrun)
    monkeypatch.setattr(point_process, "received", [])
    assert point_process.run_point(tmp_path, ranks=2) == 75
    assert point_process.received == ["SIGUSR2"]


@pytest.mark.slow
@pytest.mark.usefixtures("real")
def test_jobs_of_slurm_are_requeued_at_their_time_limit_and_resume(
    begin, slurm, states
):
    code, sweep = begin(f"{LR}=[0.01, 0.02]", *LONG, executor="slurm", jobs=2)
    assert code == 0
    wait(lambda: len(list(sweep.path.glob("*/*/metrics.jsonl"))) == 2)
    pids = [int(path.read_text()) for path in slurm.glob("pid-*_*")]
    assert len(pids) == 2
    for pid in pids:
        os.kill(pid, signal.SIGUSR2)
    wait(lambda: set(states(sweep)) == {"done"})
    assert [folder.status()["attempts"] for folder in sweep.folders()] == [2, 2]
    assert (slurm / "requeues").read_text().split() == ["requeued", "requeued"]


@pytest.mark.slow
@SUBMITIT
@pytest.mark.usefixtures("real")
@pytest.mark.parametrize("executor", ["slurm", "local"])
def test_each_job_of_a_search_takes_the_next_trial(begin, slurm, states, executor):
    text = '\n[sweep.search]\ntrials = 3\nspace = { "train.optimizer.lr" = [0.1, 0.2, 0.3] }\n'
    code, sweep = begin(text=text, executor=executor, jobs=2)
    assert code == 0
    wait(lambda: states(sweep) == ["done"] * 3)
    values = [folder.values[LR] for folder in sweep.folders()]
    assert sorted(values) == [0.1, 0.2, 0.3]
    # The journal knows the results, so that no trial is left.
    assert resume_sweep(sweep.path, Settings()) == 0
    assert len(sweep.folders()) == 3


@pytest.mark.slow
@pytest.mark.usefixtures("real")
def test_a_point_on_two_ranks_is_stopped_and_resumed(begin, tmp_path):
    _, sweep = begin("seed=[1]", *LONG)
    (single,) = sweep.folders()
    double = tmp_path / "double"
    ignored = shutil.ignore_patterns(single.run_directory().name, "status.json")
    shutil.copytree(single.path, double, ignore=ignored)
    point = PointFolder(double, {})
    command = Command(
        point_process.POINT_MODULE, (str(double), "--ranks", "2"), "n", double, ranks=2
    )

    process = subprocess.Popen(command.argv)
    wait(lambda: list(double.glob("*/metrics.jsonl")))
    # As SLURM does, to every process of the job.
    children = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text()
    for pid in (process.pid, int(children)):
        os.kill(pid, signal.SIGUSR2)
    assert process.wait(200) == 75
    assert point.status()["state"] == "stopped"
    assert subprocess.run(command.argv, check=False).returncode == 0
    assert (point.status()["state"], point.status()["attempts"]) == ("done", 2)

    assert read_manifest(point.run_directory())["environment"]["ranks"] == 2


@pytest.mark.slow
@pytest.mark.usefixtures("real")
def test_a_signal_ends_a_point_whose_main_rank_is_suspended(begin):
    """The signal reaches the main rank only, for which the others wait."""
    _, sweep = begin("seed=[1]", *LONG)
    (point,) = sweep.folders()
    shutil.rmtree(point.run_directory())
    point.write_status("waiting")
    words = (str(point.path), "--ranks", "2")
    command = Command(point_process.POINT_MODULE, words, "n", point.path, ranks=2)

    process = subprocess.Popen(command.argv)
    wait(lambda: list(point.path.glob("*/metrics.jsonl")))
    main = json.loads((point.path / point_process.RANKS).read_text())["pid"]
    os.kill(main, signal.SIGSTOP)
    process.send_signal(signal.SIGTERM)
    try:
        assert process.wait(20) == 1
    finally:
        process.kill()
        process.wait()
    assert not Path(f"/proc/{main}").exists()
    assert point.status()["state"] == "failed"


@pytest.mark.slow
@pytest.mark.usefixtures("real")
def test_a_rank_that_fails_fails_the_point(begin, tmp_path):
    _, sweep = begin("seed=[1]", "train.batch_size=[3]", "train.accumulate=[1]")
    (point,) = sweep.folders()
    shutil.rmtree(point.run_directory())
    point.write_status("waiting")
    assert point_process.run_point(point.path, ranks=2) == 2
    assert point.status()["state"] == "failed"
