"""Runs that begin with the weights of others, hold some still, or look at their own time."""

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dither.engine.checkpoints.checkpoint import Damaged
from dither.engine.runs.launch import DAMAGED, run
from dither.engine.runs.exports import export_run
from dither.engine.runs.warm_start import start_from
from dither.engine.training.lora import freeze
from dither.registry.config.errors import Refused


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


def test_start_from_loads_averaged_weights(start):
    first = start()
    second = start("train.steps=0", f"train.start_from={first}")
    for name, tensor in weights(second, "model", 0).items():
        assert torch.equal(tensor, weights(first)[name])


def test_frozen_weights_do_not_change(start):
    first = start()
    names = sorted(weights(first))
    second = start(f"train.start_from={first}", f"train.freeze=['{names[0]}']")
    assert torch.equal(weights(second, "model")[names[0]], weights(first)[names[0]])
    assert any(not torch.equal(weights(second, "model")[name], weights(first)[name]) for name in names[1:])


def test_weights_that_do_not_match_are_listed(tmp_path):
    model = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1))
    given = {"0.weight": torch.ones(3, 2), "0.bias": torch.ones(4), "2.weight": torch.ones(1)}
    save_file(given, tmp_path / "x.safetensors")
    before = model[1].weight.clone()
    with pytest.raises(Refused) as refused:
        start_from(model, tmp_path / "x.safetensors")
    assert refused.value.codes == 3 * ["shape-mismatch"]
    message = str(refused.value)
    for names in ("1.weight, 1.bias", "2.weight", "0.bias 4 for 3", "train.start_partial"):
        assert names in message
    assert not model[0].weight.eq(1).all(), "nothing is loaded when it is refused"
    assert len(start_from(model, tmp_path / "x.safetensors", partial=True)) == 3
    assert model[0].weight.eq(1).all()
    assert torch.equal(model[1].weight, before)


@pytest.mark.parametrize("worst", [float("nan"), float("inf"), 1e300])
def test_non_finite_weights_are_refused(tmp_path, worst):
    """1e300 is a number in the file, and none in the precision of the model."""
    model, path = nn.Sequential(nn.Linear(2, 3), nn.Linear(3, 1)), tmp_path / "x.safetensors"
    good = {name: torch.ones_like(weight) for name, weight in model.state_dict().items()}
    save_file(good | {"1.weight": torch.tensor([[1.0, worst, 1.0]], dtype=torch.float64)}, path)
    before = {name: weight.clone() for name, weight in model.state_dict().items()}
    with pytest.raises(Refused) as refused:
        start_from(model, path)
    (problem,) = refused.value.problems
    assert (problem.code, problem.path) == ("non-finite", ("train", "start_from"))
    assert problem.message.endswith(": 1.weight")
    assert all(torch.equal(weight, before[name]) for name, weight in model.state_dict().items())
    save_file({f"there.{name}": weight for name, weight in load_file(path).items()}, path)
    with pytest.raises(Refused, match=r"1\.weight") as refused:
        start_from(model, path, rename=lambda given: {name[6:]: given[name] for name in given})
    assert ("there.1.weight" in str(refused.value)) == (worst != 1e300), "named as in the file"
    save_file({"0.weight": good["0.weight"], "other": torch.tensor(worst)}, path)
    assert start_from(model, path, partial=True), "what is not taken may be anything"


@pytest.mark.parametrize("worst", [None, "nan"])
def test_a_refused_start_leaves_no_directory(start, load, tmp_path, console, worst):
    first = start("train.steps=1")
    path = tmp_path / "x.safetensors"
    given = weights(first, "model", 1)
    name = sorted(given)[0]
    save_file(given | ({name: torch.full_like(given[name], torch.nan)} if worst else {}), path)
    runs = tmp_path / "others"
    if worst is None:
        assert run(load("train.steps=0", f"train.start_from={path}"), runs, ["test"], console=console) == 0
        return
    with pytest.raises(Refused, match=name):
        run(load("train.steps=0", f"train.start_from={path}"), runs, ["test"], console=console)
    assert not runs.exists()


@pytest.fixture
def exported(start, tmp_path):
    """An export, with the run and the model that it is of."""
    directory = start("train.steps=1")
    export_run(directory, tmp_path / "export")
    return tmp_path / "export", directory


def flip(path):
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # of a weight, which stays a number
    path.write_bytes(content)


@pytest.mark.parametrize("named", ["", "weights.safetensors"])
def test_a_damaged_export_is_refused(exported, load, tmp_path, console, named):
    folder, _ = exported
    given, others = f"train.start_from={folder / named}", tmp_path / "others"
    assert run(load("train.steps=0", given), others, [], console=console) == 0
    flip(folder / "weights.safetensors")
    shutil.rmtree(others)
    assert run(load("train.steps=0", given), others, [], console=console) == DAMAGED
    assert not others.exists()
    assert "export is damaged: weights.safetensors does not match its checksum" in console.file.getvalue().replace(
        "\n", ""
    )


def test_files_of_a_damaged_checkpoint_are_refused(exported, tmp_path):
    _, directory = exported
    checkpoint = directory / "checkpoints/step-00000001"
    model = nn.Linear(1, 1)
    for part in ("model", "average"):
        flip(checkpoint / f"{part}.safetensors")
        with pytest.raises(Damaged, match=f"{part}.safetensors does not match"):
            start_from(model, checkpoint / f"{part}.safetensors")
    save_file(model.state_dict(), tmp_path / "model.safetensors")
    (tmp_path / "MANIFEST.json").write_text("{}")  # of another program
    assert start_from(model, tmp_path / "model.safetensors") == []


@pytest.mark.parametrize("content", [None, b"", b"no tensors in here"])
def test_a_file_without_weights_is_refused(tmp_path, content):
    path = tmp_path / "x.safetensors"
    if content is not None:
        path.write_bytes(content)
    with pytest.raises(Refused, match="cannot be read as safetensors"):
        start_from(nn.Linear(1, 1), path)
    save_file({"other": torch.ones(1)}, path)
    with pytest.raises(Refused, match="other"):
        start_from(nn.Linear(1, 1), path, partial=True)


def test_a_pattern_without_match_suggests_a_name():
    with pytest.raises(Refused) as refused:
        freeze(nn.Linear(2, 2), ["weigth", "*"])
    assert [p.help for p in refused.value.problems] == ['did you mean "weight"?', None]


def test_profiling_writes_a_trace_and_changes_nothing(start):
    plain, traced = start(), start(profile=True)
    trace = json.loads((traced / "profile" / "trace.json").read_text())
    names = {event.get("name") for event in trace["traceEvents"]}
    assert {f"ProfilerStep#{number}" for number in range(3, 8)} <= names
    assert "aten::" in (traced / "profile" / "operations.txt").read_text()
    assert not (plain / "profile").exists()
    assert (plain / "metrics.jsonl").read_bytes() == (traced / "metrics.jsonl").read_bytes()


def test_lost_metrics_are_reported(start, load, tmp_path, console):
    path = start()
    whole = (path / "metrics.jsonl").read_bytes()
    (path / "metrics.jsonl").write_bytes(whole[: len(whole) // 3])
    assert run(load("train.steps=22", path=path / "resolved.toml"), tmp_path / "runs", [], path, console) == 0
    assert "metrics.jsonl lacks" in console.file.getvalue().replace("\n", "")
