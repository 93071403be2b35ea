"""The experiment files of this repository, and the experiment file as such."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from dither.engine.config.load_experiment import load_experiment
from dither.registry.config.errors import Refused
from dither.registry.config.validation import dump, validate

ROOT = Path(__file__).parents[1]
FILES = sorted((ROOT / "experiments").rglob("*.toml"))
SEEDS = {
    "get_region/seed.toml": 128_767_003,
    "bubble_diagram/seed_small.toml": 1_281_564,
    "bubble_diagram/seed_base.toml": 7_389_724,
    "language_model/seed.toml": 79_245_137,
}


def model_of(experiment):
    space = experiment.process.facts(experiment.task.space()).space
    with torch.device("meta"):
        return experiment.model.build(space)


@pytest.mark.parametrize("path", FILES, ids=lambda path: f"{path.parent.name}/{path.name}")
def test_every_file_is_valid_and_says_what_it_is(path):
    loaded = load_experiment(path)
    tree = dump(loaded.experiment, loaded.plugins.catalog)
    again = validate(type(loaded.experiment), type(loaded.document)(tree), loaded.plugins.catalog)
    assert again == loaded.experiment
    header = [line for line in path.read_text().splitlines() if line.startswith("#")]
    text = "\n".join(header)
    assert f"python -m experiments.run experiments/{path.parent.name}/{path.name}" in text
    assert "Result" in text


def test_each_task_has_a_quick_file_and_its_seeds():
    names = {f"{path.parent.name}/{path.name}" for path in FILES}
    assert set(SEEDS) <= names
    assert {f"{task}/quick.toml" for task in ("get_region", "bubble_diagram", "language_model")} <= names


@pytest.mark.parametrize(("name", "count"), SEEDS.items())
def test_the_seeds_are_exact_to_the_parameter(name, count):
    model = model_of(load_experiment(ROOT / "experiments" / name).experiment)
    assert sum(parameter.numel() for parameter in model.parameters()) == count


def counts(model, **parts: str) -> dict[str, int]:
    return {
        part: sum(p.numel() for name, p in model.named_parameters() if name.startswith(prefix))
        for part, prefix in parts.items()
    }


def test_the_counts_of_each_component_are_those_of_the_seeds():
    """Seed 000, table 1 (its first line says 217,856 and means 218,112); seed 001, section 6; spec of seed 004."""
    get = model_of(load_experiment(ROOT / "experiments/get_region/seed.toml").experiment)
    found = counts(get, embedding="embedding", level="condition", block="blocks.0.", blocks="blocks.", head="head")
    tokens = 2 * 768
    assert found == {
        "embedding": 218_112 + tokens,
        "level": 787_968,
        "block": 10_628_352,
        "blocks": 127_540_224,
        "head": 217_627,
    }
    bubble = model_of(load_experiment(ROOT / "experiments/bubble_diagram/seed_small.toml").experiment)
    found = counts(bubble, embedding="embedding", level="condition", blocks="blocks.", head="head")
    assert found == {"embedding": 1920 + 1664 + 2304, "level": 49_408, "blocks": 1_189_376, "head": 1935 + 1677}
    text = model_of(load_experiment(ROOT / "experiments/language_model/seed.toml").experiment)
    found = counts(text, embedding="embedding", level="condition", block="blocks.0.", head="head")
    assert found == {"embedding": 25_731_584, "level": 49_408, "block": 4_591_616, "head": 25_781_841}


QUICK = ROOT / "experiments/bubble_diagram/quick.toml"


def refused(*changes: str, removals=()) -> str:
    with pytest.raises(Refused) as caught:
        load_experiment(QUICK, changes, removals)
    return str(caught.value)


def test_parts_that_do_not_fit_are_refused_with_both_places():
    text = refused("process=gaussian")
    assert 'process "gaussian" is for features, but here a sample is tokens' in text
    assert "--set process=gaussian" in text
    assert "the task comes from" in text
    assert "quick.toml:" in text


def test_everything_wrong_at_once():
    text = refused(
        "model.block.heads=7", "loss=mse", "train.steps=many", "train.bathc_size=3", "model.width=-1", "sampler=bloks"
    )
    for part in ("expected an integer", "batch_size", "model.width", "blocks"):
        assert part in text
    text = refused("model.block.heads=7", "loss=mse", "train.accumulate=5")
    for part in ("heads", 'loss "mse" is for features', "5 equal parts"):
        assert part in text


def test_a_loss_for_masks_is_refused_under_a_uniform_process():
    assert "score-entropy" in refused("process={use='uniform', schedule='geometric'}")


def test_a_schedule_that_leaves_tokens_unmasked_is_refused():
    assert "37 %" in refused("process.schedule={use='geometric', sigma_max=1.0}")


def test_a_missing_part_is_named():
    assert "is missing" in refused(removals=["loss"])


def test_validation_imports_no_torch():
    code = (
        "import sys; from pathlib import Path; from dither.engine.experiment import load_experiment; "
        f"load_experiment(Path({str(QUICK)!r})); assert 'torch' not in sys.modules"
    )
    subprocess.run([sys.executable, "-c", code], check=True)


def test_file_plugins_are_found_beside_the_file_that_names_them(tmp_path):
    (tmp_path / "mine.py").write_text(
        "from dither.registry import hookimpl, Misfit\n"
        "@hookimpl\n"
        "def check_experiment(experiment):\n"
        "    yield Misfit('not on my watch', ('train', 'steps'))\n"
    )
    (tmp_path / "e.toml").write_text(f'extends = "{QUICK}"\nplugins = ["mine.py"]\n')
    with pytest.raises(Refused, match=r"train\.steps: not on my watch"):
        load_experiment(tmp_path / "e.toml")
    (tmp_path / "e.toml").write_text(f'extends = "{QUICK}"\nplugins = ["yours.py"]\n')
    with pytest.raises(Refused, match=r"yours\.py does not exist(.|\n)*e\.toml:2:12"):
        load_experiment(tmp_path / "e.toml")
