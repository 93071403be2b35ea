"""Runs that start from the weights of others, and freeze some."""

import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from torch import nn

from dither.engine.checkpoints.checkpoint import Damaged
from dither.engine.runs.exports import export_run
from dither.engine.runs.launch import DAMAGED, run
from dither.engine.runs.loading import start_from
from dither.engine.training.lora import freeze
from dither.registry.config.errors import Refused


@pytest.fixture
def start_run(start):
    return lambda *changes: start(*changes)[1]


def weights(path, name="average", step=20):
    return load_file(path / "checkpoints" / f"step-{step:08d}" / f"{name}.safetensors")


def test_start_from_loads_averaged_weights_and_freeze_holds_them(start_run):
    first = start_run()
    names = sorted(weights(first))
    second = start_run("train.steps=2", f"train.start_from={first}", f"train.freeze=['{names[0]}']")
    assert torch.equal(weights(second, "model", 2)[names[0]], weights(first)[names[0]])
    assert any(not torch.equal(weights(second, "model", 2)[name], weights(first)[name]) for name in names[1:])
    third = start_run("train.steps=0", f"train.start_from={first}")
    assert all(torch.equal(weight, weights(first)[name]) for name, weight in weights(third, "model", 0).items())


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


@pytest.fixture
def exported(start_run, tmp_path):
    """An export, with the run and the model that it is of."""
    directory = start_run("train.steps=1")
    export_run(directory, tmp_path / "export")
    return tmp_path / "export", directory


def flip(path):
    content = bytearray(path.read_bytes())
    content[-2] ^= 1  # of a weight, which stays a number
    path.write_bytes(content)


def test_a_damaged_export_is_refused(exported, load, tmp_path, console):
    folder, _ = exported
    others = tmp_path / "others"
    assert run(load("train.steps=0", f"train.start_from={folder}"), others, [], console=console) == 0
    flip(folder / "weights.safetensors")
    shutil.rmtree(others)
    for path in (folder, folder / "weights.safetensors"):
        assert run(load("train.steps=0", f"train.start_from={path}"), others, [], console=console) == DAMAGED
        assert not others.exists()


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
    with pytest.raises(Refused) as info:
        start_from(nn.Linear(1, 1), path)
    assert info.value.codes == ["unreadable-file"]
    save_file({"other": torch.ones(1)}, path)
    with pytest.raises(Refused, match="other"):
        start_from(nn.Linear(1, 1), path, partial=True)


def test_a_pattern_without_match_suggests_a_name():
    with pytest.raises(Refused) as refused:
        freeze(nn.Linear(2, 2), ["weigth", "*"])
    assert [p.help for p in refused.value.problems] == ['did you mean "weight"?', None]
