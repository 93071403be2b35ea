"""Runs that begin with the weights of others, hold some still, or look at their own time."""

import json

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dither.engine.freezing import freeze
from dither.engine.run import run
from dither.engine.warm_start import start_from
from dither.registry.problems import Refused


@pytest.fixture
def start(load, tmp_path, console):
    def started(*changes, **options):
        before = set((tmp_path / "runs").glob("*"))
        assert run(load(*changes), tmp_path / "runs", ["test"], console=console, **options) == 0
        (directory,) = set((tmp_path / "runs").glob("*")) - before
        return directory

    return started


def weights(path, name="average", step=20):
    return load_file(path / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors")


def test_a_run_begins_with_the_averaged_weights_of_another(start):
    first = start()
    second = start("train.steps=0", f"train.start_from={first}")
    for name, tensor in weights(second, "model", 0).items():
        assert torch.equal(tensor, weights(first)[name])


def test_frozen_weights_stay_and_the_others_move(start):
    first = start()
    names = sorted(weights(first))
    second = start(f"train.start_from={first}", f"train.freeze=['{names[0]}']")
    assert torch.equal(weights(second, "model")[names[0]], weights(first)[names[0]])
    assert any(not torch.equal(weights(second, "model")[name], weights(first)[name]) for name in names[1:])


def test_every_weight_that_does_not_fit_is_named(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    given = {"0.weight": torch.ones(3, 2), "0.bias": torch.ones(4), "2.weight": torch.ones(1)}
    save_file(given, tmp_path / "x.safetensors")
    before = model[1].weight.clone()
    with pytest.raises(Refused) as refused:
        start_from(model, tmp_path / "x.safetensors")
    told = str(refused.value)
    assert "2 weights without counterpart there: 1.weight, 1.bias" in told
    assert "1 weights without counterpart here: 2.weight" in told
    assert "1 weights of another shape: 0.bias 4 for 3" in told
    assert "train.start_partial" in told
    assert not model[0].weight.eq(1).all(), "nothing is loaded when it is refused"
    assert len(start_from(model, tmp_path / "x.safetensors", partial=True)) == 3
    assert model[0].weight.eq(1).all()
    assert torch.equal(model[1].weight, before)


@pytest.mark.parametrize("content", [None, b"", b"no tensors in here"])
def test_a_file_that_holds_no_weights_is_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match="cannot be read as safetensors"):
        start_from(nn.Linear(1, 1), path)
    save_file({"other": torch.ones(1)}, path)
    with pytest.raises(Refused, match="other"):
        start_from(nn.Linear(1, 1), path, partial=True)


def test_a_pattern_without_a_weight_is_refused_with_the_nearest():
    with pytest.raises(Refused) as refused:
        freeze(nn.Linear(2, 2), ["weigth", "*"])
    assert [(p.message, p.help) for p in refused.value.problems] == [
        ('no weight is called "weigth"', 'did you mean "weight"?'), ("nothing is left to train", None)
    ]  # fmt: skip


def test_a_trace_is_written_on_request_and_changes_nothing(start):
    plain, traced = start(), start(profile=True)
    trace = json.loads((traced / "profile" / "trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {f"ProfilerStep#{number}" for number in range(3, 8)} <= names
    assert "aten::" in (traced / "profile" / "operations.txt").read_text()
    assert not (plain / "profile").exists()
    assert (plain / "metrics.jsonl").read_bytes() == (traced / "metrics.jsonl").read_bytes()


def test_metrics_that_lost_lines_are_told_of(start, load, tmp_path, console):
    path = start()
    whole = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.jsonl").write_bytes(whole[: len(whole) // 3])
    assert run(load("train.steps=22", path=path / "resolved.toml"), tmp_path / "runs", [], path, console) == 0
    assert "metrics.jsonl has lost" in console.file.getvalue().replace("\n", "")
