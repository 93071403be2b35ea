"""Euler's steps at the reverse rates of a token process. Letters: B batch, L length, V vocabulary."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Int
from torch import Tensor

from dither.registry.flow import Clean, Noise, State, over
from dither.registry.parts import Process, Session

from ..draws import draw
from ..evidence import at
from ..precision import wide
from ..tokens import TokenProcess
from .ancestral import check_grid, even_times
from .choice import AS_SAID, Choice

__all__ = ["Euler"]


@dataclass(frozen=True)
class Euler:
    """Jumps from x to y at the rate sigma'(t) prior(x) s(y): the forward rate from y to x, times the score (SEDD).

    A position leaves with probability 1 - exp(-total rate), which no step makes larger than 1, to y with odds s(y). The
    rate over a step is taken from sigma(t) - sigma(s), not from sigma'(t) alone.
    """

    steps: int = 128
    t_min: float = 1e-3
    choice: Choice = AS_SAID

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
            gap = process.schedule(t).since(process.schedule(s))
            state = _jump(process, state, self.choice(session(state, t)), gap, like)
            yield state.x
        yield process.finish(state, self.choice(session(state, times[-1])), like)


def _jump(process: TokenProcess, state: State, pred: Any, gap: Noise, like: Clean) -> State:
    x = state.x.clone()
    log_score = pred.log_score().scatter(-1, x[..., None], -torch.inf)
    rate = wide(over(gap.sigma, x)) * at(process.table.on(x.device), x) * wide(log_score.logsumexp(-1)).exp()
    leaves = (torch.rand_like(rate) < -(-rate).expm1()) & ~like.fixed
    # Odds relative to the largest: scores themselves may overflow.
    x[leaves] = draw(log_score[leaves].softmax(-1))
    return State.of(x)
