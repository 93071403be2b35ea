"""The functions of `import dither`."""

import json
import math
from pathlib import Path

import numpy as np
import pytest

import dither
from dither.engine import Diffusion, Experiment
from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.progress import headline
from dither.registry.config.document import find_experiment
from dither.registry.config.errors import Refused

TINY = {
    "task.data": {"use": "procedural-plans", "train": 64, "valid": 16, "test": 64},
    "model.width": 16, "model.depth": 1, "train.batch_size": 8, "evaluate.samples": 16, "sample.count": 2,
    "sampler": {"use": "ancestral", "steps": 4}, "tracking.use": ["csv"],
}  # fmt: skip


def test_train_evaluate_and_save_without_files(tmp_path):
    base = load_experiment("bubble_diagram/quick", TINY)
    saved = dither.save_experiment(base.experiment, tmp_path / "mine.toml")
    assert dither.load_experiment(str(saved)).experiment == base.experiment
    assert isinstance(base.experiment, Experiment)
    run = dither.train(base.experiment, {"train.steps": np.int64(2)}, tmp_path / "runs")
    assert (run.parent / "latest").resolve() == run.resolve()
    assert run.name.startswith("bubble-quick-2")
    metrics = dither.evaluate(dither.load(str(run)), samples=16)
    assert metrics["loss"] == pytest.approx(
        json.loads((run / "summary.json").read_text())["metrics"]["valid"]["loss"]
    )
    rows = (run / "metrics.csv").read_text().splitlines()
    assert rows[0] == "step,kind,name,value"
    assert any(row.startswith("2,valid,loss,") for row in rows)
    assert "ancestral" in {component.name for component in dither.components("sampler")}
    with pytest.raises(Refused, match="sampler"):
        dither.components("samplers")


def test_public_diffusion_has_the_verbs_of_its_user():
    experiment = load_experiment("bubble_diagram/quick", TINY).experiment
    system = Diffusion.build(experiment).eval()
    samples = system.sample(2, seed=0)
    assert len(samples) == 2
    assert system.evaluate(samples=8)["loss"] > 0
    assert len(system.log_likelihood(samples, samples=2).values) == 2


def test_epochs_become_steps_and_exclude_them(tmp_path, refusal):
    saved = tmp_path / "epochs.toml"
    text = Path(find_experiment(Path("bubble_diagram/quick"))).read_text()
    saved.write_text(text.replace("\nsteps = ", "\nepochs = 0.5 # "))
    run = dither.train(saved, {**TINY, "tracking.use": []}, tmp_path)
    assert json.loads((run / "summary.json").read_text())["steps"] == math.ceil(
        0.5 * 64 / 8
    )
    assert load_experiment(run / "resolved.toml").experiment.train.epochs is None
    info = refusal(load_experiment, "bubble_diagram/quick", ["train.epochs=2"])
    assert [problem.path for problem in info.problems] == [("train", "epochs")]


@pytest.mark.parametrize(
    ("given", "expected"), [((), ["valid/b"]), (("sample/c", "valid/x"), ["sample/c"])]
)
def test_headline_is_that_of_the_task_or_has_baselines(given, expected):
    figures = {"valid": {"a": 1.0, "b": 2.0}, "sample": {"c": 3.0}}
    assert (
        headline({"headline": given, "metrics": figures, "baselines": {"b/zero": 0.0}})
        == expected
    )
