import json
import time
from unittest.mock import Mock

import pytest
from safetensors.torch import load_file

from dither.engine.checkpoints import checkpoint as checkpoint_module
from dither.engine.files.metrics_file import read_metrics
from dither.engine.runs import run as module
from dither.engine.runs.evaluate_run import evaluate_run, sample_run
from dither.engine.runs.loading import load_run
from dither.engine.runs.run import run
from dither.engine.training.data_order import SampleOrder
from dither.registry.contracts.commands import SampleRequest


def test_a_run_from_start_to_end(start, console, monkeypatch):
    monkeypatch.setenv("DITHER_PLUGINS", "engine")
    code, directory = start()
    assert code == 0
    names = {path.name for path in directory.iterdir()}
    assert names == {
        "checkpoints", "evaluation", "experiment.toml", "manifest.json", "metrics.jsonl", "plugins", "resolved.toml",
        "run.lock", "samples", "summary.json", "tensorboard",
    }  # fmt: skip
    lines = [
        (line["step"], line["kind"])
        for line in read_metrics(directory / "metrics.jsonl")
    ]
    assert lines == [
        (1, "train"),
        (4, "train"), (7, "valid"), (8, "train"), (12, "train"), (14, "valid"), (16, "train"), (20, "train"),
        (20, "valid"), (20, "sample"),
    ]  # fmt: skip
    samples = directory / "samples" / "step-00000020"
    assert {path.name for path in samples.iterdir()} == {
        "words.txt",
        "dot.png",
        "dot.svg",
        "samples.safetensors",
    }
    assert len((samples / "words.txt").read_text().split()) == 5
    summary = json.loads((directory / "summary.json").read_text())
    assert summary["baselines"] == {"accuracy/chance": 0.25}
    accuracy = read_metrics(directory / "metrics.jsonl")[-2]["accuracy"]
    assert summary["metrics"]["valid"]["accuracy"] == pytest.approx(accuracy)
    last = json.loads((directory / "metrics.jsonl").read_text().splitlines()[-3])
    assert last["samples_per_second"] > 0
    assert abs(last["wall_time"] - time.time()) < 600
    assert summary["steps_per_second"] > 0
    assert summary["peak_memory_bytes"] > 10_000_000
    manifest = json.loads((directory / "manifest.json").read_text())
    assert manifest["argv"] == ["dither", "run", "exp.toml"]
    assert manifest["parameters"]["total"] == 285
    assert len(manifest["plugins"]["toy-plugin"]["sha256"]) == 64
    assert manifest["environment"]["threads"] == 1
    assert manifest["environment"]["precision"] == "float32"
    text = console.export_text()
    assert "285 parameters: own 48, table 40" in text
    assert "40 train, 13 valid, 5 test" in text
    assert "chance 0.25" in text


def test_order_of_hooks(start, events):
    start("train.steps=3", "evaluate.every=2", "train.checkpoint_every=2")
    assert [event[:2] for event in events()] == [
        ("before_run", 0),
        ("after_step", 1),
        ("after_step", 2),
        ("after_checkpoint", 2),
        ("after_eval", 2),
        ("after_step", 3),
        ("after_checkpoint", 3),
        ("after_eval", 3),
        ("after_run", 3),
    ]


def test_nan_keeps_the_last_good_checkpoint(start, console, events):
    code, directory = start("task.poison=17", "train.checkpoint_every=1", "seed=5")
    assert code == 4
    text = console.export_text()
    assert "loss is nan" in text
    assert "faulty training samples: 17" in text
    checkpoints = checkpoint_module.Checkpoints(directory / "checkpoints")
    newest, damaged = checkpoints.newest()
    assert not damaged
    tensors, plain = checkpoint_module.load_state(newest)
    assert f"the last checkpoint is that of step {plain['step']}" in text
    assert f"step {plain['step'] + 1}: " in text
    assert all(tensor.isfinite().all() for tensor in tensors.values())
    assert events()[-1] == ("on_run_error", "NonFinite")
    assert not (directory / "summary.json").exists()


@pytest.mark.parametrize(
    "first",
    [
        "train.checkpoint_every=2",
        "evaluate.every=2",
        "sample.every=2",
        "train.log_every=2",
    ],
)
def test_void_updates_leave_no_trace(start, console, first):
    """Whichever comes first of a checkpoint, an evaluation, samples or a log line finds it out."""
    late = (
        "train.checkpoint_every=99",
        "evaluate.every=99",
        "sample.every=99",
        "train.log_every=99",
    )
    others = [
        change for change in late if change.partition("=")[0] != first.partition("=")[0]
    ]
    row = SampleOrder(40, 3).rows(8 * 4, 1)[0]  # met in the fifth step
    code, directory = start(f"task.poison={row}", first, *others, "train.accumulate=1")
    assert code == 4
    assert "step 5: loss is nan" in console.export_text()
    assert not any(
        path.name > "step-00000004" for path in directory.glob("checkpoints/*")
    )
    assert not any(
        line["step"] > 4 for line in read_metrics(directory / "metrics.jsonl")
    )
    assert not (directory / "samples" / "step-00000006").exists()


def test_a_full_disk_is_exit_code_5(start, console, monkeypatch):
    usage = checkpoint_module.shutil.disk_usage(".")
    full = usage._replace(free=10)
    monkeypatch.setattr(
        checkpoint_module.shutil,
        "disk_usage",
        lambda path: full if list(path.glob("step-*")) else usage,
    )
    code, directory = start()
    assert code == 5
    text = console.export_text()
    assert "bytes, 10 are free" in text
    assert "the last checkpoint is that of step 5" in text
    assert [path.name for path in (directory / "checkpoints").iterdir()] == [
        "step-00000005"
    ]


@pytest.mark.parametrize(
    "error", [MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_out_of_memory_is_exit_code_5(start, monkeypatch, error):
    monkeypatch.setattr(module.Trainer, "advance", Mock(side_effect=error))
    assert start()[0] == 5


def test_other_errors_are_raised(start, monkeypatch, events):
    monkeypatch.setattr(module.Trainer, "advance", lambda self: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        start()
    assert events()[-1] == ("on_run_error", "ZeroDivisionError")


def test_a_refused_run_leaves_no_directory(load, tmp_path, console, refused):
    for change, code in (
        ("task.size=0", "no-samples"),
        ("train.device=cuda:77", "invalid-value"),
    ):
        with refused(code):
            run(load(change), tmp_path / "runs", console=console)
    assert not (tmp_path / "runs").exists()


@pytest.mark.slow
def test_evaluating_sampling_and_resuming_a_finished_run(
    start, go_on, tmp_path, console, refused
):
    _, directory = start()
    metrics, baselines = evaluate_run(directory)
    assert (
        metrics
        == json.loads((directory / "summary.json").read_text())["metrics"]["valid"]
    )
    assert baselines == {"accuracy/chance": 0.25}
    assert evaluate_run(directory, split="test")[1] == {"accuracy/chance": 0.25}

    ours = directory / "samples" / "step-00000020" / "words.txt"
    request = SampleRequest(5, 0, tmp_path / "out")
    drawn = sample_run(directory, request, console=console)
    assert drawn.folder == tmp_path / "out"
    assert (tmp_path / "out" / "words.txt").read_bytes() == ours.read_bytes()
    sample_run(directory, SampleRequest(3, 9), console=console)
    samples = directory / "samples" / "step-00000020-seed-9-count-3" / "words.txt"
    assert len(samples.read_text().split()) == 3
    with refused("file-exists"):
        sample_run(directory, SampleRequest(5, 1, tmp_path / "out"), console=console)
    with refused("unknown-format"):
        sample_run(directory, SampleRequest(5, 1, figures=("eps",)), console=console)

    _, system, step = load_run(directory)
    assert step == 20
    assert not system.training
    average = load_file(directory / "checkpoints" / "step-00000020" / "ema.safetensors")
    assert all(
        (system.model.state_dict()[key] == value).all()
        for key, value in average.items()
    )

    with module.RunDirectory.open(directory), refused("run-locked"):
        go_on(directory)
    checkpoint_module.shutil.rmtree(directory / "checkpoints")
    with refused("missing-checkpoint") as info:
        load_run(directory)
    assert info.value.exit_code == 3
