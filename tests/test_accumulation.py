"""A batch in parts is the batch in one: noise, weights of positions and gradients are those of the whole."""

from pathlib import Path

import pytest

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

EXPERIMENTS = Path(__file__).parent.parent / "experiments"
SMALL = ("model.width=16", "model.depth=1", "model.block.heads=2", "model.block.dropout=0.0", "train.batch_size=8")
MARKOV = ("task.data.length=20000", "task.data.held=4096")
CASES = {
    "bubbles": ("bubble_diagram/quick.toml", "task.data.train=64", "task.data.valid=16", "task.data.test=8"),
    "regions": ("get_region/quick.toml",),
    "texts": ("language_model/markov.toml", *MARKOV),
    "texts in blocks": (
        "language_model/markov.toml", *MARKOV, "model.block_size=4",
        'sampler={use = "blocks", size = 4, inner = "first-hitting"}',
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", CASES)
def test_losses_and_gradients_are_the_same_in_however_many_parts(case):
    """Of tokens, where masked positions alone weigh and parts have different numbers of them, and of features."""
    found = {}
    name, *own = CASES[case]
    for parts in (1, 2, 8):
        changes = (*SMALL, *own, f"train.accumulate={parts}", "train.device=cpu")
        experiment = load_experiment(EXPERIMENTS / name, changes).experiment
        trainer = Trainer(Diffusion.build(experiment), experiment.train, experiment.seed)
        found[parts] = [figure.item() for _ in range(2) for figure in trainer.advance().values()]
    for parts, figures in found.items():
        assert figures == pytest.approx(found[1], rel=3e-6), parts
