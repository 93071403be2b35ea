"""Checkpoints beside training, those that stay, the best one, and the end that patience brings."""

import json
import math
import threading

import pytest
import torch
from torch import nn

from dither.engine.checkpoints import checkpoint as checkpoint_module
from dither.engine.checkpoints.best_checkpoint import Scores
from dither.engine.checkpoints.checkpoint import Checkpoints, Contents, Saver, load_weights
from dither.engine.files.checksums import verify
from dither.engine.runs.evaluate_run import evaluate_run
from dither.engine.runs.launch import run
from dither.engine.runs.list_runs import list_runs, verify_run
from dither.engine.runs.exports import export_run, load
from dither.engine.runs.loading import find_checkpoint
from dither.engine.sampling.session import draw
from dither.registry.config.errors import Refused


@pytest.fixture
def start(load, tmp_path, console):
    def started(*changes):
        before = set((tmp_path / "runs").glob("*"))
        code = run(load(*changes), tmp_path / "runs", ["test"], console=console)
        (directory,) = set((tmp_path / "runs").glob("*")) - before
        return code, directory

    return started


@pytest.fixture
def go_on(load, tmp_path, console):
    return lambda path, *changes: run(
        load(*changes, path=path / "resolved.toml"), tmp_path / "runs", ["test"], path, console
    )


def contents(value):
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, value)
    return layer, Contents(layer, None, {"moment": torch.full((3,), value)}, {"value": value})


@pytest.fixture
def slow_disk(monkeypatch):
    """Writes wait until they are let go."""
    go, write = threading.Event(), checkpoint_module._write

    def waiting(*arguments):
        assert go.wait(30)
        write(*arguments)

    monkeypatch.setattr(checkpoint_module, "_write", waiting)
    return go


def test_async_checkpoint_holds_the_values_at_the_time_of_saving(tmp_path, slow_disk):
    written_steps = []
    saver = Saver(Checkpoints(tmp_path), background=True, written=lambda step, path: written_steps.append(step))
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
    path = find_path(tmp_path, 7)
    load_weights(path / "model.safetensors", layer)
    assert verify(path) is None
    assert layer.weight.eq(1.0).all()
    tensors, plain = checkpoint_module.load_state(path)
    assert tensors["moment"].eq(1.0).all()
    assert plain == {"value": 1.0}


def find_path(folder, step):
    return dict(Checkpoints(folder).steps())[step]


def test_failed_async_write_is_reported_and_keeps_the_previous_checkpoint(tmp_path, monkeypatch):
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


def test_tied_weights_stay_tied_in_a_copy(tmp_path):
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    Checkpoints(tmp_path).save(1, Contents(tied, None, {}, {}).copied())
    assert (find_path(tmp_path, 1) / "model.safetensors").stat().st_size < 2 * 36 + 200


def test_async_save_does_not_change_a_run(start):
    plain, beside = start()[1], start("train.async_save=true")[1]
    for name in ("model.safetensors", "average.safetensors", "optimizer.safetensors"):
        one, other = (path / "checkpoints" / "step-00000020" / name for path in (plain, beside))
        assert one.read_bytes() == other.read_bytes()
    assert (plain / "metrics.jsonl").read_bytes() == (beside / "metrics.jsonl").read_bytes()


def test_keep_every_and_keep_best(start):
    changes = ("train.keep=1", "train.keep_every=10", "train.checkpoint_every=2", "train.keep_best=true")
    _, path = start(*changes, "evaluate.every=3", "evaluate.better='higher'")
    best = best_step(path)  # the loss falls, so that the first evaluation is the highest
    assert best == 3
    assert sorted(step for step, _ in Checkpoints(path / "checkpoints").steps()) == [3, 10, 20]
    assert find_checkpoint(path, "best").name == "step-00000003"
    assert evaluate_run(path, "best")["loss"] == json.loads((path / "scores.json").read_text())["evaluations"][0][1]


def test_early_stopping_and_resuming(start, go_on, console):
    changes = ("evaluate.better='higher'", "evaluate.every=3", "evaluate.patience=2", "train.keep_best=true")
    code, path = start(*changes)
    assert code == 0
    assert "early stopping: 2 evaluations without improvement since step 3" in console.export_text()
    (listed,) = list_runs(path.parent)
    assert (listed.state, listed.step, listed.steps) == ("done", 9, 20)
    assert [step for step, _ in Checkpoints(path / "checkpoints").steps()] == [9, 5, 3]
    metrics = (path / "metrics.jsonl").read_bytes()
    assert go_on(path) == 0
    assert (path / "metrics.jsonl").read_bytes() == metrics
    assert json.loads((path / "summary.json").read_text())["step"] == 9
    assert go_on(path, "evaluate.patience=3", "train.steps=21") == 0
    (listed,) = list_runs(path.parent)
    assert (listed.state, listed.step, listed.steps) == ("done", 12, 21)


def test_unknown_metric_names_the_nearest(start):
    with pytest.raises(Refused) as info:
        start("evaluate.best='los'")
    (problem,) = info.value.problems
    assert (problem.code, problem.help) == ("unknown-metric", 'did you mean "loss"?')


def test_scores_after_the_resumed_step_are_dropped(tmp_path):
    scores = Scores(tmp_path, "f1", "higher")
    values = {2: 0.1, 4: 0.5, 6: math.nan, 8: 0.5, 10: 0.7}
    assert [scores.add(step, {"f1": value}) for step, value in values.items()] == [True, True, False, False, True]
    assert best_step(tmp_path) == 10
    again = Scores(tmp_path, "f1", "higher", step=8)
    assert (again.best, again.since) == (4, 2)
    assert Scores(tmp_path, "f1", "lower", step=8).best is None, "another direction"


def test_load_draw_and_export(start, tmp_path):
    _, path = start()
    system = load(path, device="cpu")
    samples = draw(system, system.task.like(4, seed=0), seed=0)
    files = export_run(path, tmp_path / "given-away")
    assert {file.name for file in files} == {
        "weights.safetensors", "experiment.toml", "toy_plugin.py", "MANIFEST.json"
    }  # fmt: skip
    other = load(tmp_path / "given-away", device="cpu")
    assert torch.equal(draw(other, other.task.like(4, seed=0), seed=0), samples)
    with pytest.raises(Refused) as info:
        export_run(path, tmp_path / "given-away")
    assert info.value.codes == ["file-exists"]
    weights = tmp_path / "given-away" / "weights.safetensors"
    weights.write_bytes(weights.read_bytes()[:-1] + b"\1")
    with pytest.raises(Refused, match="weights.safetensors") as info:
        load(tmp_path / "given-away")
    assert info.value.codes == ["damaged-checkpoint"]


def test_a_missing_checkpoint_lists_the_existing_ones(start):
    _, path = start("evaluate.better='higher'")
    for which in (3, "best"):
        with pytest.raises(Refused, match="15, 20") as info:
            find_checkpoint(path, which)
        assert info.value.codes == ["missing-checkpoint"]


def test_list_runs_and_verify_run(start, tmp_path):
    _, path = start()
    (tmp_path / "runs" / "something else").mkdir()
    (listed,) = list_runs(tmp_path / "runs")
    assert (listed.path, listed.state, listed.step, listed.steps) == (path, "done", 20, 20)
    assert listed.figures["valid/loss"] > 0
    assert all(found.reason is None for found in verify_run(path))
    files = ["resolved.toml", "manifest.json", "metrics.jsonl"]
    files += [str(file.relative_to(path)) for file in (path / "checkpoints").rglob("*") if file.is_file()]
    for name in files:
        whole = (path / name).read_bytes()
        for damaged in (b"", whole[: len(whole) // 2], whole[:-1] + bytes([whole[-1] ^ 1])):
            (path / name).write_bytes(damaged)
            found = [one.what for one in verify_run(path) if one.reason]
            assert [name.startswith(one) for one in found] == [True], (name, found)
        (path / name).write_bytes(whole)
    assert all(found.reason is None for found in verify_run(path))


def test_a_locked_run_is_listed_as_running(start, tmp_path):
    from dither.engine.runs.run_directory import RunDirectory

    _, path = start()
    with RunDirectory.open(path):
        assert next(list_runs(tmp_path / "runs")).state == "running"
    assert next(list_runs(tmp_path / "runs")).state == "done"
