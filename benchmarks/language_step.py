"""One step of training the language model of seed 004, straightforward and ours by turns, in one run.

    python benchmarks/language_step.py [PAIRS] [keep-memory] [compile]

V = 50,257, 1,024 positions, batch 1. The straightforward step is the same body in float32, SEDD's mathematics on all
logits at once, clipping, fused AdamW; ours is the engine's with bfloat16 products, float32 sums and head and loss in
one. Neither keeps an average of the weights. "keep-memory" tells the allocator of glibc to give nothing back, for both.
Printed are medians in milliseconds and the median of the ratios.
"""

from __future__ import annotations

import ctypes
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from language_head import straightforward
from torch import nn

from dither.engine.experiment import load_experiment
from dither.engine.system import Diffusion
from dither.engine.trainer import Trainer

FILE = Path(__file__).parent.parent / "experiments" / "language_model" / "seed.toml"
CHANGES = ("train.batch_size=1", "train.ema=0.0", "train.device=cpu")
M_TRIM_THRESHOLD, M_MMAP_MAX = -1, -4


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


def main() -> None:
    """Take each step in turn."""
    words = sys.argv[1:]
    pairs = int(words[0]) if words and words[0].isdigit() else 3
    if "keep-memory" in words:
        libc = ctypes.CDLL(None)
        print("mallopt:", libc.mallopt(M_MMAP_MAX, 0), libc.mallopt(M_TRIM_THRESHOLD, 2**31 - 1))
    plain = plain_step(trainer())
    compiled = ["train.compile=true"] if "compile" in words else []
    ours = trainer("train.precision=bfloat16", *compiled).advance
    times = []
    for number in range(pairs + 1):
        pair = []
        for run in (plain, ours):
            began = time.perf_counter()
            run()
            pair.append(1000 * (time.perf_counter() - began))
        times += [pair] if number else []
    base, own = (median(column) for column in zip(*times, strict=True))
    print(f"straightforward {base:.0f} ms, ours {own:.0f} ms, {median(a / b for a, b in times):.2f}x")


if __name__ == "__main__":
    main()
