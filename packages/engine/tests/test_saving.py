"""Asynchronous checkpoints, those that are kept, the best one, early stopping, exports and lists of runs."""

import json
import math
import threading

import pytest
import torch
from torch import nn

from dither.engine.checkpoints import checkpoint as checkpoint_module
from dither.engine.checkpoints.checkpoint import (
    Checkpoints,
    Contents,
    Saver,
    Scores,
    load_weights,
)
from dither.engine.files.checksums import verify
from dither.engine.files.metrics_file import as_json, read_metrics
from dither.engine.runs.evaluate_run import evaluate_run
from dither.engine.runs.exports import export_run, load
from dither.engine.runs.list_runs import list_runs, verify_run
from dither.engine.runs.loading import find_checkpoint
from dither.engine.runs.run_directory import RunDirectory
from dither.engine.sampling.session import draw
from dither.registry.contracts.commands import RunOptions


def contents(value):
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, value)
    return layer, Contents(
        layer, None, {"moment": torch.full((3,), value)}, {"value": value}
    )


@pytest.fixture
def slow_disk(monkeypatch):
    go, write = threading.Event(), checkpoint_module._write

    def waiting(*arguments):
        assert go.wait(30)
        write(*arguments)

    monkeypatch.setattr(checkpoint_module, "_write", waiting)
    return go


def test_async_checkpoint_holds_the_values_at_the_time_of_saving(tmp_path, slow_disk):
    written_steps = []
    saver = Saver(
        Checkpoints(tmp_path),
        background=True,
        written=lambda step, path: written_steps.append(step),
    )
    layer, given = contents(1.0)
    saver.save(7, given)
    with torch.no_grad():
        layer.weight.fill_(5.0)
    given.tensors["moment"].fill_(5.0)
    given.plain["value"] = 5.0
    assert saver.has(7)
    assert saver.newest is None
    saver.wait(block=False)
    assert written_steps == []
    assert Checkpoints(tmp_path).steps() == []
    slow_disk.set()
    saver.wait()
    assert written_steps == [7]
    assert saver.newest == 7
    path = dict(Checkpoints(tmp_path).steps())[7]
    load_weights(path / "model.safetensors", layer)
    assert verify(path) is None
    assert layer.weight.eq(1.0).all()
    tensors, plain = checkpoint_module.load_state(path)
    assert tensors["moment"].eq(1.0).all()
    assert plain == {"value": 1.0}


def test_failed_async_write_is_reported_and_keeps_the_previous_checkpoint(
    tmp_path, monkeypatch
):
    saver = Saver(Checkpoints(tmp_path), background=True)
    saver.save(1, contents(1.0)[1])
    saver.wait()

    def full(*arguments):
        raise OSError(28, "No space left on device", "here")

    monkeypatch.setattr(checkpoint_module, "_write", full)
    saver.save(2, contents(2.0)[1])
    with pytest.raises(OSError, match="No space left"):
        saver.wait()
    assert saver.newest == 1
    assert [step for step, _ in Checkpoints(tmp_path).steps()] == [1]
    assert not list(tmp_path.glob(".tmp-*"))


def test_keep_every_and_keep_best(start):
    changes = (
        "train.keep=1",
        "train.keep_every=10",
        "train.checkpoint_every=2",
        "train.keep_best=true",
    )
    _, path = start(*changes, "evaluate.every=3", "evaluate.better='higher'")
    assert Scores.read(path, "loss", "higher").best == 3  # the loss falls
    assert sorted(step for step, _ in Checkpoints(path / "checkpoints").steps()) == [
        3,
        10,
        20,
    ]
    assert find_checkpoint(path, "best").name == "step-00000003"
    losses = [
        line["loss"]
        for line in read_metrics(path / "metrics.jsonl")
        if line["kind"] == "valid"
    ]
    assert evaluate_run(path, RunOptions("best"))[0]["loss"] == pytest.approx(losses[0])


def test_early_stopping_and_resuming(start, go_on, console):
    changes = (
        "evaluate.better='higher'",
        "evaluate.every=3",
        "evaluate.patience=2",
        "train.keep_best=true",
    )
    code, path = start(*changes)
    assert code == 0
    assert (
        "early stopping: 2 evaluations without improvement since step 3"
        in console.export_text()
    )
    (listed,) = list_runs(path.parent)
    assert (listed.state, listed.step, listed.steps) == ("done", 9, 20)
    assert [step for step, _ in Checkpoints(path / "checkpoints").steps()] == [9, 5, 3]
    metrics = read_metrics(path / "metrics.jsonl")
    assert go_on(path) == 0
    assert read_metrics(path / "metrics.jsonl") == metrics
    assert json.loads((path / "summary.json").read_text())["step"] == 9
    assert go_on(path, "evaluate.patience=3", "train.steps=21") == 0
    (listed,) = list_runs(path.parent)
    assert (listed.state, listed.step, listed.steps) == ("done", 12, 21)


def test_scores_are_read_from_metrics(tmp_path):
    scores = Scores("f1", "higher", {})
    values = {2: 0.1, 4: 0.5, 6: math.nan, 8: 0.5, 10: 0.7}
    assert [scores.add(step, {"f1": value}) for step, value in values.items()] == [
        True,
        True,
        False,
        False,
        True,
    ]
    lines = [
        as_json({"step": step, "kind": "valid", "f1": value})
        for step, value in values.items()
        if step < 10
    ]
    (tmp_path / "metrics.jsonl").write_text(
        "\n".join([*lines, '{"step": 9, "kind": "sample", "f1": 2}', ""])
    )
    again = Scores.read(tmp_path, "f1", "higher")
    assert (again.best, again.since) == (4, 2)
    assert Scores.read(tmp_path, "f2", "higher").best is None, "another metric"


def test_export_and_missing_checkpoints(start, tmp_path, refused):
    _, path = start("evaluate.better='higher'")
    system = load(path, device="cpu")
    samples = draw(system, system.task.like(4, seed=0), seed=0)
    files = export_run(path, tmp_path / "export")
    assert {file.name for file in files} == {
        "weights.safetensors", "experiment.toml", "toy_plugin.py", "MANIFEST.json"
    }  # fmt: skip
    other = load(tmp_path / "export", device="cpu")
    assert torch.equal(draw(other, other.task.like(4, seed=0), seed=0), samples)
    with refused("file-exists"):
        export_run(path, tmp_path / "export")
    weights = tmp_path / "export" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with refused("damaged-checkpoint", match="weights.safetensors"):
        load(tmp_path / "export")
    for which in (3, "best"):
        with refused("missing-checkpoint", match="15, 20"):
            find_checkpoint(path, which)


def test_list_runs_and_verify_run(start, tmp_path):
    _, path = start()
    (tmp_path / "runs" / "something else").mkdir()
    (listed,) = list_runs(tmp_path / "runs")
    assert (listed.path, listed.state, listed.step, listed.steps) == (
        path,
        "done",
        20,
        20,
    )
    assert listed.metrics["valid/loss"] > 0
    with RunDirectory.open(path):
        assert next(list_runs(tmp_path / "runs")).state == "running"
    assert all(found.reason is None for found in verify_run(path))
    files = ["manifest.json", "metrics.jsonl"]
    files += [
        str(file.relative_to(path))
        for file in (path / "checkpoints").rglob("*")
        if file.is_file()
    ]
    for name in files:
        whole = (path / name).read_bytes()
        for damaged in (
            b"",
            whole[: len(whole) // 2],
            whole[:-1] + bytes([whole[-1] ^ 1]),
        ):
            (path / name).write_bytes(damaged)
            found = [one.path for one in verify_run(path) if one.reason]
            assert [name.startswith(one) for one in found] == [True], (name, found)
        (path / name).write_bytes(whole)

    # A file of experiments has no checksum: it is validated when it is read.
    (path / "resolved.toml").write_text("[train")
    assert [one.path for one in verify_run(path) if one.reason] == ["resolved.toml"]
