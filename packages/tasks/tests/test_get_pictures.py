"""Plots of samples: content, and none without sampled values."""

import numpy as np
import pytest
import torch
from matplotlib.figure import Figure

from dither.tasks.get_region import plots
from dither.tasks.get_region.data_specs import HumanDHS
from dither.tasks.get_region.metrics.column_metrics import windows_of
from dither.tasks.get_region.specs import GetRegion

torch.set_num_threads(1)


@pytest.fixture(autouse=True)
def coarse(monkeypatch):
    """Pictures in less time: of few pixels, and without room made for what is written."""
    save = Figure.savefig

    def saved(figure, *where, **how):
        figure.set_layout_engine("none")
        save(figure, *where, **how | {"dpi": 40})

    monkeypatch.setattr(Figure, "savefig", saved)


def small(**options):
    return GetRegion(data=HumanDHS(subset="chr21-22"), regions=50, **options).build()


def noisy(like, seed=0):
    g = torch.Generator().manual_seed(seed)
    return like.x0 + torch.where(like.fixed, 0.0, 0.2 * torch.randn(like.x0.shape, generator=g))


def shown(task, samples, like):
    return {picture.name: picture.png for picture in task.plots(samples, like)}


@pytest.mark.parametrize(
    ("options", "names"),
    [
        ({}, {"scatter", "accessibility"}),
        ({"accessibility": False}, {"scatter"}),
        ({"given": "motifs", "fill": 1.0}, {"accessibility"}),
        ({"draws": 3, "standardise": True}, {"scatter", "accessibility", "calibration"}),
    ],
)
def test_plots_depend_on_the_sampled_values(options, names, monkeypatch):
    monkeypatch.setattr(plots, "_draw_window", lambda picture: b"\x89PNG")
    task = small(**options)
    like = task.like(6, 0)
    pictures = shown(task, noisy(like), like)
    heat_maps = {f"window-{number:03d}" for number in range(2 if "draws" in options else 4)}
    assert pictures.keys() == names | heat_maps | {"tracks"}
    assert all(png.startswith(b"\x89PNG") for png in pictures.values())
    assert shown(task, like.x0, like).keys() == heat_maps  # nothing was drawn
    assert shown(task, like.x0[:0], like[:0]) == {}


def test_curves_of_accessibility_have_the_area_of_the_evaluation(monkeypatch):
    titles = []
    monkeypatch.setattr(plots, "_png", lambda figure: titles.append([axis.get_title() for axis in figure.axes]) or b"")
    task = small(given="motifs", fill=1.0)
    like = task.like(2, 0)
    list(task.plots(noisy(like), like))
    clean = task.batch("valid", range(task.size("valid")))
    target = clean.valid[..., None] & ~clean.known
    metrics = task.metrics()
    metrics.predictions.add(clean.x0.numpy(), noisy(clean, 1).numpy(), target.numpy(), windows_of(clean))
    values = metrics.compute()
    list(task.plots(noisy(like), like))
    sampled, evaluated = (shown[0] for shown in titles if any("ROC" in title for title in shown))
    area = f"{values['accessibility_auc']:.3f} +- {values['accessibility_auc_ci95']:.3f}"
    assert evaluated == f"ROC: area {area}, random .5"
    assert sampled != evaluated


def test_heat_maps_show_sampled_values(monkeypatch):
    seen = []
    monkeypatch.setattr(plots, "_draw_window", lambda picture: seen.append(picture) or b"png")
    task = small(standardise=True, cell_type="HepG2")
    like = task.like(2, 0)
    samples = noisy(like)
    list(task.plots(samples, like))
    for number, picture in enumerate(seen):
        keep = like.valid[number]
        assert (picture.given == like.known[number][keep].numpy()).all()
        assert len(picture.places) == len(picture.truth) == int(keep.sum())
        assert picture.places[0].startswith("chr21:")
        assert picture.extra == ["open in HepG2"]
        off = (samples - like.x0)[number][keep].numpy() * task.standard.std
        np.testing.assert_allclose(picture.drawn - picture.truth, off, atol=1e-5)


def test_the_task_plots_a_trajectory():
    task = small(given="motifs", fill=1.0)
    like = task.like(2, 0)
    path = torch.stack([noisy(like, seed) for seed in range(5)])
    (picture,) = task.trajectory_plots(path, like)
    assert picture.name == "trajectory"
    assert list(task.trajectory_plots(path[:, :0], like[:0])) == []
