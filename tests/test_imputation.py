"""Imputation end to end: distribution heads and partial noise, trained, evaluated and sampled."""

from functools import cache
from pathlib import Path
from typing import Any

import pytest
import torch

from dither.embeddings.specs import check_experiment
from dither.engine.config.experiment import Experiment
from dither.engine.sampling.session import draw
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import evaluate
from dither.registry.flow.protocols import DistributionPrediction
from dither.registry.flow.records import Clean
from dither.registry.flow.spaces import FeatureSpace
from dither.registry.plugins.manager import load_plugins

QUICK = Path(__file__).parents[1] / "experiments/get_region/quick.toml"


@cache
def catalog():
    ours = ["core-blocks", "embeddings", "engine", "losses", "processes", "tasks"]
    return load_plugins(ours, [Path(__file__).with_name("toy_tasks.py")]).catalog


def assemble(**changes: Any) -> Experiment:
    model = {
        "use": "denoiser",
        "width": 32,
        "depth": 1,
        "embedding": {"use": "regions", "elements": True, "position": "learned"},
        "condition": {"use": "level", "frequencies": 8},
        "block": {"use": "adaln-zero", "heads": 2},
        "head": changes.pop("head", "features"),
    }
    tree = {"task": "toy-features", "process": "masked-region", "model": model, "loss": "mse", "sampler": "ancestral"}
    return Experiment.model_validate(tree | changes, context={"catalog": catalog()})


class Pairs:
    """Windows in which every region of a sample is one of two patterns, +1 or -1 in all columns: a mean is neither."""

    space = FeatureSpace(6, 4)

    def size(self, split: str) -> int:
        return 512

    def batch(self, split: str, rows) -> Clean:
        signs = torch.randint(2, (512, 6, 1), generator=torch.Generator().manual_seed(len(split)))[list(rows)] * 2.0 - 1
        return Clean.of(signs.expand(-1, -1, 4).clone())

    def metrics(self):
        return self

    def update(self, clean, noised, pred, measured) -> None:
        self.x0 = pred.x0[noised.target_mask]

    def compute(self) -> dict[str, float]:
        return {"spread": float(self.x0.std())}


def trained(experiment: Experiment, steps: int) -> Diffusion:
    torch.manual_seed(0)
    system = Diffusion.build(experiment)
    system.task = Pairs()
    optimizer = torch.optim.Adam(system.parameters(), 3e-3)
    for step in range(steps):
        loss = system(system.task.batch("train", range(32 * (step % 16), 32 * (step % 16) + 32))).mean()
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    return system.eval()


HEAD = {"use": "token-diffusion", "hidden": 32, "depth": 2, "steps": 16}


def test_a_distribution_head_imputes_patterns_that_a_mean_cannot() -> None:
    process = {"use": "masked-region", "ratio": 0.5}
    like = Clean.of(torch.zeros(128, 6, 4))
    means = draw(trained(assemble(process=process), 150), like, seed=0)
    assert means is not None
    assert means.abs().mean() < 0.4  # neither of the two
    system = trained(assemble(process=process, head=HEAD), 300)
    draws = [draw(system, like, seed=seed) for seed in (0, 0, 1)]
    assert torch.equal(draws[0], draws[1])
    assert not torch.equal(draws[0], draws[2])
    assert ((draws[0].abs() - 1).abs() < 0.4).double().mean() > 0.85
    signs = draws[0].sign()
    assert (signs == signs[..., :1]).double().mean() > 0.95  # a region is drawn as one
    metrics = evaluate(system, 128, 64)
    assert metrics is not None
    assert metrics["spread"] < 0.4  # metrics are of the mean
    assert metrics == evaluate(system, 128, 64)


def test_draws_in_order_of_their_spread() -> None:
    system = trained(assemble(head=HEAD, sampler={"use": "ordered-regions", "by": "spread", "steps": 3}), 2)
    clean = system.task.batch("valid", range(4))
    like = Clean(clean.x0, clean.valid, torch.rand(4, 6, 4) < 0.3)
    prediction = system.denoise(system.process.prior(like), torch.ones(4), like)
    assert isinstance(prediction, DistributionPrediction)
    x = draw(system, like, seed=0)
    assert torch.equal(x[like.fixed], like.x0[like.fixed])
    assert x.isfinite().all()


@pytest.mark.parametrize("mask", ["region", "element", "column"])
@pytest.mark.parametrize("predict", ["x0", "eps", "velocity"])
def test_partial_noise_is_trained_and_sampled(mask: str, predict: str) -> None:
    process = {"use": "gaussian", "mask": mask, "predict": predict}
    system = trained(assemble(process=process, sampler={"use": "dpm-solver", "steps": 5}), 3)
    clean = system.task.batch("valid", range(4))
    like = Clean(clean.x0, clean.valid, torch.rand(4, 6, 4) < 0.3)
    x = draw(system, like, seed=0)
    assert torch.equal(x[like.fixed], like.x0[like.fixed])
    assert (x[~like.fixed] != like.x0[~like.fixed]).all()


def test_the_model_sees_which_values_are_noisy() -> None:
    """The same values, noisy or not, give different outputs."""
    system = trained(assemble(process={"use": "gaussian", "mask": "element", "ratio": 0.5}), 20)
    clean = system.task.batch("valid", range(4))
    state = system.process.corrupt(clean, torch.full((4,), 0.5)).state
    plain = system.process.masks.pick(torch.ones_like(state.noisy), torch.full((4, 1, 1), 0.5))
    seen, other = (
        system.raw(type(state)(state.x, state.masked, noisy=noisy), torch.ones(4), clean)
        for noisy in (state.noisy, plain)
    )
    assert not torch.equal(seen, other)


@pytest.mark.parametrize(
    ("changes", "path"),
    [
        ({"loss": "huber"}, ("loss",)),
        ({"process": "gaussian"}, ("process",)),
        ({"train": {"strategy": "fsdp"}}, ("train", "strategy")),
        ({"sample": {"guidance": {"condition": "cell"}}}, ("sample", "guidance")),
        ({}, None),
    ],
)
def test_incompatible_with_a_distribution_head(changes: dict[str, Any], path) -> None:
    found = list(check_experiment(assemble(head=HEAD, **changes)))
    assert [misfit.path for misfit in found] == ([path] if path else [])
    assert not list(check_experiment(assemble(**changes)))
