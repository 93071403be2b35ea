"""What it costs to look, in every step, whether loss and gradient are numbers; the same steps without it, by turns.

    python benchmarks/finite_check.py [--steps 400]

A trainer makes its steps in three ways by turns: as it does; without the look; and without what the look is at, too:
the norm of the gradient (so nothing is clipped in any of them).
The goal is at most 1 % of a step. The weights are looked at once a checkpoint; that is set beside writing one.
"""

# ruff: noqa: D103
from __future__ import annotations

import argparse
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import torch

from dither.engine.checkpoints.checkpoint import Checkpoints, Contents
from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

ROOT = Path(__file__).resolve().parents[1]
FILES = {
    "bubbles": "bubble_diagram/quick.toml",
    "regions": "get_region/quick.toml",
    "texts": "language_model/markov.toml",
}
WAYS = ("as it is", "without the look", "without the norm")
CHANGES = ("train.clip=0", "train.threads=1", "train.device=cpu")


def nothing(*figures: object) -> None:
    pass


class Steps:
    """Steps of a trainer that are made in three ways: whatever else makes steps differ is the same for all of them."""

    def __init__(self, file: str) -> None:
        experiment = load_experiment(ROOT / "experiments" / file, CHANGES).experiment
        self.trainer = Trainer(Diffusion.build(experiment), experiment.train, experiment.seed)
        self.record, self.norm, self.one = (
            self.trainer.guard.record,
            self.trainer.parallel.gradient_norm,
            torch.ones(()),
        )

    def seconds(self, way: str) -> float:
        """Make a step, and return what it takes."""
        trainer = self.trainer
        trainer.guard.record = self.record if way == WAYS[0] else nothing  # type: ignore[method-assign]
        trainer.parallel.gradient_norm = self.norm if way != WAYS[2] else self._one  # type: ignore[method-assign]
        return seconds(trainer.advance)

    def _one(self, gradients: object) -> torch.Tensor:
        return self.one


def seconds(action: Callable[[], object]) -> float:
    began = time.perf_counter()
    action()
    return time.perf_counter() - began


def look(made: Trainer) -> float:
    """Return the seconds of one look, by itself."""
    return seconds(lambda: [made.guard.record(0, 1.0, 2.0, 3.0) for _ in range(10_000)]) / 10_000


def saving(made: Trainer) -> tuple[float, float]:
    """Return the seconds of the look at the weights, and of writing a checkpoint, medians."""
    looks, saves = [], []
    with tempfile.TemporaryDirectory(dir=".") as folder:
        checkpoints = Checkpoints(Path(folder))
        for step in range(1, 8):
            average = made.average.module if made.average is not None else None
            tensors, plain = made.state()
            contents = Contents(made.system.model, average, tensors, plain)
            looks.append(seconds(made.check_weights))
            saves.append(seconds(lambda: checkpoints.save(step, contents)))  # noqa: B023 - called at once
    return statistics.median(looks), statistics.median(saves)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--steps", type=int, default=400)
    steps = parser.parse_args().steps
    torch.set_num_threads(1)
    print(
        f"torch {torch.__version__}, one thread, {steps} steps each in turns; medians of times and of ratios in pairs"
    )
    for name, file in FILES.items():
        of = Steps(file)
        for _ in range(5):
            of.seconds(WAYS[0])
        times: dict[str, list[float]] = {way: [] for way in WAYS}
        for number in range(steps):
            first = number % len(WAYS)  # so that none of them always comes first
            for way in (*WAYS[first:], *WAYS[:first]):
                times[way].append(of.seconds(way))
        step = statistics.median(times[WAYS[0]])
        print(f"{name:8} a step takes {1e3 * step:.2f} ms; a look {1e6 * look(of.trainer):.2f} us")
        for way in WAYS[1:]:
            ratio = statistics.median(a / b for a, b in zip(times[WAYS[0]], times[way], strict=True))
            print(f"         against a step {way:16} {ratio:.4f}")
        looked, saved = saving(of.trainer)
        print(f"         weights: looked at in {1e3 * looked:.2f} ms, written in {1e3 * saved:.1f} ms")


if __name__ == "__main__":
    main()
