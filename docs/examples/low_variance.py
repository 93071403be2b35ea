"""Steps to reach a bound on Macbeth, by estimator and training loss: the figures of docs/results.md.

    python docs/examples/low_variance.py 0 1 2 3 4      # seeds

Initial weights and the order of samples are those of the seed, and every bound is measured in the same way.
"""

import sys
from pathlib import Path

import numpy as np

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.evaluation import evaluate
from dither.engine.training.trainer import Trainer

FILE = (
    Path(__file__).parents[2]
    / "experiments"
    / "language_model"
    / "shakespeare_quick.toml"
)
SMALL = ["model.width=64", "train.ema=0.99", "train.steps=800"]
PLAIN = "loss.training=plain"
WAYS = [
    ["process.estimator=time"],
    ["process.estimator=importance"],
    ["process.estimator=mask-count"],
    ["process.estimator=time", PLAIN],
    ["process.estimator=mask-count", PLAIN],
]
TARGETS = 3.2, 3.1, 3.0
"""Bounds in nats per token."""


def bounds(changes: list[str], seed: int) -> list[float]:
    """Train, and return the bound after every 50 steps."""
    experiment = load_experiment(FILE, [*SMALL, f"seed={seed}", *changes]).experiment
    judge = Diffusion.build(load_experiment(FILE, SMALL).experiment)
    system = Diffusion.build(experiment, task=judge.task)
    trainer, found = Trainer(system.train(), experiment.train, seed), []
    while trainer.step < experiment.train.steps:
        trainer.advance()
        if trainer.step % 50 == 0:
            assert trainer.average is not None
            found.append(
                (evaluate(judge.with_model(trainer.average.module), 512, 128) or {})[
                    "nats_per_token"
                ]
            )
    return found


if __name__ == "__main__":
    for way in WAYS:
        final = []
        for seed in map(int, sys.argv[1:]):
            found = bounds(way, seed)
            steps = [
                next(
                    (50 * i for i, nats in enumerate(found, 1) if nats <= target), None
                )
                for target in TARGETS
            ]
            final.append(found[-1])
            print(
                *way,
                seed,
                "steps to",
                dict(zip(TARGETS, steps, strict=True)),
                f"last {found[-1]:.4f}",
                flush=True,
            )
        print(
            *way,
            f"last {np.mean(final):.3f} ({min(final):.3f} to {max(final):.3f})",
            flush=True,
        )
