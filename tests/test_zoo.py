"""Trained models of installed distributions: the verbs of a user, from a name to a result."""

import json
import sys
from pathlib import Path

import pytest

import dither
from dither.engine.cli import main
from dither.engine.files.installed_models import installed_models, model_folder

MODELS = installed_models()
ZOO = [name for name in MODELS if name.startswith("zoo/")]
MAX_BYTES = 8_000_000


def test_the_zoo_is_small_and_every_model_has_a_card():
    sizes = [file.stat().st_size for name in ZOO for file in MODELS[name].rglob("*")]
    assert sum(sizes) < MAX_BYTES
    for name in ZOO:
        card = (MODELS[name] / "README.md").read_text(encoding="utf-8")
        assert f'dither.load("{name}")' in card
        for part in ("## Training", "## Metrics", "## Data", "seed", "±"):
            assert part in card, (name, part)


@pytest.mark.parametrize(
    ("words", "code"),
    [
        (["validate"], "file-not-found"),
        (["resolve"], "file-not-found"),
        (["run"], "file-not-found"),
        (["bench"], "file-not-found"),
        (["report"], "not-a-run"),
        (["runs", "verify"], "not-a-run"),
        (["run", "--resume"], "not-a-run"),
    ],
)
def test_verbs_of_experiments_and_runs_say_what_a_model_is(
    words, code, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main([*words, ZOO[0]]) != 0
    printed = capsys.readouterr().err
    assert f"[{code}]" in printed
    assert "a trained model" in printed


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_a_model_samples_as_its_card_says(name):
    system = dither.load(name)
    samples = system.sample(2, seed=0)
    assert len(samples) == 2
    # Texts, diagrams and images are one each, a table of regions has a row for each region.
    assert len(system.decode(samples)) > 0


@pytest.mark.slow
@pytest.mark.parametrize("name", ZOO)
def test_every_model_is_sampled_and_evaluated_by_name(
    name, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(["sample", name, "--count", "2", "--no-metrics"]) == 0
    folder = name.partition("/")[2]
    assert list((tmp_path / "runs" / folder / "samples").glob("*/*"))
    capsys.readouterr()
    words = ["evaluate", name, "--json", "evaluate.samples=32", "evaluate.repeats=1"]
    assert main(words) == 0
    assert json.loads(capsys.readouterr().out)["loss"] > 0


def test_list_shows_the_models(capsys):
    assert main(["list", "zoo"]) == 0
    shown = capsys.readouterr().out
    assert all(name in shown for name in ZOO)
    assert main(["list", "zoo", "--json", "--filter", "*dna"]) == 0
    (row,) = json.loads(capsys.readouterr().out)
    assert row["name"] == "zoo/dna"
    assert row["summary"]


@pytest.mark.parametrize(
    "words",
    [
        ["sample", "zoo/bubble-smal"],
        ["evaluate", "zoo/bubble-smal"],
        ["run", "bubble_diagram/quick", "train.start_from=zoo/bubble-smal"],
        ["validate", "bubble_diagram/quick", "train.start_from=zoo/bubble-smal"],
    ],
)
def test_an_unknown_model_is_refused_with_the_nearest_name(
    words, tmp_path, monkeypatch, capsys
):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert "zoo/bubble-small" in capsys.readouterr().err
    assert not list(tmp_path.iterdir())


@pytest.mark.slow
def test_training_starts_from_a_model(tmp_path):
    changes = {
        "train.start_from": "zoo/bubble-small",
        "train.steps": 1,
        "train.optimizer.lr": 1e-9,
        "task.data.train": 8,
        "evaluate.samples": 32,
        "sample.count": 0,
        "tracking.use": [],
    }
    run = dither.train("bubble_diagram/small", changes, tmp_path)
    loss = dither.load(run).evaluate(samples=64)["loss"]
    assert loss == pytest.approx(
        dither.load("zoo/bubble-small").evaluate(samples=64)["loss"], rel=1e-3
    )


def test_a_folder_goes_before_a_model_and_an_export_has_one_checkpoint(
    tmp_path, monkeypatch, refusal
):
    monkeypatch.chdir(tmp_path)
    assert model_folder("zoo/dna") == MODELS["zoo/dna"]
    (tmp_path / "zoo" / "dna").mkdir(parents=True)
    assert model_folder("zoo/dna") == Path("zoo/dna")
    assert main(["sample", "zoo/dna"]) == 2
    monkeypatch.chdir(tmp_path / "zoo")
    assert main(["sample", "zoo/dna", "--checkpoint", "best"]) == 2


def test_a_distribution_of_others_adds_models(tmp_path, monkeypatch):
    package = tmp_path / "their_package" / "models"
    model = package / "tiny"
    model.mkdir(parents=True)
    for init in (package, package.parent):
        (init / "__init__.py").write_text("raise RuntimeError('never imported')\n")
    for file in MODELS["zoo/dna"].iterdir():
        (model / file.name).write_bytes(file.read_bytes())
    metadata = tmp_path / "their_models-1.0.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(
        "Metadata-Version: 2.1\nName: their-models\nVersion: 1.0\n"
    )
    entries = "[dither.models]\ntheirs = their_package.models\nlost = not_installed.anywhere\n"
    (metadata / "entry_points.txt").write_text(entries)
    monkeypatch.setattr(sys, "path", [str(tmp_path), *sys.path])

    assert model_folder("theirs/tiny") == model
    assert not any(name.startswith("lost/") for name in installed_models())
    assert dither.load("theirs/tiny").sample(1, steps=2).shape == (1, 200)
