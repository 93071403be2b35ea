"""The experiment files of this repository, and compatibility checks of experiment files."""

from pathlib import Path

import pytest
import torch

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer
from dither.registry.config.errors import Refused
from dither.registry.config.validation import dump, validate

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "experiments").rglob("*.toml"))


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_file_is_valid_and_documented(path):
    loaded = load_experiment(path)
    tree = dump(loaded.experiment, loaded.plugins.catalog)
    again = validate(type(loaded.experiment), type(loaded.document)(tree), loaded.plugins.catalog)
    assert again == loaded.experiment
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    text = "\n".join(header)
    assert f"python -m experiments.run experiments/{path.parent.name}/{path.name}" in text
    assert "Result" in text


@pytest.mark.parametrize(
    ("name", "expected"),
    [
        (  # document 000, table 1 (whose 217,856 should be 218,112); the embedding has two extra tokens
            "get_region/seed.toml",
            {"embedding": 218_112 + 2 * 768, "condition": 787_968, "blocks.0.": 10_628_352, "head": 217_627},
        ),
        (  # document 001, section 6
            "bubble_diagram/seed_small.toml",
            {"embedding": 1920 + 1664 + 2304, "condition": 49_408, "blocks.": 1_189_376, "head": 1935 + 1677},
        ),
        (  # document 004
            "language_model/seed.toml",
            {"embedding": 25_731_584, "condition": 49_408, "blocks.0.": 4_591_616, "head": 25_781_841},
        ),
    ],
)
def test_parameter_counts_of_each_module(name, expected):
    experiment = load_experiment(ROOT / "experiments" / name).experiment
    with torch.device("meta"):
        model = experiment.model.build(experiment.process.facts(experiment.task.space()).space)
    sizes = {name: parameter.numel() for name, parameter in model.named_parameters()}
    assert {part: sum(n for name, n in sizes.items() if name.startswith(part)) for part in expected} == expected


QUICK = ROOT / "experiments/bubble_diagram/quick.toml"


@pytest.mark.parametrize(
    "change",
    [
        "bubble_diagram/quick",
        "bubble_diagram/quick process.estimator='mask-count' loss={use='masked-ce',reduction='sample'}",
        "get_region/quick",
        "language_model/quick",
        "language_model/quick process={use='absorbing',schedule='cosine',predict='score'} loss='score-entropy'",
        "language_model/quick process={use='uniform',schedule='cosine'} loss='score-entropy'",
        "language_model/blocks",
    ],
)
def test_training_never_synchronises_with_the_device(change):
    """Reading a value back on the host, or a shape that depends on values, fails on the meta device."""
    name, *overrides = change.split()
    if name.startswith("bubble"):
        overrides.append("task.data.train=8")
    system = Diffusion.build(load_experiment(ROOT / "experiments" / f"{name}.toml", overrides).experiment)
    clean = system.task.batch("train", range(4))
    system.train().to("meta")
    system(clean.to(torch.device("meta"))).total().backward()


@pytest.mark.parametrize("blocks", [(), ("model.block_size=4", 'sampler={use = "blocks", size = 4}')])
def test_loss_and_gradient_norm_do_not_depend_on_accumulation(blocks):
    """Also where micro-batches have different numbers of weighted positions."""
    metrics = []
    small = ("model.width=16", "model.depth=1", "model.block.heads=2", "model.block.dropout=0.0")
    data = ("task.data.length=20000", "task.data.held=4096", "train.batch_size=8", "train.device=cpu")
    for accumulate in (1, 4):
        changes = (*small, *data, *blocks, f"train.accumulate={accumulate}")
        experiment = load_experiment(ROOT / "experiments/language_model/markov.toml", changes).experiment
        trainer = Trainer(Diffusion.build(experiment), experiment.train, experiment.seed)
        metrics.append([value.item() for _ in range(2) for value in trainer.advance().values()])
    assert metrics[1] == pytest.approx(metrics[0], rel=3e-6)


def problems(*overrides: str, file=QUICK):
    with pytest.raises(Refused) as caught:
        load_experiment(file, overrides)
    return caught.value.problems


@pytest.mark.parametrize(
    ("overrides", "paths"),
    [
        (
            ["loss=mse", "train.steps=many", "train.bathc_size=3", "model.width=-1", "sampler=bloks"],
            {"train.steps", "train.bathc_size", "model.width", "sampler"},
        ),
        (["model.block.heads=7", "loss=mse", "train.accumulate=5"], {"model.block.heads", "loss", "train.accumulate"}),
    ],
)  # fmt: skip
def test_all_problems_of_one_stage_are_reported_together(overrides, paths):
    """Names, types and bounds first; compatibility once these are right."""
    assert paths <= {".".join(map(str, problem.path)) for problem in problems(*overrides)}


def test_trackers_and_metrics_may_not_be_listed_twice():
    (problem,) = problems("train.trackers=['tensorboard', 'tensorboard']")
    assert (problem.code, problem.path) == ("duplicate", ("train", "trackers", 1))


def test_file_plugins_are_relative_to_the_experiment_file(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dither.registry import hookimpl, Misfit\n"
        "@hookimpl\n"
        "def check_experiment(experiment):\n"
        "    yield Misfit('at most 100 steps', ('train', 'steps'), code='site-policy')\n"
    )
    (tmp_path / "e.toml").write_text(f'extends = "{QUICK}"\nplugins = ["mine.py"]\n')
    (problem,) = problems(file=tmp_path / "e.toml")
    assert (problem.code, problem.path) == ("site-policy", ("train", "steps"))
    (tmp_path / "e.toml").write_text(f'extends = "{QUICK}"\nplugins = ["yours.py"]\n')
    (problem,) = problems(file=tmp_path / "e.toml")
    assert (problem.origin.line, problem.origin.column) == (2, 12)
