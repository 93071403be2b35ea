"""Mistakes are found by `validate`, or before the first step if they need data, each with file and line."""

from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.registry.config.errors import Refused

REGIONS = """
name = "regions"
loss = "mse"
sampler = { use = "ancestral", steps = 1 }
process = { use = "masked-region", ratio = 0.5 }
[task]
use = "get-region"
regions = 2
span = 10
data = { use = "region-file", path = "table.csv" }
[model]
use = "denoiser"
width = 8
depth = 1
embedding = "regions"
condition = "level"
block = { use = "adaln-zero", heads = 2 }
head = "features"
"""


@pytest.fixture
def folder(tmp_path, monkeypatch, text_experiment):
    """A folder with an experiment on a text, and one on regions."""
    (tmp_path / "a.txt").write_text("the cat sat on the mat. " * 50)
    (tmp_path / "text.toml").write_text(text_experiment("a.txt", tokenizer="chars"))
    (tmp_path / "regions.toml").write_text(REGIONS)
    rows = [f"chr{c},{p},{p + 1},1,0.{p},0.5" for c in (1, 2, 3) for p in range(0, 400, 20)]
    (tmp_path / "table.csv").write_text("\n".join(["chromosome,start,end,open:K562,A,B", *rows, ""]))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def write(folder, table, line, file="text.toml"):
    """Put a line into a table of the experiment, in place of one with the same key; return its number."""
    lines = (folder / file).read_text().splitlines()
    lines = [other for other in lines if other.split(" = ")[0] != line.split(" = ")[0]]
    lines += [] if f"[{table}]" in lines else [f"[{table}]"]
    at = lines.index(f"[{table}]") + 1
    (folder / file).write_text("\n".join([*lines[:at], line, *lines[at:]]))
    return at + 1


@pytest.mark.parametrize(
    ("table", "line", "code"),
    [
        ("train", "buckets = true", "misfit"),
        ("train", 'start_from = "nowhere"', "file-not-found"),
        ("train", 'freeze = ["heads.*"]', "unknown-value"),
        ("train.lora", 'on = ["attentoin"]', "unknown-value"),
        # These need the data.
        ("task", "length = 5000", "no-samples"),
        ("task", 'prompt = "\u2603"', "unknown-value"),
        ("task", 'tokenizer = "bpe:90000"', "out-of-range"),
        ("evaluate", 'best = "losss"', "unknown-metric"),
        ("task", "span = 10", "no-samples"),
    ],
)
def test_mistakes_are_found_before_the_first_step(folder, capsys, table, line, code):
    file = "regions.toml" if "span" in line else "text.toml"
    number = write(folder, table, line, file)
    commands = ["validate", "run"] if table.startswith("train") else ["run"]
    for command in commands:
        assert main([command, file]) == 2
        captured = capsys.readouterr()
        assert f"[{code}]" in captured.err
        assert f"{file}:{number}:" in captured.err
        assert "step 1" not in captured.out
    assert not [path for path in folder.glob("runs/*/metrics.jsonl") if path.read_text()]


def test_buckets_with_a_batch_larger_than_the_data(folder, capsys):
    quick = Path(__file__).parents[1] / "experiments/bubble_diagram/quick.toml"
    data = '[task.data]\nuse = "procedural-plans"\ntrain = 100\nvalid = 20\ntest = 20'
    (folder / "plans.toml").write_text(f'extends = "{quick}"\n{data}\n[train]\nbatch_size = 500\nbuckets = true\n')
    assert main(["run", "plans.toml"]) == 2
    message = capsys.readouterr().err
    assert "[no-samples]" in message
    assert "plans.toml:9:" in message


def test_a_run_does_without_the_weights_that_it_started_from(folder):
    write(folder, "evaluate", 'best = "nats_per_token"')
    assert main(["run", "text.toml"]) == 0
    (first,) = folder.glob("runs/*")
    write(folder, "train", f'start_from = "{first.rename(folder / "first")}"')
    assert main(["run", "text.toml", "--runs", "more"]) == 0
    (folder / "first").rename(folder / "gone")
    (second,) = folder.glob("more/*")
    assert main(["evaluate", str(second)]) == 0
    assert main(["run", "--resume", str(second), "--set", "train.steps=3"]) == 0


def test_mistakes_below_a_wrong_task_are_reported_at_once(folder):
    for table, line in (
        ("task", 'prompt = "much too long"'), ("model", 'block = { use = "adaln-zero", heads = 7 }'),
        ("train", "buckets = true"), ("train", "accumulate = 3"),
    ):  # fmt: skip
        write(folder, table, line)
    expected = {"task.prompt", "model.block.heads", "train.buckets", "train.accumulate"}
    for changes in ([], ["task.use=languages", "train.buckets=false", "model.block.heads=2"]):
        with pytest.raises(Refused) as refused:
            load_experiment(folder / "text.toml", changes)
        assert {".".join(map(str, problem.path)) for problem in refused.value.problems} == expected
        expected = {"task", "train.accumulate"}
