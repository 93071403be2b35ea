"""Ancestral sampling: step back on an even grid of times. Letters: B batch, L length, M features, K times."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch
from jaxtyping import Float, Shaped
from torch import Tensor

from dither.registry.flow import Clean
from dither.registry.parts import Process, Session, TimelessProcess

from .choice import AS_SAID, Choice

__all__ = ["Ancestral", "check_grid", "even_times"]


def check_grid(steps: int, t_min: float) -> None:
    """Refuse a grid of times that cannot be.

    Raises:
        ValueError: No step, or t_min outside [0, 1).
    """
    if steps < 1 or not 0 <= t_min < 1:
        raise ValueError(f"a walk needs at least 1 step and t_min in [0, 1), not steps = {steps}, t_min = {t_min}")


def even_times(steps: int, t_min: float, device: Any) -> Float[Tensor, " K"]:
    """Return the K = steps + 1 times from 1 down to t_min."""
    return torch.linspace(1, t_min, steps + 1, device=device)


@dataclass(frozen=True)
class Ancestral:
    """The walk of every process: `steps` steps, then the last jump from t_min; steps + 1 calls of the model.

    Where states say nothing of time there is one call: a step back changes nothing.
    """

    steps: int = 64
    t_min: float = 1e-3
    choice: Choice = AS_SAID

    def __post_init__(self) -> None:
        check_grid(self.steps, self.t_min)

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Shaped[Tensor, "B L *M"]]:
        """Yield every state, the clean sample last."""
        state = process.prior(like)
        if isinstance(process, TimelessProcess) and process.moment is not None:
            t = torch.full((len(like.valid),), process.moment, device=like.valid.device)
            yield process.finish(state, self.choice(session(state, t)), like)
            return
        times = even_times(self.steps, self.t_min, like.valid.device)[:, None].expand(-1, len(like.valid))
        for t, s in pairwise(times):
            state = process.step(state, self.choice(session(state, t)), process.schedule(t), process.schedule(s), like)
            yield state.x
        yield process.finish(state, self.choice(session(state, times[-1])), like)
