"""Sampling: caches, reproducible draws, goals, trajectories, pictures and exports."""

import traceback
from collections import Counter
from contextlib import nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

from dither.engine.config.load_experiment import load_experiment
from dither.engine.runs.request_checks import check_forms
from dither.engine.runs.run import run
from dither.engine.sampling import session
from dither.engine.sampling.samples import (
    PATHS,
    SHOWN,
    draw_accepted,
    export_samples,
    make_samples,
    missing_samples,
    write_samples,
)
from dither.engine.sampling.session import ModelCalls, Session, draw, walk
from dither.engine.training.diffusion import Diffusion
from dither.registry import Misfit
from dither.registry.config.errors import NonFiniteOutput
from dither.registry.contracts.protocols import Picture
from dither.registry.contracts.records import State


@pytest.fixture
def system(load):
    return Diffusion.build(load("model.dropout=0.5").experiment)


def test_cached_positions_are_context_at_level_zero(system):
    """In pieces with a cache, predictions equal those of the whole sample."""
    system.eval()
    like = system.task.like(3, 0)
    x = torch.randint(0, 4, (3, 6))
    t = torch.tensor([0.3, 0.6, 0.9])
    level = torch.cat([torch.zeros(3, 4), t[:, None].expand(3, 2)], 1)
    raw = system.model(State.of(x), level, like.valid, like.cond)
    whole = system.process.read(raw, State.of(x), system.process.schedule(level))

    calls = ModelCalls()
    session = Session(system, like, calls)
    with torch.no_grad():
        session.append(x[:, :2])
        session.append(x[:, 2:4])
        for _ in range(2):  # a call leaves nothing behind
            last = session(State.of(x[:, 4:]), t)
    torch.testing.assert_close(last, whole[:, 4:])
    # Rows that fill the cache went through the model, too.
    assert calls.rows == 4 * 3


class Casts(TorchDispatchMode):
    """Counts how often each parameter is cast."""

    def __init__(self):
        super().__init__()
        self.counts = Counter()

    def __torch_dispatch__(self, func, types, args=(), kwargs=None):
        if func is torch.ops.aten._to_copy.default and isinstance(
            args[0], torch.nn.Parameter
        ):
            self.counts[args[0]] += 1
        return func(*args, **(kwargs or {}))


def test_weights_are_cast_once_for_all_steps_and_batches(load, monkeypatch):
    half = Diffusion.build(load("train.precision=bfloat16").experiment)
    like = half.task.like(4, 0)
    with Casts() as casts:
        drawn = draw(half, like, 0, batch_size=2)
    assert casts.counts
    assert set(casts.counts.values()) == {1}

    # The weights may change before the next samples.
    with torch.no_grad():
        for parameter in half.parameters():
            parameter.normal_()
    changed = draw(half, like, 0, batch_size=2)
    assert not torch.equal(drawn, changed)
    monkeypatch.setattr(half, "keep_casts", nullcontext)
    assert torch.equal(draw(half, like, 0, batch_size=2), changed)


def test_few_frames_lie_between_a_sampler_and_the_model(system):
    """`model(state, t)` of a sampler leads to the model at once."""
    like = system.task.like(3, 0)
    stacks = []
    system.model.register_forward_pre_hook(
        lambda *_: stacks.append(traceback.extract_stack())
    )
    Session(system, like)(State.of(like.x0), torch.ones(3))
    names = [frame.name for frame in stacks[0]]
    start = names.index("test_few_frames_lie_between_a_sampler_and_the_model")
    stop = names.index("_wrapped_call_impl", start)
    assert stop - start - 1 <= 4


@pytest.mark.parametrize("block", [None, 2])
def test_samples_are_a_function_of_the_seed(load, block, monkeypatch):
    system = Diffusion.build(load(*[f"sampler.block={block}"] * bool(block)).experiment)
    like = system.task.like(5, 0)
    torch.manual_seed(1)
    first = draw(system, like, seed=7, batch_size=2)
    torch.manual_seed(2)
    again = draw(system, like, seed=7, batch_size=2)
    assert first.shape == (5, 6)
    assert torch.equal(first, again)
    assert torch.equal(first, draw(system.eval(), like, seed=7, batch_size=2)), (
        "dropout is off in any mode"
    )
    assert not torch.equal(first, draw(system, like, seed=8, batch_size=2))
    monkeypatch.setattr(session, "MAX_BATCH", {"cpu": 2})  # of a batch by default
    assert torch.equal(first, draw(system, like, seed=7))
    assert torch.equal(first[:2], draw(system, like[:2], seed=7)), (
        "the first batch is that of a shorter drawing"
    )
    assert not torch.equal(first[:2], first[2:4]), "batches differ"


@pytest.mark.parametrize("file", ["bubble_diagram/quick", "images/digits"])
def test_a_model_that_predicts_nan_is_refused(file):
    """Tokens, whose distribution is NaN, and features, which are NaN themselves."""
    path = Path(__file__).parents[3] / f"experiments/{file}.toml"
    system = Diffusion.build(load_experiment(path, ["model.depth=1"]).experiment)
    for parameter in system.model.head.parameters():
        torch.nn.init.constant_(parameter, torch.nan)
    with pytest.raises(NonFiniteOutput, match="NaN or inf"):
        draw(system, system.task.like(2, 0), seed=0)


@pytest.mark.slow
def test_a_run_whose_model_predicts_nan_is_stopped(tmp_path, console):
    """After an update that leaves finite weights, so large that predictions are not."""
    path = Path(__file__).parents[3] / "experiments/bubble_diagram/quick.toml"
    changes = [
        "train.optimizer.weight_decay=1e25",
        "train.lr_schedule=constant",
        "train.steps=1",
        "train.non_finite=skip",
        "evaluate.samples=8",
        "sample.count=2",
    ]
    loaded = load_experiment(path, changes)
    assert run(loaded, tmp_path, console=console) == 4
    assert "stopped: cannot draw: " in console.export_text()


def test_default_batch_bounds_the_probabilities(load, monkeypatch):
    """By default a batch holds few samples of a large vocabulary; a batch size is as given."""
    system = Diffusion.build(load().experiment)
    like = system.task.like(5, 0)
    alone = draw(system, like, seed=7, batch_size=1)
    pairs = draw(system, like, seed=7, batch_size=2)
    together = draw(system, like, seed=7)
    per_sample = like.valid.shape[1] * system.process.space.vocab
    assert not torch.equal(pairs, together)

    monkeypatch.setattr(session, "MAX_PROBABILITIES", 3 * per_sample - 1)
    assert torch.equal(draw(system, like, seed=7), pairs)
    assert torch.equal(draw(system, like, seed=7, batch_size=5), together)
    monkeypatch.setattr(session, "MAX_PROBABILITIES", 1)
    assert torch.equal(draw(system, like, seed=7), alone)


def watch(system):
    """Return the trajectories that the task will plot."""
    seen = []

    def trajectory_plots(path, like):
        seen.append((path, like))
        yield Picture("way", gif=b"GIF89a", html="<!doctype html>")

    system.task.trajectory_plots = trajectory_plots
    return seen


@pytest.mark.parametrize(("batch_size", "kept"), [(None, PATHS), (5, PATHS), (3, 3)])
def test_trajectories_of_the_first_samples_are_shown(system, batch_size, kept):
    plain, seen = make_samples(system, 7, 1, batch_size), watch(system)
    drawing = make_samples(system, 7, 1, batch_size)
    ((path, like),) = seen
    assert torch.equal(drawing.samples, plain.samples), "watching changes nothing"
    assert len(path) == len(list(walk(system, system.task.like(7, 1))))
    assert torch.equal(path[-1], drawing.samples[:kept])
    assert (path[0] == 4).any(), "MASK"
    assert len(like.x0) == kept
    assert [picture.name for picture in drawing.pictures] == ["words", "dot", "way"]
    assert [picture.name for picture in plain.pictures] == ["words", "dot"]


def test_every_form_of_a_picture_has_its_file(system, tmp_path):
    system.task.plots = lambda samples, like: [
        Picture("all", b"png", "<svg/>", "text", b"gif", "<html>")
    ]
    files = write_samples(make_samples(system, 2, 0), tmp_path)
    read = {file.name: file.read_bytes() for file in files if file.stem == "all"}
    assert read == {
        "all.png": b"png", "all.svg": b"<svg/>", "all.txt": b"text", "all.gif": b"gif", "all.html": b"<html>",
    }  # fmt: skip

    plot = Picture("plot", b"png", render=lambda form: form.encode())
    system.task.plots = lambda samples, like: [plot, Picture("words", text="x")]
    files = write_samples(make_samples(system, 2, 0), tmp_path, ("svg", "pdf"))
    read = {file.name: file.read_bytes() for file in files if file.suffix != ".gif"}
    assert read.items() >= {
        "plot.png": b"png", "plot.svg": b"svg", "plot.pdf": b"pdf", "words.txt": b"x",
    }.items()  # fmt: skip
    assert "words.svg" not in read


PER_ROW = 5
"""Calls of the model for one row: the steps of the walk, and the last jump."""


class First:
    """The goal that the first letter is one of some; and one part that is always met."""

    def __init__(self, *letters):
        self.letters = torch.tensor(letters, dtype=torch.long)

    def satisfied(self, x, cond):
        return {
            "first": torch.isin(x[:, 0], self.letters),
            "always": torch.ones(len(x), dtype=torch.bool),
        }

    def log_prob(self, log_clean, at):
        raise AssertionError("rejection asks for no chances")


def like(system, count, goal):
    return replace(system.task.like(count, 0), goal=goal)


def test_samples_meet_the_goal_and_the_cost_is_counted(system):
    rows = []
    system.model.register_forward_pre_hook(
        lambda _, given: rows.append(len(given[0].x))
    )
    met = draw_accepted(system, like(system, 300, First(1)), seed=5, batch_size=100)
    through = sum(rows)
    assert len(met.samples) == len(met.like.valid) == 300
    assert (met.samples[:, 0] == 1).all()
    assert met.metrics["undelivered"] == 0
    assert missing_samples(met.metrics) == []
    assert met.metrics["model_calls_per_sample"] == through / 300
    assert met.metrics["drawings_per_sample"] == pytest.approx(through / 300 / PER_ROW)
    assert through > 600 * PER_ROW, "there is something to reject"


def test_first_draws_that_meet_the_goal_are_kept(system):
    asked = like(system, 200, First(0, 1))
    met, first = draw_accepted(system, asked, seed=5), draw(system, asked, seed=5)
    kept = first[:, 0] <= 1
    assert (
        met.metrics["satisfied"]
        == met.metrics["satisfied/first"]
        == kept.double().mean().item()
    )
    assert met.metrics["satisfied/always"] == 1
    assert torch.equal(met.samples[kept], first[kept])
    again = draw_accepted(system, asked, seed=5)
    assert torch.equal(met.samples, again.samples)


def test_rare_goals_are_reported_after_a_few_tries(system):
    lines = []
    draw_accepted(system, like(system, 6, First()), 0, tries=6, warn=lines.append)
    assert len(lines) == 1
    assert lines[0].startswith("0 of 24 draws")
    assert "guided" in lines[0]
    draw_accepted(system, like(system, 60, First(0, 1)), 0, warn=lines.append)
    assert len(lines) == 1


def test_impossible_goals_are_reported(system, tmp_path, monkeypatch):
    asked = like(system, 6, First())
    monkeypatch.setattr(system.task, "like", lambda n, seed: asked)
    drawing = make_samples(system, 6, 0, tries=3)
    assert drawing.samples.shape == (0, 6)
    assert drawing.pictures == []
    assert drawing.metrics["undelivered"] == 6
    first, second = missing_samples(drawing.metrics)
    assert first.startswith("6 samples are missing")
    assert second.startswith("the rarest is first, met by 0.0%")
    assert write_samples(drawing, tmp_path / "out")


@pytest.mark.parametrize("count", [1, 3, 40])
def test_under_a_goal_trajectories_of_accepted_samples_are_shown(
    system, monkeypatch, count
):
    asked = replace(system.task.like(count, 0), goal=First(1))
    monkeypatch.setattr(system.task, "like", lambda n, seed: asked)
    plain, seen = make_samples(system, count, 0, tries=200), watch(system)
    drawing = make_samples(system, count, 0, tries=200)
    ((path, like),) = seen
    assert torch.equal(plain.samples, drawing.samples), "watching changes nothing"
    assert plain.metrics == drawing.metrics
    assert path.shape[1] == len(like.x0) == min(count, PATHS)
    assert (path[-1, :, 0] == 1).all(), (
        "those that were delivered, not those that were rejected"
    )
    kept = [row.tolist() for row in drawing.samples]
    assert all(way.tolist() in kept for way in path[-1])
    assert (path[0] == 4).any(1).all(), "MASK at the beginning of each"


@pytest.fixture
def offers(load, monkeypatch):
    """The toy task with two export formats, and its calls."""
    loaded, calls = load(), []
    monkeypatch.setattr(
        type(loaded.experiment.task),
        "exports",
        {"lines": "one a line", "files": "one a file"},
    )

    def export(self, samples, like, form, folder):
        calls.append((form, folder, len(samples), len(like.valid)))
        samples.zero_()
        like.x0.zero_()
        count = {"lines": 1, "files": len(samples)}[form]
        folder.mkdir()
        files = [folder / f"{number}.txt" for number in range(count)]
        for file in files:
            file.write_text("word\n")
        return files, [f"sample {number} is odd" for number in range(count)]

    monkeypatch.setattr(
        type(loaded.experiment.task.build()), "export", export, raising=False
    )
    return loaded, calls


def test_each_format_has_a_folder(offers, tmp_path):
    system = Diffusion.build(offers[0].experiment)
    drawing = make_samples(system, 9, 0)
    before = drawing.samples.clone(), drawing.like.x0.clone()
    lines = list(export_samples(system, drawing, ["files", "lines", "files"], tmp_path))
    assert torch.equal(drawing.samples, before[0])
    assert torch.equal(drawing.like.x0, before[1])
    assert offers[1] == [
        ("files", tmp_path / "files", 9, 9),
        ("lines", tmp_path / "lines", 1 * 9, 9),
    ]
    assert lines == [
        f"{tmp_path / 'files'}: 9 files of files",
        *(f"files: sample {number} is odd" for number in range(SHOWN)),
        "files: and 4 more",
        str(tmp_path / "lines" / "0.txt"),
        "lines: sample 0 is odd",
    ]


def test_unknown_formats_are_refused_together(offers, refusal):
    check_forms(offers[0].experiment.task, ["lines", "files"])
    first, second = refusal(
        check_forms, offers[0].experiment.task, ["line", "lines", "dot"]
    ).problems
    assert (
        first.message
        == 'task "toy-words" does not export "line"; its forms: lines, files'
    )
    assert first.help == 'did you mean "lines"?'
    assert second.help is None


def test_formats_without_their_library_are_refused_with_unknown_ones(
    offers, refusal, monkeypatch
):
    task = offers[0].experiment.task
    missing = Misfit("no lines", help="install lines", code="missing-dependency")
    monkeypatch.setattr(
        type(task), "check_export", lambda self, form: [missing] * (form == "lines")
    )
    check_forms(task, ["files"])
    first, second = refusal(check_forms, task, ["lines", "dot"]).problems
    assert (first.code, first.help) == ("missing-dependency", "install lines")
    assert second.code == "unknown-format"
