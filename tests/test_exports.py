"""Exports load on another machine, hold no paths of this one, and list missing data."""

import contextlib
import io
import json
import shutil
import tomllib

import pytest
import torch

import dither
from dither.engine.checkpoints.checkpoint import Damaged
from dither.engine.cli import main
from dither.engine.runs.exports import pack, read_missing_data, space_as_json, space_from_json
from dither.registry.config.errors import Refused
from dither.registry.flow.spaces import Condition, FeatureSpace, Field, Group, TokenSpace
from dither.registry.plugins.manager import default_catalog


@pytest.fixture(scope="module")
def made(tmp_path_factory, text_experiment):
    """A run on text files, exported; the folder that it was made in is gone."""
    folder = tmp_path_factory.mktemp("made")
    home = folder / "home of a user"
    (home / "texts").mkdir(parents=True)
    (home / "texts" / "a.txt").write_text("the cat sat on the mat. " * 60)
    (home / "more.txt").write_text("the dog lay on the log. " * 60)
    (home / "exp.toml").write_text(text_experiment("texts/*.txt", "more.txt", tokenizer="chars"))
    with pytest.MonkeyPatch.context() as patch:
        patch.chdir(home)
        assert main(["run", "exp.toml"]) == 0
    (run,) = (home / "runs").iterdir()
    here = dither.load(run, device="cpu")
    samples = dither.draw(here, here.task.like(3, seed=0), seed=0)
    output = io.StringIO()
    with contextlib.redirect_stdout(output):
        assert main(["export", str(run), "--to", str(folder / "given")]) == 0
    for name in ("*.txt", "more.txt"):
        assert f"data not included: task.data.paths = data/{name}" in output.getvalue()
    shutil.move(home, folder / "gone")
    return folder, samples


@pytest.fixture
def export(made, tmp_path, monkeypatch):
    """A copy of the export, and of the data that it was made with, seen from another folder."""
    for name in ("given", "gone"):
        shutil.copytree(made[0] / name, tmp_path / name)
    (tmp_path / "elsewhere").mkdir()
    monkeypatch.chdir(tmp_path / "elsewhere")
    return tmp_path / "given", tmp_path / "gone", made[1]


def test_an_export_loads_without_its_data(export):
    given, _, _ = export
    system = dither.load(given, device="cpu")
    assert system.task.space.fields[0].size == len(set("the cat sat on the mat. the dog lay on the log.")) + 1
    from dither.registry.flow.records import Clean

    like = Clean(
        torch.zeros(2, 8, dtype=torch.int64), torch.ones(2, 8, dtype=torch.bool), torch.zeros(2, 8, dtype=torch.bool)
    )
    assert dither.draw(system, like, seed=0).shape == (2, 8)
    with pytest.raises(Refused, match=r"task\.batch requires data .*task\.data\.paths") as no:
        system.task.batch("train", [0])
    assert system.task.text(system.task.tokens("the cat")) == "the cat"
    assert "task.data.paths = data/*.txt; task.data.paths = data/more.txt" in str(no.value)
    assert "load(..., changes=" in no.value.problems[0].help


def test_data_are_found_in_the_export_or_by_override(export):
    given, gone, samples = export
    where = f"task.data.paths=['{gone}/texts/*.txt', '{gone}/more.txt']"
    there = dither.load(given, device="cpu", changes=[where])
    assert torch.equal(dither.draw(there, there.task.like(3, seed=0), seed=0), samples)
    (given / "data").mkdir()
    shutil.copy(gone / "texts" / "a.txt", given / "data")
    shutil.copy(gone / "more.txt", given / "data")
    inside = dither.load(given, device="cpu")
    assert inside.task.like(3, seed=0).x0.shape == (3, 8)


def test_no_machine_specific_paths(export, made):
    given = export[0]
    for file in given.rglob("*"):
        if file.is_file():
            assert str(made[0]).encode() not in file.read_bytes(), file
            assert b"home of a user" not in file.read_bytes(), file
    text = (given / "experiment.toml").read_text()
    assert {"device", "threads"}.isdisjoint(tomllib.loads(text)["train"])


def test_small_files_are_bundled(tmp_path):
    (tmp_path / "tokenizer.json").write_text("{}")
    (tmp_path / "corpus").mkdir()
    (tmp_path / "corpus" / "one").write_text("12345")
    data = {"use": "token-shards", "path": f"{tmp_path}/corpus"}
    task = {"use": "language-model", "judge": f"{tmp_path}/corpus", "prompt": str(tmp_path)}
    tree = {
        "name": "x/y.json",
        "plugins": ["plugins/a.py", "/a/b.py"],
        "task": {**task, "tokenizer": f"{tmp_path}/tokenizer.json", "data": data},
        "train": {"steps": 3, "device": "cuda:7", "threads": 3, "start_from": str(tmp_path), "start_layout": "get"},
    }
    bundle = pack(tree, default_catalog())
    task |= {"tokenizer": "files/tokenizer.json", "data": {**data, "path": "data/2-corpus"}, "judge": "data/corpus"}
    assert bundle.tree == {"name": "x/y.json", "plugins": tree["plugins"], "task": task, "train": {"steps": 3}}
    assert bundle.files == {"files/tokenizer.json": tmp_path / "tokenizer.json"}
    assert bundle.data == [("task.judge", "data/corpus"), ("task.data.path", "data/2-corpus")]


@pytest.mark.parametrize("prompt", ["/* sum", "~nobody", "/", "~", "/etc/hostname"])
def test_text_like_a_path_is_kept(prompt):
    task = {
        "use": "language-model",
        "prompt": prompt,
        "data": {"use": "token-shards", "path": "~nobody-is-so-called/a"},
    }
    bundle = pack({"task": task, "train": {}}, default_catalog())
    assert bundle.tree["task"] == {**task, "data": {"use": "token-shards", "path": "data/a"}}
    assert not bundle.files


@pytest.mark.parametrize(
    "space",
    [
        TokenSpace((Field("a", 3, 5, mask=4), Field("b", 2, 7, pad=1, end=0)), (Condition("c", 2, ("x", "y"), True),)),
        FeatureSpace(4, 6, (Group("g", 0, 2),), (Condition("place"),)),
        FeatureSpace(4, 6, (Group("g", 0, 2),), given=("g",), standardised=True),
    ],
)
def test_space_round_trip(space):
    table = json.loads(json.dumps(space_as_json(space)))
    assert space_from_json(table) == space


@pytest.mark.parametrize("damage", ["{", "[]", '{"data": 3}', '{"data": [{}]}', '{"space": {"data": "tokens"}}'])
def test_invalid_data_entries_are_damage(tmp_path, damage):
    (tmp_path / "MANIFEST.json").write_text(damage)
    with pytest.raises(Damaged, match=r"MANIFEST\.json"):
        read_missing_data(tmp_path)
