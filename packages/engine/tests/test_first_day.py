"""Small things of a first day: keys found anywhere, components by name alone, a list of experiments."""

import json

import pytest

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment


@pytest.mark.parametrize(
    ("override", "path", "expected"),
    [
        ("train.lr=1e-3", "train.lr", ["train.optimizer.lr"]),
        ("model.heads=8", "model.heads", ["model.block.heads"]),
        ("data='stdlib-text'", "data", ["task.data"]),
        ("data.path='x'", "data", ["task.data"]),
        ("lr=1e-3", "lr", ["train.optimizer.lr"]),
        ("heads=2", "heads", ["model.block.heads"]),
        ("width=3", "width", ["model.width"]),
        ("model.rope=true", "model.rope", ["model.block.rope"]),
        ("model.attention.heads=8", "model.attention", ["model.block.heads"]),
        ("sample.steps=5", "sample.steps", ["sampler.steps", "train.steps"]),
        ("sample.temperature=.5", "sample.temperature", ["sampler.temperature"]),
        ("evaluate.sample=3", "evaluate.sample", ["samples"]),
        ("batchsize=3", "batchsize", ["train.batch_size"]),
        ("model.widht=3", "model.widht", ["width"]),
    ],
)
def test_unknown_keys_are_searched_in_the_whole_tree(override, path, expected, refusal):
    (problem, *_) = refusal(
        load_experiment, "language_model/quick", [override]
    ).problems
    assert ".".join(problem.path) == path
    assert problem.code == "unknown-key"
    for name in expected:
        assert f'"{name}"' in problem.help
    assert "lora" not in problem.help.partition("accepted")[0]


def test_a_key_of_a_file_is_searched_too(tmp_path, refusal):
    file = tmp_path / "mine.toml"
    file.write_text(
        'extends = "' + str(load_experiment("bubble_diagram/quick").path) + '"\n'
        "[train]\nlr = 1e-3\n[sample]\nsteps = 8\n"
    )
    problems = refusal(load_experiment, file).problems
    helps = {".".join(problem.path): problem.help for problem in problems}
    assert '"train.optimizer.lr"' in helps["train.lr"]
    assert '"train.steps"' in helps["sample.steps"]
    assert problems[0].origin.line == 3


@pytest.mark.parametrize(
    "words",
    [
        ["validate", "language_model/quick", "train.lr=1"],
        ["validate", "language_model/quick", "--set", "train.lr=1"],
        ["sweep", "language_model/quick", "--sweep", "train.lr=[1, 2]"],
    ],
)
def test_every_verb_searches(words, capsys, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(words) == 2
    assert '"train.optimizer.lr"' in capsys.readouterr().err


def test_sampling_options_are_searched(tmp_path, refusal):
    from dither.engine.config.load_experiment import load_for_sampling

    file = load_experiment("language_model/quick").path
    (problem,) = refusal(load_for_sampling, file, changes=["steps=5"]).problems
    assert problem.code == "unknown-key"
    assert '"sampler.steps"' in problem.help


def test_a_component_is_described_without_its_kind(capsys):
    assert main(["describe", "euler"]) == 0
    alone = capsys.readouterr().out
    assert main(["describe", "sampler", "euler"]) == 0
    assert capsys.readouterr().out == alone
    assert main(["describe", "processes/euler@1"]) == 0
    assert capsys.readouterr().out == alone
    for name, code, text in (
        ("none", "ambiguous-component", "describe condition none"),
        ("none", "ambiguous-component", "describe position none"),
        ("eulr", "unknown-component", "euler"),
        ("samplr", "unknown-component", "sampler"),
    ):
        assert main(["describe", name, "--format", "json"]) == 2
        (problem,) = json.loads(capsys.readouterr().out)["problems"]
        assert problem["code"] == code
        assert text in problem["help"]
    assert main(["describe", "sampler"]) == 2
    assert main(["describe", "train"]) == 0


def test_run_without_a_name_lists_the_experiments(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "80")
    assert main(["run"]) == 0
    lines = capsys.readouterr().out.splitlines()
    (line,) = [line for line in lines if line.startswith("bubble_diagram/quick ")]
    assert "loor plans" in line
    assert max(map(len, lines)) <= 80
    # Each has a description.
    assert not [line for line in lines if line.strip().count("/") and " " not in line.strip()]  # fmt: skip
