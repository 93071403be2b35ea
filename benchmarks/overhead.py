"""Overhead of the engine on the smallest models, in milliseconds, alternating in one process.

    python benchmarks/overhead.py

1. A step of the trainer (seeding, sample order, clipping, NaN check, EMA, learning-rate schedule) against a bare torch
   loop with the same model, data and optimizer. The goal is at most 0.10 ms a step for the smallest model.
2. A step with and without the check for NaN and inf. The goal is at most 1 %.
3. Time for which the loop waits for a checkpoint, written in the loop or in the background.
"""

from __future__ import annotations

import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import nn

from dither.engine.checkpoints.checkpoint import Checkpoints, Contents, Saver
from dither.engine.config.options import Train
from dither.engine.optimizers.components import AdamW, Cosine
from dither.engine.optimizers.optimizer_state import flatten
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer
from dither.registry.flow.records import Clean, Measured, Noise, Noised, State
from dither.registry.flow.spaces import FeatureSpace

STEPS, ROUNDS, BATCH, WIDTH = 300, 11, 16, 16


class Task:
    """The same batch every time."""

    clean = Clean.of(torch.randn(BATCH, 4, WIDTH))

    def size(self, split: str) -> int:
        """Return the number of samples."""
        return 1000

    def batch(self, split: str, rows: list[int]) -> Clean:
        """Return the batch."""
        return self.clean


class Process:
    """Additive noise."""

    space = FeatureSpace(4, WIDTH)

    def times(self, n: int, device: Any = None) -> torch.Tensor:
        """Return random times."""
        return torch.rand(n, device=device)

    def level(self, t: torch.Tensor) -> torch.Tensor:
        """Return the time."""
        return t

    def schedule(self, t: torch.Tensor) -> Noise:
        """Return sigma = t."""
        return Noise(t, t)

    def corrupt(self, clean: Clean, t: torch.Tensor) -> Noised:
        """Add t."""
        x = clean.x0 + t[:, None, None]
        return Noised(clean.x0, State(x, clean.known), Noise(t, t), clean.known, clean.valid, clean.known)

    def read(self, raw: torch.Tensor, state: State, noise: Noise) -> torch.Tensor:
        """Return the raw output."""
        return raw


class Model(nn.Module):
    """Linear layers."""

    def __init__(self, layers: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(*(nn.Linear(WIDTH, WIDTH) for _ in range(layers)))

    def forward(self, state: State, *arguments: Any, **options: Any) -> torch.Tensor:
        """Return B L M."""
        out: torch.Tensor = self.layers(state.x)
        return out


def loss(prediction: torch.Tensor, noised: Noised) -> Measured:
    """Return the mean square error."""
    return Measured((prediction - noised.x0).square().mean(-1), noised.valid.float())


def system(layers: int) -> Diffusion:
    """Return task, process, model and loss."""
    none: Any = None
    task: Any = Task()
    process: Any = Process()
    return Diffusion(task, process, Model(layers), loss, none)


def trainer_of(layers: int) -> Trainer:
    """Return a trainer."""
    train = Train(steps=10**6, batch_size=BATCH, optimizer=AdamW(), lr_schedule=Cosine(warmup=10), log_every=50)
    return Trainer(system(layers), train, 0)


def bare_of(layers: int) -> Callable[[], None]:
    """Return a step of a bare loop with the same parameter groups."""
    diffusion = system(layers)
    optimizer = AdamW().build(diffusion.model)

    def step() -> None:
        optimizer.zero_grad()
        diffusion(Task.clean).mean().backward()
        optimizer.step()

    return step


def milliseconds(step: Callable[[], object], count: int = STEPS) -> float:
    """Return the mean time of a step."""
    started = time.perf_counter()
    for _ in range(count):
        step()
    return 1e3 * (time.perf_counter() - started) / count


def compare(first: Callable[[], object], second: Callable[[], object]) -> tuple[float, float, float]:
    """Return the best times of two steps over alternating rounds, and the median difference."""
    rounds = [(milliseconds(first), milliseconds(second)) for _ in range(ROUNDS + 1)][1:]
    best = [min(column) for column in zip(*rounds, strict=True)]
    return best[0], best[1], median(b - a for a, b in rounds)


def nan_check(trainer: Trainer) -> tuple[Callable[[], object], Callable[[], object]]:
    """Return a step without and one with the check for NaN and inf."""
    record = trainer.guard.record

    def step(recorder: Any) -> None:
        trainer.guard.record = recorder  # type: ignore[method-assign]
        trainer.advance()

    return lambda: step(lambda *values: None), lambda: step(record)


def saving(width: int = 1024) -> None:
    """Print how long the loop waits for a checkpoint of 8 linear layers."""
    model = nn.Sequential(*(nn.Linear(width, width) for _ in range(8)))
    optimizer = torch.optim.AdamW(model.parameters(), fused=True)
    model(torch.randn(4, width)).sum().backward()
    optimizer.step()
    tensors, plain = flatten(optimizer)
    for background in (False, True):
        waits = []
        with tempfile.TemporaryDirectory(dir=".") as folder:
            saver = Saver(Checkpoints(Path(folder)), background=background)
            for step in range(1, 6):
                started = time.perf_counter()
                saver.save(step, Contents(model, None, tensors, plain))
                waits.append(1e3 * (time.perf_counter() - started))
                saver.wait()
        size = sum(t.nbytes for t in (*model.parameters(), *tensors.values())) / 2**20
        way = "in the background" if background else "in the loop"
        print(f"checkpoint of {size:.0f} MiB {way}: the loop waits {median(waits):.1f} ms")


def main() -> None:
    """Print the three comparisons."""
    torch.set_num_threads(1)
    print(f"torch {torch.__version__}, one thread; best of {ROUNDS} rounds of {STEPS} steps")
    for layers in (2, 8, 24):
        bare, full, difference = compare(bare_of(layers), trainer_of(layers).advance)
        print(f"{2 * layers:3} tensors: bare {bare:.3f}, trainer {full:.3f}, overhead {difference:.3f} ms a step")
    without, with_check, difference = compare(*nan_check(trainer_of(8)))
    print(f"NaN check: {without:.3f} without, {with_check:.3f} with, {difference / without:.2%} of a step")
    saving()


if __name__ == "__main__":
    main()
