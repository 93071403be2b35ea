"""Gradient accumulation does not change losses and gradients."""

from pathlib import Path

import pytest

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
SMALL = ("model.width=16", "model.depth=1", "model.block.heads=2", "model.block.dropout=0.0", "train.batch_size=8")
MARKOV = ("task.data.length=20000", "task.data.held=4096")
CASES = {
    "bubble diagrams": ("bubble_diagram/quick.toml", "task.data.train=64", "task.data.valid=16", "task.data.test=8"),
    "regions": ("get_region/quick.toml",),
    "text": ("language_model/markov.toml", *MARKOV),
    "text with block diffusion": (
        "language_model/markov.toml", *MARKOV, "model.block_size=4",
        'sampler={use = "blocks", size = 4, inner = "first-hitting"}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_loss_and_gradient_norm_do_not_depend_on_accumulation(case):
    """Also for tokens, where micro-batches have different numbers of weighted positions."""
    metrics = {}
    name, *own = CASES[case]
    for accumulate in (1, 4):
        changes = (*SMALL, *own, f"train.accumulate={accumulate}", "train.device=cpu")
        experiment = load_experiment(EXPERIMENTS / name, changes).experiment
        trainer = Trainer(Diffusion.build(experiment), experiment.train, experiment.seed)
        metrics[accumulate] = [value.item() for _ in range(2) for value in trainer.advance().values()]
    for accumulate, values in metrics.items():
        assert values == pytest.approx(metrics[1], rel=3e-6), accumulate
