"""Training steps of the reference models: those of dither, and competent rivals in plain PyTorch.

A rival does the same work in the same precision: the model written with torch's layers and fused
attention, the loss on all positions or logits, gradient clipping, fused AdamW that decays matrices
only, a learning-rate schedule, no update by NaN or inf, the loss kept for the log, freed memory
kept. It draws its noise from one generator; dither's is a function of the step.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import torch
from alternate import Step
from torch import Tensor, nn
from torch.nn import functional

from dither.engine.config.load_experiment import load_experiment
from dither.engine.training.device import keep_freed_memory
from dither.engine.training.diffusion import Diffusion
from dither.engine.training.trainer import Trainer

ROOT = Path(__file__).parent.parent / "experiments"
FILES = {
    "bubbles": (
        "bubble_diagram/seed_small.toml",
        "task.data.train=2000 task.data.valid=10 task.data.test=10",
    ),
    "regions": ("get_region/seed.toml", "train.batch_size=1"),
    "text": ("language_model/seed.toml", ""),
}


def trainer(task: str, changes: str = "") -> Trainer:
    """Return the trainer of a reference model, without EMA."""
    file, common = FILES[task]
    words = [*common.split(), *changes.split(), "train.ema=0.0", "train.device=cpu"]
    experiment = load_experiment(ROOT / file, words).experiment
    return Trainer(Diffusion.build(experiment).train(), experiment.train, 0)


def engine(task: str, changes: str) -> Step:
    """Return the step of dither; with "separate", each masked region is computed by itself."""
    keep_freed_memory()  # as a run does
    built = trainer(task, changes.replace("separate", ""))
    built.system.model.merge_masked = (
        "separate" not in changes and built.system.model.merge_masked
    )
    return built.advance


class Block(nn.Module):
    """A DiT block: attention and MLP, each modulated by adaLN."""

    def __init__(
        self,
        width: int,
        heads: int,
        dropout: float = 0.0,
        *,
        affine: bool = False,
    ) -> None:
        super().__init__()
        self.heads = heads
        self.norm1, self.norm2 = (
            nn.LayerNorm(width, eps=1e-6, elementwise_affine=affine) for _ in range(2)
        )
        self.qkv = nn.Linear(width, 3 * width)
        self.out = nn.Linear(width, width)
        self.mlp = nn.Sequential(
            nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width)
        )
        self.drop = nn.Dropout(dropout)
        self.modulation = nn.Linear(width, 6 * width)

    def forward(
        self,
        x: Tensor,
        c: Tensor,
        mask: Tensor | None,
        angles: Tensor | None = None,
    ) -> Tensor:
        """Return B L D."""
        shift1, scale1, gate1, shift2, scale2, gate2 = self.modulation(c)[
            :, None
        ].chunk(6, -1)
        h = self.norm1(x) * (1 + scale1) + shift1
        q, k, v = (
            self.qkv(h).view(*h.shape[:2], 3, self.heads, -1).permute(2, 0, 3, 1, 4)
        )
        if angles is not None:
            q = rotated(q, angles)
            k = rotated(k, angles)
        y = functional.scaled_dot_product_attention(q, k, v, mask)
        x = x + gate1 * self.drop(self.out(y.transpose(1, 2).reshape(h.shape)))
        out: Tensor = x + gate2 * self.drop(
            self.mlp(self.norm2(x) * (1 + scale2) + shift2)
        )
        return out


def rotated(x: Tensor, angles: Tensor) -> Tensor:
    """Return queries or keys with rotary position embeddings."""
    cos, sin, (a, b) = angles.cos(), angles.sin(), x.chunk(2, -1)
    return torch.cat([a * cos - b * sin, b * cos + a * sin], -1).to(x.dtype)


class SwiGLU(nn.Module):
    """Gated MLP without biases."""

    def __init__(self, width: int) -> None:
        super().__init__()
        self.gate, self.up = (nn.Linear(width, 4 * width, bias=False) for _ in range(2))
        self.down = nn.Linear(4 * width, width, bias=False)

    def forward(self, x: Tensor) -> Tensor:
        """Return B L D."""
        out: Tensor = self.down(functional.silu(self.gate(x)) * self.up(x))
        return out


class Text(nn.Module):
    """The language model: tokens in, blocks with RoPE, RMSNorm and SwiGLU, a score of every token out."""

    def __init__(
        self,
        vocabulary: int = 50_257,
        width: int = 512,
        heads: int = 8,
        depth: int = 6,
    ) -> None:
        super().__init__()
        self.embed = nn.Embedding(vocabulary, width)
        self.head = nn.Linear(width, vocabulary)
        self.time = conditioning(128)
        self.blocks = nn.ModuleList(Block(width, heads) for _ in range(depth))
        for block in self.blocks:
            block.norm1, block.norm2 = (nn.RMSNorm(width, eps=1e-6) for _ in range(2))
            block.qkv = nn.Linear(width, 3 * width, bias=False)
            block.out = nn.Linear(width, width, bias=False)
            block.mlp = SwiGLU(width)
            block.modulation = nn.Linear(128, 6 * width)
        self.norm = nn.RMSNorm(width, eps=1e-6)
        self.modulation = nn.Linear(128, 2 * width)
        self.register_buffer(
            "frequencies", 10_000 ** -torch.linspace(0, 1, width // heads // 2 + 1)[:-1]
        )

    def forward(self, x: Tensor, sigma: Tensor) -> Tensor:
        """Return B L V."""
        h = self.embed(x)
        c = self.time(timestep(sigma))
        angles = torch.arange(x.shape[1])[:, None] * self.get_buffer("frequencies")
        for block in self.blocks:
            h = block(h, c, None, angles)
        shift, scale = self.modulation(c)[:, None].chunk(2, -1)
        out: Tensor = self.head(self.norm(h) * (1 + scale) + shift)
        return out


def timestep(t: Tensor) -> Tensor:
    """Return sinusoidal features, B 256."""
    angles = t[:, None] * torch.exp(-torch.arange(128) / 128 * math.log(10_000))
    return torch.cat([angles.cos(), angles.sin()], 1)


def conditioning(width: int) -> nn.Module:
    """Return the MLP of the timestep."""
    return nn.Sequential(
        nn.Linear(256, width), nn.SiLU(), nn.Linear(width, width), nn.SiLU()
    )


class Graphs(nn.Module):
    """The small bubble-diagram model: embeddings of rooms and relations, blocks, two heads."""

    def __init__(self, width: int = 128, depth: int = 4, nodes: int = 8) -> None:
        super().__init__()
        self.nodes = nodes
        self.ends = torch.triu_indices(nodes, nodes, 1)
        self.node, self.edge, self.entity = (
            nn.Embedding(n, width) for n in (15, 13, 2)
        )
        self.place = nn.Embedding(nodes, width)
        self.pair = nn.Embedding(nodes, width)
        blocks = (Block(width, 4, 0.1, affine=True) for _ in range(depth))
        self.time = conditioning(width)
        self.blocks = nn.ModuleList(blocks)
        self.norm = nn.LayerNorm(width)
        self.modulation = nn.Linear(width, 2 * width)
        self.node_head = nn.Linear(width, 15)
        self.edge_head = nn.Linear(width, 13)

    def forward(self, x: Tensor, t: Tensor, valid: Tensor) -> tuple[Tensor, Tensor]:
        """Return logits of rooms and of relations."""
        c = self.time(timestep(t))
        h = self.embed(x)
        mask = valid[:, None, None]
        for block in self.blocks:
            h = block(h, c, mask)

        modulation = self.modulation(c)[:, None]
        shift, scale = modulation.chunk(2, -1)
        h = self.norm(h) * (1 + scale) + shift
        rooms, relations = self.split(h)
        return self.node_head(rooms), self.edge_head(relations)

    def embed(self, x: Tensor) -> Tensor:
        """Return the sum of the embeddings of value, place and type: B L D."""
        rooms, relations = self.split(x)
        values = torch.cat([self.node(rooms), self.edge(relations)], 1)

        of_node, of_edge = self.entity.weight
        room_places = self.place.weight + of_node
        # A relation is at both of its rooms.
        relation_places = self.pair(self.ends).sum(0) + of_edge
        return values + torch.cat([room_places, relation_places])

    def split(self, x: Tensor) -> tuple[Tensor, Tensor]:
        """Return the positions of rooms, and those of relations."""
        return x[:, : self.nodes], x[:, self.nodes :]


class Regions(nn.Module):
    """The GET model: regions in, a class token, blocks, regions out."""

    def __init__(self, features: int, width: int = 768) -> None:
        super().__init__()
        self.embed = nn.Linear(features, width)
        self.head = nn.Linear(width, features)
        self.time = conditioning(width)
        self.mask_token, self.cls_token = (
            nn.Parameter(torch.randn(width) * 0.02) for _ in range(2)
        )
        self.blocks = nn.ModuleList(Block(width, 12) for _ in range(12))
        self.norm = nn.LayerNorm(width, eps=1e-6)

    def forward(self, x: Tensor, mask: Tensor, t: Tensor) -> Tensor:
        """Return a prediction of every region."""
        h = torch.where(mask, self.mask_token, self.embed(x))
        h = torch.cat([self.cls_token.expand(len(h), 1, -1), h], 1)
        c = self.time(timestep(t))
        for block in self.blocks:
            h = block(h, c, None)
        out: Tensor = self.head(self.norm(h[:, 1:]))
        return out


def graph_loss(model: nn.Module, clean: Any) -> Tensor:
    """Masked cross-entropy over 1 / t."""
    masks = torch.tensor([13] * 8 + [11] * 28)
    t = (torch.rand(1) + torch.arange(len(clean.x0)) / len(clean.x0)) % 1
    masked = (torch.rand(clean.x0.shape) < t[:, None]) & clean.valid
    logits = model(torch.where(masked, masks, clean.x0), t, clean.valid)
    total = torch.zeros(())
    for part, where, size in zip(
        logits, (slice(0, 8), slice(8, None)), (13, 11), strict=True
    ):
        chosen = masked[:, where]
        ce = functional.cross_entropy(
            part[..., :size][chosen], clean.x0[:, where][chosen], reduction="none"
        )
        total = (
            total
            + (
                ce / t[:, None].expand(-1, chosen.shape[1])[chosen].clamp_min(1e-3)
            ).sum()
        )
    return total / clean.valid.sum()


def region_loss(model: nn.Module, clean: Any) -> Tensor:
    """Mean square of prediction times mask less target times mask."""
    mask = torch.rand(*clean.x0.shape[:2], 1) < 0.5
    return functional.mse_loss(
        model(clean.x0, mask, torch.randint(0, 1000, (len(mask),))) * mask,
        clean.x0 * mask,
    )


def text_loss(system: Diffusion, model: nn.Module, clean: Any) -> Tensor:
    """SEDD's score entropy of a uniform graph on all logits at once, in float32, of the noise that dither draws."""
    process: Any = system.process
    t, noised = system.noise(clean, system.times(len(clean.x0)))
    x = noised.state.x
    x0 = noised.x0
    sigma = noised.noise.sigma.float()[:, None]
    # Log ratios p(y) / p(x) of every token y, 0 at x itself
    score = model(x, process.level(t)).float()
    size = score.shape[-1]
    score = score.scatter(-1, x[..., None], 0.0)
    score_x = score.gather(-1, x[..., None])[..., 0]
    score_x0 = score.gather(-1, x0[..., None])[..., 0]
    same = x == x0

    growth = sigma.expm1()
    ratio = (growth / (growth + size)).expand(x.shape)
    mean = score.mean(-1) - score_x / size
    changed = score_x0 / growth + mean
    negative = torch.where(same, ratio * mean, changed)

    of_same = (size - 1) / size * ratio * (ratio.log() - 1)
    of_changed = ((-ratio.log() - 1) / ratio - (size - 2)) / size
    constant = torch.where(same, of_same, of_changed)

    ratios = score.exp()
    ratio_x = ratios.gather(-1, x[..., None])[..., 0]
    positive = ratios.mean(-1) - ratio_x / size
    rate = noised.noise.rate.float()[:, None]
    losses = (positive - negative + constant) * rate
    return losses.sum() / clean.valid.sum()


def rival(task: str, changes: str = "") -> Step:
    """Return the step of a rival on the batches of dither."""
    keep_freed_memory()
    built = trainer(task, changes)
    data: Any = built.system.task
    loss: Callable[[Any], Tensor]
    if task == "text":
        model: nn.Module = Text()
        loss = partial(text_loss, built.system, model)
    elif task == "bubbles":
        model = (
            partial(Graphs, 32, 1) if "model.depth=1" in changes else Graphs
        )().train()
        loss = partial(graph_loss, model)
    else:
        model = Regions(data.batch("train", [0]).x0.shape[-1])
        loss = partial(region_loss, model)
    if (ours := sum(p.numel() for p in built.parameters)) != (
        size := sum(p.numel() for p in model.parameters())
    ):
        raise AssertionError(f"{task}: {size:,} parameters, not {ours:,} as dither")
    parameters = list(model.parameters())
    groups = [
        {"params": [p for p in parameters if p.ndim > 1]},
        {"params": [p for p in parameters if p.ndim < 2], "weight_decay": 0.0},
    ]
    optimizer = torch.optim.AdamW(groups, 1e-4, fused=True)
    schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, built.lr_factor)
    step = iter(range(10**9))
    half = "bfloat16" in changes
    losses: list[Tensor] = []

    def advance() -> None:
        optimizer.zero_grad()
        with torch.autocast("cpu", torch.bfloat16, enabled=half):
            value = loss(built.batches.read(next(step)))
        value.backward()
        norm = nn.utils.clip_grad_norm_(parameters, 1.0)
        if norm.isfinite():
            optimizer.step()
        schedule.step()
        losses.append(value.detach())

    return advance
