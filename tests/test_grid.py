"""Every task with every registered process, prediction target, schedule, loss and sampler.

A combination either trains and samples, or is rejected when the experiment is checked, never by a later error.
"""

import itertools
import math
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

TASKS = {
    "toy-features": ("regions", "features"),
    "toy-graph": ("graph", "tokens"),
    "toy-text": ("tokens", "tokens"),
}
"""Embedding and head of each task."""


@cache
def catalog():
    """Our own components and the toy tasks."""
    ours = ["core-blocks", "embeddings", "engine", "losses", "processes", "tasks"]
    return load_plugins(ours, [Path(__file__).with_name("toy_tasks.py")]).catalog


def variants(kind: str, option: str) -> list[dict[str, str]]:
    """Every component of a kind with each value of an option, if it has it."""
    found = []
    for part in catalog().parts(kind):
        field = part.spec.model_fields.get(option)
        choices = (
            [{option: value} for value in get_args(field.annotation)] if field else [{}]
        )
        found += [{"use": part.spec.name} | choice for choice in choices]
    return found


FEATURE_PROCESSES = ("flow-matching", "gaussian", "learned-variance", "masked-region")
PROCESSES, LOSSES = variants("process", "predict"), variants("loss", "target")


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
    tree = {
        "task": task,
        "process": process,
        "model": model,
        "loss": loss,
        "sampler": sampler,
        **changes,
    }
    return Experiment.model_validate(tree, context={"catalog": catalog()})


def compatible(task: str, process: dict, schedule: str, loss: str) -> bool:
    """Whether a combination is valid, by rules independent of the components."""
    features, name, predict = (
        task == "toy-features",
        process["use"],
        process.get("predict"),
    )
    if features != (name in FEATURE_PROCESSES):
        return False
    # x_0 = (x - b eps) / a, and a ends at 1e-14
    if (predict, schedule) == ("eps", "rectified-flow"):
        return False
    if name == "learned-variance" or (features and loss == "hybrid"):
        return (name, loss) == ("learned-variance", "hybrid")
    if (
        loss == "masked-ce"
    ):  # MDLM's closed form: an absorbing process and a model of clean ids
        return name == "absorbing" and predict != "score"
    # The jumps of discrete flow matching follow one path, of a constant prior.
    if (name, loss) == ("gidd", "flow-kl"):
        return False
    if loss in ("bce", "poisson"):  # a likelihood of x0
        return features and predict in (None, "x0")
    return features == (loss in ("mse", "huber", "hybrid"))


@pytest.mark.parametrize(
    "task",
    [
        "toy-features",
        pytest.param("toy-text", marks=pytest.mark.slow),
        pytest.param("toy-graph", marks=pytest.mark.slow),
    ],
)
@pytest.mark.parametrize(
    "process", PROCESSES, ids=lambda process: "-".join(process.values())
)
def test_combinations_train_or_are_rejected(task, process):
    """Each schedule and each loss is trained with at least once."""
    torch.manual_seed(0)
    trained = set()
    for schedule, loss in itertools.product(catalog().names("schedule"), LOSSES):
        experiment = assemble(task, process | {"schedule": schedule}, loss)
        misfits = list(experiment.check())
        where = f"{task}, {process}, {schedule}, {loss}"
        assert bool(misfits) != compatible(task, process, schedule, loss["use"]), (
            f"{where}: {misfits}"
        )
        if misfits:
            assert all(
                misfit.message and misfit.path[0] in Experiment.model_fields
                for misfit in misfits
            ), where
        elif not {schedule, str(loss)} <= trained:
            trained |= {schedule, str(loss)}
            system = Diffusion.build(experiment)
            check_training(system, where)
            like = system.task.like(4, 0)
            samples = draw(system, like, seed=0)
            check_samples(samples, like, system.process.space, where)


def check_training(system: Diffusion, where: str) -> None:
    optimizer = torch.optim.AdamW(system.model.parameters(), 1e-2)
    head = list(system.model.head.parameters())
    before = [parameter.detach().clone() for parameter in head]
    for step in range(2):
        measured = system(system.task.batch("train", range(8 * step, 8 * step + 8)))
        loss = measured.mean()
        assert loss.isfinite(), f"{where}: the loss is {loss}"
        optimizer.zero_grad()
        loss.backward()
        assert all(p.grad is not None and p.grad.isfinite().all() for p in head), (
            f"{where}: gradient of the head"
        )
        optimizer.step()
    assert any(
        not torch.equal(old, new) for old, new in zip(before, head, strict=True)
    ), f"{where}: the head is unchanged"


def check_samples(x: torch.Tensor, like, space, where: str) -> None:
    assert x.shape == like.x0.shape, where
    assert torch.equal(x[like.fixed], like.x0[like.fixed]), (
        f"{where}: fixed values changed"
    )
    if isinstance(space, TokenSpace):
        clean = space.clean().expand(*x.shape, -1).gather(-1, x[..., None])[..., 0]
        assert clean[~like.fixed].all(), (
            f"{where}: MASK, PAD or an id outside the vocabulary was drawn"
        )
    else:
        assert x.isfinite().all(), f"{where}: a value is not finite"


SAMPLERS = {
    "analytic": {"steps": 3},
    "ancestral": {"steps": 3},
    "ddim": {"steps": 3, "eta": 0.5},
    "diffusers": {"steps": 3},
    "discrete-flow": {"steps": 3, "corrector": 0.5},
    "dpm-solver-sde": {"steps": 3},
    "unipc": {"steps": 3},
    "dpm-solver": {"steps": 4, "spacing": "log-snr", "t_min": 0.1},
    "euler": {"steps": 3},
    "first-hitting": {},
    "guided": {"particles": 2},
    "heun": {"steps": 3},
    "ode": {"steps": 2},
    "ordered": {"steps": 3, "top_p": 0.9},
    "ordered-regions": {"steps": 3, "by": "spread"},
    "particle-gibbs": {"steps": 2, "particles": 2, "sweeps": 1},
    "predictor-corrector": {"steps": 2, "temperature": 0.7},
    "repaint": {"steps": 4, "jump": 2, "visits": 2},
    "remdm": {"steps": 3, "strategy": "conf-compensated", "top_k": 2},
    "best-of-n": {
        "reward": "toy-mean",
        "candidates": 2,
        "inner": {"use": "ancestral", "steps": 2},
    },
    "reward-smc": {"reward": "toy-mean", "particles": 3, "steps": 3},
    "blocks": {"size": 2, "inner": {"use": "ancestral", "steps": 2}},
    "self-correct": {"iterations": 2, "inner": {"use": "ancestral", "steps": 2}},
    "semi-autoregressive": {"size": 2, "inner": {"use": "ordered", "threshold": 0.3}},
}


def test_every_sampler_is_in_the_grid():
    assert set(catalog().names("sampler")) == set(SAMPLERS)


@pytest.mark.slow
@pytest.mark.parametrize("sampler", SAMPLERS)
def test_samplers_work_with_every_compatible_process(sampler):
    torch.manual_seed(0)
    sampled = []
    for task, process, block_size in itertools.product(TASKS, PROCESSES, (None, 2)):
        loss = "mse" if task == "toy-features" else "score-entropy"
        if process["use"] == "learned-variance":
            loss = "hybrid"
        experiment = assemble(
            task, process, loss, sampler={"use": sampler, **SAMPLERS[sampler]}
        )
        model = experiment.model.model_copy(update={"block_size": block_size})
        experiment = experiment.model_copy(update={"model": model})
        where = f"{task}, {process}, {sampler}, block_size {block_size}"
        if list(experiment.check()):
            continue
        system = Diffusion.build(experiment)
        with torch.no_grad():
            for parameter in system.model.parameters():
                parameter.add_(torch.randn_like(parameter), alpha=0.1)
        like = system.task.like(4, 0)
        check_samples(draw(system, like, seed=1), like, system.process.space, where)
        sampled.append(where)
    # With and without block_size: 9 for features, 15 for graphs, but for text only 15 without: a text model with
    # block_size is trained in blocks, which only "blocks" samples. Unmasking: absorbing with 3 targets.
    tokens = {"analytic", "euler", "ordered", "particle-gibbs", "predictor-corrector"}
    masks = {"first-hitting", "guided", "remdm", "semi-autoregressive"}
    # Gaussian noise, with predicted variances or not, with 3 targets and flow matching with 2;
    # masked-region masks.
    solvers = (
        "ddim",
        "diffusers",
        "dpm-solver",
        "dpm-solver-sde",
        "heun",
        "ode",
        "unipc",
    )
    noise = dict.fromkeys(solvers, 16) | {
        "repaint": 12,
        "ordered-regions": 2,
    }
    expected = dict.fromkeys(("ancestral", "best-of-n", "reward-smc"), 18 + 45)
    expected |= {"blocks": 15, "self-correct": 36}
    expected |= dict.fromkeys(tokens, 45) | dict.fromkeys(masks, 9) | noise
    # Not with the prior of gidd, which varies with time
    expected["discrete-flow"] = 36
    assert len(sampled) == expected[sampler]


DNA_ROWS = [f"{'ACGGATAAGT'[n % 7 :]:T<10},cell-{n % 2 + 1},{n}" for n in range(64)]
"""Sequence, label and activity."""
TOKEN_PROCESSES = [p for p in PROCESSES if p["use"] not in FEATURE_PROCESSES]
UNMASKING = ("first-hitting", "guided", "remdm", "semi-autoregressive")
OF_FEATURES = (
    "ddim",
    "diffusers",
    "dpm-solver",
    "dpm-solver-sde",
    "unipc",
    "heun",
    "ode",
    "ordered-regions",
    "repaint",
)


@pytest.mark.slow
@pytest.mark.parametrize(
    "sampler", [name for name in SAMPLERS if name not in OF_FEATURES]
)
def test_dna_sequences_with_every_token_process_and_sampler(sampler, tmp_path):
    """With and without guidance, which alternate: each predicted quantity of a process has one of both."""
    data = tmp_path / "own.csv"
    data.write_text("\n".join(["sequence,label,activity", *DNA_ROWS]) + "\n")
    ran = [
        dna_sequences_run(data, process, sampler, n)
        for n, process in enumerate(TOKEN_PROCESSES)
    ]
    names = {
        process["use"] for process, own in zip(TOKEN_PROCESSES, ran, strict=True) if own
    }
    expected = {"gidd", "hybrid", "marginal", "uniform"} | (
        set() if sampler == "self-correct" else {"absorbing"}
    )
    if sampler == "discrete-flow":
        expected -= {"gidd"}
    assert names == ({"absorbing"} if sampler in UNMASKING else expected)


def dna_sequences_run(data, process, sampler, n) -> bool:
    """Train, sample and compute metrics, and return True; False if the combination is rejected.

    Odd ones are guided: by the label, or by the activity.
    """
    torch.manual_seed(0)
    tree = assemble("toy-text", process, "score-entropy").model_dump()
    tree["task"] = {
        "use": "dna-sequence",
        "data": {"use": "sequence-file", "path": str(data), "numbers": ["activity"]},
        "kmer": 2,
        "reverse_complement": n % 3 == 0,
    }
    tree["sampler"] = {"use": sampler, **SAMPLERS[sampler]}
    label = {"use": "label", "of": "cell", "dropout": 0.5}
    number = {"use": "number", "of": "activity", "dropout": 0.5}
    tree["model"] |= {"condition": {"use": "sum", "parts": ["level", label, number]}}
    tree["model"]["block_size"] = 2 if sampler == "blocks" else None
    tree["sample"]["cond"] = {"cell": "cell-2", "activity": 12.5}
    guided = {1: "cell", 3: "activity"}.get(n % 4)
    tree["sample"]["guidance"] = guided and {"condition": guided, "weight": 2.5}
    experiment = Experiment.model_validate(tree, context={"catalog": catalog()})
    if list(experiment.check()):
        return False
    system = Diffusion.build(experiment)
    # Training does not depend on the sampler.
    if sampler in ("ancestral", "blocks"):
        check_training(system, f"{process}, {sampler}")
    like = system.like(4, 0)
    assert like.cond["cell"].tolist() == [1] * 4
    assert like.cond["activity"].tolist() == [12.5] * 4
    samples = draw(system, like, seed=1)
    check_samples(samples, like, system.process.space, f"{process}, {sampler}")
    assert all(map(math.isfinite, system.task.sample_metrics(samples, like).values()))
    return True
