"""A real number as a condition of a third-party task, from the experiment file to every command after it."""

import shutil
from pathlib import Path

import pytest
import torch

import dither
from dither.engine.cli import main
from dither.registry.config.errors import Refused

EXPERIMENT = """
plugins = ["./toy_numbers.py"]
task = "bits"
process = "absorbing"
loss = "masked-ce"
sampler = { use = "ancestral", steps = 8 }
[model]
use = "denoiser"
width = 16
depth = 1
embedding = { use = "tokens", position = "learned" }
condition = { use = "sum", parts = ["level", { use = "number", of = "percent", dropout = 0.2 }] }
block = { use = "adaln-zero", heads = 2 }
head = "tokens"
[train]
steps = 60
batch_size = 32
checkpoint_every = 30
ema = 0.0
device = "cpu"
threads = 1
optimizer = { use = "adamw", lr = 0.02 }
lr_schedule = "constant"
[evaluate]
every = 30
samples = 64
[sample]
count = 8
guidance = { condition = "percent", weight = 1.5 }
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """An experiment, and a run of it."""
    folder = tmp_path_factory.mktemp("numbers")
    shutil.copy(Path(__file__).with_name("toy_numbers.py"), folder)
    (folder / "exp.toml").write_text(EXPERIMENT)
    command = ["run", str(folder / "exp.toml"), "--runs", str(folder / "runs")]
    assert main(command) == 0
    return folder


def run_of(folder):
    (run,) = (folder / "runs").glob("*-*")
    return run


def ones(system, percent):
    """Return the share of ones of samples at a requested percentage."""
    return system.sample(64, seed=1, labels={"percent": percent}).float().mean().item()


def test_samples_follow_the_number(folder):
    system = dither.load(run_of(folder))
    low, high = ones(system, 10), ones(system, 90.0)
    assert high - low > 0.4
    each = system.sample(4, labels={"percent": [10, 90, 10.0, 90.0]})
    assert each.shape == (4, 8)
    # Weight 0 is unconditional: the number does not matter.
    system.guidance = system.guidance.model_copy(update={"weight": 0.0})
    assert ones(system, 10) == ones(system, 90)


def test_numbers_beyond_the_training_data_are_warned_of(folder, capsys):
    system = dither.load(run_of(folder))
    with pytest.warns(UserWarning, match=r"percent = 150 .* 0 to 100"):
        system.sample(2, labels={"percent": [50, 150]}, steps=2)
    for value in ("x", float("nan")):
        with pytest.raises(Refused):
            system.sample(2, labels={"percent": value})
    words = ["sample", str(run_of(folder)), "-n", "2", "--out"]
    inside = [*words, str(folder / "in"), "--set", "sample.cond.percent=99"]
    assert main(inside) == 0
    assert "outside" not in capsys.readouterr().err
    outside = [*words, str(folder / "out"), "--set", "sample.cond.percent=-1"]
    assert main(outside) == 0
    captured = capsys.readouterr()
    assert "percent = -1 is outside" in captured.out + captured.err
    assert main(["validate", str(folder / "exp.toml"), "sample.cond.percent=-1"]) == 0
    captured = capsys.readouterr()
    assert "out-of-range" in captured.out + captured.err
    for wrong, code in (
        ("sample.cond.percent=x", "unknown-value"),
        ("sample.cond.percnt=1", "misfit"),
    ):
        assert main([*words, str(folder / "no"), "--set", wrong]) == 2
        assert f"[{code}]" in capsys.readouterr().err


@pytest.mark.slow
def test_a_resumed_run_drops_the_same_numbers(folder):
    """60 steps are those of 30 steps, resumed."""
    words = ["run", str(folder / "exp.toml"), "--runs", str(folder / "again")]
    assert main([*words, "train.steps=30"]) == 0
    (again,) = (folder / "again").glob("*-*")
    assert main(["run", "--resume", str(again), "--set", "train.steps=60"]) == 0
    whole = dither.load(run_of(folder))
    resumed = dither.load(again)
    for name, weight in whole.model.state_dict().items():
        assert torch.equal(weight, resumed.model.state_dict()[name]), name


@pytest.mark.slow
def test_every_command_after_training(folder, capsys):
    run = run_of(folder)
    assert main(["evaluate", str(run)]) == 0
    assert main(["run", "--resume", str(run), "--set", "train.steps=70"]) == 0
    export = folder / "export"
    assert main(["export", str(run), "--out", str(export)]) == 0
    system, exported = dither.load(run), dither.load(export)
    assert system.experiment.train.steps == 70
    assert ones(system, 30) == ones(exported, 30)
    # Of all conditions, the number is the only one, and bits carry information about it.
    clean = system.task.batch("valid", range(64))
    likely = system.log_likelihood(
        clean.x0, labels={"percent": clean.cond["percent"].tolist()}
    )
    swapped = system.log_likelihood(
        clean.x0, labels={"percent": (100 - clean.cond["percent"]).tolist()}
    )
    assert likely.values.mean() > swapped.values.mean()

    other = ["run", str(folder / "exp.toml"), "seed=1", "train.steps=30"]
    assert main([*other, "--runs", str(folder / "other")]) == 0
    (second,) = (folder / "other").glob("*-*")
    page = folder / "compare.html"
    assert main(["compare", str(run), str(second), "--out", str(page)]) == 0
    assert second.name in page.read_text()
