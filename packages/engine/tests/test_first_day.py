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
        load_experiment, "language_model/attention", [override]
    ).problems
    assert ".".join(problem.path) == path
    assert problem.code == "unknown-key"
    for name in expected:
        assert f'"{name}"' in problem.help
    assert "lora" not in problem.help.partition("accepted")[0]


def test_an_option_of_another_component_names_the_components_that_have_it(refusal):
    for key, named in (("steps", "this key"), ("stepz", 'the key "steps"')):
        (problem,) = refusal(
            load_experiment, "bubble_diagram/quick", [f"sampler.{key}=5"]
        ).problems
        assert f"components of kind sampler with {named}" in problem.help
        assert "ordered" in problem.help
        assert "train.steps" not in problem.help


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


SUMMARY = {
    "metrics": {
        "valid": {
            "nats_per_graph": 40.8431, "nats_per_graph_ci95": 0.88, "auc": 0.8871, "auc_ci95": 0.02,
            "colour": 3.0,
        },
        "sample": {"unique": 0.99, "unique_floor": 1.0, "edge_js": 0.07823, "edge_js_floor": 0.01297},
    },
    "baselines": {
        "nats_per_graph/unigram": 48.32, "nats_per_graph/uniform": 65.28, "auc/boosting": 0.8981,
        "auc/a-model-with-a-long-name": 0.5, "auc/another-model-with-a-long-name": 0.6, "colour/red": 2.0,
        "sample unique/shuffled": 1.0, "sample unique/real": 1.0,
        "sample edge_js/unigram": 0.0002525, "sample edge_js/real": 4.182e-05,
    },
    "higher": ["auc", "unique"],
    "lower": ["*_js"],
    "explanations": {"shuffled": "test plans whose relations are permuted", "absent": "not shown"},
}  # fmt: skip


def shown(summary):
    import io

    from rich.console import Console

    from dither.engine.runs.progress import show_metrics

    file = io.StringIO()
    show_metrics(Console(file=file, width=80), summary)
    return file.getvalue()


def test_the_end_table_fits_80_columns_and_marks_who_is_ahead():
    text = shown(SUMMARY)
    assert max(map(len, text.splitlines())) <= 80
    assert "*40.84 ± 0.88" in text
    assert "unigram 48.32, uniform 65.28" in text
    # Within the interval both are marked.
    assert "*0.8871 ± 0.0200" in text
    assert "*boosting" in text
    assert "*shuffled" in text
    assert "*real" not in text
    assert "*floor" not in text
    assert "*unigram" in text
    assert "*3" not in text, "no direction is known"
    assert "* ahead" in text


@pytest.mark.parametrize(
    "name", ["auc", "a_metric_with_a_name_that_is_long_" + 9 * "x"]
)
def test_lists_of_baselines_are_continued_between_two(name):
    """Next to the values, or below the metric if they are too long for that."""
    from dither.engine.runs.progress import metric_lines

    texts = [f"baseline-{number} 0.5 (+0.1 ± 0.02)" for number in range(5)]
    rows = [("metric", "model", ["baselines"]), (name, "0.123456 ± 0.0123", texts)]
    lines = list(metric_lines(rows, 80))
    assert max(map(len, lines)) <= 80
    assert len(lines) > len(rows)
    assert [text for text in texts if any(text in line for line in lines)] == texts
    assert " ".join(" ".join(lines).split()).endswith(", ".join(texts))
    (header, whole) = metric_lines(rows, None)
    assert header.split() == ["metric", "model", "baselines"]
    assert whole == f"{name:6}  0.123456 ± 0.0123  {', '.join(texts)}"


def test_numbers_of_a_row_have_one_format():
    (line,) = [line for line in shown(SUMMARY).splitlines() if "edge_js" in line]
    assert "0.07823" in line
    assert "floor 0.01297" in line
    assert "0.00025" in line
    assert "e-" not in shown(SUMMARY)


def test_floor_and_shuffled_are_explained():
    text = shown(SUMMARY)
    assert "\nfloor: as many samples of real data" in text
    assert "\nshuffled: test plans whose relations are permuted" in text
    assert "not shown" not in text


def test_who_is_ahead_follows_the_direction():
    from dither.engine.files.metrics_file import better_of, leaders

    assert better_of("loss", (), ()) == "lower"
    assert better_of("nats_per_token", (), ()) == "lower"
    assert better_of("auc", ("*auc",), ()) == "higher"
    assert better_of("colour", (), ()) is None
    baselines = {"m/a": 1.0, "m/b": 2.0, "m/real": 9.0}
    assert leaders("valid", "m", {"m": 1.5}, baselines, "lower") == {"a"}
    assert leaders("valid", "m", {"m": 1.5}, baselines, "higher") == {"b"}
    assert leaders("valid", "m", {"m": 0.5}, baselines, "lower") == {""}
    near = {"m": 0.9, "m_ci95": 0.2}
    assert leaders("valid", "m", near, baselines, "lower") == {"", "a"}
    # The interval of the difference counts where there is one.
    lead = {**baselines, "m/a-lead": -0.1, "m/a-lead_ci95": 0.01}
    assert leaders("valid", "m", near, lead, "lower") == {""}
    assert leaders("valid", "m", {"m": float("nan")}, baselines, "lower") == set()
    assert leaders("valid", "m", {"m": 1.0}, {"m/real": 2.0}, "lower") == set()


def test_sample_of_text_prints_the_text(tmp_path, capsys):
    import dither

    small = {
        "model.width": 16, "model.depth": 1, "task.length": 16, "train.steps": 1, "evaluate.samples": 8,
        "sample.count": 1, "tracking.use": [], "task.data": {"use": "stdlib-text"},
    }  # fmt: skip
    run = dither.train("language_model/quick", small, tmp_path)
    capsys.readouterr()
    assert main(["sample", str(run), "--count", "6", "--out", str(tmp_path / "s")]) == 0
    printed = capsys.readouterr().out
    text = (tmp_path / "s/sample-000.txt").read_text()
    assert text.strip() in printed
    assert "sample-003" in printed
    assert "2 more texts" in printed


def test_shares_of_bench_add_up_to_100():
    from dither.engine.cli.benchmark import shares

    for values in ((1, 1, 1, 0), (0.123, 0.4567, 1.9, 0.003), (0, 0, 0, 0), (1e-9, 5, 5, 5)):  # fmt: skip
        phases = dict(zip("abcd", values, strict=True))
        shown = [f"{share:.1%}" for share in shares(phases).values()]
        total = sum(round(10 * float(text[:-1])) for text in shown)
        assert total == (1000 if sum(values) else 0)
