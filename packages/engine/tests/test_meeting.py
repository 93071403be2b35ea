"""Drawing until a goal is met: exact, counted, and honest about what is missing."""

from dataclasses import replace

import pytest
import torch

from dither.engine.sampling.samples import draw_accepted, make_samples, missing_samples, write_samples
from dither.engine.sampling.session import draw
from dither.engine.training.diffusion import Diffusion

PER_ROW = 5
"""Calls of the model for one row: the steps of the walk, and the last jump."""


class First:
    """The goal that the first letter is one of some; and one part that is always met."""

    def __init__(self, *letters):
        self.letters = torch.tensor(letters, dtype=torch.long)

    def satisfied(self, x):
        return {"first": torch.isin(x[:, 0], self.letters), "always": torch.ones(len(x), dtype=torch.bool)}

    def log_prob(self, log_clean, at):
        raise AssertionError("rejection asks for no chances")


@pytest.fixture
def system(load):
    return Diffusion.build(load().experiment)


def like(system, count, goal):
    return replace(system.task.like(count, 0), goal=goal)


def test_all_that_is_delivered_meets_the_goal_and_the_cost_is_told(system):
    rows = []
    system.model.register_forward_pre_hook(lambda _, given: rows.append(len(given[0].x)))
    met = draw_accepted(system, like(system, 300, First(1)), seed=5, batch_size=100)
    through = sum(rows)
    assert len(met.samples) == len(met.like.valid) == 300
    assert (met.samples[:, 0] == 1).all()
    assert met.figures["undelivered"] == 0
    assert missing_samples(met.figures) == []
    assert met.figures["model_calls_per_sample"] == through / 300
    assert met.figures["drawings_per_sample"] == pytest.approx(through / 300 / PER_ROW)
    assert through > 600 * PER_ROW, "there is something to reject"


def test_what_meets_the_goal_at_once_is_kept_and_counted(system):
    asked = like(system, 200, First(0, 1))
    met, first = draw_accepted(system, asked, seed=5), draw(system, asked, seed=5)
    kept = first[:, 0] <= 1
    assert met.figures["satisfied"] == met.figures["satisfied/first"] == kept.double().mean().item()
    assert met.figures["satisfied/always"] == 1
    assert torch.equal(met.samples[kept], first[kept])
    again = draw_accepted(system, asked, seed=5)
    assert torch.equal(met.samples, again.samples)


def test_rounds_differ(system):
    """Else a sample that fails once would fail for ever."""
    met = draw_accepted(system, like(system, 1, First(1)), seed=0, tries=200)
    assert met.figures["undelivered"] == 0
    one = draw_accepted(system, like(system, 64, First(1)), seed=0, tries=1)
    assert one.figures["undelivered"] == (draw(system, like(system, 64, First(1)), 0)[:, 0] != 1).sum()


def test_what_cannot_be_met_is_left_out_and_told(system, tmp_path, monkeypatch):
    asked = like(system, 6, First())
    monkeypatch.setattr(system.task, "like", lambda n, seed: asked)
    drawing = make_samples(system, 6, 0, tries=3)
    assert drawing.samples.shape == (0, 6)
    assert drawing.pictures == []
    assert drawing.figures["undelivered"] == 6
    first, second = missing_samples(drawing.figures)
    assert first.startswith("6 samples are missing")
    assert second.startswith("the rarest is first, met by 0.0%")
    assert write_samples(drawing, tmp_path / "out")


def test_figures_of_the_task_are_about_what_is_delivered(system, monkeypatch):
    asked = like(system, 20, First(2, 3))
    monkeypatch.setattr(system.task, "like", lambda n, seed: asked)
    drawing = make_samples(system, 20, 0)
    assert drawing.figures["satisfied"] < 1
    assert drawing.figures["in_order"] == system.task.sample_metrics(drawing.samples, drawing.like)["in_order"]
    assert (drawing.samples[:, 0] >= 2).all()


def test_it_stops_when_asked(system):
    assert draw_accepted(system, like(system, 4, First(1)), 0, stopped=lambda: True) is None
