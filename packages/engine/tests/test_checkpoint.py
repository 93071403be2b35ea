import errno
import json
import os
import pickle
import shutil

import pytest
import torch
from safetensors import SafetensorError
from torch import nn

from dither.engine.checkpoints import checkpoint as module
from dither.engine.checkpoints.checkpoint import Checkpoints, Contents, Damaged, load_state, load_weights, weights_of
from dither.engine.files.checksums import verify, with_checksum
from dither.engine.optimizers.optimizer_state import flatten, restore
from dither.registry.config.errors import Refused

FILES = ["model.safetensors", "average.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"]


def contents(seed=0):
    torch.manual_seed(seed)
    tensors = {"sums": torch.randn(3), "0.exp_avg": torch.randn(4, 3).T}
    return Contents(nn.Linear(3, 4), nn.Linear(3, 4), tensors, {"step": seed, "pi": 0.1 + 0.2})


@pytest.fixture
def store(tmp_path):
    return Checkpoints(tmp_path / "checkpoints", keep=2)


def test_round_trip_is_bit_exact(store):
    given = contents(5)
    path = store.save(5, given)
    assert path.name == "step-00000005"
    assert {file.name for file in path.iterdir()} == set(FILES)
    assert store.newest() == (path, {})
    unaveraged = store.save(6, Contents(given.model, None, given.tensors, given.plain))
    assert verify(unaveraged) is None
    assert weights_of(unaveraged).name == "model.safetensors"
    model, average = nn.Linear(3, 4), nn.Linear(3, 4)
    load_weights(path / "model.safetensors", model)
    load_weights(weights_of(path), average)
    assert torch.equal(model.weight, given.model.weight)
    assert torch.equal(average.weight, given.average.weight)
    tensors, plain = load_state(path)
    assert plain == given.plain
    assert {key: value.tolist() for key, value in tensors.items()} == {k: v.tolist() for k, v in given.tensors.items()}


def test_tied_weights_are_stored_once(store):
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    path = store.save(1, Contents(tied, None, {}, {}).copied())
    assert (path / "model.safetensors").stat().st_size < 2 * 36 + 200
    other = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    other[1].weight = other[0].weight
    load_weights(path / "model.safetensors", other)
    assert torch.equal(other[1].weight, tied[0].weight)


def test_weights_of_another_model_are_refused(store):
    path = store.save(1, contents())
    for other in (nn.Linear(3, 5), nn.Linear(3, 4, bias=False)):
        with pytest.raises(Refused) as info:
            load_weights(path / "model.safetensors", other)
        assert info.value.codes == ["shape-mismatch"]


def test_old_checkpoints_are_deleted_and_none_is_overwritten(store):
    assert store.newest() == (None, {})
    for step in (1, 2, 30):
        store.save(step, contents(step))
    assert [step for step, _ in store.steps()] == [30, 2]
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000002", "step-00000030"]
    with pytest.raises(FileExistsError):
        store.save(30, contents(2))
    assert load_state(store.newest()[0])[1]["step"] == 30


def flip(path):
    data = bytearray(path.read_bytes())
    data[len(data) * 3 // 4] ^= 1
    path.write_bytes(data)


def zero_tail(path):
    size = path.stat().st_size
    os.truncate(path, size // 2)
    os.truncate(path, size)


def directory(path):
    path.unlink()
    path.mkdir()


DAMAGES = {
    "truncated": lambda path: os.truncate(path, path.stat().st_size - 1),
    "emptied": lambda path: os.truncate(path, 0),
    "zero tail": zero_tail,
    "flipped bit": flip,
    "deleted": lambda path: path.unlink(),
    "directory": directory,
    "pickle": lambda path: path.write_bytes(pickle.dumps({"weights": [1.0]})),
}


@pytest.mark.parametrize("damage", DAMAGES.values(), ids=DAMAGES)
@pytest.mark.parametrize("name", FILES)
def test_a_damaged_checkpoint_is_skipped(store, name, damage):
    old, new = store.save(1, contents(1)), store.save(2, contents(2))
    damage(new / name)
    found, damaged = store.newest()
    assert found == old
    assert list(damaged) == [new]
    assert name in damaged[new]
    if damage is DAMAGES["truncated"] and name != "MANIFEST.json":
        assert " instead of " in damaged[new]
    store.clear(damaged)
    assert store.newest() == (old, {})
    assert len(list(store.folder.glob("damaged-step-00000002-*"))) == 1
    damage(old / name)
    with pytest.raises(Damaged, match=old.name) as caught:
        store.newest()
    assert caught.value.exit_code == 3


NONSENSE = ["{}", "[]", "null", '{"format": 9, "files": {}}', '{"format": 1, "files": {"a": 1}}', "[" * 100_000]


@pytest.mark.parametrize("text", NONSENSE)
def test_an_invalid_manifest_is_damage(store, text):
    path = store.save(1, contents())
    (path / "MANIFEST.json").write_text(text)
    assert "MANIFEST.json" in verify(path)


def test_required_files_and_shards_must_be_listed(store):
    path = store.save(1, contents())
    (path / ".git").mkdir()
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main")
    assert verify(path) is None
    (path / "model").mkdir()
    (path / "model" / "piece.safetensors").write_bytes(b"")
    assert "model/piece.safetensors is not listed" in verify(path)
    manifest = json.loads((path / "MANIFEST.json").read_text())
    del manifest["files"]["optimizer.safetensors"]
    (path / "MANIFEST.json").write_text(json.dumps(with_checksum(manifest)))
    assert "optimizer.safetensors is not listed" in verify(path)


def test_a_full_disk_is_an_os_error(store, monkeypatch):
    def full(*arguments):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    store.save(1, contents())
    monkeypatch.setattr(module, "save_model", full)
    with pytest.raises(OSError, match=r"model\.safetensors") as caught:
        store.save(2, contents())
    assert caught.value.errno == errno.ENOSPC
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(OSError, match=r"needs .* bytes, 10 are free") as caught:
        store.save(2, contents())
    assert caught.value.errno == errno.ENOSPC


class Odd(torch.optim.SGD):
    """Keeps a number, a flag and a tensor beside momentum, and a tensor in its group."""

    def step(self):
        super().step()
        for group in self.param_groups:
            group["k"] = group.get("k", 0) + 1
            group["scale"] = torch.tensor(1.5 * group["k"])
            for parameter in group["params"]:
                self.state[parameter].update(count=group["k"], flag=True)


@pytest.mark.parametrize(
    "make",
    [
        lambda p: torch.optim.AdamW(p, 0.1, betas=(0.8, 0.9), fused=True),
        lambda p: torch.optim.AdamW(p, 0.1, amsgrad=True),
        lambda p: torch.optim.Adafactor(p, 0.1),
        lambda p: torch.optim.RMSprop(p, 0.1, momentum=0.9),
        lambda p: Odd(p, 0.1, momentum=0.9),
    ],
)
def test_optimizer_state_round_trip(store, make):
    def train(model, optimizer, steps):
        for step in steps:
            torch.manual_seed(step)
            optimizer.zero_grad()
            model(torch.randn(5, 3)).square().sum().backward()
            optimizer.step()

    torch.manual_seed(0)
    model = nn.Linear(3, 4)
    optimizer = make(model.parameters())
    train(model, optimizer, range(3))
    tensors, plain = flatten(optimizer)
    path = store.save(3, Contents(model, None, tensors, plain))
    train(model, optimizer, range(3, 6))

    other = nn.Linear(3, 4)
    again = make(other.parameters())
    load_weights(path / "model.safetensors", other)
    restore(again, *load_state(path))
    train(other, again, range(3, 6))
    assert torch.equal(model.weight, other.weight)
    one, two = optimizer.state_dict(), again.state_dict()
    assert str(one["param_groups"]) == str(two["param_groups"])
    for index, state in one["state"].items():
        assert state.keys() == two["state"][index].keys()
        assert all(torch.equal(torch.as_tensor(v), torch.as_tensor(two["state"][index][k])) for k, v in state.items())


def test_state_that_cannot_be_saved_or_restored_is_an_error():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    optimizer.param_groups[0]["function"] = print
    with pytest.raises(TypeError, match="function"):
        flatten(optimizer)
    tensors, plain = flatten(torch.optim.AdamW(nn.Linear(2, 2).parameters(), 0.1))
    with pytest.raises(ValueError, match=r"groups of \[2\] parameters, this one of \[1\]"):
        restore(torch.optim.AdamW(nn.Linear(2, 2, bias=False).parameters(), 0.1), tensors, plain)
