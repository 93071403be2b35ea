"""Checkpoints: bit-exact round trips, damage, a full disk, and saves that are killed before any call to the disk."""

import contextlib
import errno
import json
import os
import pickle
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from safetensors import SafetensorError
from torch import nn

from dither.engine.checkpoints import checkpoint as module
from dither.engine.checkpoints.checkpoint import (
    Checkpoints,
    Contents,
    Damaged,
    load_state,
    load_weights,
    weights_of,
)
from dither.engine.files.checksums import verify, with_checksum
from dither.engine.optimizers.optimizer_state import flatten, restore
from dither.registry.files import atomic

FILES = [
    "model.safetensors",
    "ema.safetensors",
    "optimizer.safetensors",
    "state.json",
    "MANIFEST.json",
]


def contents(seed=0):
    torch.manual_seed(seed)
    tensors = {"sums": torch.randn(3), "0.exp_avg": torch.randn(4, 3).T}
    return Contents(
        nn.Linear(3, 4), nn.Linear(3, 4), tensors, {"step": seed, "pi": 0.1 + 0.2}
    )


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
    assert {key: value.tolist() for key, value in tensors.items()} == {
        k: v.tolist() for k, v in given.tensors.items()
    }


def test_tied_weights_are_stored_once(store):
    tied = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    tied[1].weight = tied[0].weight
    path = store.save(1, Contents(tied, None, {}, {}).copied())
    assert (path / "model.safetensors").stat().st_size < 2 * 36 + 200
    other = nn.Sequential(nn.Linear(3, 3, bias=False), nn.Linear(3, 3, bias=False))
    other[1].weight = other[0].weight
    load_weights(path / "model.safetensors", other)
    assert torch.equal(other[1].weight, tied[0].weight)


def test_weights_of_another_model_are_refused(store, refused):
    path = store.save(1, contents())
    for other in (nn.Linear(3, 5), nn.Linear(3, 4, bias=False)):
        with refused("shape-mismatch"):
            load_weights(path / "model.safetensors", other)


def test_old_checkpoints_are_deleted_and_none_is_overwritten(store):
    assert store.newest() == (None, {})
    for step in (1, 2, 30):
        store.save(step, contents(step))
    assert [step for step, _ in store.steps()] == [30, 2]
    assert sorted(path.name for path in store.folder.iterdir()) == [
        "step-00000002",
        "step-00000030",
    ]
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


NONSENSE = [
    "{}",
    "[]",
    "null",
    '{"format": 9, "files": {}}',
    '{"format": 1, "files": {"a": 1}}',
    "[" * 100_000,
]


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
        raise SafetensorError(
            "Error while serializing: I/O error: No space left on device (os error 28)"
        )

    store.save(1, contents())
    monkeypatch.setattr(module, "save_model", full)
    with pytest.raises(OSError, match=r"model\.safetensors") as caught:
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
        assert all(
            torch.equal(torch.as_tensor(v), torch.as_tensor(two["state"][index][k]))
            for k, v in state.items()
        )


def test_state_that_cannot_be_saved_or_restored_is_an_error():
    optimizer = torch.optim.SGD(nn.Linear(2, 2).parameters(), 0.1)
    optimizer.param_groups[0]["function"] = print
    with pytest.raises(TypeError, match="function"):
        flatten(optimizer)
    tensors, plain = flatten(torch.optim.AdamW(nn.Linear(2, 2).parameters(), 0.1))
    with pytest.raises(
        ValueError, match=r"groups of \[2\] parameters, this one of \[1\]"
    ):
        restore(
            torch.optim.AdamW(nn.Linear(2, 2, bias=False).parameters(), 0.1),
            tensors,
            plain,
        )


class KilledError(BaseException):
    """The process was killed."""


class Disk:
    """Stands between the store and the disk: counts calls, dies before one of them, remembers what is not synced."""

    def __init__(self, dies_at=None, full=False):
        self.calls, self.dies_at, self.full, self.dead = 0, dies_at, full, False
        self.written, self.renamed = set(), []

    def call(self):
        self.calls += 1
        if self.full and self.calls == self.dies_at:
            raise OSError(errno.ENOSPC, "No space left on device", "here")
        if not self.full and (self.dead or self.calls == self.dies_at):
            self.dead = True
            raise KilledError

    def lose_power(self, keeps_names):
        for path in self.written:
            if path.exists():
                os.truncate(path, path.stat().st_size // 2)
        if not keeps_names:
            for old, new in reversed(self.renamed):
                if new.exists():
                    new.replace(old)

    @contextlib.contextmanager
    def between(self):
        """Replace the disk calls of the store by ones that consult this disk first."""

        def patched(owner, name, after=lambda *_: None):
            plain = getattr(owner, name)

            def call(*given, **named):
                self.call()
                plain(*given, **named)
                after(*given)

            patch.setattr(owner, name, call)

        def synced(path):
            self.written.discard(path)
            self.renamed = [pair for pair in self.renamed if pair[1].parent != path]

        def moved(path, to):
            self.written = {
                Path(str(p).replace(str(path), str(to), 1)) for p in self.written
            }
            self.renamed.append((path, Path(to)))

        with pytest.MonkeyPatch.context() as patch:
            patched(module, "save_file", lambda _, path: self.written.add(Path(path)))
            patched(module, "save_model", lambda _, path: self.written.add(Path(path)))
            patched(atomic, "fsync", synced)
            patched(Path, "replace", moved)
            patched(Path, "write_text", lambda path, *_: self.written.add(path))
            patched(Path, "mkdir")
            patched(module.shutil, "rmtree")
            yield


def constant(step):
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, step)
    nn.init.constant_(layer.bias, step)
    return Contents(
        layer, None, {"moment": torch.full((3,), float(step))}, {"step": step}
    )


class Store(RuleBasedStateMachine):
    """Steps go up; `held` are those that were saved, `hurt` those that were damaged since."""

    @initialize(keep=st.integers(1, 3), every=st.sampled_from([None, 3]))
    def begin(self, keep, every):
        self.folder = Path(tempfile.mkdtemp())
        self.store = Checkpoints(self.folder / "checkpoints", keep, every)
        self.step, self.held, self.hurt = 0, [], set()

    def teardown(self):
        shutil.rmtree(self.folder)

    @rule(more=st.integers(1, 3))
    def save(self, more):
        self.step += more
        self.store.save(self.step, constant(self.step))
        self.held.append(self.step)

    @rule(
        more=st.integers(1, 3),
        at=st.integers(1, 30),
        power=st.booleans(),
        names=st.booleans(),
    )
    def save_and_die(self, more, at, power, names):
        self.step += more
        disk = Disk(at)
        with disk.between(), contextlib.suppress(KilledError):
            self.store.save(self.step, constant(self.step))
        if disk.dead and power:
            disk.lose_power(names)
        if not disk.dead or self.step in dict(self.store.steps()):
            self.held.append(self.step)  # it got its name: then it has to be whole

    @rule(more=st.integers(1, 3), at=st.integers(1, 30))
    def save_on_a_full_disk(self, more, at):
        before = [step for step, _ in self.store.steps()]
        self.step += more
        disk = Disk(at, full=True)
        try:
            with disk.between():
                self.store.save(self.step, constant(self.step))
            self.held.append(self.step)
        except OSError:
            if self.step in dict(self.store.steps()):
                self.held.append(
                    self.step
                )  # the disk was full when an older one was to go
            else:
                assert [step for step, _ in self.store.steps()] == before

    @rule(
        which=st.integers(0, 5),
        file=st.sampled_from(FILES[:1] + FILES[2:]),
        how=st.sampled_from(["flipped bit", "truncated", "emptied", "deleted"]),
    )
    def damage(self, which, file, how):
        there = self.store.steps()
        if not there:
            return
        step, path = there[which % len(there)]
        if not (path / file).exists() or step in self.hurt:
            return
        DAMAGES[how](path / file)
        self.hurt.add(step)

    @rule()
    def restart(self):
        """As on resuming: damaged checkpoints are renamed, and later steps are repeated."""
        try:
            newest, damaged = self.store.newest()
        except Damaged:
            return
        self.store.clear(damaged)
        assert not list(self.store.folder.glob(".tmp-*"))
        self.step = int(newest.name.removeprefix("step-")) if newest else self.step
        self.held = [step for step in self.held if step in dict(self.store.steps())]
        self.hurt = {step for step in self.hurt if step <= self.step}

    @invariant()
    def the_newest_intact_one_is_loaded(self):
        there = dict(self.store.steps())
        good = [step for step in there if step in self.held and step not in self.hurt]
        if not there:
            assert self.store.newest() == (None, {})
            return
        if not good:
            with pytest.raises(Damaged) as caught:
                self.store.newest()
            assert all(path.name in str(caught.value) for path in there.values())
            return
        path, damaged = self.store.newest()
        assert path.name == f"step-{max(good):08d}"
        assert damaged.keys() == {there[step] for step in there if step > max(good)}
        tensors, plain = load_state(path)
        assert plain == {"step": max(good)}
        assert tensors["moment"].tolist() == [max(good)] * 3

    @invariant()
    def what_should_stay_is_there(self):
        """Of those that were saved, the newest stay, and those of every third step."""
        there = dict(self.store.steps())
        wanted = sorted(set(self.held))[-self.store.keep :]
        wanted += [
            step
            for step in self.held
            if self.store.every and step % self.store.every == 0
        ]
        assert set(wanted) <= set(there)


Store.TestCase.settings = settings(
    max_examples=30, stateful_step_count=14, deadline=None
)
TestStore = pytest.mark.slow(Store.TestCase)


def test_the_simulated_disk_is_used(tmp_path):
    """Each call of a save is a place to die at, and there are as many as the store makes."""
    store, disk = Checkpoints(tmp_path / "c", keep=1), Disk()
    store.save(1, constant(1))
    with disk.between():
        store.save(2, constant(2))
    assert disk.calls >= 14
    for at in range(1, disk.calls + 1):
        store = Checkpoints(tmp_path / f"c{at}", keep=1)
        store.save(1, constant(1))
        dying = Disk(at)
        with dying.between(), pytest.raises(KilledError):
            store.save(2, constant(2))
        dying.lose_power(keeps_names=False)
        path, _ = store.newest()
        assert load_state(path)[1]["step"] in (1, 2)


def test_a_flipped_bit_in_any_byte_of_a_manifest_is_found(tmp_path):
    """Also those of the name under which it holds its own hash; a line break may become another space."""
    path = Checkpoints(tmp_path / "c").save(1, constant(1)) / module.MANIFEST
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        assert module.verify(path.parent) or path.read_bytes()[at] in b" \n\r\t", at
