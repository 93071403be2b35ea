"""One training step of the GET model of seed 000 at batch 1, 901 tokens: ours against the seed's own code, by turns.

    python benchmarks/get_step.py [ROUNDS] [WORD ...]

The seed's code is what its text says, step by step: attention as softmax over a matrix of scores that is kept, every
block and the head on all positions, the mean square of prediction times mask less truth times mask; beside it clipping
and fused AdamW. Ours is the engine's step of `seed.toml` with the same work, in float32 or under bfloat16 autocast;
first with a token for each region, as where something tells masked ones apart, then as it is, with one token for all
that are masked. Neither keeps an average of the weights. Each is in a process of its own. Printed are the median in
milliseconds, the median of the ratios of a round beside what is to be reached and what is aimed at, and the most memory
beyond what importing takes, which is to stay below 2,400 MB. All together hold 13 GB. Words choose among the steps by
name; "compiled" brings those that are.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from statistics import median
from typing import Any

import torch
from torch import Tensor, nn
from turns import serve, take_turns

from dither.engine.config.experiment import Experiment
from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.batches import make_order
from dither.engine.training.device import keep_freed_memory
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

FILE = Path(__file__).parent.parent / "experiments" / "get_region" / "seed.toml"
CHANGES = ("train.batch_size=1", "train.ema=0.0", "train.device=cpu")
WIDTH, HEADS, DEPTH = 768, 12, 12
SEED = "seed 000, float32"


class SeedBlock(nn.Module):
    """A DiT block as the seed writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = (nn.LayerNorm(WIDTH, elementwise_affine=False, eps=1e-6) for _ in range(2))
        self.q, self.k, self.v, self.out = (nn.Linear(WIDTH, WIDTH) for _ in range(4))
        self.mlp = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH))
        self.adaln = nn.Sequential(nn.SiLU(), nn.Linear(WIDTH, 6 * WIDTH))

    def forward(self, x: Tensor, c: Tensor) -> Tensor:
        """Attention and MLP, each shifted, scaled and gated."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(c)[:, None].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = (part(h).view(*h.shape[:2], HEADS, -1).transpose(1, 2) for part in (self.q, self.k, self.v))
        y = (q @ k.transpose(-2, -1) / math.sqrt(q.shape[-1])).softmax(-1) @ v
        x = x + gate1 * self.out(y.transpose(1, 2).reshape(h.shape))
        more: Tensor = gate2 * self.mlp(self.norm2(x) * (1 + scale2) + shift2)
        return x + more


class SeedModel(nn.Module):
    """Regions in, a class token, blocks, a norm, regions out."""

    def __init__(self, features: int) -> None:
        super().__init__()
        self.embed, self.head = nn.Linear(features, WIDTH), nn.Linear(WIDTH, features)
        self.mask_token, self.cls_token = (nn.Parameter(torch.randn(WIDTH) * 0.02) for _ in range(2))
        self.time = nn.Sequential(nn.Linear(256, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH))
        self.blocks, self.norm = nn.ModuleList(SeedBlock() for _ in range(DEPTH)), nn.LayerNorm(WIDTH, eps=1e-6)

    def forward(self, x: Tensor, mask: Tensor, t: Tensor) -> Tensor:
        """Return a prediction for every region."""
        angles = t[:, None] * torch.exp(-torch.arange(128) / 128 * math.log(10_000))
        c = self.time(torch.cat([angles.cos(), angles.sin()], 1))
        h = torch.where(mask, self.mask_token, self.embed(x))
        h = torch.cat([self.cls_token.expand(len(h), 1, -1), h], 1)
        for block in self.blocks:
            h = block(h, c)
        prediction: Tensor = self.head(self.norm(h[:, 1:]))
        return prediction


def experiment(*changes: str) -> Experiment:
    """Return the experiment of the seed."""
    return load_experiment(FILE, [*CHANGES, *changes]).experiment


def seed() -> Callable[[], object]:
    """Return a step of the seed's code on the batches of the engine."""
    own = experiment()
    task = own.task.build()
    order = make_order(task, own.train, 0)
    model = SeedModel(task.batch("train", [0]).x0.shape[-1]).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.05, fused=True)
    step = iter(range(10**9))

    def advance() -> None:
        clean = task.batch("train", order.rows(next(step), 1))
        mask = torch.rand(*clean.x0.shape[:2], 1) < 0.5
        optimizer.zero_grad()
        prediction = model(clean.x0, mask, torch.randint(0, 1000, (len(mask),)))
        nn.functional.mse_loss(prediction * mask, clean.x0 * mask).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return advance


def engine(precision: str, *changes: str, joined: bool) -> Callable[[], object]:
    """Return the engine's step."""
    keep_freed_memory()  # as a run does
    own = experiment(f"train.precision={precision}", *changes)
    system = Diffusion.build(own).train()
    model: Any = system.model
    model.merge_masked = joined
    return Trainer(system, own.train, 0).advance


def cases() -> dict[str, tuple[Callable[[], Callable[[], object]], float, float]]:
    """Return what makes each step of the engine, the ratio to reach, and the one to aim at."""
    found: dict[str, tuple[Callable[[], Callable[[], object]], float, float]] = {}
    for compiled in (False, True):
        for each, precision, reach, aim in (
            (True, "float32", 1.3, 1.35),
            (True, "bfloat16", 2.2, 2.6),
            (False, "float32", 2.0, 2.2),
            (False, "bfloat16", 3.8, 5.0),
        ):
            name = f"{precision}{', each by itself' * each}{', compiled' * compiled}"
            change = f"train.compile={'true' if compiled else 'false'}"
            found[name] = partial(engine, precision, change, joined=not each), reach, aim
    return found


def main() -> None:
    """Take each step in turn."""
    every = cases()
    if serve({SEED: seed} | {name: make for name, (make, _, _) in every.items()}):
        return
    rounds, words = ([word for word in sys.argv[1:] if word.isdigit() == digit] for digit in (True, False))
    chosen = [
        name
        for name in every
        if all(word in name for word in words) and ("compiled" in words or "compiled" not in name)
    ]
    times, peaks = take_turns([SEED, *chosen], int(rounds[0]) if rounds else 4)
    print(f"{'':36} {'ms':>5} {'ratio':>7} {'reach':>6} {'aim':>6} {'MB':>6}")
    print(f"{SEED:36} {median(times[SEED]):5.0f} {peaks[SEED]:28.0f}")
    for name in chosen:
        _, reach, aim = every[name]
        ratio = median(a / b for a, b in zip(times[SEED], times[name], strict=True))
        print(f"{name:36} {median(times[name]):5.0f} {ratio:6.2f}x {reach:5.2f}x {aim:5.2f}x {peaks[name]:6.0f}")


if __name__ == "__main__":
    main()
