"""How samples came about, also where some are drawn again."""

from dataclasses import replace
from itertools import pairwise

import pytest
import torch

from dither.engine.sampling.samples import PATHS, TrajectoryRecorder, make_samples
from dither.engine.sampling.session import draw
from dither.engine.training.diffusion import Diffusion
from dither.registry.flow.protocols import Picture


class First:
    """The goal that the first letter is 1."""

    def satisfied(self, x):
        return {"first": x[:, 0] == 1}

    def log_prob(self, log_clean, at):
        raise AssertionError("rejection asks for no chances")


@pytest.fixture
def system(load):
    return Diffusion.build(load().experiment)


def test_ways_of_different_length_stand_still_at_their_end():
    watch = TrajectoryRecorder(3)
    for state in ([[0, 0], [0, 0]], [[1, 1], [2, 2]]):
        watch(torch.tensor(state))
    watch.keep(torch.tensor([5, 7]), torch.tensor([False, True]))
    for number in (3, 4, 5):
        watch(torch.full((4, 2), number))
    watch.keep(torch.tensor([0, 1, 2, 3]), torch.tensor([True, True, True, True]))
    assert watch.rows == [7, 0, 1]
    assert watch.path()[..., 0].T.tolist() == [[0, 2, 2], [3, 4, 5], [3, 4, 5]]
    assert TrajectoryRecorder(3).path() is None


@pytest.mark.parametrize("count", [1, 3, 40])
def test_under_a_goal_the_ways_of_delivered_samples_are_shown(system, monkeypatch, count):
    asked = replace(system.task.like(count, 0), goal=First())
    monkeypatch.setattr(system.task, "like", lambda n, seed: asked)
    plain, seen = make_samples(system, count, 0, tries=200), []

    def trajectory_plots(path, like):
        seen.append((path, like))
        yield Picture("way", text="")

    system.task.trajectory_plots = trajectory_plots
    drawing = make_samples(system, count, 0, tries=200)
    ((path, like),) = seen
    assert torch.equal(plain.samples, drawing.samples), "watching changes nothing"
    assert plain.figures == drawing.figures
    assert path.shape[1] == len(like.x0) == min(count, PATHS)
    assert (path[-1, :, 0] == 1).all(), "those that were delivered, not those that were rejected"
    kept = [row.tolist() for row in drawing.samples]
    assert all(way.tolist() in kept for way in path[-1])
    assert (path[0] == 4).any(1).all(), "MASK at the beginning of each"


def test_the_rows_of_what_began_are_those_of_the_ways(system, monkeypatch):
    """Else a film would begin with the known values of another sample."""
    asked = replace(system.task.like(30, 0), goal=First())
    asked.x0[:] = torch.arange(30)[:, None]
    monkeypatch.setattr(system.task, "like", lambda n, seed: asked)
    first = draw(system, asked, 0)[:PATHS, 0] == 1
    shown = []
    system.task.trajectory_plots = lambda path, like: shown.append(like) or []
    make_samples(system, 30, 0, tries=200)
    rows = shown[0].x0[:, 0].tolist()
    assert rows[: int(first.sum())] == torch.arange(PATHS)[first].tolist()
    assert len(set(rows)) == PATHS


@pytest.mark.parametrize("states", [1, 2, 5, 6, 37, 64, 65])
def test_of_many_large_states_some_are_left_out_evenly_and_never_the_last(monkeypatch, states):
    monkeypatch.setattr("dither.engine.sampling.samples.MOST_BYTES", 8 * 8)
    watch = TrajectoryRecorder(1)
    for number in range(states):
        watch(torch.full((3, 1), number))
        assert len(watch._states) <= 8
    watch.keep(torch.arange(3), torch.ones(3, dtype=torch.bool))
    path = watch.path()[:, 0, 0].tolist()
    assert path[-1] == states - 1
    assert len({later - earlier for earlier, later in pairwise(path[:-1])}) <= 1
    assert len(path) >= min(states, 4)
