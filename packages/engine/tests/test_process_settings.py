"""Settings of the process that code of third parties changes are named, and change no numbers of a run."""

import io
import subprocess
import sys
from pathlib import Path

import pytest
import torch

import dither
from dither.engine.cli.doctor import check_plugins
from dither.engine.files.metrics_file import read_metrics
from dither.engine.runs.run import run
from dither.registry.spec.process_settings import (
    GENERATOR,
    read_settings,
    restored_settings,
)

CHANGES = {
    "default dtype": "torch.set_default_dtype(torch.float64)",
    "default device": "torch.set_default_device('meta')",
    "grad mode": "torch.set_grad_enabled(False)",
    "deterministic algorithms": "torch.use_deterministic_algorithms(True)",
    "precision of matrix products": "torch.set_float32_matmul_precision('medium')",
    "cudnn.benchmark": "torch.backends.cudnn.benchmark = True",
    "cudnn.deterministic": "torch.backends.cudnn.deterministic = True",
    "anomaly detection": "torch.autograd.set_detect_anomaly(True)",
    "number of threads": "torch.set_num_threads(3)",
    "random generator": "torch.manual_seed(5)",
    "autocast of cpu": "torch.autocast('cpu').__enter__()",
    "cudnn.enabled": "torch.backends.cudnn.enabled = False",
    "working folder": "import os; os.chdir('/')",
    "handler of SIGTERM": "import signal; signal.signal(signal.SIGTERM, signal.SIG_IGN)",
    "variable OMP_NUM_THREADS": "import os; os.environ['OMP_NUM_THREADS'] = '7'",
}
DURING = [name for name in CHANGES if name != "random generator"]
STREAMS = (
    ("sys.stdout", "import sys; sys.stdout.close()"),
    ("sys.stdout", "import io, sys; sys.stdout = io.StringIO()"),
    ("sys.stdout", "import sys; sys.stdout = sys.stdin"),
    ("sys.stderr", "import sys; sys.stderr.close()"),
    ("sys.stderr", "import sys; sys.stderr = None"),
    ("file descriptor 1", "import os; os.close(1)"),
    ("file descriptor 2", "import os; os.dup2(os.open(os.devnull, os.O_WRONLY), 2)"),
)
"""Changes of the output of a process, which pytest itself would not survive."""
TABLES = ("tracking.use=['changing']", "evaluate.metrics=['changing']")
PLUGIN = """
from typing import ClassVar
import torch
from dither.registry import hookimpl
from dither.registry.contracts.protocols import Metrics
from dither.registry.kinds import LRScheduleSpec, MetricSpec, TrackerSpec
{top}
class Flat(LRScheduleSpec):
    "A constant."
    name = "flat"
    def build(self, steps):
        {inside}
        return lambda step: 1.0

def change(place):
    if place == "{place}":
        {action}

class Recorder:
    def start(self, folder, config, step=0):
        change("start")
    def log(self, step, kind, metrics):
        change("log")
    def log_pictures(self, step, pictures):
        pass
    def finish(self, error=None):
        change("finish")

class Tracker(TrackerSpec):
    "Changes settings."
    name = "changing"
    def build(self):
        return Recorder()

class Nothing(Metrics):
    def __init__(self):
        change("metrics")
    def update(self, clean, noised, pred, measured):
        change("update")
    def compute(self):
        change("compute")
        return {{}}

class Both:
    def metrics(self):
        return Nothing()
    def __call__(self, samples, like):
        change("samples")
        return {{}}

class Metric(MetricSpec):
    "Changes settings."
    name = "changing"
    serves: ClassVar[frozenset] = frozenset({{"tokens"}})
    def build(self, space):
        return Both()

@hookimpl
def before_run():
    change("before_run")

@hookimpl
def after_step():
    change("after_step")

@hookimpl
def register_components():
    return [Flat, Tracker, Metric]
"""
PLACES = (
    "start",
    "log",
    "finish",
    "metrics",
    "update",
    "compute",
    "samples",
    "before_run",
    "after_step",
)


@pytest.fixture(autouse=True)
def _settings():
    before = read_settings()
    yield
    # The runs themselves draw random numbers.
    assert {**read_settings(), GENERATOR: None} == {**before, GENERATOR: None}


@pytest.fixture
def changing(experiment_file, load):
    """The experiment with a plugin that changes torch at import, or when it builds a component."""

    def changed(*changes, top="", inside="pass", place="", action="pass"):
        file = experiment_file.with_name("third.py")
        source = PLUGIN.format(top=top, inside=inside, place=place, action=action)
        file.write_text(source)
        names = '["toy_plugin.py", "third.py"]'
        text = experiment_file.read_text().replace('["toy_plugin.py"]', names)
        experiment_file.write_text(text)
        return load("train.lr_schedule=flat", "train.steps=4", *changes)

    return changed


@pytest.fixture(scope="module")
def plain(tmp_path_factory, write_experiment):
    """The metrics of a run in which nothing changes torch."""
    folder = tmp_path_factory.mktemp("plain")
    constant = {"use": "cosine", "final": 1.0, "warmup": 0}
    changes = {"train.steps": 4, "train.lr_schedule": constant}
    path = dither.train(write_experiment(folder), changes, folder / "runs")
    return read_metrics(path / "metrics.jsonl")


@pytest.mark.parametrize("name", CHANGES)
def test_a_change_at_import_is_named_and_undone(
    changing, plain, tmp_path, console, name
):
    loaded = changing(top=CHANGES[name])
    assert run(loaded, tmp_path / "runs", console=console) == 0
    text = " ".join(console.export_text().split())
    assert 'plugin "third"' in text
    assert f"changed settings of the process: {name}" in text
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_metrics(folder / "metrics.jsonl") == plain
    messages = [finding.message for finding in check_plugins(loaded.plugins)]
    assert any(name in message for message in messages)


@pytest.mark.parametrize("name", ["default dtype", "grad mode", "number of threads"])
def test_a_change_in_build_is_named_and_undone(
    changing, plain, tmp_path, console, name
):
    with pytest.warns(UserWarning, match=f'lr-schedule "flat" .*{name}'):
        code = run(changing(inside=CHANGES[name]), tmp_path / "runs", console=console)
    assert code == 0
    (folder,) = (tmp_path / "runs").iterdir()
    assert read_metrics(folder / "metrics.jsonl") == plain


@pytest.mark.parametrize(
    ("place", "name"),
    [(PLACES[number % len(PLACES)], name) for number, name in enumerate(DURING)],
)
def test_a_change_during_a_run_is_named_and_undone(
    changing, plain, tmp_path, console, monkeypatch, place, name
):
    monkeypatch.chdir(tmp_path)
    loaded = changing(*TABLES, place=place, action=CHANGES[name])
    with pytest.warns(UserWarning, match=f"changed settings of the process.*{name}"):
        code = run(loaded, Path("runs"), console=console)
    assert code == 0, console.export_text()
    (folder,) = Path("runs").iterdir()
    assert read_metrics(folder / "metrics.jsonl") == plain


@pytest.mark.parametrize("place", PLACES)
def test_each_place_is_protected(changing, tmp_path, console, place):
    action = CHANGES["default dtype"]
    loaded = changing(*TABLES, place=place, action=action)
    with pytest.warns(UserWarning, match="default dtype"):
        assert run(loaded, tmp_path / "runs", console=console) == 0


@pytest.mark.parametrize("stream", ["stdout", "stderr"])
def test_output_is_restored(stream):
    code = (
        "import sys\n"
        "from dither.registry.spec.process_settings import restored_settings\n"
        f"for name, action in {STREAMS}:\n"
        "    with restored_settings() as changes:\n"
        "        exec(action)\n"
        f"    print(name in ' '.join(changes), name, file=sys.{stream}, flush=True)\n"
    )
    command = [sys.executable, "-c", code]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    lines = [f"True {name}\n" for name, _ in STREAMS]
    assert vars(done)[stream] == "".join(lines), done


class Tee:
    """Output that is no stream of io, as loggers have it."""

    def __init__(self, file):
        self.fileno = file.fileno
        self.write = file.write
        self.close = file.close


@pytest.mark.parametrize("make", [lambda file: file, Tee, lambda file: io.StringIO()])
def test_any_output_may_be_closed(monkeypatch, tmp_path, make):
    with open(tmp_path / "log", "w") as file:
        monkeypatch.setattr(sys, "stdout", make(file))
        with restored_settings() as changes:
            sys.stdout.close()
        assert changes == ["sys.stdout"]
        assert not sys.stdout.closed


@pytest.mark.slow
@pytest.mark.parametrize(("name", "action"), STREAMS)
def test_a_tracker_that_closes_the_output_does_not_end_a_run(
    changing, experiment_file, tmp_path, name, action
):
    changing(place="log", action=action)
    changes = (*TABLES, "train.steps=4", "evaluate.every=2")
    command = [sys.executable, "-m", "dither.engine.cli", "run", str(experiment_file)]
    command += ["--runs", str(tmp_path / "runs"), *changes]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done
    assert f"were restored: {name}" in done.stderr
    assert "all metrics" in done.stdout
    assert "Traceback" not in done.stderr


@pytest.mark.slow
def test_a_plugin_that_imports_torch_first_is_named(changing, experiment_file):
    changing(top="torch.set_default_dtype(torch.float64)")
    code = (
        "import sys; from dither.engine.config.load_experiment import load_experiment;"
        "assert 'torch' not in sys.modules;"
        f"loaded = load_experiment({str(experiment_file)!r}, select=['engine']);"
        "print(loaded.plugins.observe()); import torch; print(torch.zeros(1).dtype)"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert "default dtype from torch.float32 to torch.float64" in done.stdout, done
    assert done.stdout.endswith("torch.float32\n")


def test_a_plugin_that_fails_changes_nothing(changing, refused):
    with refused("plugin-failed"):
        changing(top="torch.set_default_dtype(torch.float64)\n1 / 0")
    assert torch.get_default_dtype() == torch.float32


@pytest.mark.slow
def test_precision_that_is_set_per_backend_is_left_alone():
    """torch 2.13 then refuses to read the precision of all backends."""
    code = (
        "import torch\n"
        "torch.backends.cuda.matmul.fp32_precision = 'tf32'\n"
        "from dither import load_experiment\n"
        "loaded = load_experiment('dna_sequence/quick', ['model.width=8'])\n"
        "loaded.experiment.loss.build(loaded.experiment.process.facts(loaded.experiment.task.space()))\n"
        "print(torch.backends.cuda.matmul.fp32_precision)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=False
    )
    assert done.stdout == "tf32\n", done.stderr
