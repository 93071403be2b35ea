"""Unmasking in an order that the model chooses (MaskGIT, LLaDA). Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from itertools import pairwise
from typing import Any, Literal, get_args

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean, State

from ..precision import wide
from ..timestep_sampling import time_of
from ..timesteps import check_grid, even_times
from ..tokens.prediction import clean_pieces
from ..tokens.temperature import UNCHANGED, LogitsWarper
from ..tokens.unmasking import fill, fully_masked, gumbel, log_prob, top_positions

__all__ = ["Order", "Ordered"]

Order = Literal["confidence", "drawn", "margin", "entropy", "random"]


def _confidence(p: Tensor) -> Tensor:
    """Log of the largest chance."""
    return p.amax(-1).log()


def _margin(p: Tensor) -> Tensor:
    """How far the likeliest id is ahead of the next."""
    falling = p.topk(2, -1).values
    return falling[..., 0] - falling[..., 1]


def _negative_entropy(p: Tensor) -> Tensor:
    """Minus the entropy."""
    entropy: Tensor = torch.special.entr(p).sum(-1)
    return -entropy


SCORES: Mapping[str, Callable[[Float[Tensor, "N V"]], Float[Tensor, " N"]]] = {
    "confidence": _confidence,
    "margin": _margin,
    "entropy": _negative_entropy,
}
"""What is unmasked first, by what the model says of a position: the highest score."""


@dataclass(frozen=True)
class Ordered:
    """Unmasks as many tokens as the schedule asks for, the surest first, and keeps them.

    After the step to time s, round(N (1 - alpha(s))) of N tokens are left masked, and none after the last. The model is
    told the time at which the share that really is masked would be expected. A step in which nothing is due makes no
    call. What is sure is judged before temperature, top_k and top_p.

    Attributes:
        by: What makes a position sure: the chance of its likeliest id (confidence), of the id that was drawn for it
            (drawn), the lead of the likeliest over the next (margin), or a low entropy. random asks no one.
        steps: At most so many calls of the model.
        noise: Gumbel noise added to the score, falling with the share still masked (MaskGIT's choice temperature).
        choice: How ids are drawn.
    """

    by: Order | str = "confidence"
    steps: int = 64
    noise: float = 0.0
    choice: LogitsWarper = UNCHANGED

    def __post_init__(self) -> None:
        check_grid(self.steps, 0.0)
        if self.by not in get_args(Order):
            raise ValueError(f"by must be one of {', '.join(get_args(Order))}, not {self.by!r}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state, the clean sample last.

        Raises:
            TypeError: The process does not mask tokens.
        """
        x, masked = fully_masked(process, like, "ordered")
        total, left = masked.sum(1), masked.sum(1)
        targets = -(-process.schedule(wide(even_times(self.steps, 0.0, x.device))).sigma).expm1()
        targets[-1] = 0.0  # some schedules leave noise at t = 0
        for _, target in pairwise(targets):
            due = left - torch.minimum((total * target).round().long(), left)
            if not due.any():
                continue
            share = wide(left) / total.clamp_min(1)
            x, chosen = self._unmask(process, session, x, masked, due, share)
            masked, left = masked & ~chosen, left - due
            yield x
        if not total.any():
            yield x

    def _unmask(
        self,
        process: Process,
        session: Session,
        x: Int[Tensor, "B L"],
        masked: Tensor,
        due: Int[Tensor, " B"],
        share: Float[Tensor, " B"],
    ) -> tuple[Int[Tensor, "B L"], Tensor]:
        t = time_of(process.schedule, share).to(torch.get_default_dtype())
        pred = session(State.of(x), t)
        law = self.choice(pred)
        if self.by == "drawn":
            drawn = fill(x, law, masked)
            score = log_prob(pred, drawn, masked)
        else:
            drawn, score = x, self._score(pred, masked)
        if self.noise:
            score = wide(score) + self.noise * share[:, None] * gumbel(score)
        chosen = top_positions(score, masked, due)
        return (torch.where(chosen, drawn, x) if self.by == "drawn" else fill(x, law, chosen)), chosen

    def _score(self, pred: Any, masked: Tensor) -> Float[Tensor, "B L"]:
        """Return what is unmasked first, the highest; only masked positions are looked at."""
        score = torch.zeros(masked.shape, device=masked.device)
        if self.by == "random":
            return torch.rand_like(score)
        said = [SCORES[self.by](log_p.exp()) for log_p in clean_pieces(pred, masked)]
        return score.masked_scatter(masked, torch.cat([score[:0, 0], *said]).to(score.dtype))
