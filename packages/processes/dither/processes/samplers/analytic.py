"""The analytic steps of SEDD (Lou et al. 2023, section 4.2): Tweedie tau-leaping from scores as they are.

With d = sigma(t) - sigma(s), P(x_s = y | x_t = x) = (e^{-dQ} s)(y) (e^{dQ})(y -> x), position by position, where

    (e^{-dQ} s)(y)    = e^d s(y) + (1 - e^d) prior(y) S,    S = sum of all s(z)
    (e^{dQ})(y -> x)  = e^{-d} [y = x] + (1 - e^{-d}) prior(x)

It sums to s(x) = 1 over y for any score, but entries are negative where no distribution has such scores: they count as
0. Of a prediction that a distribution has, it is the step of ancestral sampling. Letters: B batch, L length, N rows, V
vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Int
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean, Noise, State, over

from ..precision import wide
from ..timesteps import check_grid, even_times
from ..tokens.categorical import draw
from ..tokens.posterior import lookup
from ..tokens.prediction import as_categorical
from ..tokens.process import TokenProcess
from ..tokens.temperature import UNCHANGED, LogitsWarper

__all__ = ["Analytic", "step_odds"]


@dataclass(frozen=True)
class Analytic:
    """`steps` steps, then the last jump from t_min, to clean ids only; steps + 1 calls of the model."""

    steps: int = 128
    t_min: float = 1e-3
    choice: LogitsWarper = UNCHANGED

    def __post_init__(self) -> None:
        check_grid(self.steps, self.t_min)

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state, the clean sample last.

        Raises:
            TypeError: The process has no prior over ids.
        """
        if not isinstance(process, TokenProcess):
            raise TypeError(f"analytic walks a TokenProcess, not {type(process).__name__}")
        state = process.prior(like)
        times = even_times(self.steps, self.t_min, like.valid.device)[:, None].expand(-1, len(like.valid))
        for t, s in pairwise(times):
            now, then = process.schedule(t), process.schedule(s)
            state = _step(process, state, self.choice(session(state, t)), now, then, like)
            yield state.x
        yield process.finish(state, self.choice(session(state, times[-1])), like)


def step_odds(
    log_score: Float[Tensor, "N V"],
    x: Int[Tensor, " N"],
    prior: Float[Tensor, "#N V"],
    gap: Float[Tensor, " N"],
    *,
    least: float | None = None,
) -> Float[Tensor, "N V"]:
    """Return P(x_s = y | x_t = x) / (e^d S).

    Args:
        log_score: Of every y; 0 at x.
        x: x_t.
        prior: Where moved tokens land.
        gap: d.
        least: The share of p_t(y) that an entry of e^{-dQ} s counts at least; None to leave it negative.
    """
    moved = -(-gap).expm1()[:, None]
    p = log_score.softmax(-1)
    odds = p - (moved * prior).to(p.dtype)
    if least is not None:
        odds = torch.maximum(odds, p.mul_(least))
    landing = prior.expand(len(x), -1).gather(-1, x[:, None])
    at_x = odds.gather(-1, x[:, None]) * (1 + (1 - moved) / (moved * landing)).to(odds.dtype)
    return odds.scatter_(-1, x[:, None], at_x).mul_((moved * landing).to(odds.dtype))


def _step(process: TokenProcess, state: State, pred: Any, now: Noise, then: Noise, like: Clean) -> State:
    x = state.x
    reading = as_categorical(pred, process.evidence(state, now), "score")
    if reading.meaning != "score":
        return process.step(state, reading, now, then, like)
    gap = wide(over(now.since(then).sigma, x)).expand(x.shape)
    asked = ~like.fixed & (lookup(process.table.on(x.device), x) > 0) & (gap > 0)
    gaps, drawn = gap[asked], [x[:0, 0]]
    for piece in reading.pieces(asked):
        here = piece.evidence.x[0]
        log_score, part = piece.log_score()[0], gaps[: len(here)]
        gaps = gaps[len(here) :]
        # Below the rounding of a score nothing can be told from 0, and all of a row may be.
        least = torch.finfo(log_score.dtype).eps
        drawn.append(draw(step_odds(log_score, here, piece.evidence.prior, part, least=least)))
    new = x.clone()
    new[asked] = torch.cat(drawn)
    return State.of(new)
