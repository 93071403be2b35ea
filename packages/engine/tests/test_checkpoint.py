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
    assert store.newest() == (path, [])
    model, average = nn.Linear(3, 4), nn.Linear(3, 4)
    load_weights(path / "model.safetensors", model)
    load_weights(weights_of(path), average)
    assert torch.equal(model.weight, given.model.weight)
    assert torch.equal(average.weight, given.average.weight)
    tensors, plain = load_state(path)
    assert plain == given.plain
    assert {key: value.tolist() for key, value in tensors.items()} == {k: v.tolist() for k, v in given.tensors.items()}


def test_weights_are_used_without_an_average(store):
    given = contents()
    path = store.save(1, Contents(given.model, None, given.tensors, given.plain))
    assert verify(path) is None
    assert weights_of(path).name == "model.safetensors"


def test_tied_weights_are_stored_once(store):
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    path = store.save(1, Contents(tied, None, {}, {}))
    other = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    other[1].weight = other[0].weight
    load_weights(path / "model.safetensors", other)
    assert torch.equal(other[1].weight, tied[0].weight)


def test_weights_of_another_model_are_refused(store):
    path = store.save(1, contents())
    with pytest.raises(Refused, match="does not hold the weights of this model"):
        load_weights(path / "model.safetensors", nn.Linear(3, 5))
    with pytest.raises(Refused, match="does not hold the weights of this model"):
        load_weights(path / "model.safetensors", nn.Linear(3, 4, bias=False))


def test_old_checkpoints_are_deleted(store):
    for step in (1, 2, 30):
        store.save(step, contents(step))
    assert [step for step, _ in store.steps()] == [30, 2]
    assert sorted(path.name for path in store.folder.iterdir()) == ["step-00000002", "step-00000030"]


def test_a_checkpoint_is_never_overwritten(store):
    path = store.save(1, contents(1))
    before = (path / "MANIFEST.json").read_bytes()
    with pytest.raises(FileExistsError):
        store.save(1, contents(2))
    assert (path / "MANIFEST.json").read_bytes() == before


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
    assert [d.path for d in damaged] == [new]
    expected = "MANIFEST.json" if name == "MANIFEST.json" else name
    assert expected in damaged[0].reason
    if damage is DAMAGES["truncated"] and name != "MANIFEST.json":
        assert " instead of " in damaged[0].reason
    store.clear(damaged)
    assert store.newest() == (old, [])
    assert len(list(store.folder.glob("damaged-step-00000002-*"))) == 1
    store.save(2, contents(2))


def test_no_intact_checkpoint_is_an_error(store):
    for step in (1, 2):
        flip(store.save(step, contents(step)) / "model.safetensors")
    with pytest.raises(Damaged) as caught:
        store.newest()
    assert "step-00000001" in str(caught.value)
    assert "step-00000002" in str(caught.value)
    assert caught.value.exit_code == 3


def test_an_empty_folder_has_no_checkpoint(store):
    assert store.newest() == (None, [])


NONSENSE = ["{}", "[]", "null", '{"format": 9, "files": {}}', '{"format": 1, "files": {"a": 1}}', "[" * 100_000]


@pytest.mark.parametrize("text", NONSENSE)
def test_an_invalid_manifest_is_damage(store, text):
    path = store.save(1, contents())
    (path / "MANIFEST.json").write_text(text)
    assert "MANIFEST.json" in verify(path)


def test_required_files_must_be_listed(store):
    path = store.save(1, contents())
    manifest = json.loads((path / "MANIFEST.json").read_text())
    del manifest["files"]["optimizer.safetensors"]
    (path / "MANIFEST.json").write_text(json.dumps(with_checksum(manifest)))
    assert "optimizer.safetensors is not listed" in verify(path)


def test_stray_shards_are_damage_and_other_folders_are_not(store):
    path = store.save(1, contents())
    (path / ".git").mkdir()
    (path / ".git" / "HEAD").write_text("ref: refs/heads/main")
    assert verify(path) is None
    (path / "model").mkdir()
    (path / "model" / "piece.safetensors").write_bytes(b"")
    assert "model/piece.safetensors is not listed" in verify(path)


@pytest.mark.parametrize("moment", range(7))
def test_an_interrupted_write_keeps_earlier_checkpoints(store, monkeypatch, moment):
    """Whichever call to the disk fails, no second checkpoint and no leftover of one exists."""
    first = store.save(1, contents(1))
    calls = iter(range(100))

    def failing(original):
        def call(*arguments, **options):
            if next(calls) == moment:
                raise OSError(errno.ENOSPC, "No space left on device", "here")
            return original(*arguments, **options)

        return call

    monkeypatch.setattr(module, "fsync", failing(module.fsync))
    monkeypatch.setattr(module, "save_file", failing(module.save_file))
    with pytest.raises(OSError, match="No space left"):
        store.save(2, contents(2))
    assert store.newest() == (first, [])
    assert [path.name for path in store.folder.iterdir()] == ["step-00000001"]


def test_files_are_flushed_before_the_rename(store, monkeypatch):
    seen = []
    sync, rename = module.fsync, module.Path.rename
    monkeypatch.setattr(module, "fsync", lambda path: seen.append(path.name) or sync(path))
    monkeypatch.setattr(module.Path, "rename", lambda path, to: seen.append(f"-> {to.name}") or rename(path, to))
    store.save(1, contents())
    at = seen.index("-> step-00000001")
    assert set(FILES) <= set(seen[:at])
    assert seen.index("MANIFEST.json") > max(seen.index(name) for name in FILES[:-1])
    assert seen[at - 1].startswith(".tmp-"), "the folder itself"
    assert seen[at + 1] == "checkpoints"


def test_leftovers_of_killed_writes_are_removed(store):
    store.save(1, contents())
    shutil.copytree(store.folder / "step-00000001", store.folder / ".tmp-2-123-abc")
    assert [step for step, _ in store.steps()] == [1]
    store.clear([])
    assert [path.name for path in store.folder.iterdir()] == ["step-00000001"]


def test_free_space_is_checked_first(store, monkeypatch):
    store.save(1, contents())
    monkeypatch.setattr(module.shutil, "disk_usage", lambda path: shutil._ntuple_diskusage(100, 90, 10))
    with pytest.raises(OSError, match=r"needs .* bytes, 10 are free") as caught:
        store.save(2, contents())
    assert caught.value.errno == errno.ENOSPC


def test_safetensors_disk_errors_become_os_errors(store, monkeypatch):
    def full(*arguments):
        raise SafetensorError("Error while serializing: I/O error: No space left on device (os error 28)")

    monkeypatch.setattr(module, "save_model", full)
    with pytest.raises(OSError, match=r"model\.safetensors") as caught:
        store.save(1, contents())
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


def test_state_that_json_cannot_hold_is_an_error():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    optimizer.param_groups[0]["function"] = print
    with pytest.raises(TypeError, match="function"):
        flatten(optimizer)


def test_state_of_other_parameters_is_an_error():
    tensors, plain = flatten(torch.optim.AdamW(nn.Linear(2, 2).parameters(), 0.1))
    with pytest.raises(ValueError, match=r"groups of \[2\] parameters, this one of \[1\]"):
        restore(torch.optim.AdamW(nn.Linear(2, 2, bias=False).parameters(), 0.1), tensors, plain)
