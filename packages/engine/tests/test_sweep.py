"""Sweeps: which points there are, what is said of bad ones, and how they are run."""

import json
import os
import signal
import subprocess
import sys
import textwrap
import threading
import time

import pytest

from dither.engine.cli import main
from dither.engine.config.experiment import Experiment
from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.launch import run
from dither.engine.sweeps import point_process as point_of_sweep
from dither.engine.sweeps import scheduler
from dither.engine.sweeps.directory import PointFolder, SweepDirectory
from dither.engine.sweeps.execution import Settings
from dither.engine.sweeps.launch import UNCHECKED, load_sweep, resume_sweep, start_sweep
from dither.engine.sweeps.points import short_keys
from dither.engine.sweeps.scheduler import PointList, run_points
from dither.engine.sweeps.summary import as_csv, rows_of
from dither.registry.config.errors import Refused
from dither.registry.spec.misfit import Misfit

CHILD = """
    import json, os, sys, time, tomllib
    from pathlib import Path
    folder = Path([word for word in sys.argv[1:] if word != "--held"][0])
    lr = tomllib.loads((folder / "experiment.toml").read_text())["train"]["optimizer"]["lr"]
    with open(folder.parent / "log.txt", "a") as log:
        log.write(f"begin {folder.name}\\n")
    def end(state, code):
        with open(folder.parent / "log.txt", "a") as log:
            log.write(f"end {folder.name}\\n")
        (folder / "status.json").write_text(json.dumps({"state": state, "exit_code": code}))
        sys.exit(code)
    import signal
    signal.signal(signal.SIGTERM, lambda *_: end("stopped", 75))
    run = folder / "20260101T000000Z-000000"
    run.mkdir(exist_ok=True)
    (run / "resolved.toml").write_text((folder / "experiment.toml").read_text())
    with open(run / "metrics.jsonl", "a") as metrics:
        for step in range(1, 4):
            metrics.write(json.dumps({"step": step, "kind": "valid", "loss": (lr - 0.3) ** 2}) + "\\n")
    time.sleep(float(os.environ.get("CHILD_SECONDS", "0.05")))
    if lr == 0.5: os._exit(9)
    end("done", 0)
"""
"""Stands for a run: knows its lr, its loss is least at 0.3, lr = 0.5 crashes it, and a signal stops it."""


@pytest.fixture(autouse=True)
def _plugins(monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", "engine")


@pytest.fixture
def child(tmp_path, monkeypatch):
    script = tmp_path / "child.py"
    script.write_text(textwrap.dedent(CHILD))
    monkeypatch.setattr(scheduler, "POINT_COMMAND", (sys.executable, "-S", str(script)))
    return script


@pytest.fixture
def points(experiment_file):
    """Add text to the experiment, and return its points."""

    def read(text="", **named):
        experiment_file.write_text(experiment_file.read_text() + textwrap.dedent(text))
        return load_sweep(experiment_file, **named)

    return read


@pytest.fixture
def begin(experiment_file, tmp_path, console):
    """Start a sweep over learning rates; return its exit code and directory."""

    def started(values="[0.1, 0.2, 0.3]", **settings):
        sweeps = [f"train.optimizer.lr={values}"]
        code = start_sweep(experiment_file, (), (), sweeps, tmp_path / "runs", ["x"], Settings(**settings), console)
        (path,) = (tmp_path / "runs").iterdir()
        return code, SweepDirectory.open(path)

    return started


def refused(work):
    with pytest.raises(Refused) as caught:
        work()
    return caught.value.problems


def test_grids_are_crossed_and_zips_are_walked_in_step(points):
    found = points("""
        [sweep.grid]
        "train.optimizer.lr" = [1e-4, 3e-4]
        [sweep.grid.train]
        ema = [0.5]
        [[sweep.zip]]
        seed = [1, 2, 3]
        train.batch_size = [8, 16, 32]
    """)
    values = [
        (e.train.optimizer.lr, e.train.ema, e.seed, e.train.batch_size)
        for _, e in ((p, x.experiment) for p, x in found)
    ]
    assert values == [(lr, 0.5, seed, size) for lr in (1e-4, 3e-4) for seed, size in ((1, 8), (2, 16), (3, 32))]
    assert found[0][0].name == "0-seed=1,ema=0.5,batch_size=8,lr=0.0001"
    assert found[0][1].experiment.sweep is None


def test_values_from_the_command_line_join_the_grid(points):
    found = points("\n[sweep.grid]\nseed = [1, 2]\n", sweeps=["train.ema=[0.1, 0.2]", "seed=[7]"])
    assert [p.by_key for p, _ in found] == [{"seed": 7, "train.ema": 0.1}, {"seed": 7, "train.ema": 0.2}]


def test_a_part_is_swept_before_what_is_inside_it(points):
    found = points(sweeps=["train.lr_schedule.warmup=[5]", "train.lr_schedule=['linear', {use='cosine', final=0.5}]"])
    schedules = [loaded.experiment.train.lr_schedule for _, loaded in found]
    assert [(s.name, s.warmup) for s in schedules] == [("linear", 5), ("cosine", 5)]
    assert schedules[1].final == 0.5
    assert found[1][0].name == "1-lr_schedule=cosine+final=0.5,warmup=5"


def test_names_are_short_but_never_the_same():
    paths = [("a", "lr"), ("b", "lr"), ("lr",), ("seed",)]
    assert short_keys(paths) == ["a.lr", "b.lr", "lr", "seed"]


def test_everything_wrong_with_the_table_is_said_at_once(points):
    problems = refused(
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
    text = "\n".join(map(str, problems))
    for said in (
        "expected a list of values, got 3", "plugins is the same for all points", "the list of values is empty",
        "lists of one table are of equal length: train.steps has 3", "train.steps is swept twice",
    ):  # fmt: skip
        assert said in text
    assert len(problems) == 5
    assert all(problem.origin.line for problem in problems)


@pytest.mark.parametrize("table", ["[sweep.gird]\nseed = [1]", "sweep = 3", "[sweep]\ngrid = [1]"])
def test_a_table_of_another_shape_is_refused(experiment_file, table):
    text = experiment_file.read_text()
    experiment_file.write_text(f"{text}\n{table}\n" if table[0] == "[" else f"{table}\n{text}")
    (problem,) = refused(lambda: load_sweep(experiment_file))
    assert problem.path[0] == "sweep"
    assert problem.origin.line


def test_a_file_without_a_sweep_and_one_too_large_are_refused(points):
    assert "no sweep" in refused(points)[0].message
    many = str(list(range(200)))
    assert "40,000 points" in refused(lambda: points(sweeps=[f"seed={many}", f"sample.seed={many}"]))[0].message


def test_every_bad_point_is_named_with_its_values_where_they_are_written(points, experiment_file, tmp_path):
    text = """
        [sweep.grid]
        "train.batch_size" = [8, 7]
        "train.optimizer.lr" = [
            0.1,
            -1.0,
        ]
    """
    problems = {problem.path: problem for problem in refused(lambda: points(text))}
    assert len(problems) == 2
    rate = problems["train", "optimizer", "lr"]
    lines = experiment_file.read_text().splitlines()
    assert lines[rate.origin.line - 1].strip() == "-1.0,"
    assert "2 of 4 points" in rate.help
    assert "point 1: train.batch_size = 8, train.optimizer.lr = -1" in rate.help
    size = problems["train", "accumulate"]
    assert "point 2: train.batch_size = 7, train.optimizer.lr = 0.1" in size.help  # point 3 is wrong before that
    assert not (tmp_path / "runs").exists()


def test_nothing_starts_when_one_point_is_bad(experiment_file, tmp_path, child):
    with pytest.raises(Refused):
        start_sweep(experiment_file, (), (), ["train.optimizer.lr=[0.1, 'x']"], tmp_path / "runs", [], Settings())
    assert not (tmp_path / "runs").exists()


def test_a_thousand_points_are_checked_in_a_moment(points, monkeypatch):
    asked = []
    check = Experiment.check
    monkeypatch.setattr(Experiment, "check", lambda self: asked.append(1) or check(self))
    began = time.process_time()
    found = points(sweeps=[f"seed={list(range(250))}", "train.ema=[0.1, 0.2]", "train.batch_size=[8, 16]"])
    assert len(found) == 1000
    assert time.process_time() - began < 3  # measured: 0.2 s
    assert len(asked) == 4, "it is asked once for all points that differ in nothing that the answer depends on"


@pytest.mark.parametrize(
    ("sweep", "said"),
    [
        ("train.keep_every=[10, 12]", "no checkpoint is written at most multiples of keep_every = 12"),
        ("train.checkpoint_every=[5, 7]", "no checkpoint is written at most multiples of keep_every = 10"),
        ("train.gather=['float32', 'bfloat16']", "weights come together in bfloat16 only where"),
        ("train.start_layout=['get']", "there are no weights to begin with"),
        ("sample.cond.nothing=[1]", "nothing"),
        ("train.accumulate=[1, 3]", "cannot be taken in 3 equal parts"),
    ],
)
def test_what_the_tables_say_of_each_other_is_checked_at_every_point(points, sweep, said):
    problems = refused(lambda: points(sweeps=[sweep, "seed=[1, 2]"], changes=["train.keep_every=10"]))
    assert any(said in problem.message for problem in problems)


def test_a_point_that_needs_too_much_memory_is_refused_beside_one_that_does_not(points, monkeypatch):
    """Of two points with the same parts."""

    def misfit(experiment, space):
        if experiment.evaluate.samples > 100:
            yield Misfit("too much", ("evaluate", "samples"))

    monkeypatch.setattr("dither.engine.config.load_experiment.misfit_memory", misfit)
    (problem,) = refused(lambda: points(sweeps=["evaluate.samples=[10, 1000]"]))
    assert "1 of 2 points" in problem.help


def test_the_check_of_an_experiment_looks_at_nothing_that_is_left_out(experiment_file):
    """`UNCHECKED` names what needs no check of its own; here whoever reads it is noted."""
    experiment = load_experiment(experiment_file).experiment
    read = []

    def spied(options, place, names):
        class Spy(type(options)):
            def __getattribute__(self, name):
                if name in names:
                    read.append(f"{place}{name}")
                return super().__getattribute__(name)

        return Spy.model_construct(**dict(options))

    names = {name for name, inner in UNCHECKED.items() if inner is True}
    inner = {name: spied(getattr(experiment, name), f"{name}.", UNCHECKED[name]) for name in set(UNCHECKED) - names}
    watched = spied(experiment.model_copy(update=inner), "", names)
    assert list(watched.check()) == []
    assert read == []
    assert watched.train.steps, "what is read is noted"
    assert read == ["train.steps"]


def test_a_mistake_of_many_points_names_the_first_ones(points):
    (problem,) = refused(lambda: points(sweeps=["train.batch_size=[7]", f"seed={list(range(50))}"]))
    assert problem.help.splitlines()[-1] == "  and 30 more"


def test_run_refuses_a_sweep_and_says_what_to_do(experiment_file, capsys):
    experiment_file.write_text(experiment_file.read_text() + "[sweep.grid]\nseed = [1]\n")
    assert main(["run", str(experiment_file)]) == 2
    assert f"dither sweep {experiment_file}" in capsys.readouterr().err


def test_so_many_points_run_at_a_time_and_one_that_fails_stops_no_other(begin, child):
    code, sweep = begin("[0.1, 0.5, 0.2, 0.3, 0.4]", jobs=2)
    assert code == 1
    running = most = 0
    for line in (sweep.path / "log.txt").read_text().splitlines():
        running += 1 if line.startswith("begin") else -1
        most = max(most, running)
    assert most in (2, 3)  # the one that crashed never said that it ended
    states = [folder.status()["state"] for folder in sweep.folders()]
    assert states == ["done", "failed", "done", "done", "done"]
    assert "exit code 9" in sweep.folders()[1].status()["reason"]


def test_with_stop_a_failure_ends_the_sweep_and_it_can_go_on(begin, child, console):
    code, sweep = begin("[0.5, 0.1, 0.2]", jobs=1, keep_going=False)
    assert code == 1
    assert [folder.status()["state"] for folder in sweep.folders()] == ["failed", "waiting", "waiting"]
    resume_sweep(sweep.path, Settings(), console)
    assert [folder.status()["state"] for folder in sweep.folders()] == ["failed", "done", "done"]


def test_a_signal_stops_every_point_and_resume_goes_on_with_the_unfinished(begin, child, console, monkeypatch):
    monkeypatch.setenv("CHILD_SECONDS", "60")
    timer = threading.Timer(1.0, os.kill, (os.getpid(), signal.SIGINT))
    timer.start()
    began = time.monotonic()
    code, sweep = begin(jobs=2)
    assert code == 75
    assert time.monotonic() - began < 20
    assert [folder.status()["state"] for folder in sweep.folders()] == ["stopped", "stopped", "waiting"]
    assert signal.getsignal(signal.SIGINT) is signal.default_int_handler, "handlers are put back"
    monkeypatch.setenv("CHILD_SECONDS", "0")
    sweep.folders()[0].write_status("done", exit_code=0)
    (sweep.path / "log.txt").unlink()
    assert resume_sweep(sweep.path, Settings(), console) == 0
    begun = [line for line in (sweep.path / "log.txt").read_text().splitlines() if line.startswith("begin")]
    assert [line.split("-")[0] for line in begun] == ["begin 1", "begin 2"]


def test_a_point_of_another_process_is_passed_over(begin, child, console):
    _, sweep = begin("[0.5, 0.1]")
    point = sweep.folders()[0]
    lock = point.claim()
    assert point.held()
    assert point.claim() is None
    assert run_points(PointList(sweep.folders()), 1, console) == 0
    os.close(lock)
    assert not point.held()
    assert "passed over" in console.export_text()


def test_a_process_that_ends_without_a_word_leaves_a_lost_point(tmp_path):
    point = PointFolder(tmp_path, {})
    assert point.status()["state"] == "waiting"
    point.write_status("running", pid=1)
    assert point.status()["state"] == "lost"
    (tmp_path / "status.json").write_text('{"sta')
    assert point.status()["state"] == "lost"
    lock = point.claim()
    point.write_status("running", pid=1)
    assert point.status()["state"] == "running"
    os.close(lock)


def test_the_summary_has_the_best_point_first(begin, child, capsys):
    code, sweep = begin("[0.1, 0.35, 0.5]")
    rows = rows_of(sweep)
    assert [row["values"]["train.optimizer.lr"] for row in rows] == [0.35, 0.1, 0.5]
    assert rows[0]["figures"]["valid/loss"] == pytest.approx(0.0025)
    assert rows[0]["step"] == 3
    assert [row["values"]["train.optimizer.lr"] for row in rows_of(sweep, "train.optimizer.lr", True)] == [
        0.5,
        0.35,
        0.1,
    ]
    header, first, *_ = as_csv(rows).splitlines()
    assert header == "point,state,step,train.optimizer.lr,valid/loss"
    assert first.startswith("1-lr=0.35,done,3,0.35,0.0024")
    assert main(["sweep", "status", str(sweep.path), "--json"]) == 0
    assert json.loads(capsys.readouterr().out)[0]["name"] == "1-lr=0.35"
    assert {"summary.csv", "summary.json", "report.html"} <= {path.name for path in sweep.path.iterdir()}
    assert code == 1


@pytest.mark.parametrize("text", ["", "[]", '{"points": [{"name": "../x", "values": {}}]}', '{"points": 3}'])
def test_a_damaged_sweep_directory_is_refused(tmp_path, text, capsys):
    (tmp_path / "sweep.json").write_text(text)
    assert main(["sweep", "status", str(tmp_path)]) == 2
    assert main(["sweep", "--resume", str(tmp_path)]) == 2
    assert "sweep.json" in capsys.readouterr().err
    assert main(["sweep", "status", str(tmp_path / "nowhere")]) == 2
    assert main(["sweep", "--executor", "slrum", "x.toml"]) == 2
    assert 'did you mean "slurm"' in capsys.readouterr().err


def test_a_point_that_is_stopped_before_its_run_begins_is_stopped(tmp_path, monkeypatch):
    (tmp_path / "p").mkdir()

    def begins(*given):
        signal.raise_signal(signal.SIGTERM)

    monkeypatch.setattr(point_of_sweep, "_run", begins)
    assert point_of_sweep.run_point(tmp_path / "p") == 75
    assert PointFolder(tmp_path / "p", {}).status()["state"] == "stopped"


@pytest.mark.slow
def test_real_runs_stop_resume_and_end_as_if_they_had_never_stopped(experiment_file, tmp_path, console):
    """The whole way, in processes of its own: SIGINT in the middle, then --resume; here the same runs unstopped."""
    text = experiment_file.read_text().replace("steps = 20", "steps = 400").replace("every = 7", "every = 200")
    text = text.replace("checkpoint_every = 5", "checkpoint_every = 20")  # each is brought to disk
    experiment_file.write_text(
        text + '\n[sweep.grid]\n"train.optimizer.lr" = [0.01, -0.0]\n'.replace(", -0.0", ", 0.02")
    )
    command = [sys.executable, "-c", "import sys; from dither.engine.cli import main; sys.exit(main())", "sweep"]

    output = (tmp_path / "output.txt").open("w+b")

    def sweep(*arguments):
        return subprocess.Popen([*command, *arguments], stdout=output, stderr=output)

    first = sweep(str(experiment_file), "--runs", str(tmp_path / "runs"), "--jobs", "2")
    deadline = time.monotonic() + 120
    while len(list((tmp_path / "runs").glob("*/*/*/checkpoints/step-*"))) < 2 and time.monotonic() < deadline:
        time.sleep(0.05)
    first.send_signal(signal.SIGINT)
    assert first.wait(60) == 75, (tmp_path / "output.txt").read_text()
    (directory,) = (tmp_path / "runs").iterdir()
    stopped = SweepDirectory.open(directory)
    assert {folder.status()["state"] for folder in stopped.folders()} == {"stopped"}
    second = sweep("--resume", str(directory), "--jobs", "2")
    assert second.wait(120) == 0, (tmp_path / "output.txt").read_text()
    output.close()
    for folder in stopped.folders():
        loaded = load_experiment(folder.path / "experiment.toml")
        assert run(loaded, tmp_path / folder.name, ["x"], console=console) == 0
        (other,) = (tmp_path / folder.name).iterdir()
        weights = [run / "checkpoints/step-00000400/model.safetensors" for run in (folder.run_directory(), other)]
        assert weights[0].read_bytes() == weights[1].read_bytes()
        assert folder.status()["attempts"] == 2


SPACE = """
[sweep.search]
trials = 8
warmup = 100
[sweep.search.space]
"train.optimizer.lr" = { low = 0.01, high = 0.49 }
train.lr_schedule = ["cosine", { use = "linear", final = 0.5 }]
train.accumulate = { low = 1, high = 3 }
"""


@pytest.fixture
def search(experiment_file, tmp_path, console):
    """Start a search over a space; return its exit code and directory."""
    pytest.importorskip("optuna")

    def started(text=SPACE, **settings):
        experiment_file.write_text(experiment_file.read_text() + text)
        code = start_sweep(experiment_file, (), (), (), tmp_path / "runs", [], Settings(**settings), console)
        (path,) = (tmp_path / "runs").iterdir()
        return code, SweepDirectory.open(path)

    return started


def test_a_search_tries_so_many_points_and_names_the_best(search, child, console):
    code, sweep = search(jobs=3)
    assert code == 0
    rows = rows_of(sweep)
    assert [row["state"] for row in rows] == ["done"] * 8
    losses = [row["figures"]["valid/loss"] for row in rows]
    assert losses == sorted(losses)
    assert {row["values"]["train.accumulate"] for row in rows} <= {1, 2}, "8 is not divided by 3"
    said = console.export_text()
    assert f"best: valid/loss = {losses[0]:.6g} at {rows[0]['name']}" in said.replace("\n", "")
    assert (sweep.path / "journal.log").is_file()


def test_a_search_goes_on_to_its_number_of_trials(search, child, console, monkeypatch):
    monkeypatch.setenv("CHILD_SECONDS", "60")
    timer = threading.Timer(2.0, os.kill, (os.getpid(), signal.SIGTERM))
    timer.start()
    code, sweep = search(jobs=2)
    assert code == 75
    begun = {folder.name: folder.status()["state"] for folder in sweep.folders()}
    assert list(begun.values()) == ["stopped", "stopped"]
    monkeypatch.setenv("CHILD_SECONDS", "0")
    assert resume_sweep(sweep.path, Settings(jobs=2), console) == 0
    states = {folder.name: folder.status()["state"] for folder in sweep.folders()}
    assert set(states.values()) == {"done"}
    assert len(states) == 8
    assert set(begun) <= set(states)


def test_a_search_prunes_by_the_metric_of_the_run(search, child, console, monkeypatch):
    monkeypatch.setenv("CHILD_SECONDS", "0.7")
    monkeypatch.setattr(scheduler, "LOOK", 0.1)
    text = SPACE.replace("warmup = 100", "warmup = 1").replace("low = 0.01, high = 0.49", "low = 0.3, high = 0.4")
    code, sweep = search(text.replace("trials = 8", "trials = 4"), jobs=1)
    rows = {row["name"]: row for row in rows_of(sweep)}
    states = [row["state"] for row in rows.values()]
    assert code == 0
    assert "pruned" in states
    done = [row["figures"]["valid/loss"] for row in rows.values() if row["state"] == "done"]
    pruned = [row["figures"]["valid/loss"] for row in rows.values() if row["state"] == "pruned"]
    assert min(done) <= min(pruned)


@pytest.mark.parametrize(
    ("change", "said"),
    [
        ("low = 0.01, high = 0.49", "low = -1.0, high = 0.49"),
        ("low = 0.01, high = 0.49", "low = 0.5, high = 0.49"),
        ("low = 0.01, high = 0.49", "low = 0.0, high = 0.49, log = true"),
        ("low = 0.01, high = 0.49", "low = 0.01"),
        ('"cosine"', '"cosinus"'),
        ("trials = 8", "trails = 8"),
        ("[sweep.search]", "[sweep.grid]\nseed = [1]\n[sweep.search]"),
    ],
)
def test_a_wrong_space_is_refused_before_anything_starts(search, tmp_path, change, said):
    assert change in SPACE
    problems = refused(lambda: search(SPACE.replace(change, said)))
    assert problems[0].origin.line
    assert not (tmp_path / "runs").exists()


def test_without_optuna_a_search_says_what_to_install(search, monkeypatch):
    monkeypatch.setitem(sys.modules, "optuna", None)
    (problem,) = refused(search)
    assert "dither-engine[search]" in problem.help


def test_without_submitit_a_cluster_says_what_to_install(begin, monkeypatch):
    monkeypatch.setitem(sys.modules, "submitit", None)
    (problem,) = refused(lambda: begin(executor="slurm"))
    assert "dither-engine[slurm]" in problem.help


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore::ResourceWarning", "ignore::pytest.PytestUnraisableExceptionWarning")  # submitit's
def test_points_run_as_jobs_of_submitit(begin, console, monkeypatch):
    pytest.importorskip("submitit")
    monkeypatch.setenv("OMP_NUM_THREADS", "1")
    code, sweep = begin("[0.01, 0.02]", executor="local", options=("timeout_min=5",))
    assert code == 0
    deadline = time.monotonic() + 120
    while {folder.status()["state"] for folder in sweep.folders()} != {"done"} and time.monotonic() < deadline:
        time.sleep(0.2)
    assert [folder.status()["state"] for folder in sweep.folders()] == ["done", "done"]
    assert all("step 20/20" in (folder.path / "output.txt").read_text() for folder in sweep.folders())
