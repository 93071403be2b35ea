"""The grid: every task with every process, meaning of the raw output, schedule and loss that is registered.

A combination either trains and samples, or is refused when the experiment is checked: never by an error in between.
"""

import itertools
from functools import cache
from pathlib import Path
from typing import Any, get_args

import pytest
import torch

from dither.engine.config.experiment import Experiment
from dither.engine.sampling.session import draw
from dither.engine.training.diffusion import Diffusion
from dither.registry import TokenSpace
from dither.registry.plugins.manager import load_plugins

TASKS = {"toy-features": ("regions", "features"), "toy-graph": ("graph", "tokens"), "toy-text": ("tokens", "tokens")}
"""The embedding and the head of each."""


@cache
def catalog():
    """Our parts alone, and the toy tasks."""
    ours = ["core-blocks", "embeddings", "engine", "losses", "processes", "tasks"]
    return load_plugins(ours, [Path(__file__).with_name("toy_tasks.py")]).catalog


def meanings(field) -> tuple[str | None, ...]:
    """The values of an option, or None where a part has no such option."""
    return get_args(field.annotation) if field else (None,)


@cache
def processes() -> list[tuple[str, str | None]]:
    """Every process under every meaning that it may give the raw output."""
    found: list[tuple[str, str | None]] = []
    for part in catalog().parts("process"):
        found += [(part.spec.name, name) for name in meanings(part.spec.model_fields.get("predict"))]
    return found


@cache
def losses() -> list[dict[str, str]]:
    """Every loss, on every target that it may have."""
    found = []
    for part in catalog().parts("loss"):
        target = part.spec.model_fields.get("target")
        found += [{"use": part.spec.name} | ({"target": name} if name else {}) for name in meanings(target)]
    return found


def assemble(task: str, process: dict, loss: Any, **changes: Any) -> Experiment:
    embedding, head = TASKS[task]
    model = {
        "use": "denoiser",
        "width": 16,
        "depth": 1,
        "embedding": embedding,
        "condition": {"use": "level", "frequencies": 8},
        "block": {"use": "adaln-zero", "heads": 2, "ratio": 2.0},
        "head": head,
    }
    sampler = {"use": "ancestral", "steps": 3, "t_min": 0.3}
    tree = {"task": task, "process": process, "model": model, "loss": loss, "sampler": sampler, **changes}
    return Experiment.model_validate(tree, context={"catalog": catalog()})


def combinations(task: str, process: str, meaning: str | None):
    """Every schedule and loss with a process: the names and the experiment."""
    options = {"predict": meaning} if meaning else {}
    for schedule, loss in itertools.product(catalog().names("schedule"), losses()):
        yield schedule, loss, assemble(task, {"use": process, "schedule": schedule, **options}, loss)


def may_stand(task: str, process: str, meaning: str | None, loss: str) -> bool:
    """Which combinations make sense, said here a second time."""
    features = task == "toy-features"
    if features != (process in ("gaussian", "masked-region")):
        return False
    if loss == "masked-ce":  # MDLM's closed form: an absorbing process and a model of the posterior
        return process == "absorbing" and meaning == "posterior"
    if loss == "poisson":  # of what is said of x0
        return features and meaning in (None, "x0")
    return features == (loss in ("mse", "huber"))


@pytest.mark.parametrize("task", TASKS)
@pytest.mark.parametrize(("process", "meaning"), processes())
def test_a_combination_works_or_is_refused_beforehand(task, process, meaning):
    torch.manual_seed(0)
    for schedule, loss, experiment in combinations(task, process, meaning):
        misfits = list(experiment.check())
        where = f"{task}, {process} {meaning}, {schedule}, {loss}"
        assert bool(misfits) != may_stand(task, process, meaning, loss["use"]), f"{where}: {misfits}"
        if misfits:
            assert all(misfit.message and misfit.path[0] in Experiment.model_fields for misfit in misfits), where
        else:
            trains(Diffusion.build(experiment), where)


def trains(system: Diffusion, where: str) -> None:
    """Three steps, then samples."""
    optimizer = torch.optim.AdamW(system.model.parameters(), 1e-2)
    head = [parameter for parameter in system.model.head.parameters()]
    before = [parameter.detach().clone() for parameter in head]
    for step in range(3):
        measured = system(system.task.batch("train", range(8 * step, 8 * step + 8)))
        loss = measured.mean()
        assert loss.isfinite(), f"{where}: the loss is {loss}"
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in head), f"{where}: gradient of the head"
        optimizer.step()
    assert any(not torch.equal(old, new) for old, new in zip(before, head, strict=True)), f"{where}: the head stays"
    like = system.task.like(4, 0)
    fits(draw(system, like, seed=0), like, system.process.space, where)


def fits(x: torch.Tensor, like, space, where: str) -> None:
    assert x.shape == like.x0.shape, where
    assert torch.equal(x[like.fixed], like.x0[like.fixed]), f"{where}: fixed values have changed"
    if isinstance(space, TokenSpace):
        allowed = space.clean().expand(*x.shape, -1).gather(-1, x[..., None])[..., 0]
        assert allowed[~like.fixed].all(), f"{where}: MASK, PAD or an id outside the vocabulary is drawn"
    else:
        assert x.isfinite().all(), f"{where}: a value is not finite"


def test_no_combination_vanishes():
    """Counted by hand: 11 schedules; on features 4 with 4 losses, 2 with 1; on tokens, twice, 9 with 1, 1 with 2, 1
    with 1.
    """
    schedules = len(catalog().names("schedule"))
    every = list(itertools.product(TASKS, processes(), losses()))
    ran = sum(may_stand(task, *process, loss["use"]) for task, process, loss in every)
    assert schedules * ran == 11 * (4 * 4 + 2 + 2 * (9 + 2 + 1)) == 462
    assert schedules * len(every) == 11 * 3 * 13 * 9 == 3861


SAMPLERS = {
    "analytic": {"steps": 3},
    "ancestral": {"steps": 3},
    "ddim": {"steps": 3, "eta": 0.5},
    "dpm-solver": {"steps": 4, "spacing": "log-snr", "t_min": 0.1},
    "euler": {"steps": 3},
    "first-hitting": {},
    "guided": {"particles": 2},
    "ordered": {"steps": 3, "top_p": 0.9},
    "ordered-regions": {"steps": 3, "by": "spread"},
    "predictor-corrector": {"steps": 2, "temperature": 0.7},
    "repaint": {"steps": 4, "jump": 2, "visits": 2},
    "remdm": {"steps": 3, "strategy": "conf-compensated", "top_k": 2},
    "blocks": {"size": 2, "inner": {"use": "ancestral", "steps": 2}},
}


def test_every_sampler_is_in_the_grid():
    assert set(catalog().names("sampler")) == set(SAMPLERS)


@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_walk_every_process_that_they_accept(sampler):
    torch.manual_seed(0)
    walked = []
    for task, (process, meaning), block_size in itertools.product(TASKS, processes(), (None, 2)):
        loss = "mse" if task == "toy-features" else "score-entropy"
        options = {"use": process} | ({"predict": meaning} if meaning else {})
        experiment = assemble(task, options, loss, sampler={"use": sampler, **SAMPLERS[sampler]})
        model = experiment.model.model_copy(update={"block_size": block_size})
        experiment = experiment.model_copy(update={"model": model})
        where = f"{task}, {process} {meaning}, {sampler}, block_size {block_size}"
        if list(experiment.check()):
            continue
        system = Diffusion.build(experiment)
        with torch.no_grad():
            for parameter in system.model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        like = system.task.like(4, 0)
        fits(draw(system, like, seed=1), like, system.process.space, where)
        walked.append(where)
    # With and without block_size: 4 on features, 9 on graphs, but on text 9 without: there a model with block_size is
    # trained in blocks, which only "blocks" draws. What unmasks: absorbing, 3 meanings.
    tokens, masks = {"analytic", "euler", "predictor-corrector"}, {"first-hitting", "guided", "ordered", "remdm"}
    # Through Gaussian noise, 3 meanings; masked-region hides.
    noise = dict.fromkeys(("ddim", "dpm-solver", "repaint"), 6) | {"ordered-regions": 2}
    expected = {"ancestral": 8 + 27, "blocks": 9} | dict.fromkeys(tokens, 27) | dict.fromkeys(masks, 9)
    expected |= noise
    assert len(walked) == expected[sampler]
