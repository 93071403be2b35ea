"""Compare loss and sampler of seed_004.py with ours on a Markov chain of known entropy: the tables of docs/results.md.

python docs/examples/seed_004_tables.py
"""

import math
import sys
import time

import torch
from seed_004 import SeedSampler, seed_004
from torch import Tensor

from dither.losses.tokens import score_entropy
from dither.processes.samplers.ancestral import Ancestral
from dither.processes.tokens.specs import prior_kl
from dither.registry import Field, TokenSpace, default_catalog
from dither.registry.contracts.records import Clean, Measured, State

IDS, LENGTH, STEPS, BATCH = 8, 16, 800, 64
SPACE = TokenSpace((Field("text", LENGTH, IDS),))
MODEL = {
    "use": "denoiser",
    "width": 64,
    "depth": 2,
    "embedding": {"use": "tokens", "init": "kaiming"},
    "block": {
        "use": "adaln-zero",
        "heads": 4,
        "mlp": "swiglu",
        "bias": False,
        "rope": True,
    },
}
RANGES = {"1e-4 .. 20": (1e-4, 20.0), "1e-3 .. 1": (1e-3, 1.0)}

chain = torch.distributions.Dirichlet(torch.full((IDS, IDS), 0.3, dtype=torch.float64))


def texts(transitions: Tensor, start: Tensor, count: int) -> Tensor:
    """Draw windows of the stationary chain."""
    x = [torch.multinomial(start, count, replacement=True)]
    for _ in range(LENGTH - 1):
        x.append(torch.multinomial(transitions[x[-1]], 1)[:, 0])
    return torch.stack(x, 1)


class Trained:
    """A model under the process of the seed; also the session of its samplers."""

    def __init__(self, ends: tuple[float, float]) -> None:
        schedule = {"use": "geometric", "sigma_min": ends[0], "sigma_max": ends[1]}
        options = {
            "use": "uniform",
            "predict": "score",
            "level": "log-sigma",
            "schedule": schedule,
            "t_min": 0.0,
        }
        self.process = default_catalog().parse("process", options).build(SPACE)
        torch.manual_seed(1)
        self.model = default_catalog().parse("model", MODEL).build(SPACE)

    def __call__(self, state: State, t: Tensor, at: Tensor | None = None):
        """Denoise."""
        valid = torch.ones_like(state.x, dtype=torch.bool)
        raw = self.model(state, self.process.level(t), valid, {})
        pred = self.process.read(raw, state, self.process.schedule(t))
        return pred if at is None else pred.at(at)

    def measure(self, loss, x0: Tensor) -> tuple[Clean, Measured]:
        """A loss at random times."""
        clean = Clean.of(x0)
        t = self.process.times(len(x0))
        noised = self.process.corrupt(clean, t)
        return clean, loss(self(noised.state, t), noised)

    def fit(self, loss, data) -> "Trained":
        """Train, and skip updates with NaN."""
        optimizer = torch.optim.AdamW(self.model.parameters(), 3e-3)
        rates = torch.optim.lr_scheduler.CosineAnnealingLR(optimizer, STEPS)
        for _ in range(STEPS):
            _, measured = self.measure(loss, data(BATCH))
            optimizer.zero_grad()
            measured.mean().backward()
            torch.nn.utils.clip_grad_norm_(self.model.parameters(), 1.0)
            optimizer.step()
            rates.step()
        return self

    @torch.no_grad()
    def bound(self, x0: Tensor, repeats: int = 8) -> tuple[float, float]:
        """The whole bound in nats per token, and its standard error."""
        rows = []
        for _ in range(repeats):
            clean, measured = self.measure(score_entropy, x0)
            rows.append(
                self.process.bound(clean, measured, self).values.double().mean(1)
            )
        per_text = torch.stack(rows).mean(0)
        return per_text.mean().item(), per_text.std().item() / math.sqrt(len(per_text))

    @torch.no_grad()
    def surprise(self, sampler, score, count: int = 1024) -> float:
        """Mean -log p of samples under the source, in nats per token: the entropy, if their law is that of the data."""
        *_, x = sampler(
            self.process, self, Clean.of(torch.zeros(count, LENGTH, dtype=torch.long))
        )
        return score(x).mean().item()


def main() -> None:
    """Print the tables."""
    torch.manual_seed(0)
    torch.set_num_threads(1)
    transitions = 0.99 * chain.sample() + 0.01 / IDS
    start = torch.linalg.matrix_power(transitions, 10_000)[0]

    def data(count: int) -> Tensor:
        return texts(transitions, start, count)

    def score(x: Tensor) -> Tensor:
        return (
            -(start[x[:, 0]].log() + transitions[x[:, :-1], x[:, 1:]].log().sum(1))
            / LENGTH
        )

    rate = -(start[:, None] * transitions * transitions.log()).sum().item()
    first = -(start * start.log()).sum().item()
    entropy = (first + (LENGTH - 1) * rate) / LENGTH
    held = data(1024)
    print(
        f"entropy {entropy:.3f} nats per token; unigrams {first:.3f}; even {math.log(IDS):.3f}\n"
    )
    print(
        "| loss | sigma | whole bound | of it prior KL | -log p of `ancestral` samples | of `seed-004` samples |"
    )
    print("|---|---|---|---|---|---|")
    for name, loss in (("score-entropy", score_entropy), ("seed-004", seed_004)):
        for label, ends in RANGES.items():
            began = time.perf_counter()
            trained = Trained(ends).fit(loss, data)
            bound, error = trained.bound(held)
            ours, theirs = (
                trained.surprise(sampler, score)
                for sampler in (
                    Ancestral(steps=64, t_min=1e-3).build(),
                    SeedSampler(steps=65).build(),
                )
            )
            kl = prior_kl(IDS, ends[1])
            said = f"{bound:.3f} ± {error:.3f}" if bound < 1e3 else f"{bound:.2g}"
            print(
                f"| `{name}` | {label} | {said} | {kl:.3f} | {ours:.3f} | {theirs:.3f} |",
                flush=True,
            )
            print(f"{time.perf_counter() - began:.0f} s", flush=True, file=sys.stderr)


if __name__ == "__main__":
    main()
