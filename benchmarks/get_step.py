"""One training step of the GET model of seed 000 at batch 1, 901 tokens: ours against the seed's own code, by turns.

    python benchmarks/get_step.py [float32|bfloat16] [PAIRS]
    python benchmarks/get_step.py memory

The seed's code is what its text says, step by step: attention as softmax over a matrix of scores that is kept, every
block and the head on all positions, the mean square of prediction times mask less truth times mask; beside it clipping
and fused AdamW. Ours is the engine's step of `seed.toml` with the same work, in float32 or under bfloat16 autocast.
Neither keeps an average of the weights. Printed are medians in milliseconds and the median of the ratios of pairs;
"memory" prints the most that a fresh process of each held beyond what importing takes.
"""

from __future__ import annotations

import math
import re
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn

from dither.engine.experiment import load_experiment
from dither.engine.system import Diffusion
from dither.engine.trainer import Trainer

FILE = Path(__file__).parent.parent / "experiments" / "get_region" / "seed.toml"
CHANGES = ("train.batch_size=1", "train.ema=0.0", "train.device=cpu")
WIDTH, HEADS, DEPTH = 768, 12, 12


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


def trainer(precision: str) -> Trainer:
    """Return the engine's trainer of the seed."""
    experiment = load_experiment(FILE, [*CHANGES, f"train.precision={precision}"]).experiment
    return Trainer(Diffusion.build(experiment).train(), experiment.train, 0)


def seed_step(built: Trainer) -> Callable[[], object]:
    """Return a step of the seed's code on the batches of a trainer."""
    task = built.system.task
    model = SeedModel(task.batch("train", [0]).x0.shape[-1]).train()
    optimizer = torch.optim.AdamW(model.parameters(), 1e-4, weight_decay=0.05, fused=True)
    step = iter(range(10**9))

    def advance() -> None:
        clean = task.batch("train", built.rows(next(step)))
        mask = torch.rand(*clean.x0.shape[:2], 1) < 0.5
        prediction = model(clean.x0, mask, torch.randint(0, 1000, (len(mask),)))
        optimizer.zero_grad()
        nn.functional.mse_loss(prediction * mask, clean.x0 * mask).backward()  # type: ignore[no-untyped-call]
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()

    return advance


def measure(precision: str, pairs: int) -> None:
    """Take each step in turn."""
    built = trainer(precision)
    cases = {"seed 000, float32": seed_step(built), f"engine, {precision}": built.advance}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for number in range(pairs + 1):
        for name, advance in cases.items():
            began = time.perf_counter()
            advance()
            if number:
                times[name].append(1000 * (time.perf_counter() - began))
    seed, ours = times.values()
    for name, some in times.items():
        print(f"{name:20} {median(some):7.0f} ms")
    print(f"{median(a / b for a, b in zip(seed, ours, strict=True)):.2f}x")


def peak(case: str) -> None:
    """Print the peak memory of three steps in this process."""
    before = _most()
    built = trainer("float32" if case == "seed" else case)
    advance = seed_step(built) if case == "seed" else built.advance
    if case == "seed":  # the engine's own model is not to count
        del built.system.model, built.optimizer, built.parameters
    for _ in range(3):
        advance()
    print(f"{case:10} {_most() - before:6.0f} MB")


def _most() -> float:
    """Return the most memory that this process has held, in MB."""
    found = re.search(r"VmHWM:\s+(\d+) kB", Path("/proc/self/status").read_text())
    assert found is not None
    return int(found[1]) / 1000


def main() -> None:
    """Measure what the words ask for."""
    words = sys.argv[1:]
    if words[:1] == ["peak"]:
        peak(words[1])
    elif words == ["memory"]:
        for case in ("seed", "float32", "bfloat16"):
            done = subprocess.run([sys.executable, __file__, "peak", case], capture_output=True, text=True, check=True)
            print(done.stdout, end="")
    else:
        counts = [int(word) for word in words if word.isdigit()]
        measure("bfloat16" if "bfloat16" in words else "float32", counts[0] if counts else 4)


if __name__ == "__main__":
    main()
