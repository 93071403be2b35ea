"""A complete plugin in one file: task, process, model, loss and sampler for words of six letters."""

import itertools
from collections.abc import Callable

import numpy as np
import torch
from pydantic import Field
from torch import nn

from dither.registry import Field as SpaceField
from dither.registry import TokenSpace, hookimpl
from dither.registry.contracts.protocols import Metrics, Picture, Process, Task
from dither.registry.contracts.records import (
    Clean,
    Measured,
    Noise,
    Noised,
    State,
    over,
)
from dither.registry.kinds import (
    LossSpec,
    ModelSpec,
    ProcessFacts,
    ProcessSpec,
    SamplerSpec,
    TaskSpec,
)

LENGTH, LETTERS = 6, 4
EVENTS = []
"""What the hooks below were called with, in order."""


class WordsTask(Task):
    """Words are runs of one letter after another; `poison` is a sample that makes the loss NaN."""

    space = TokenSpace((SpaceField("letters", LENGTH, LETTERS),))

    def __init__(self, size, poison):
        self.sizes = {"train": size, "valid": 13, "test": 5}
        self.poison = poison

    def size(self, split):
        return self.sizes[split]

    def batch(self, split, rows):
        key = {"train": 0, "valid": 1, "test": 2}[split]
        starts = [np.random.default_rng([key, row]).integers(LETTERS) for row in rows]
        words = (torch.tensor(starts)[:, None] + torch.arange(LENGTH)) % LETTERS
        scale = torch.tensor(
            [
                float("nan") if split == "train" and row == self.poison else 1.0
                for row in rows
            ]
        )
        return Clean.of(words, scale=scale)

    def like(self, n, seed):
        return Clean.of(torch.zeros(n, LENGTH, dtype=torch.long), scale=torch.ones(n))

    def metrics(self):
        return Accuracy()

    def baselines(self, split="valid", samples=None):
        return {"accuracy/chance": 1 / LETTERS}

    def sample_metrics(self, samples, like):
        return {
            "in_order": ((samples[:, 1:] - samples[:, :-1]) % LETTERS == 1)
            .float()
            .mean()
            .item()
        }

    def plots(self, samples, like):
        yield Picture(
            "words",
            text="\n".join("".join(map(str, word.tolist())) for word in samples),
        )
        yield Picture("dot", png=PNG, svg="<svg/>")


PNG = bytes.fromhex(
    "89504e470d0a1a0a0000000d49484452000000010000000108020000009077"
    "53de0000000c49444154789c63f8cfc0000003010100c9fe92ef0000000049454e44ae426082"
)


class Accuracy(Metrics):
    def __init__(self):
        self.right = self.wanted = 0

    def update(self, clean, noised, pred, measured):
        self.right += ((pred.argmax(-1) == clean.x0) & noised.target_mask).sum().item()
        self.wanted += noised.target_mask.sum().item()

    def compute(self):
        return {"accuracy": self.right / max(self.wanted, 1)}


class Words(TaskSpec):
    """Words of six letters."""

    name = "toy-words"
    size: int = Field(40, ge=0)
    poison: int = -1

    def space(self):
        return WordsTask.space

    def build(self):
        return WordsTask(self.size, self.poison)


class MaskProcess(Process):
    def __init__(self, space):
        self.space = space.with_mask()
        self.mask = self.space.fields[0].mask

    def schedule(self, t):
        return Noise(-torch.log1p(-0.999 * t), 0.999 / (1 - 0.999 * t))

    def times(self, n, device=None):
        return (torch.rand(1, device=device) + torch.arange(n, device=device) / n) % 1

    def level(self, t):
        return t

    def corrupt(self, clean, t):
        noise = self.schedule(t)
        hidden = (
            torch.rand(clean.x0.shape) < noise.one_minus_alpha(clean.x0)
        ) & ~clean.fixed
        x = torch.where(hidden, self.mask, clean.x0)
        return Noised(clean.x0, State.of(x), noise, hidden, clean.valid, clean.fixed)

    def read(self, raw, state, noise):
        assert raw.dtype == torch.float32
        raw = raw.clone()
        raw[..., self.mask] = -torch.inf
        return raw.log_softmax(-1)

    def prior(self, like):
        return State.of(torch.where(like.fixed, like.x0, self.mask))

    def step(self, state, pred, now, then, like):
        stays = (then.one_minus_alpha(state.x) / now.one_minus_alpha(state.x)).expand(
            state.x.shape
        )
        fill = (state.x == self.mask) & (torch.rand(state.x.shape) > stays)
        return State.of(
            torch.where(
                fill, torch.distributions.Categorical(logits=pred).sample(), state.x
            )
        )

    def finish(self, state, pred, like):
        return torch.where(state.x == self.mask, pred.argmax(-1), state.x)


class Mask(ProcessSpec):
    """Letters vanish one by one."""

    name = "toy-mask"
    serves = frozenset({"tokens"})

    def facts(self, space):
        return ProcessFacts(self.name, space.with_mask(), "posterior", "mask")

    def build(self, space):
        return MaskProcess(space)


class Net(nn.Module):
    """Each letter looks at the mean of all letters up to its own."""

    def __init__(self, vocab, width, dropout):
        super().__init__()
        self.table = nn.Embedding(vocab, width)
        self.place = nn.Parameter(torch.randn(LENGTH, width))
        self.time = nn.Linear(1, width)
        self.body = nn.Sequential(
            nn.Linear(2 * width, width), nn.GELU(), nn.Dropout(dropout)
        )
        self.head = nn.Linear(width, vocab)

    def forward(self, state, level, valid, cond, *, cache=None, keep=False):
        return self.head(self.trunk(state, level, valid, cond, cache=cache, keep=keep))

    def trunk(self, state, level, valid, cond, *, cache=None, keep=False):
        start = cache.length if cache is not None else 0
        h = self.table(state.x) + self.place[start : start + state.x.shape[1]]
        h = (
            h + over(self.time(level[..., None]), h)
            if level.ndim == 2
            else h + self.time(level[:, None])[:, None]
        )
        past = (
            h if cache is None or cache.past is None else torch.cat([cache.past, h], 1)
        )
        sums = past.cumsum(1) / torch.arange(1, past.shape[1] + 1)[:, None]
        if keep:
            cache.past, cache.length = past, past.shape[1]
        return self.body(torch.cat([h, sums[:, -h.shape[1] :]], -1)) * over(
            cond["scale"], h
        )

    def new_cache(self):
        return Past()


class Past:
    def __init__(self):
        self.length, self.past = 0, None


class NetSpec(ModelSpec):
    """A small net."""

    name = "toy-net"
    width: int = 8
    dropout: float = 0.1

    def build(self, space):
        return Net(space.vocab, self.width, self.dropout)


class CrossEntropy(LossSpec):
    """Cross-entropy of masked letters."""

    name = "toy-ce"

    def build(self, process):
        def measure(pred, noised):
            values = -pred.gather(-1, noised.x0[..., None])[..., 0]
            return Measured(
                torch.where(noised.target_mask, values, 0.0), noised.target_mask.float()
            )

        return measure


class Walk(SamplerSpec):
    """Equal steps; with `block`, block by block of this many letters."""

    name = "toy-walk"
    steps: int = 4
    block: int | None = None

    def build(self) -> Callable:
        def walk(process, session, like):
            if self.block is None:
                yield from self.back(process, session, like)
                return
            done = []
            for start in range(0, LENGTH, self.block):
                piece = like.slice_positions(start, start + self.block)
                for x in self.back(process, session, piece):
                    yield torch.cat([*done, x], 1)
                session.append(x)
                done.append(x)

        return walk

    def back(self, process, session, like):
        state, n = process.prior(like), len(like.valid)
        times = torch.linspace(1, 0.01, self.steps + 1)
        for t, s in itertools.pairwise(times):
            now, then = process.schedule(t.expand(n)), process.schedule(s.expand(n))
            state = process.step(state, session(state, t.expand(n)), now, then, like)
            yield state.x
        yield process.finish(state, session(state, times[-1].expand(n)), like)


@hookimpl
def register_components():
    return [Words, Mask, NetSpec, CrossEntropy, Walk]


@hookimpl
def before_run(run):
    EVENTS.append(("before_run", run.trainer.step))


@hookimpl
def after_step(run, step, metrics):
    EVENTS.append(("after_step", step, float(metrics["loss"])))


@hookimpl
def after_eval(step, metrics):
    EVENTS.append(("after_eval", step, metrics["accuracy"]))


@hookimpl
def after_checkpoint(step, path):
    EVENTS.append(("after_checkpoint", step, path))


@hookimpl
def after_run(summary):
    EVENTS.append(("after_run", summary["step"]))


@hookimpl
def on_run_error(run, error):
    EVENTS.append(("on_run_error", type(error).__name__))
