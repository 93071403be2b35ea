"""Coverage of the 95 % intervals of likelihoods, with the exact denoiser of a known distribution.

    python benchmarks/coverage.py --repeats 200 --draws 32 64

Prints, for each process, the share of repetitions in which the interval has the true value: of
`log_likelihood` for six texts, with that many draws, and of an evaluation of as many texts. An
exact model has a bound without slack, so that the true values are log p and the entropy.
"""

from __future__ import annotations

import argparse
from collections.abc import Iterator
from typing import Any

import torch
from torch import Tensor

from dither.engine import Diffusion
from dither.engine.training.block_diffusion import BlockDiffusion
from dither.engine.training.evaluation import evaluate
from dither.engine.training.likelihood import log_likelihood
from dither.losses.tokens import masked_ce, score_entropy
from dither.processes.tokens.specs import Absorbing, Hybrid, Marginal, Uniform
from dither.registry import Field, TokenSpace
from dither.registry.contracts.records import Clean
from dither.testing.exact_denoiser import ExactDenoiser, random_joint

IDS = 3
LENGTH = 4
BLOCK = 2
TEXTS = 6
SPACE = TokenSpace((Field("text", LENGTH, IDS),))
BATCH = 8192
ESTIMATORS = ("mask-count", "time", "importance")
SCHEDULES = ("log-linear", "cosine", "cosine-squared", "polynomial", "geometric")


def systems(joint: Tensor) -> Iterator[tuple[str, Diffusion]]:
    """Yield an exact system of every process, with its name."""
    for estimator in ESTIMATORS:
        spec = Absorbing(estimator=estimator)
        yield f"absorbing, {estimator}", system_of(spec, joint)
    for schedule in SCHEDULES:
        uniform = Uniform(predict="posterior", schedule=schedule)
        yield f"uniform, {schedule}", system_of(uniform, joint)
    frequencies = {"text": [1, 2, 5]}
    yield "marginal", system_of(Marginal(frequencies=frequencies), joint)
    yield "hybrid", system_of(Hybrid(), joint)
    yield "blocks, absorbing", system_of(Absorbing(), joint, BLOCK)
    log_linear = Uniform(predict="posterior", schedule="log-linear")
    yield "blocks, uniform", system_of(log_linear, joint, BLOCK)


def system_of(spec: Any, joint: Tensor, size: int | None = None) -> Diffusion:
    """Return the system of a process with the exact model of a distribution."""
    process = spec.build(SPACE)
    return Diffusion(
        task=None,
        process=process,
        model=ExactDenoiser(process, joint, size),
        loss=masked_ce if isinstance(spec, Absorbing) else score_entropy,
        sampler=None,
        bound=True,
        blocks=BlockDiffusion(LENGTH, size) if size else None,
    )


def of_rows(system: Diffusion, joint: Tensor, draws: int, repeats: int) -> float:
    """Return the coverage of `log_likelihood`, over repetitions and texts."""
    texts = draw_texts(joint, TEXTS)
    truth = joint[tuple(texts.T)].log()
    bound = log_likelihood(
        system, texts.repeat(repeats, 1), samples=draws, seed=draws, batch_size=BATCH
    )
    error = (bound.values.view(repeats, TEXTS) - truth).abs()
    return float((error <= bound.half_widths.view_as(error)).double().mean())


def of_evaluation(
    system: Diffusion, joint: Tensor, samples: int, repeats: int
) -> float:
    """Return the coverage of `evaluate` over repetitions with texts of their own."""
    entropy = -float((joint * joint.log()).sum())
    inside = 0
    for repeat in range(repeats):
        torch.manual_seed(repeat)
        system.task = Texts(draw_texts(joint, samples))
        metrics = evaluate(system, samples, BATCH, seed=repeat)
        error = abs(metrics["nats_per_text"] - entropy)
        inside += error <= metrics["nats_per_text_ci95"]
    return inside / repeats


def draw_texts(joint: Tensor, count: int) -> Tensor:
    """Draw texts from a distribution."""
    numbers = torch.multinomial(joint.flatten(), count, replacement=True)
    return torch.stack(torch.unravel_index(numbers, joint.shape), 1)


class Texts:
    """A task whose split is a table of texts."""

    def __init__(self, texts: Tensor) -> None:
        self.texts = texts

    def size(self, split: str) -> int:
        return len(self.texts)

    def batch(self, split: str, rows: range) -> Clean:
        return Clean.of(self.texts[rows.start : rows.stop])

    def valid_positions(self, ids: Tensor) -> Tensor:
        return torch.ones_like(ids, dtype=torch.bool)

    def metrics(self) -> NatsPerText:
        return NatsPerText()


class NatsPerText:
    """The bound per text, with its values per sample."""

    def __init__(self) -> None:
        self.nats = 0.0
        self.texts = 0

    def update(self, clean: Clean, noised: Any, prediction: Any, bound: Any) -> None:
        self.nats += float((bound.values * bound.weights).sum())
        self.texts += len(clean.x0)

    def per_sample(self, clean: Clean, bound: Any) -> dict[str, tuple[Tensor, Tensor]]:
        nats = (bound.values * bound.weights).sum(1)
        return {"nats_per_text": (nats, torch.ones_like(nats))}

    def compute(self) -> dict[str, float]:
        return {"nats_per_text": self.nats / self.texts}


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--repeats", type=int, default=200)
    parser.add_argument("--draws", type=int, nargs="+", default=[32, 64])
    parser.add_argument("--only", default="", help="part of the name of a process")
    options = parser.parse_args()
    torch.set_num_threads(1)
    torch.manual_seed(0)
    joint = random_joint(IDS, LENGTH)
    print("| process | draws | `log_likelihood` | evaluation |")
    print("|---|---|---|---|")
    for name, system in systems(joint):
        if options.only not in name:
            continue
        for draws in options.draws:
            rows = of_rows(system, joint, draws, options.repeats)
            split = of_evaluation(system, joint, draws, options.repeats)
            print(f"| {name} | {draws} | {rows:.3f} | {split:.3f} |", flush=True)


if __name__ == "__main__":
    main()
