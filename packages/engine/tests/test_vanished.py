"""The folder of a run or sweep is deleted or renamed while it is in use: exit code 5, nothing is created again."""

import json
import os
import shutil
import textwrap
import threading
import time
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.runs import run as module
from dither.engine.runs.run import run

HOOK = """
import os, shutil
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.contracts.protocols import Metrics
from dither.registry.kinds import MetricSpec

PATH = None
def act(place):
    global PATH
    if place == "{place}" and PATH is not None:
        if "{action}" == "delete":
            # A checkpoint may be written at the same time.
            while PATH.exists():
                shutil.rmtree(PATH, ignore_errors=True)
        else:
            os.rename(PATH, PATH.with_name("renamed"))
        PATH = None

class Counting(Metrics):
    def update(self, clean, noised, pred, measured):
        act("evaluation")
    def compute(self):
        return {{"count": 1.0}}

class Both:
    def metrics(self):
        return Counting()
    def __call__(self, samples, like):
        act("sampling")
        return {{}}

class Metric(MetricSpec):
    "Deletes the run."
    name = "deleting"
    serves: ClassVar[frozenset] = frozenset({{"tokens"}})
    def build(self, space):
        return Both()

@hookimpl
def register_components():
    return [Metric]

@hookimpl
def before_run(run):
    global PATH
    PATH = run.directory.path
    act("before_run")

@hookimpl
def after_step(step):
    if step in (6, 20):
        act(f"step-{{step}}")

@hookimpl
def after_eval(step):
    act("after_eval")

@hookimpl
def after_checkpoint(step):
    act("after_checkpoint")
"""
PLACES = (
    "before_run",
    "step-6",
    "step-20",
    "after_eval",
    "after_checkpoint",
    "evaluation",
    "sampling",
)


@pytest.fixture
def plugin(experiment_file):
    def add(place, action):
        path = experiment_file.with_name("third.py")
        path.write_text(HOOK.format(place=place, action=action))
        names = '["toy_plugin.py", "third.py"]'
        text = experiment_file.read_text().replace('["toy_plugin.py"]', names)
        experiment_file.write_text(text)

    return add


@pytest.mark.parametrize(
    ("place", "action", "background"),
    [
        (place, action, (number + renamed) % 2 == 1)
        for number, place in enumerate(PLACES)
        for renamed, action in enumerate(("delete", "rename"))
    ],
)
def test_a_run_without_its_folder_stops(
    plugin, load, tmp_path, console, place, action, background
):
    plugin(place, action)
    changes = (
        "evaluate.metrics=['deleting']",
        "tracking.use=['csv', 'tensorboard']",
        f"train.async_save={str(background).lower()}",
        "train.keep_best=true",
    )
    runs = tmp_path / "runs"
    assert run(load(*changes), runs, console=console) == 5, console.export_text()
    text = console.export_text()
    assert "was deleted, renamed" in text
    assert "resume with" not in text
    left = [path.name for path in runs.iterdir()]
    assert left == ([] if action == "delete" else ["renamed"])
    if action == "rename":
        # Nothing is lost, unless there was no checkpoint yet.
        assert (runs / "renamed" / "resolved.toml").is_file()
        assert not (runs / "renamed" / "summary.json").exists()


def test_a_signal_writes_no_checkpoint_into_a_folder_that_is_gone(
    load, tmp_path, console, monkeypatch
):
    wait = module.Saver.wait

    def stop(saver, block=True):
        if not block and saver.newest == 10:
            (path,) = (tmp_path / "runs").iterdir()
            shutil.rmtree(path)
            os.kill(os.getpid(), 15)
        wait(saver, block)

    monkeypatch.setattr(module.Saver, "wait", stop)
    assert run(load(), tmp_path / "runs", console=console) == 5
    assert not list((tmp_path / "runs").iterdir())


@pytest.mark.parametrize("action", ["unlink", "truncate", "folder", "checkpoints"])
def test_files_of_a_run_that_are_deleted(
    load, tmp_path, console, monkeypatch, action, go_on
):
    wait = module.Saver.wait

    def delete(saver, block=True):
        wait(saver, block)
        if saver.newest == 10 and not block:
            (folder,) = (tmp_path / "runs").iterdir()
            path = folder / "metrics.jsonl"
            if action == "checkpoints":
                shutil.rmtree(path.with_name(action), ignore_errors=True)
            elif action == "truncate":
                os.truncate(path, 3)
            else:
                path.unlink(missing_ok=True)
            if action == "folder":
                path.mkdir()

    monkeypatch.setattr(module.Saver, "wait", delete)
    code = run(load(), tmp_path / "runs", console=console)
    (folder,) = (tmp_path / "runs").iterdir()
    if action == "checkpoints":
        # Later ones are written, each of which is all that a run needs to resume.
        assert code == 0
        assert (folder / action / "step-00000020").is_dir()
        return
    assert code == 5
    assert "was deleted, replaced or truncated" in console.export_text()
    assert not (folder / "summary.json").exists()
    if action == "unlink":
        monkeypatch.undo()
        assert go_on(folder) == 0


def test_sampling_into_a_run_that_is_deleted(start, monkeypatch, capsys):
    from dither.engine.runs import evaluate_run

    code, folder = start("train.steps=2")
    assert code == 0
    draw = evaluate_run.make_samples

    def delete(*arguments, **options):
        shutil.rmtree(folder)
        return draw(*arguments, **options)

    monkeypatch.setattr(evaluate_run, "make_samples", delete)
    assert main(["sample", str(folder)]) == 5
    assert "was deleted, renamed" in capsys.readouterr().err
    assert not (folder / "resolved.toml").exists()
    assert not list(folder.parent.glob("*/samples/*/*"))


POINT = """
    import json, os, shutil, sys, time, signal
    from pathlib import Path
    folder = Path(sys.argv[1])
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(75))
    time.sleep(0.3)
    (folder / "status.json").write_text(json.dumps({"state": "done", "exit_code": 0}))
"""


@pytest.mark.parametrize("search", [False, True])
def test_a_sweep_without_its_folder_ends(
    experiment_file, tmp_path, monkeypatch, capsys, search
):
    from dither.engine.sweeps import scheduler

    monkeypatch.setenv("DITHER_PLUGINS", "engine")
    script = tmp_path / "point.py"
    script.write_text(textwrap.dedent(POINT))
    monkeypatch.setenv("PYTHONPATH", str(script.parent))
    monkeypatch.setattr(scheduler, "POINT_MODULE", script.stem)
    runs = tmp_path / "runs"

    def delete():
        while not (found := list(runs.glob("*/*/output.txt"))):
            time.sleep(0.01)
        shutil.rmtree(Path(found[0]).parents[1])

    thread = threading.Thread(target=delete)
    thread.start()
    words = ["--sweep", "seed=[1, 2, 3]"]
    if search:
        text = '\n[sweep.search]\ntrials = 3\nspace."seed" = { low = 1, high = 9 }\n'
        experiment_file.write_text(experiment_file.read_text() + text)
        words = []
    code = main(["sweep", str(experiment_file), *words, "--runs", str(runs)])
    thread.join()
    assert code == 5
    assert "was deleted, renamed" in capsys.readouterr().err
    assert not list(runs.glob("*/*"))


def test_a_point_without_its_folder_creates_none(tmp_path):
    from dither.engine.sweeps.directory import PointFolder

    point = PointFolder(tmp_path / "sweep" / "0", {})
    with pytest.raises(FileNotFoundError):
        point.write_status("running")
    assert not (tmp_path / "sweep").exists()


def test_a_file_system_that_fails_for_a_moment_does_not_end_a_run(
    load, tmp_path, console, monkeypatch
):
    stat = Path.stat

    def fails(path, **options):
        if path.name == "resolved.toml":
            raise OSError(5, "Input/output error", str(path))
        return stat(path, **options)

    loaded = load("train.steps=4")
    monkeypatch.setattr(Path, "stat", fails)
    assert run(loaded, tmp_path / "runs", console=console) == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert json.loads((folder / "summary.json").read_text())["step"] == 4
