"""An experiment over the toy plugin beside this file."""

import io
import shutil
import sys
from pathlib import Path

import pytest
import torch
from rich.console import Console

from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.run import run
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

HERE = Path(__file__).parent
TEXT = """
plugins = ["toy_plugin.py"]
seed = 3
task = "toy-words"
process = "toy-mask"
model = "toy-net"
loss = "toy-ce"
sampler = "toy-walk"

[train]
steps = 20
batch_size = 8
accumulate = 2
log_every = 4
checkpoint_every = 5
optimizer = { use = "adamw", lr = 0.02 }
lr_schedule = { use = "cosine", warmup = 3 }
ema = 0.9
device = "cpu"

[evaluate]
every = 7
samples = 13

[sample]
count = 5
"""


@pytest.fixture(autouse=True)
def _one_thread():
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def write_experiment():
    """Write the experiment into a folder, with its plugin beside it; return its path."""

    def write(folder):
        shutil.copy(HERE / "toy_plugin.py", folder)
        path = folder / "exp.toml"
        path.write_text(TEXT)
        return path

    return write


@pytest.fixture
def experiment_file(tmp_path, write_experiment):
    folder = tmp_path / "given"
    folder.mkdir()
    return write_experiment(folder)


@pytest.fixture
def load(experiment_file):
    def loaded(*changes, path=None):
        return load_experiment(path or experiment_file, changes, select=["engine"])

    return loaded


@pytest.fixture
def make_trainer(load):
    """Build the trainer of the experiment, with changes as after --set."""

    def make(*changes):
        experiment = load(*changes).experiment
        return Trainer(Diffusion.build(experiment), experiment.train, experiment.seed)

    return make


@pytest.fixture
def start(load, tmp_path, console):
    def started(*changes):
        before = set((tmp_path / "runs").glob("*"))
        code = run(
            load(*changes),
            tmp_path / "runs",
            ["dither", "run", "exp.toml"],
            console=console,
        )
        (directory,) = set((tmp_path / "runs").glob("*")) - before
        return code, directory

    return started


@pytest.fixture
def go_on(load, console):
    def resumed(directory, *changes, **options):
        loaded = load(*changes, path=directory / "resolved.toml")
        return run(loaded, directory.parent, ["test"], directory, console, **options)

    return resumed


@pytest.fixture
def events():
    """What the hooks of the toy plugin saw; call it after an experiment was loaded."""
    return lambda: toy_plugin().EVENTS


def toy_plugin():
    return [
        module
        for name, module in sys.modules.items()
        if name.startswith("dither_plugin_toy_plugin_")
    ][-1]


@pytest.fixture
def console():
    return Console(record=True, force_terminal=False, width=100, file=io.StringIO())
