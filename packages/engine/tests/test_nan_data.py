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
