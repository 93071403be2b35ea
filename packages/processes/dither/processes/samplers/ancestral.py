"""Ancestral sampling: step back on an even grid of times. Letters: B batch, L length, M features, K times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise

import torch
from jaxtyping import Shaped
from torch import Tensor

from dither.registry.flow.protocols import Process, Session, TimelessProcess
from dither.registry.flow.records import Clean

from ..timesteps import check_grid, even_times
from ..tokens.temperature import UNCHANGED, LogitsWarper

__all__ = ["Ancestral"]


@dataclass(frozen=True)
class Ancestral:
    """The walk of every process: `steps` steps, then the last jump from t_min; steps + 1 calls of the model.

    Where states say nothing of time there is one call: a step back changes nothing.
    """

    steps: int = 64
    t_min: float = 1e-3
    choice: LogitsWarper = UNCHANGED

    def __post_init__(self) -> None:
        check_grid(self.steps, self.t_min)

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Shaped[Tensor, "B L *M"]]:
        """Yield every state, the clean sample last."""
        state = process.prior(like)
        if isinstance(process, TimelessProcess) and process.fixed_time is not None:
            t = torch.full((len(like.valid),), process.fixed_time, device=like.valid.device)
            yield process.finish(state, self.choice(session(state, t)), like)
            return
        times = even_times(self.steps, self.t_min, like.valid.device)[:, None].expand(-1, len(like.valid))
        for t, s in pairwise(times):
            state = process.step(state, self.choice(session(state, t)), process.schedule(t), process.schedule(s), like)
            yield state.x
        yield process.finish(state, self.choice(session(state, times[-1])), like)
