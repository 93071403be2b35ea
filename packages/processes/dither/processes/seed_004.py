"""The sampler of seed 004 as its document writes it, kept to compare with. Letters: B batch, L length."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from jaxtyping import Int
from torch import Tensor

from dither.registry.flow.protocols import Process, Session
from dither.registry.flow.records import Clean, State

from .tokens.categorical import draw

__all__ = ["SeedWalk"]


@dataclass(frozen=True)
class SeedWalk:
    """x ~ softmax(l) at all positions at once, at each of `steps` times from 1 to 0, both ends included.

    The seed calls it Euler's method. It knows no step width and no rate, and what is drawn does not depend on how far
    noise has gone. Told the truth, softmax(l) is p_t(x^i | the other positions): so it resamples every position given
    the others as they were, all at once, which for two positions that go together mixes up pairs.
    """

    steps: int = 128

    def __post_init__(self) -> None:
        if self.steps < 1:
            raise ValueError(f"a walk needs at least 1 step, not {self.steps}")

    def __call__(self, process: Process, session: Session, like: Clean) -> Iterator[Int[Tensor, "B L"]]:
        """Yield every state, the last of which is the sample."""
        state = process.prior(like)
        for t in torch.linspace(1, 0, self.steps, device=like.valid.device):
            drawn = draw(session(state, t.expand(len(like.valid))).log_score().softmax(-1))
            state = State.of(torch.where(like.fixed, like.x0, drawn))
            yield state.x
