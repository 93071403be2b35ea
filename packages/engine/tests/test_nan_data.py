"""NaN in the validation data of a task is exit code 4 with the samples, not a traceback of scipy."""

import sys
from dataclasses import replace

import pytest
import torch

from dither.engine.cli import main
from dither.engine.runs.run import run


@pytest.fixture
def poison(load, monkeypatch):
    """Load the experiment with a change of the samples 1 and 4 of the validation split."""

    def poisoned(change, compute=None):
        loaded = load()
        name = type(loaded.experiment.task).__module__
        toy = sys.modules[name]
        batch = toy.WordsTask.batch

        def changed(self, split, rows):
            clean = batch(self, split, rows)
            bad = torch.tensor([split == "valid" and row in (1, 4) for row in rows])
            return change(clean, bad)

        monkeypatch.setattr(toy.WordsTask, "batch", changed)
        if compute is not None:
            monkeypatch.setattr(toy.Accuracy, "compute", compute)
        return loaded

    return poisoned


def nan_condition(clean, bad):
    return replace(clean, cond={"scale": clean.cond["scale"].where(~bad, torch.nan)})


def nan_values(clean, bad):
    return replace(clean, x0=clean.x0.float().where(~bad[:, None], torch.inf))


def refusing(self):
    raise ValueError("array must not contain infs or NaNs")


@pytest.mark.parametrize("compute", [None, refusing])
def test_nan_in_conditions(poison, tmp_path, console, compute):
    loaded = poison(nan_condition, compute)
    assert run(loaded, tmp_path / "runs", console=console) == 4
    text = " ".join(console.export_text().split())
    assert "NaN or inf in the valid split: samples 1, 4" in text
    assert "the last checkpoint is that of step 5" in text
    (folder,) = (tmp_path / "runs").iterdir()
    assert not (folder / "summary.json").exists()


def test_inf_in_values(poison, tmp_path, console):
    # Training takes whole numbers, so that only the validation split has other values.
    def change(clean, bad):
        return nan_values(clean, bad) if bad.any() else clean

    assert run(poison(change), tmp_path / "runs", console=console) == 4
    assert "samples 1, 4" in " ".join(console.export_text().split())


def test_a_metric_that_fails_on_finite_data_keeps_its_traceback(
    poison, tmp_path, console
):
    loaded = poison(lambda clean, bad: clean, refusing)
    with pytest.raises(ValueError, match="infs or NaNs"):
        run(loaded, tmp_path / "runs", console=console)


def test_the_command_exits_with_4(start, monkeypatch, capsys):
    code, folder = start("train.steps=2")
    assert code == 0
    from dither.engine.runs import evaluate_run
    from dither.engine.training.nan_guard import NonFiniteData

    def fails(*arguments, **options):
        raise NonFiniteData("valid", [1, 4])

    monkeypatch.setattr(evaluate_run, "evaluate", fails)
    assert main(["evaluate", str(folder)]) == 4
    assert "[non-finite]" in capsys.readouterr().err


def test_padding_may_hold_nan(poison, tmp_path, console):
    def change(clean, bad):
        if not bad.any():
            return clean
        return replace(nan_values(clean, bad), valid=clean.valid & ~bad[:, None])

    loaded = poison(change)
    # The toy model embeds ids: the check has passed once it complains.
    assert run(loaded, tmp_path / "runs", console=console) == 1
    assert 'model "toy-net" of plugin "toy-plugin"' in console.export_text()


COUNTED = """
import math
from typing import ClassVar
from dither.registry import hookimpl
from dither.registry.contracts.protocols import Metrics
from dither.registry.kinds import MetricSpec

class Sums(Metrics):
    def update(self, clean, noised, pred, measured):
        pass
    def compute(self):
        return {"strange": float("VALUE")}

class Metric(MetricSpec):
    "Is no number."
    name = "strange"
    serves: ClassVar[frozenset] = frozenset({"tokens"})
    def build(self, space):
        return self
    def metrics(self):
        return Sums()

@hookimpl
def register_components():
    return [Metric]
"""


@pytest.fixture
def strange(experiment_file, load):
    """Load the experiment with evaluations by a metric that has always the same value."""

    def loaded(value, *changes):
        experiment_file.with_name("m.py").write_text(COUNTED.replace("VALUE", value))
        names = '["toy_plugin.py", "m.py"]'
        text = experiment_file.read_text().replace('["toy_plugin.py"]', names)
        experiment_file.write_text(text)
        return load("evaluate.metrics=['strange']", "evaluate.best='strange'", *changes)

    return loaded


@pytest.mark.parametrize("better", ["lower", "higher"])
@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_evaluations_that_cannot_be_compared_end_a_run(
    strange, tmp_path, console, value, better
):
    loaded = strange(value, f"evaluate.better='{better}'", "train.keep_best=true")
    events = []
    assert run(loaded, tmp_path, console=console, emit=events.append) == 4
    assert (events[-1].code, events[-1].exit_code) == ("non-finite", 4)
    assert f"step 7: strange of the validation split is {value}" in events[-1].message


@pytest.mark.parametrize("value", ["nan", "inf", "-inf"])
def test_evaluations_that_cannot_be_compared_are_no_improvement(
    strange, tmp_path, console, cli, value
):
    changes = ("evaluate.every=2", "evaluate.patience=3", "train.non_finite='skip'")
    loaded = strange(value, *changes)
    assert run(loaded, tmp_path / "runs", console=console) == 0
    text = console.export_text()
    assert text.count(f"strange is {value}, no improvement") == 3
    assert "3 evaluations without improvement since the start" in text
    (folder,) = (tmp_path / "runs").iterdir()
    answer = cli("sample", str(folder), "--checkpoint", "best", code=2)
    assert "no evaluation has a finite strange" in answer.err
