"""Fused head and loss equal the separate ones in training."""

from pathlib import Path

import pytest
import torch
from torch import nn

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training import diffusion
from dither.engine.training.diffusion import Diffusion, fused_head
from dither.engine.training.randomness import Stream, seed_generators
from dither.engine.training.trainer import Trainer

FILE = Path(__file__).parents[3] / "experiments" / "language_model" / "quick.toml"
SMALL = [
    "task.length=16",
    "model.width=16",
    "model.depth=1",
    "model.block.heads=2",
    "train.batch_size=4",
    "train.steps=3",
]
UNIFORM = ['process={use="uniform",predict="score"}', "loss=score-entropy"]
BLOCKS = ["model.block_size=4", 'sampler={use="blocks",size=4,inner="ancestral"}']
CPU = torch.device("cpu")


def system_of(*changes):
    experiment = load_experiment(FILE, [*SMALL, *changes]).experiment
    system = Diffusion.build(experiment)
    for parameter in system.model.parameters():  # a head of zeros gives equal logits everywhere
        nn.init.normal_(parameter, std=0.2)
    return system, experiment.train


def train(*changes):
    system, options = system_of(*changes)
    trainer = Trainer(system.train(), options, 0)
    losses = [trainer.advance()["loss"].item() for _ in range(3)]
    return losses, [p.detach().clone() for p in system.model.parameters()]


@pytest.mark.parametrize("changes", [[], UNIFORM, ["train.accumulate=2"], ["loss.reduction=sample"], BLOCKS])
def test_fused_training_equals_generic(changes, monkeypatch):
    generic, plain = train(*changes)
    monkeypatch.setattr(diffusion, "FUSED_FROM", 2)
    losses, weights = train(*changes)
    assert losses == pytest.approx(generic, rel=1e-5)
    assert all(torch.allclose(a, b, atol=2e-4) for a, b in zip(weights, plain, strict=True))
    again, same = train(*changes)
    assert again == losses
    assert all(torch.equal(a, b) for a, b in zip(weights, same, strict=True))


def test_head_is_not_called_in_training(monkeypatch):
    monkeypatch.setattr(diffusion, "FUSED_FROM", 2)
    system, _ = system_of()
    calls = []
    system.model.head.register_forward_hook(lambda *_: calls.append(1))
    clean = system.task.batch("train", range(2))
    system(clean).total().backward()
    assert not calls
    assert system.model.head.linear.weight.grad.abs().max() > 0
    with torch.no_grad():
        measured = system(clean)
    assert measured.values.shape == clean.x0.shape
    assert measured.values.isfinite().all()
    t, noised = system.noise(clean, system.times(2))
    system.denoise(noised.state, t, clean).log_clean()
    assert calls


def test_when_the_head_is_fused(monkeypatch):
    system, _ = system_of()
    assert system.process.space.vocab < diffusion.FUSED_FROM
    assert fused_head(system) is None
    monkeypatch.setattr(diffusion, "FUSED_FROM", system.process.space.vocab)
    assert fused_head(system) is system.model.head.maps[0]
    system.loss = lambda pred, noised: None
    assert fused_head(system) is None
    system, _ = system_of()
    system.model.head.maps[0] = nn.Sequential(nn.Linear(16, system.process.space.vocab))
    assert fused_head(system) is None


def test_bfloat16_applies_to_matrix_products_only(monkeypatch):
    monkeypatch.setattr(diffusion, "FUSED_FROM", 2)
    losses = {}
    for precision in ("float32", "bfloat16"):
        system, _ = system_of(*UNIFORM, f"train.precision={precision}")
        clean = system.task.batch("train", range(4))
        seed_generators(CPU, Stream.STEP, 0)
        measured = system(clean)
        assert measured.values.dtype == torch.float32
        losses[precision] = measured.mean().item()
    assert losses["bfloat16"] == pytest.approx(losses["float32"], rel=0.02)
    assert losses["bfloat16"] != losses["float32"]


def test_trunk_is_compiled(monkeypatch):
    monkeypatch.setattr(diffusion, "FUSED_FROM", 2)
    compiled = []
    monkeypatch.setattr(torch, "compile", lambda f, *a, **k: compiled.append(f) or f)
    system, _ = system_of()
    system.compile_model()
    assert system.model.trunk in compiled
    assert system(system.task.batch("train", range(2))).total().isfinite()
