"""What the engine's loop costs beside a bare torch loop over the same model and data, in one run, in turns.

    python benchmarks/engine_overhead.py

The engine's loop seeds every step, orders the data, clips, checks for numbers that are none, keeps a moving average,
follows a learning-rate schedule, and logs every 50 steps to metrics.jsonl and TensorBoard. The goal is at most 0.10 ms
a step for the smallest model; what grows with the number of tensors is clipping and averaging.
"""

# ruff: noqa: D102, D103
from __future__ import annotations

import io
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

import torch
from rich.console import Console
from torch import nn

from dither.engine.checkpoints.async_checkpoint import Saver
from dither.engine.checkpoints.best_checkpoint import Scores
from dither.engine.checkpoints.checkpoint import Checkpoints
from dither.engine.config.experiment import Experiment
from dither.engine.config.options import Train
from dither.engine.optimizers.components import AdamW
from dither.engine.optimizers.lr_schedules import Cosine
from dither.engine.runs.log import Log
from dither.engine.runs.loop import Run
from dither.engine.runs.run_directory import RunDirectory
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.randomness import Stream, seed_generators
from dither.engine.training.trainer import Trainer
from dither.registry.flow.records import Clean, Measured, Noise, Noised, State
from dither.registry.flow.spaces import FeatureSpace
from dither.registry.plugins.manager import load_plugins

STEPS, ROUNDS, BATCH, WIDTH = 300, 11, 16, 16


class Task:
    """The same batch every time."""

    clean = Clean.of(torch.randn(BATCH, 4, WIDTH))

    def size(self, split: str) -> int:
        return 1000

    def batch(self, split: str, rows: list[int]) -> Clean:
        return self.clean


class Process:
    """A little noise."""

    space = FeatureSpace(4, WIDTH)

    def times(self, n: int, device: Any = None) -> torch.Tensor:
        return torch.rand(n, device=device)

    def level(self, t: torch.Tensor) -> torch.Tensor:
        return t

    def schedule(self, t: torch.Tensor) -> Noise:
        return Noise(t, t)

    def corrupt(self, clean: Clean, t: torch.Tensor) -> Noised:
        x = clean.x0 + t[:, None, None]
        return Noised(clean.x0, State(x, clean.known), Noise(t, t), clean.known, clean.valid, clean.known)

    def read(self, raw: torch.Tensor, state: State, noise: Noise) -> torch.Tensor:
        return raw


class Model(nn.Module):
    """Linear layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))

    def forward(self, state: State, level: Any, valid: Any, cond: Any, cache: Any = None) -> torch.Tensor:
        return self.layers(state.x)


def loss(prediction: torch.Tensor, noised: Noised) -> Measured:
    return Measured((prediction - noised.x0).square().mean(-1), noised.valid.float())


def system(layers: int) -> Diffusion:
    return Diffusion(Task(), Process(), Model(layers), loss, None)


def bare(layers: int) -> Any:
    """Forward, backward and fused AdamW with the same groups of parameters, and nothing else."""
    diffusion = system(layers)
    optimizer = AdamW().build(diffusion.model)
    clean = Task.clean

    def loop(steps: int) -> None:
        for _ in range(steps):
            optimizer.zero_grad()
            diffusion(clean).mean().backward()
            optimizer.step()

    return loop


def engine(layers: int, folder: Path) -> Any:
    """The loop of a run, without evaluation and checkpoints."""
    diffusion = system(layers)
    total = STEPS * (ROUNDS + 1) + 1
    train = Train(steps=total, batch_size=BATCH, optimizer=AdamW(), lr_schedule=Cosine(warmup=10), log_every=50)
    trainer = Trainer(diffusion, train, 0)
    log = Log(folder, Console(file=io.StringIO()), total)
    experiment = Experiment.model_construct(train=train)
    directory = RunDirectory(folder, -1)
    run = Run(
        experiment,
        load_plugins(["engine"]),
        directory,
        diffusion,
        trainer,
        Saver(Checkpoints(folder)),
        Scores(None, "loss", "lower"),
        log,
    )

    def loop(steps: int) -> None:
        for _ in range(steps):
            run._train(watched=False)

    return loop


def seconds(loop: Any) -> float:
    began = time.perf_counter()
    loop(STEPS)
    return (time.perf_counter() - began) / STEPS


def main() -> None:
    torch.set_num_threads(1)
    seed_generators(torch.device("cpu"), Stream.WEIGHTS, 0)
    print(f"torch {torch.__version__}, one thread; milliseconds a step, best of {ROUNDS} rounds of {STEPS} in turns")
    for layers in (2, 8, 24):
        with tempfile.TemporaryDirectory() as folder:
            loops = bare(layers), engine(layers, Path(folder))
            for loop in loops:
                loop(STEPS)
            rounds = [[1e3 * seconds(loop) for loop in loops] for _ in range(ROUNDS)]
        plain, ours = (min(column) for column in zip(*rounds, strict=True))
        middle = statistics.median(b - a for a, b in rounds)
        print(
            f"{2 * layers:3} tensors: bare {plain:.3f}, engine {ours:.3f}, ratio {ours / plain:.2f}; "
            f"overhead {ours - plain:.3f} (median of the rounds {middle:.3f})"
        )


if __name__ == "__main__":
    main()
