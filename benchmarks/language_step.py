"""One step of training the language model of seed 004, straightforward and ours by turns, in one run.

    python benchmarks/language_step.py [ROUNDS]

V = 50,257, 1,024 positions, batch 1. The straightforward step is the same body in float32, SEDD's mathematics on all
logits at once, clipping, fused AdamW; ours is the engine's with bfloat16 products, float32 sums, head and loss in one,
and freed memory kept for the next step. Each is in a process of its own, since the allocator is told for a whole
process; "memory kept" tells it to the straightforward one too. Nobody keeps an average of the weights. Printed are
medians in milliseconds and the median of the ratios of turns.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from language_head import straightforward
from torch import nn
from turns import serve, take_turns

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.device import keep_freed_memory
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

FILE = Path(__file__).parent.parent / "experiments" / "language_model" / "seed.toml"
CHANGES = ("train.batch_size=1", "train.ema=0.0", "train.device=cpu")


def trainer(*changes: str) -> Trainer:
    """Return the engine's trainer of the seed."""
    experiment = load_experiment(FILE, [*CHANGES, *changes]).experiment
    return Trainer(Diffusion.build(experiment).train(), experiment.train, 0)


def plain_step(built: Trainer) -> Callable[[], object]:
    """Return a step on the same model, in which nothing is fused."""
    system = built.system
    optimizer = torch.optim.AdamW(system.model.parameters(), 3e-4, fused=True)
    step = iter(range(10**9))

    def advance() -> None:
        clean = system.task.batch("train", built.rows(next(step)))
        t, noised = system.noise(clean, system.times(1))
        h = system.model.trunk(noised.state, system.process.level(t), clean.valid, clean.cond)
        optimizer.zero_grad()
        total = straightforward(system.model.head.linear, h, noised) / clean.valid.sum()
        total.backward()
        nn.utils.clip_grad_norm_(system.model.parameters(), 1.0)
        optimizer.step()

    return advance


def ours(*changes: str) -> Callable[[], object]:
    """Return the engine's step."""
    keep_freed_memory()  # as a run does
    return trainer("train.precision=bfloat16", *changes).advance


STEPS: dict[str, Callable[[], Callable[[], object]]] = {
    "straightforward, float32": lambda: plain_step(trainer()),
    "straightforward, memory kept": lambda: (keep_freed_memory(), plain_step(trainer()))[1],
    "ours": ours,
    "ours, compiled": lambda: ours("train.compile=true"),
}


def main() -> None:
    """Take each step in turn."""
    if serve(STEPS):
        return
    times = take_turns([*STEPS], int(sys.argv[1]) if sys.argv[1:] else 5).times
    base = times["straightforward, float32"]
    print(f"{'one step, B = 1, 1,024 positions':38} ms   ratio")
    for name, own in times.items():
        print(f"  {name:32} {median(own):6.0f}   {median(a / b for a, b in zip(base, own, strict=True)):.2f}x")


if __name__ == "__main__":
    main()
