"""Paths of a run: resuming from any folder, and the policy of its start."""

import json
import os
from pathlib import Path
from typing import ClassVar

import pytest

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment, open_experiment
from dither.engine.config.paths import absolute_paths
from dither.engine.config.plugins import governing_policy_file
from dither.engine.sweeps.directory import SweepDirectory
from dither.registry.kinds import MetricSpec
from dither.registry.plugins.manager import default_catalog, load_plugins


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


def test_a_run_resumes_from_another_folder_and_with_moved_data(
    project, tmp_path, monkeypatch, capsys, cli
):
    assert main(["run", "exp.toml", "--runs", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").glob("*-*")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["evaluate", str(run)]) == 0
    assert main(["run", "--resume", str(run), "--set", "train.steps=3"]) == 0
    os.rename(project / "texts", tmp_path / "moved")
    capsys.readouterr()
    assert "texts" in cli("evaluate", str(run), code=2).err
    resume = ["run", "--resume", str(run), "--set", "train.steps=4"]
    resume += ["--set", f"task.data.paths=['{tmp_path}/moved/*.txt']"]
    assert main(resume) == 2
    assert "[changed-components]" in capsys.readouterr().err
    assert main([*resume, "--accept-changes"]) == 0


class Counting(MetricSpec):
    name: ClassVar[str] = "counting"
    file: Path = Path("default.bin")
    more: list[Path] = []
    word: str = ""

    def build(self, space):
        raise NotImplementedError


def test_only_existing_paths_become_absolute(tmp_path):
    (tmp_path / "a.txt").write_text("")
    (tmp_path / "tokenizer.json").write_text("")
    (tmp_path / "folder").mkdir()
    (tmp_path / "bytes").mkdir()
    data = {
        "use": "text-files",
        "paths": ["*.txt", "none*", "/root.txt", "x" * 5000 + ".txt"],
    }
    task = {
        "use": "language-model",
        "tokenizer": "tokenizer.json",
        "prompt": "a.txt",
        "judge": "folder",
        "data": data,
    }
    names = {
        "evaluate": {"best": "a.txt"},
        "train": {"freeze": ["a.txt"], "start_from": "folder"},
        "name": "a.txt",
    }
    given = {**names, "task": task, "loss": "bytes", "plugins": ["a.txt"], "seed": 3}
    made = absolute_paths(given, tmp_path, default_catalog())
    data = {**data, "paths": [f"{tmp_path}/*.txt", *data["paths"][1:]]}
    task = {
        **task,
        "tokenizer": f"{tmp_path}/tokenizer.json",
        "judge": f"{tmp_path}/folder",
        "data": data,
    }
    train = {**given["train"], "start_from": f"{tmp_path}/folder"}
    assert made == {**given, "train": train, "task": task}
    task = {
        **task,
        "tokenizer": "bytes",
        "data": {"use": "text", "paths": ["stdlib", "bytes"], "to": "folder"},
    }
    metric = {"use": "counting", "file": "a.txt", "more": ["a.txt"], "word": "a.txt"}
    catalog = load_plugins().catalog
    catalog.add("mine", [Counting])
    made = absolute_paths(
        {"task": task, "evaluate": {"metrics": [metric]}}, tmp_path, catalog
    )
    path = f"{tmp_path}/a.txt"
    assert made["evaluate"]["metrics"] == [{**metric, "file": path, "more": [path]}], (
        "options that are paths"
    )
    made = made["task"]
    assert made["tokenizer"] == "bytes", "a tokenizer of this name exists"
    assert made["data"] == {
        "use": "text",
        "paths": ["stdlib", f"{tmp_path}/bytes"],
        "to": f"{tmp_path}/folder",
    }


def test_prepared_data_are_found_from_any_folder(project, tmp_path, monkeypatch):
    monkeypatch.setenv("DITHER_DATA", str(tmp_path / "cache"))
    data = 'data = { use = "text", tokenizer = "bytes", paths = ["texts"] }'
    lines = (project / "exp.toml").read_text().splitlines()
    (project / "exp.toml").write_text(
        "\n".join(data if line.startswith("data =") else line for line in lines)
    )
    assert main(["prepare", "text", "texts", "--tokenizer", "bytes"]) == 0
    assert main(["run", "exp.toml", "--runs", str(tmp_path / "runs")]) == 0
    (run,) = (tmp_path / "runs").glob("*-*")
    monkeypatch.chdir(tmp_path / "elsewhere")
    assert main(["run", "--resume", str(run), "--set", "train.steps=3"]) == 0


def test_a_sweep_outside_the_project_keeps_its_policy(project, tmp_path):
    (project / "registry.toml").write_text("")
    assert (
        main(
            [
                "sweep",
                "exp.toml",
                "--sweep",
                "seed=[1]",
                "--runs",
                str(tmp_path / "far"),
                "--dry-run",
            ]
        )
        == 0
    )
    document, _ = open_experiment(project / "exp.toml")
    sweep = SweepDirectory.create(tmp_path / "far", document, ["test"])
    point = sweep.add("1", {"seed": 1}, load_experiment(project / "exp.toml"))
    sweep.record([point])
    assert (
        governing_policy_file(point.path / "experiment.toml")
        == project / "registry.toml"
    )


def test_the_policy_of_a_run_is_that_of_its_start_or_the_nearest_one(tmp_path):
    run = tmp_path / "mine" / "runs" / "run"
    run.mkdir(parents=True)
    for place in (tmp_path / "mine", tmp_path):
        (place / "registry.toml").write_text("")
    for manifest in (
        {},
        {"registry": None},
        {"registry": str(tmp_path / "gone" / "registry.toml")},
    ):
        (run / "manifest.json").write_text(json.dumps(manifest))
        assert (
            governing_policy_file(run / "resolved.toml")
            == tmp_path / "mine" / "registry.toml"
        )
    (run / "manifest.json").write_text(
        json.dumps({"registry": str(tmp_path / "registry.toml")})
    )
    assert governing_policy_file(run / "resolved.toml") == tmp_path / "registry.toml"


def test_a_policy_inside_a_run_is_ignored(tmp_path):
    run = tmp_path / "mine" / "runs" / "given"
    run.mkdir(parents=True)
    for place in (run, tmp_path / "mine", tmp_path):
        (place / "registry.toml").write_text("")

    planted = [
        run / "registry.toml",
        run / "other.toml",
        tmp_path / "nowhere" / "registry.toml",
        Path("mine/registry.toml"),
    ]
    for path in planted:
        (run / "manifest.json").write_text(json.dumps({"registry": str(path)}))
        nearest = tmp_path / "mine" / "registry.toml"
        assert governing_policy_file(run / "resolved.toml") == nearest

    (run / "manifest.json").write_text(
        json.dumps({"registry": str(tmp_path / "registry.toml")})
    )
    assert governing_policy_file(run / "resolved.toml") == tmp_path / "registry.toml"
