import errno
import fcntl
import json
import os
import re
import shutil
import subprocess
import tomllib

import pytest

from dither.engine.config.provenance import plugin_record
from dither.engine.files.checksums import with_checksum
from dither.engine.files.run_folders import is_locked
from dither.engine.runs.run_directory import RunDirectory, read_manifest, resolved
from dither.engine.training.device import git_state


def test_a_directory_that_cannot_be_created(tmp_path, refused):
    (tmp_path / "file").write_text("x")
    for path in ("file", "file/deeper", "long" * 100, "\udcff"):
        with refused("unwritable-file"):
            RunDirectory.create(tmp_path / path)


def test_a_locked_directory_is_refused(tmp_path, load, refused):
    with refused("not-a-run"):
        RunDirectory.open(tmp_path)
    with RunDirectory.create(tmp_path) as directory:
        directory.record(load(), {})
        with refused("run-locked", match=f"process {os.getpid()} on "):
            RunDirectory.open(directory.path)
        other = os.open(directory.path / "run.lock", os.O_RDWR)
        with pytest.raises(BlockingIOError):
            fcntl.flock(other, fcntl.LOCK_EX | fcntl.LOCK_NB)
        os.close(other)
        assert is_locked(directory.path / "run.lock")
    with RunDirectory.open(directory.path):
        pass  # released
    os.mkfifo(tmp_path / "pipe")
    assert not is_locked(directory.path / "run.lock")
    assert not is_locked(tmp_path / "pipe")


@pytest.mark.parametrize("number", [errno.ENOSYS, errno.ENOLCK, errno.EOPNOTSUPP])
def test_a_file_system_without_locks_is_refused(tmp_path, monkeypatch, refused, number):
    def flock(*_):
        raise OSError(number, os.strerror(number))

    monkeypatch.setattr(fcntl, "flock", flock)
    with refused("unreadable-file", match="--runs"):
        RunDirectory.create(tmp_path)


def test_recorded_files_give_the_same_experiment(tmp_path, load, experiment_file):
    child = experiment_file.with_name("child.toml")
    child.write_text(
        'extends = "exp.toml"\nname = "child"\n[model]\nuse = "toy-net"\nwidth = 4\n'
    )
    loaded = load("train.steps=9", path=child)
    recorded = {"seed": 3, "plugins": plugin_record(loaded)}
    with RunDirectory.create(tmp_path / "runs") as directory:
        directory.record(loaded, recorded)
    path = directory.path
    assert (path / "experiment.toml").read_bytes() == child.read_bytes()
    assert (
        path / "extends" / "1-exp.toml"
    ).read_bytes() == experiment_file.read_bytes()
    assert json.loads((path / "manifest.json").read_text()) == with_checksum(recorded)
    assert read_manifest(path)["seed"] == 3
    written = tomllib.loads((path / "resolved.toml").read_text())
    assert written["task"]["use"] == "toy-plugin/toy-words@1"
    assert written["train"]["optimizer"]["use"] == "engine/adamw@1"
    assert written["train"]["optimizer"]["betas"] == [0.9, 0.999]
    experiment_file.with_name("toy_plugin.py").unlink()
    again = load(path=path / "resolved.toml")
    assert (
        again.experiment.model_copy(update={"plugins": []}).model_dump()
        == loaded.experiment.model_copy(update={"plugins": []}).model_dump()
    )
    assert resolved(again) == resolved(loaded) == written


def test_fixed_options_refuse_a_resume(tmp_path, load, refusal):
    with RunDirectory.create(tmp_path / "runs") as directory:
        directory.record(load(), {})
        before = (directory.path / "resolved.toml").read_bytes()
        assert directory.changes(load()) == []
        changed = load("train.steps=40", "sampler.steps=2", "evaluate.every=3")
        notes = [
            "sampler.steps: 4 -> 2",
            "train.steps: 20 -> 40",
            "evaluate.every: 7 -> 3",
        ]
        assert sorted(directory.changes(changed)) == sorted(notes)
        caught = refusal(
            directory.changes,
            load("seed=4", "model.width=9", "train.optimizer.lr=0.5", "train.steps=40"),
        )
        messages = [problem.message for problem in caught.problems]
        assert len(messages) == 3
        assert any("seed: 3 -> 4" in message for message in messages)
        assert (directory.path / "resolved.toml").read_bytes() == before
        directory.accept(changed)
        assert directory.changes(changed) == []


@pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed")
def test_git_state(tmp_path):
    assert git_state(tmp_path / "nowhere") is None
    for command in (
        "init",
        "-c user.name=x -c user.email=x@x commit --allow-empty -m first",
    ):
        subprocess.run(
            ["git", "-C", str(tmp_path), *command.split()],
            check=True,
            capture_output=True,
        )
    state = git_state(tmp_path)
    assert re.fullmatch("[0-9a-f]{40,}", state["commit"])
    assert state["clean"]
    (tmp_path / "new").write_text("x")
    assert git_state(tmp_path) == state | {"clean": False}


def test_clear_removes_only_temporary_files(tmp_path):
    with RunDirectory.create(tmp_path) as directory:
        run = directory.path
        left = [
            run / ".tmp-scores-0123abcd.json",
            run / "evaluation/.tmp-valid-0123abcd.npz",
            run / "samples/step-00000012/.tmp-samples-0123abcd.safetensors",
        ]
        others = [
            run / ".mine",
            run / ".tmp-report-0123abcd.html",
            run
            / "samples/step-00000012-seed-1-count-2/.tmp-samples-0123abcd.safetensors",
        ]
        for path in (*left, *others):
            path.parent.mkdir(parents=True, exist_ok=True)
            path.touch()
        directory.clear()
        assert not any(path.exists() for path in left)
        assert all(path.exists() for path in others)
