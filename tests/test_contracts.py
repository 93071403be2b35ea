"""What cannot work is refused before torch is imported: parts that do not fit each other, sizes that no machine has."""

import json
from pathlib import Path

import pytest

from dither.engine.cli import main
from dither.engine.config.load_experiment import load_experiment
from dither.registry import Refused

EXPERIMENTS = Path(__file__).parents[1] / "experiments"
TEXT, PLANS, REGIONS = (
    EXPERIMENTS / task / "quick.toml" for task in ("language_model", "bubble_diagram", "get_region")
)
SEEDS = [
    ("get_region/seed.toml", 128_767_003, 4.41e12),
    ("bubble_diagram/seed_small.toml", 1_281_564, 11.6e9),
    ("bubble_diagram/seed_base.toml", 7_389_724, None),
    ("language_model/seed.toml", 79_245_137, 11.24e12),
]
SHORT = 'process.schedule={use="geometric",sigma_min=1e-3,sigma_max=1.0}'
MISFITS = [
    (REGIONS, ["process=absorbing"], "process", "task"),
    (TEXT, ["model.embedding=regions"], "model.embedding", "process"),
    (TEXT, ["model.embedding=graph"], "model.embedding", "process"),
    (PLANS, ["model.head=features"], "model.head", "process"),
    (PLANS, ["loss=mse"], "loss", "process"),
    (TEXT, ["model.block.heads=3"], "model.block.heads", "width"),
    (TEXT, ["model.block.heads=128"], "model.block.heads", "width"),  # rope requires an even width of heads
    (TEXT, ['model.condition={use="level",frequencies=3,freq_shift=1}'], "model.condition.frequencies", "width"),
    (REGIONS, ['loss={use="mse",min_snr=5}'], "loss.min_snr", "process"),
    (TEXT, ["process=uniform", "loss=score-entropy", "sampler=first-hitting"], "sampler", "process"),
    (TEXT, ["sampler=blocks"], "sampler", "model"),  # a cache requires block-causal attention
    (PLANS, ['sampler={use="blocks",approximate=true}'], "sampler", "task"),  # and one field
    (TEXT, ["model.block_size=65", 'sampler={use="blocks",size=65}'], "model.block_size", "task"),
    (TEXT, ["model.block_size=8"], "sampler", "block_size"),
    (TEXT, ["model.block_size=8", 'sampler={use="blocks",size=8,stop=true}'], "sampler.stop", "task"),
    (REGIONS, ["process=gaussian", SHORT], "process.schedule", None),  # the schedule ends too early
    (REGIONS, ["process.group=motifs"], "process.group", "given"),
    (REGIONS, ["task.standardise=true", "loss=poisson"], "loss", "standardise"),
    (REGIONS, ["task.standardise=true", "model.head=softplus"], "model.head", "standardise"),
    (TEXT, ["train.accumulate=5"], "train.accumulate", "batch_size"),
    (PLANS, ["train.gather='bfloat16'", "train.strategy='fsdp'"], "train.gather", None),
    (PLANS, ["train.gather='bfloat16'", "train.precision='bfloat16'"], "train.gather", None),
]


@pytest.mark.parametrize(("file", "changes", "key", "other"), MISFITS, ids=lambda value: str(value)[-60:])
def test_incompatible_components_name_both_places(file, changes, key, other):
    with pytest.raises(Refused) as caught:
        load_experiment(file, changes)
    found = {".".join(map(str, problem.path)): problem for problem in caught.value.problems}
    assert key in found, str(caught.value)
    problem = found[key]
    assert problem.code in ("misfit", "out-of-range", "process-mismatch", "signal-left-at-end", "no-effect")
    assert problem.origin is not None
    if other is not None:
        assert any(other in word for word, _ in problem.related), problem.related


@pytest.mark.parametrize(
    ("file", "changes", "path", "message"),
    [
        (TEXT, ["process=uniform", "loss=score-entropy", SHORT], ("process", "schedule"), "37 % of the tokens would"),
        (TEXT, ['sampler={use="blocks",approximate=true}'], ("sampler", "approximate"), "approximate"),
        (REGIONS, ["task.largest=window"], ("task", "largest"), "largest has no effect"),
    ],
)
def test_valid_options_that_are_likely_a_mistake_are_warned_about(file, changes, path, message):
    assert not list(load_experiment(file).experiment.warn())
    (warning,) = load_experiment(file, changes).experiment.warn()
    assert warning.path == path
    assert message in warning.message


@pytest.mark.parametrize("change", ["model.width=100000", "model.width=9000000000000000000"])
def test_a_model_larger_than_the_memory_is_refused_before_the_run(change, monkeypatch, capsys, tmp_path):
    monkeypatch.setattr("dither.engine.training.model_summary.total_memory", lambda: 2**30)
    heads = ["--set", "model.block.heads=1"]
    assert main(["run", str(PLANS), "--set", change, "--runs", str(tmp_path), *heads]) == 2
    assert "model: " in (message := capsys.readouterr().err)
    assert "[out-of-memory]" in message
    assert not list(tmp_path.iterdir())


@pytest.mark.parametrize(("name", "parameters", "step"), SEEDS)
def test_validate_deep_counts_parameters_and_flops(name, parameters, step, capsys):
    assert main(["validate", str(EXPERIMENTS / name), "--deep", "--json"]) == 0
    deep = json.loads(capsys.readouterr().out)["deep"]
    look = deep["shapes"]
    rows = {row["name"]: row for row in look["rows"]}
    assert deep["parameters"] == look["parameters"] == parameters
    outermost = [row for row in rows.values() if "." not in row["name"]]
    assert sum(row["parameters"] for row in outermost) == parameters
    assert sum(row["flops"] for row in outermost) == look["forward"]
    assert 2.8 * look["forward"] < look["step"] <= 3 * look["forward"]
    if step is not None:
        assert look["step"] == pytest.approx(step, rel=0.01)
    e = load_experiment(EXPERIMENTS / name).experiment
    space = e.process.facts(e.task.space()).space
    assert look["output"][:2] == [e.train.batch_size, space.length]
    assert rows["head"]["output"] == look["output"]
    assert rows["blocks"]["part"] == 'block "adaln-zero"'


def test_validate_deep_prints_one_page_that_counts_every_part_of_a_batch(capsys, monkeypatch):
    monkeypatch.setenv("COLUMNS", "100")
    deep, parts = ["validate", str(PLANS), "--deep"], ["--set", "train.accumulate=4"]
    assert main([*deep, *parts]) == 0
    page = capsys.readouterr().out
    for words in ("258,652", 'embedding "graph"', "16 x 36 x 64", "training step", "optimizer state"):
        assert words in page
    steps = []
    for changes in ([], parts):
        assert main([*deep, "--json", *changes]) == 0
        steps.append(json.loads(capsys.readouterr().out)["deep"]["shapes"]["step"])
    assert steps[0] == steps[1]


BROKEN = '''
from torch import nn
from dither.registry import hookimpl
from dither.registry.kinds import BlockSpec

class Net(nn.Module):
    def forward(self, x, c, **options):
        raise ValueError("the shapes of my block are wrong")

class Broken(BlockSpec):
    """Fails."""

    name = "broken"

    def build(self, width, cond):
        return Net()

@hookimpl
def register_components():
    return [Broken]
'''


def test_a_part_that_fails_is_named_without_our_traceback(tmp_path, capsys):
    (tmp_path / "mine.py").write_text(BROKEN)
    (tmp_path / "exp.toml").write_text(PLANS.read_text().replace('name = "', 'plugins = ["./mine.py"]\nname = "', 1))
    assert main(["validate", str(tmp_path / "exp.toml"), "--deep", "--set", "model.block=broken"]) == 2
    said = capsys.readouterr().err
    assert 'block "broken" cannot be run on a batch: ValueError: the shapes of my block are wrong' in said
    assert "mine.py:" in said
    assert "Traceback" not in said
