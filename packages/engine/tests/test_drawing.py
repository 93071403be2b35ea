"""Samples on their way into a folder."""

import pytest
import torch

from dither.engine.sampling.samples import PATHS, make_samples, write_samples
from dither.engine.sampling.session import draw, walk
from dither.engine.training.diffusion import Diffusion
from dither.registry.flow.protocols import Picture


@pytest.fixture
def system(load):
    return Diffusion.build(load("model.dropout=0.5").experiment)


@pytest.mark.parametrize(("batch_size", "kept"), [(None, PATHS), (5, PATHS), (3, 3)])
def test_a_task_that_can_show_it_is_given_the_way_of_the_first_samples(system, batch_size, kept):
    seen = []

    def trajectory_plots(path, like):
        seen.append((path, like))
        yield Picture("way", gif=b"GIF89a", html="<!doctype html>")

    plain = make_samples(system, 7, 1, batch_size)
    system.task.trajectory_plots = trajectory_plots
    drawing = make_samples(system, 7, 1, batch_size)
    ((path, like),) = seen
    assert torch.equal(drawing.samples, plain.samples), "watching changes nothing"
    assert len(path) == len(list(walk(system, system.task.like(7, 1))))
    assert torch.equal(path[-1], drawing.samples[:kept])
    assert (path[0] == 4).any(), "MASK"
    assert len(like.x0) == kept
    assert [picture.name for picture in drawing.pictures] == ["words", "dot", "way"]
    assert [picture.name for picture in plain.pictures] == ["words", "dot"]


def test_only_the_first_batch_is_watched(system):
    states = []
    samples = draw(system, system.task.like(6, 0), 0, 2, watch=states.append)
    assert torch.equal(states[-1], samples[:2])
    assert {len(state) for state in states} == {2}


def test_every_form_of_a_picture_has_its_file(system, tmp_path):
    system.task.plots = lambda samples, like: [Picture("all", b"png", "<svg/>", "text", b"gif", "<html>")]
    files = write_samples(make_samples(system, 2, 0), tmp_path)
    read = {file.name: file.read_bytes() for file in files if file.stem == "all"}
    assert read == {
        "all.png": b"png", "all.svg": b"<svg/>", "all.txt": b"text", "all.gif": b"gif", "all.html": b"<html>",
    }  # fmt: skip
