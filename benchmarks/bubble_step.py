"""One training step of the small bubble model at batch 64: ours against a straightforward one, in turns, in one run.

    python benchmarks/bubble_step.py [ROUNDS]

The straightforward one is what a person would write from seed 001: torch's layers, scaled_dot_product_attention under a
mask of PAD, dropout 0.1, masked cross-entropy over 1/t, clipping, an average of the weights, fused AdamW. Ours is the
engine's step, with the same work and dropout: with PAD, without it, and with batches of one number of rooms. Rooms are
as frequent as the generator makes them (RPLAN's histogram), or evenly 4 to 8. Printed are mean and quartiles in
milliseconds, and the ratio of the means: batches of one number of rooms differ in length. Each step is in a process of
its own, since the allocator is told for a whole process to keep freed memory; only the engine does so.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from statistics import fmean, quantiles
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn import functional
from turns import serve, take_turns

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.batches import make_order
from dither.engine.training.device import keep_freed_memory
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

FILE = Path(__file__).parent.parent / "experiments" / "bubble_diagram" / "seed_small.toml"
CHANGES = ("task.data.train=20000", "task.data.valid=10", "task.data.test=10", "train.batch_size=64")
WIDTH, HEADS, DEPTH, NODES, EDGES = 128, 4, 4, 8, 28


class PlainBlock(nn.Module):
    """A DiT block as the seed writes it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm1, self.norm2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.out = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.ffn = nn.Sequential(nn.Linear(WIDTH, 4 * WIDTH), nn.GELU(), nn.Linear(4 * WIDTH, WIDTH), nn.Dropout(0.1))
        self.drop, self.adaln = nn.Dropout(0.1), nn.Linear(WIDTH, 6 * WIDTH)

    def forward(self, x: Tensor, c: Tensor, mask: Tensor) -> Tensor:
        """Attention and FFN, each shifted, scaled and gated."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.adaln(c).unsqueeze(1).chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = self.qkv(h).view(*h.shape[:2], 3, HEADS, WIDTH // HEADS).permute(2, 0, 3, 1, 4)
        y = functional.scaled_dot_product_attention(q, k, v, mask, 0.1 if self.training else 0.0)
        x = x + gate1 * self.drop(self.out(y.transpose(1, 2).reshape(h.shape)))
        return x + gate2 * self.ffn(self.norm2(x) * (1 + scale2) + shift2)


class PlainModel(nn.Module):
    """Embeddings of rooms and relations, blocks, two heads."""

    def __init__(self) -> None:
        super().__init__()
        self.node, self.edge, self.place = (nn.Embedding(n, WIDTH) for n in (15, 13, NODES + EDGES))
        self.time = nn.Sequential(nn.Linear(256, WIDTH), nn.SiLU(), nn.Linear(WIDTH, WIDTH), nn.SiLU())
        self.blocks = nn.ModuleList(PlainBlock() for _ in range(DEPTH))
        self.norm, self.adaln = nn.LayerNorm(WIDTH), nn.Linear(WIDTH, 2 * WIDTH)
        self.node_head, self.edge_head = nn.Linear(WIDTH, 15), nn.Linear(WIDTH, 13)

    def forward(self, x: Tensor, t: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of rooms and of relations."""
        angles = t[:, None] * torch.exp(-torch.arange(128) / 128 * 9.21)
        c = self.time(torch.cat([angles.cos(), angles.sin()], 1))
        h = torch.cat([self.node(x[:, :NODES]), self.edge(x[:, NODES:])], 1) + self.place.weight
        for block in self.blocks:
            h = block(h, c, valid[:, None, None])
        shift, scale = self.adaln(c).unsqueeze(1).chunk(2, -1)
        h = self.norm(h) * (1 + scale) + shift
        return self.node_head(h[:, :NODES]), self.edge_head(h[:, NODES:])


def straightforward(trainer: Trainer) -> Callable[[], None]:
    """Return one step of the plain model on the batches of a trainer."""
    model = PlainModel().train()
    optimizer = torch.optim.AdamW(model.parameters(), 1.5e-3, fused=True)
    average = torch.optim.swa_utils.AveragedModel(model, multi_avg_fn=torch.optim.swa_utils.get_ema_multi_avg_fn(0.999))
    task, masks = trainer.system.task, torch.tensor([13] * NODES + [11] * EDGES)
    step = iter(range(10**9))

    def advance() -> None:
        clean = task.batch("train", trainer.rows(next(step)))
        t = (torch.rand(1) + torch.arange(64) / 64) % 1
        hidden = (torch.rand(64, NODES + EDGES) < t[:, None]) & clean.valid
        logits = model(torch.where(hidden, masks, clean.x0), t, clean.valid)
        total = torch.zeros(())
        for part, where, size in zip(logits, (slice(0, NODES), slice(NODES, None)), (13, 11), strict=True):
            chosen = hidden[:, where]
            ce = functional.cross_entropy(part[..., :size][chosen], clean.x0[:, where][chosen], reduction="none")
            total = total + (ce / t[:, None].expand(-1, chosen.shape[1])[chosen].clamp_min(1e-3)).sum()
        optimizer.zero_grad()
        (total / clean.valid.sum()).backward()
        nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimizer.step()
        average.update_parameters(model)

    return advance


def trainer(rooms: str, *changes: str) -> Trainer:
    """Return the engine's trainer of the small model; "even" takes as many plans of each number of rooms."""
    experiment = load_experiment(FILE, [*CHANGES, *changes]).experiment
    built = Trainer(Diffusion.build(experiment).train(), experiment.train, 0)
    if rooms == "even":
        task: Any = built.system.task
        buckets = torch.tensor(task.buckets("train"))
        generator = torch.Generator().manual_seed(0)
        own = [torch.where(buckets == n)[0] for n in range(4, 9)]
        rows = torch.cat([rows[torch.randint(len(rows), (640,), generator=generator)] for rows in own])
        task._tokens["train"] = task._tokens["train"][rows]
        built.order = make_order(task, experiment.train, 0)
    return built


def engine(rooms: str, *changes: str) -> Callable[[], object]:
    """Return the engine's step."""
    keep_freed_memory()  # as a run does
    return trainer(rooms, *changes).advance


def steps(rooms: str) -> dict[str, Callable[[], Callable[[], object]]]:
    """Return what makes each step."""
    return {
        f"straightforward, SDPA with PAD, {rooms}": lambda: straightforward(trainer(rooms)),
        f"engine, with PAD, {rooms}": lambda: engine(rooms),
        f"engine, buckets, {rooms}": lambda: engine(rooms, "train.buckets=true"),
    }


def main() -> None:
    """Measure with both histograms of rooms."""
    if serve(steps("as generated") | steps("even")):
        return
    rounds = int(sys.argv[1]) if len(sys.argv) > 1 else 100
    for rooms in ("as generated", "even"):
        found = take_turns([*steps(rooms)], rounds, warm=20).times
        print(f"rooms {rooms}: {'mean':>38} {'quartiles':>17}")
        baseline = fmean(next(iter(found.values())))
        for name, some in found.items():
            text = " ".join(f"{q:7.1f}" for q in quantiles(some, n=4))
            print(f"  {name:43} {fmean(some):7.1f} {text} ms   {baseline / fmean(some):.2f}x")


if __name__ == "__main__":
    main()
