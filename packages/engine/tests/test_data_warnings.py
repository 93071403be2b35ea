"""What is said of the data before a run: what a task left out, and splits in which nothing is taken away."""

from dataclasses import replace

import pytest
import torch

from dither.engine.runs.launch import run
from dither.engine.runs.summary import data_warnings
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import evaluate, has_targets


@pytest.fixture
def blind(monkeypatch):
    """Let the process take nothing away from the samples of some splits, from the first or from a later one on."""

    def blinded(experiment, *splits, but=None):
        task, process = type(experiment.task.build()), type(experiment.process.build(experiment.task.space()))
        batch, corrupt, now = task.batch, process.corrupt, []

        def watched(self, split, rows):
            now[:] = [split in splits and (but is None or but not in rows)]
            return batch(self, split, rows)

        def hidden(self, clean, t):
            noised = corrupt(self, clean, t)
            return replace(noised, target_mask=torch.zeros_like(noised.target_mask)) if now == [True] else noised

        monkeypatch.setattr(task, "batch", watched)
        monkeypatch.setattr(process, "corrupt", hidden)
        return experiment

    return blinded


def test_a_split_without_targets_is_reported_once(load, blind, tmp_path, console):
    loaded = load("train.steps=14")
    blind(loaded.experiment, "valid")
    assert run(loaded, tmp_path / "runs", ["test"], console=console) == 0
    said = " ".join(console.export_text().split())
    assert said.count("no position is masked in the first 13 samples of the valid split") == 1
    assert "of the train split" not in said


@pytest.mark.parametrize("splits", [(), ("train",), ("valid",), ("train", "valid")])
def test_each_split_is_reported(load, blind, splits):
    experiment = blind(load().experiment, *splits)
    lines = list(data_warnings(experiment, Diffusion.build(experiment)))
    assert [split for line in lines for split in ("train", "valid") if f"samples of the {split} split" in line] == [
        *splits
    ]


def test_has_targets_covers_all_samples(load, blind):
    system = Diffusion.build(blind(load().experiment, "valid", but=12))
    assert has_targets(system, 13, 4)
    assert not has_targets(system, 12, 4), "the last one is out of reach"
    assert has_targets(system, 12, 4, split="train")


def test_has_targets_does_not_change_metrics(load):
    system = Diffusion.build(load("model.dropout=0.5").experiment)
    before = evaluate(system, 13, 4)
    assert has_targets(system, 13, 4)
    assert evaluate(system, 13, 4) == before
    assert system.training


def test_warnings_of_the_task_come_first(load, blind):
    experiment = blind(load().experiment, "valid")
    system = Diffusion.build(experiment)
    system.task.data_warnings = lambda: ["24 of 41 were left out"]
    first, second = data_warnings(experiment, system)
    assert first == "24 of 41 were left out"
    assert "valid" in second
