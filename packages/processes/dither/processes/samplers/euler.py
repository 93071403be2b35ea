"""Euler's steps at the reverse rates of a token process. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean, Noise, State, over

from ..precision import wide
from ..timesteps import check_grid, even_times
from ..tokens.categorical import draw_log
from ..tokens.posterior import lookup
from ..tokens.prediction import as_categorical
from ..tokens.process import TokenProcess
from ..tokens.temperature import UNCHANGED, LogitsWarper

__all__ = ["Euler"]


@dataclass(frozen=True)
class Euler:
    """Jumps from x to y at the rate sigma'(t) prior(x) s(y): the forward rate from y to x, times the score (SEDD).

    A position leaves with probability 1 - exp(-total rate), which no step makes larger than 1, to y with odds s(y). The
    rate over a step is taken from sigma(t) - sigma(s), not from sigma'(t) alone.
    """

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
            raise TypeError(f"euler walks a TokenProcess, not {type(process).__name__}")
        state = process.prior(like)
        times = even_times(self.steps, self.t_min, like.valid.device)[:, None].expand(-1, len(like.valid))
        for t, s in pairwise(times):
            now = process.schedule(t)
            gap = now.since(process.schedule(s))
            state = _jump(process, state, self.choice(session(state, t)), now, gap, like)
            yield state.x
        yield process.finish(state, self.choice(session(state, times[-1])), like)


def _jump(process: TokenProcess, state: State, pred: Any, now: Noise, gap: Noise, like: Clean) -> State:
    x, evidence = state.x, process.evidence(state, now)
    reading = as_categorical(pred, evidence, "score")
    scale = wide(over(gap.sigma, x)) * lookup(process.table.on(x.device), x)
    lot = torch.rand_like(scale)
    asked = ~like.fixed & (scale > 0)
    if reading.meaning != "score":  # what follows from a context: p_t(x) is (1 - alpha) prior(x) at least
        least = evidence.log_lost.exp() * lookup(process.table.on(x.device), x)
        asked &= lot < -(-scale * (1 - least) / least).expm1()
    lots, scales, ids = lot[asked], scale[asked], x[asked]
    start = 0
    for piece in reading.pieces(asked):
        part = slice(start, start + piece.evidence.x.shape[1])
        leaves = lots[part] < -(-scales[part] * wide(piece.log_leaving()[0]).exp()).expm1()
        for gone in piece.pieces(leaves[None]):
            log_score = gone.log_score().scatter(-1, gone.evidence.x[..., None], -torch.inf)
            ids[part] = ids[part].masked_scatter(leaves, draw_log(log_score[0]))
        start = part.stop
    new = x.clone()
    new[asked] = ids
    return State.of(new)
