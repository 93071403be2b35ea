"""Plugins that change torch for the whole process are named, and change no numbers of a run."""

import subprocess
import sys

import pytest
import torch

import dither
from dither.engine.cli.doctor import check_plugins
from dither.engine.files.metrics_file import read_metrics
from dither.engine.runs.run import run
from dither.registry.spec.torch_settings import GENERATOR, read_settings

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
}
PLUGIN = """
import torch
from dither.registry import hookimpl
from dither.registry.kinds import LRScheduleSpec
{top}
class Flat(LRScheduleSpec):
    "A constant."
    name = "flat"
    def build(self, steps):
        {inside}
        return lambda step: 1.0

@hookimpl
def register_components():
    return [Flat]
"""


@pytest.fixture(autouse=True)
def _settings():
    before = read_settings()
    yield
    # The runs themselves draw random numbers.
    assert {**read_settings(), GENERATOR: None} == {**before, GENERATOR: None}


@pytest.fixture
def changing(experiment_file, load):
    """The experiment with a plugin that changes torch at import, or when it builds a component."""

    def changed(top="", inside="pass"):
        file = experiment_file.with_name("third.py")
        file.write_text(PLUGIN.format(top=top, inside=inside))
        names = '["toy_plugin.py", "third.py"]'
        text = experiment_file.read_text().replace('["toy_plugin.py"]', names)
        experiment_file.write_text(text)
        return load("train.lr_schedule=flat", "train.steps=4")

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
    assert f"changed settings of torch: {name}" in text
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
