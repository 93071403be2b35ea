"""One step of block sampling at the end of 1,024 tokens: behind our cache against passes without one, in turns.

    python benchmarks/block_cache.py [STEPS [SIZE]]

The model is that of seed 004 with block-causal attention (width 512, depth 6, 8 heads, 50,257 ids), batch 1, float32.
The block of 16 or 64 positions is the last one, behind 1,008 or 960 finished positions. Without a cache a step computes
all 1,024 positions under the block-causal mask, finished ones at level 0:

- straightforward: written here as a person would, with torch's layers and the logits of every position;
- straightforward, head on the block: the same, with logits of the block alone;
- ours without a cache: our model on the whole sample, with logits of the block alone.

Behind the cache only the block is computed. Printed are medians in milliseconds, medians of the ratios of turns, and
the most that a step adds to the resident memory of a process of its own.
"""

from __future__ import annotations

import subprocess
import sys
import time
from collections.abc import Callable
from functools import cache
from pathlib import Path
from statistics import median

import torch
from torch import Tensor, nn
from torch.nn import functional

from dither.core_blocks.denoiser import Denoiser
from dither.registry import Field, TokenSpace, default_catalog
from dither.registry.flow.records import State

LENGTH, IDS, WIDTH, HEADS, DEPTH, COND = 1024, 50_257, 512, 8, 6, 128
CASES = (
    "straightforward",
    "straightforward, head on the block",
    "ours without a cache",
    "ours behind the cache",
)


class PlainBlock(nn.Module):
    """A block of seed 004."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.RMSNorm(WIDTH, 1e-6), nn.RMSNorm(WIDTH, 1e-6)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH, False), nn.Linear(WIDTH, WIDTH, False)
        self.gate, self.up = nn.Linear(WIDTH, 4 * WIDTH, False), nn.Linear(WIDTH, 4 * WIDTH, False)
        self.down, self.adaln = nn.Linear(4 * WIDTH, WIDTH, False), nn.Linear(COND, 6 * WIDTH)

    def forward(self, x: Tensor, c: Tensor, mask: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
        """Attention and SwiGLU, each shifted, scaled and gated."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(c).chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(turned(q, turns), turned(k, turns), v, mask)
        x = x + gate1 * self.out(y.transpose(1, 2).reshape(h.shape))
        h = self.norm2(x) * (1 + scale2) + shift2
        out: Tensor = x + gate2 * self.down(functional.silu(self.gate(h)) * self.up(h))
        return out


def turned(x: Tensor, turns: tuple[Tensor, Tensor]) -> Tensor:
    """Turn by rotary positions."""
    cos, sin = turns
    a, b = x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1)


class Plain(nn.Module):
    """Seed 004 under a block-causal mask, a level per position, no cache."""

    def __init__(self, size: int) -> None:
        super().__init__()
        self.table, self.norm, self.adaln = nn.Embedding(IDS, WIDTH), nn.RMSNorm(WIDTH), nn.Linear(COND, 2 * WIDTH)
        self.time = nn.Sequential(nn.Linear(256, COND), nn.SiLU(), nn.Linear(COND, COND), nn.SiLU())
        self.blocks, self.head = nn.ModuleList(PlainBlock() for _ in range(DEPTH)), nn.Linear(WIDTH, IDS)
        block = torch.arange(LENGTH) // size
        self.mask = block[:, None] >= block
        angle = torch.outer(torch.arange(LENGTH), 10_000 ** (-torch.arange(0, 64, 2) / 64))
        self.turns = angle.cos(), angle.sin()

    def forward(self, x: Tensor, level: Tensor, start: int) -> Tensor:
        """Return logits from position `start` on."""
        angle = level[..., None] * torch.exp(-torch.arange(128) / 128 * 9.21)
        c, h = self.time(torch.cat([angle.cos(), angle.sin()], -1)), self.table(x)
        for block in self.blocks:
            h = block(h, c, self.mask, self.turns)
        shift, scale = self.adaln(c).chunk(2, -1)
        logits: Tensor = self.head((self.norm(h) * (1 + scale) + shift)[:, start:])
        return logits


@cache
def denoiser(size: int) -> Denoiser:
    """Return our model."""
    block = {"use": "adaln-zero", "heads": HEADS, "norm": "rms", "affine": True, "mlp": "swiglu", "bias": False}
    options = {"width": WIDTH, "depth": DEPTH, "cond": COND, "norm": "rms", "affine": True, "block_size": size}
    spec = default_catalog().parse("model", {"use": "denoiser", "block": block | {"rope": True}, **options})
    model: Denoiser = spec.build(TokenSpace((Field("text", LENGTH, IDS),))).eval()  # type: ignore[attr-defined]
    return model


@cache
def plain(size: int) -> Plain:
    """Return the straightforward model."""
    return Plain(size).eval()


def step_of(name: str, size: int) -> Callable[[], Tensor]:
    """Return a step of one sort, on a text of which all but the last block is finished."""
    start = (LENGTH - 1) // size * size
    x, valid, now = torch.randint(0, IDS, (1, LENGTH)), torch.ones(1, LENGTH, dtype=torch.bool), torch.ones(1)
    level = (torch.arange(LENGTH) >= start)[None].float()
    if name.startswith("straightforward"):
        model, head = plain(size), start if "block" in name else 0
        return lambda: model(x, level, head)
    ours, whole, block = denoiser(size), State.of(x), State.of(x[:, start:])
    if "without" in name:
        return lambda: ours.head(ours.trunk(whole, level, valid, {})[:, start:])
    memory = ours.new_cache()
    ours.trunk(State.of(x[:, :start]), torch.zeros(1), valid[:, :start], {}, cache=memory, keep=True)
    return lambda: ours(block, now, valid[:, start:], {}, cache=memory)


def status(key: str) -> float:
    """Return a line of this process's status, in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) / 1024 for line in lines if line.startswith(key))


@torch.no_grad()
def peak(size: int, name: str) -> float:
    """Return what one step adds to the resident memory, at most; in a fresh process."""
    step = step_of(name, size)
    Path("/proc/self/clear_refs").write_text("5")  # the peak begins anew
    before = status("VmRSS")
    step()
    return status("VmHWM") - before


@torch.no_grad()
def measure(size: int, steps: int) -> None:
    """Take each step in turn, and print a table."""
    chosen = {name: step_of(name, size) for name in CASES}
    times: dict[str, list[float]] = {name: [] for name in chosen}
    for number in range(steps + 2):
        for name, step in chosen.items():
            began = time.perf_counter()
            step()
            if number >= 2:
                times[name].append(1000 * (time.perf_counter() - began))
    print(f"blocks of {size}: {'ms':>35} {'ratio to ours':>15} {'MB':>6}")
    ours = times["ours behind the cache"]
    for name, some in times.items():
        ratio = median(a / b for a, b in zip(some, ours, strict=True))
        given = [sys.executable, __file__, "peak", str(size), name]
        memory = float(subprocess.run(given, capture_output=True, text=True, check=True).stdout)
        print(f"  {name:38} {median(some):7.1f} {ratio:14.1f}x {memory:6.0f}")


def main() -> None:
    """Measure both sizes of a block, or the memory of one case."""
    if sys.argv[1:2] == ["peak"]:
        print(peak(int(sys.argv[2]), sys.argv[3]))
        return
    for size in map(int, sys.argv[2:] or (16, 64)):
        measure(size, int(sys.argv[1]) if len(sys.argv) > 1 else 15)


if __name__ == "__main__":
    main()
