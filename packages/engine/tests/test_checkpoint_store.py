"""Whatever happens to a store of checkpoints, it loads the newest intact one or raises an error that names them.

Saves are killed before any call to the disk, with or without a loss of power, which takes everything that was not
synced: the second half of files, and renames.
"""

import contextlib
import errno
import os
import shutil
import tempfile
from pathlib import Path

import pytest
import torch
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule
from torch import nn

from dither.engine.checkpoints import checkpoint as module
from dither.engine.checkpoints.checkpoint import Checkpoints, Contents, Damaged, load_state

FILES = ["model.safetensors", "optimizer.safetensors", "state.json", "MANIFEST.json"]


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
                    new.rename(old)

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
            self.written = {Path(str(p).replace(str(path), str(to), 1)) for p in self.written}
            self.renamed.append((path, Path(to)))

        with pytest.MonkeyPatch.context() as patch:
            patched(module, "save_file", lambda _, path: self.written.add(Path(path)))
            patched(module, "save_model", lambda _, path: self.written.add(Path(path)))
            patched(module, "fsync", synced)
            patched(Path, "rename", moved)
            patched(Path, "write_text", lambda path, *_: self.written.add(path))
            patched(Path, "mkdir")
            patched(module.shutil, "rmtree")
            yield


def contents(step):
    layer = nn.Linear(2, 2)
    nn.init.constant_(layer.weight, step)
    nn.init.constant_(layer.bias, step)
    return Contents(layer, None, {"moment": torch.full((3,), float(step))}, {"step": step})


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
        self.store.save(self.step, contents(self.step))
        self.held.append(self.step)

    @rule(more=st.integers(1, 3), at=st.integers(1, 30), power=st.booleans(), names=st.booleans())
    def save_and_die(self, more, at, power, names):
        self.step += more
        disk = Disk(at)
        with disk.between(), contextlib.suppress(KilledError):
            self.store.save(self.step, contents(self.step))
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
                self.store.save(self.step, contents(self.step))
            self.held.append(self.step)
        except OSError:
            if self.step in dict(self.store.steps()):
                self.held.append(self.step)  # the disk was full when an older one was to go
            else:
                assert [step for step, _ in self.store.steps()] == before

    @rule(which=st.integers(0, 5), file=st.sampled_from(FILES), how=st.sampled_from(["flip", "cut", "empty", "gone"]))
    def damage(self, which, file, how):
        there = self.store.steps()
        if not there:
            return
        step, path = there[which % len(there)]
        target = path / file
        if not target.exists() or step in self.hurt:
            return
        data = bytearray(target.read_bytes())
        if how == "flip" and data:
            data[len(data) // 2] ^= 4
            target.write_bytes(data)
        elif how == "gone":
            target.unlink()
        else:
            target.write_bytes(data[: len(data) // 2] if how == "cut" else b"")
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
        self.held = [step for step in self.held if step <= self.step]
        self.hurt = {step for step in self.hurt if step <= self.step}

    @invariant()
    def the_newest_intact_one_is_loaded(self):
        there = dict(self.store.steps())
        good = [step for step in there if step in self.held and step not in self.hurt]
        if not there:
            assert self.store.newest() == (None, [])
            return
        if not good:
            with pytest.raises(Damaged) as caught:
                self.store.newest()
            assert all(path.name in str(caught.value) for path in there.values())
            return
        path, damaged = self.store.newest()
        assert path.name == f"step-{max(good):08d}"
        assert {int(one.path.name.removeprefix("step-")) for one in damaged} == {s for s in there if s > max(good)}
        tensors, plain = load_state(path)
        assert plain == {"step": max(good)}
        assert tensors["moment"].tolist() == [max(good)] * 3

    @invariant()
    def what_should_stay_is_there(self):
        """Of those that were saved, the newest stay, and those of every third step."""
        there = dict(self.store.steps())
        wanted = sorted(set(self.held))[-self.store.keep :]
        wanted += [step for step in self.held if self.store.every and step % self.store.every == 0]
        assert set(wanted) <= set(there)


Store.TestCase.settings = settings(max_examples=30, stateful_step_count=14, deadline=None)
TestStore = Store.TestCase


def test_the_simulated_disk_is_used(tmp_path):
    """Each call of a save is a place to die at, and there are as many as the store makes."""
    store, disk = Checkpoints(tmp_path / "c", keep=1), Disk()
    store.save(1, contents(1))
    with disk.between():
        store.save(2, contents(2))
    assert disk.calls >= 14
    for at in range(1, disk.calls + 1):
        store = Checkpoints(tmp_path / f"c{at}", keep=1)
        store.save(1, contents(1))
        dying = Disk(at)
        with dying.between(), pytest.raises(KilledError):
            store.save(2, contents(2))
        dying.lose_power(keeps_names=False)
        path, _ = store.newest()
        assert load_state(path)[1]["step"] in (1, 2)


def test_a_flipped_bit_in_any_byte_of_a_manifest_is_found(tmp_path):
    """Also those of the name under which it holds its own hash; a line break may become another space."""
    path = Checkpoints(tmp_path / "c").save(1, contents(1)) / module.MANIFEST
    data = path.read_bytes()
    for at in range(len(data)):
        path.write_bytes(data[:at] + bytes([data[at] ^ 1 << at % 8]) + data[at + 1 :])
        assert module.verify(path.parent) or path.read_bytes()[at] in b" \n\r\t", at
