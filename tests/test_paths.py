"""Paths of a run: resuming from any folder, and the policy of its start."""

import json
import os
import shutil
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.engine.config.paths import absolute_paths
from dither.engine.config.plugins import governing_policy_file


@pytest.fixture
def project(tmp_path, monkeypatch, text_experiment):
    """A folder with texts, named relative to it, and an experiment."""
    folder = tmp_path / "project"
    (folder / "texts").mkdir(parents=True)
    (folder / "texts" / "a.txt").write_text("the cat sat on the mat. " * 200)
    (folder / "exp.toml").write_text(text_experiment("texts/*.txt"))
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(folder)
    return folder


def test_relative_data_resume_from_another_folder(project, tmp_path, monkeypatch, capsys):
    assert main(["run", "exp.toml", "--runs", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["evaluate", str(run)]) == 0
    assert main(["run", "--resume", str(run), "--set", "train.steps=3"]) == 0
    capsys.readouterr()
    os.rename(project / "texts", project / "gone")
    assert main(["evaluate", str(run)]) == 2
    assert "texts" in capsys.readouterr().err


def test_moved_data_require_accept_changes_except_in_early_runs(project, tmp_path, capsys):
    assert main(["run", "exp.toml", "--runs", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").iterdir()
    early = Path(shutil.copytree(run, tmp_path / "early"))
    resume = ["run", "--resume", str(run), "--set", "train.steps=3"]
    resolved = early / "resolved.toml"
    resolved.write_text(resolved.read_text().rpartition("# sha256")[0].replace(f"{project}/", ""))
    manifest = json.loads((early / "manifest.json").read_text())
    (early / "manifest.json").write_text(json.dumps({key: value for key, value in manifest.items() if key != "sha256"}))
    assert main(["run", "--resume", str(early), "--set", "train.steps=3"]) == 0
    os.rename(project / "texts", tmp_path / "moved")
    resume += ["--set", f"task.data.paths=['{tmp_path}/moved/*.txt']"]
    capsys.readouterr()
    assert main(resume) == 2
    assert "[changed-components]" in capsys.readouterr().err
    assert main([*resume, "--accept-changes"]) == 0


def test_only_existing_paths_become_absolute(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "bytes").write_text("")
    (tmp_path / "tokenizer.json").write_text("")
    (tmp_path / "folder").mkdir()
    given = {
        "name": "a.txt",
        "judge": "folder",
        "task": {
            "use": "a.txt",
            "tokenizer": "tokenizer.json",
            "data": {"path": "a.txt", "paths": ["*.txt", "none*", "/root.txt"]},
        },
        "loss": "bytes",
        "plugins": ["a.txt"],
        "long": "x" * 5000 + ".txt",
        "number": 3,
    }
    made = absolute_paths(given, tmp_path)
    data = {"path": f"{tmp_path}/a.txt", "paths": [f"{tmp_path}/*.txt", "none*", "/root.txt"]}
    task = {"use": "a.txt", "tokenizer": f"{tmp_path}/tokenizer.json", "data": data}
    assert made == {**given, "judge": f"{tmp_path}/folder", "task": task}


def test_a_sweep_outside_the_project_keeps_its_policy(project, tmp_path):
    (project / "registry.toml").write_text("")
    assert main(["sweep", "exp.toml", "--sweep", "seed=[1]", "--runs", str(tmp_path / "far"), "--dry-run"]) == 0
    from dither.engine.config.load_experiment import open_experiment
    from dither.engine.sweeps.directory import SweepDirectory

    document, _ = open_experiment(project / "exp.toml")
    sweep = SweepDirectory.create(tmp_path / "far", document, ["test"])
    point = sweep.add("1", {"seed": 1}, load_experiment(project / "exp.toml"))
    sweep.record([point])
    assert governing_policy_file(point.path / "experiment.toml") == project / "registry.toml"


def test_a_policy_inside_a_run_is_ignored(tmp_path):
    run = tmp_path / "mine" / "runs" / "given"
    run.mkdir(parents=True)
    for place in (run, tmp_path / "mine", tmp_path):
        (place / "registry.toml").write_text("")
    for planted in (run / "registry.toml", run / "other.toml", tmp_path / "nowhere" / "registry.toml"):
        (run / "manifest.json").write_text(json.dumps({"registry": str(planted)}))
        assert governing_policy_file(run / "resolved.toml") == tmp_path / "mine" / "registry.toml"
    (run / "manifest.json").write_text(json.dumps({"registry": str(tmp_path / "registry.toml")}))
    assert governing_policy_file(run / "resolved.toml") == tmp_path / "registry.toml"
