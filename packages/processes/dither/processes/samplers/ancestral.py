"""Ancestral sampling: draw x_s from p(x_s | x_t), step by step (DDPM, Ho et al. 2020, algorithm 2).

Every sampler has the same three arguments. The process knows how noise is added and removed. The
`Session` is the model with the weights, the guidance and the KV cache of one batch: `model(state,
t)` runs it and returns its prediction. `like` is a `Clean` batch that serves as template: its
shape, its padding, its conditions, and the known values, which no step changes.

Letters: B batch, L length, M features, K times, N chosen positions, V vocabulary.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Int, Shaped
    from torch import Tensor

    from dither.registry.contracts.protocols import Process, Session, TokenProcess
    from dither.registry.contracts.records import Clean

__all__ = ["Ancestral", "sample_tokens"]


class Ancestral(TokenSteps):
    """Steps on an even grid of times, then the clean sample. For every process.

    A step draws from p(x_s | x_t) of the process: DDPM, the exact posterior of tokens, or
    unmasking.
    """

    name = "ancestral"
    steps: int = Field(64, ge=1, le=1_000_000)
    """Steps; the model is called once more, at the end."""

    def sample(
        self, process: Process, model: Session, like: Clean
    ) -> Iterator[Shaped[Tensor, "B L *M"]]:
        """Yield every state, the clean sample last."""
        import torch

        from dither.registry.contracts.protocols import TokenProcess

        from ..timestep_sampling import time_rows
        from ..tokens.temperature import warp_prediction

        if isinstance(process, TokenProcess):
            yield from sample_tokens(process, model, like, self)
            return

        schedule = process.schedule
        # 1 = t_K > ... > t_0 = t_min, the same for every sample: K B
        times = time_rows(self.steps, self.t_min, like)
        # If states do not depend on time, one call fills in everything: one time makes no pair.
        if process.fixed_time is not None:
            times = torch.full_like(times[:1], process.fixed_time)

        # x_1 ~ prior
        state = process.prior(like)
        for t, s in pairwise(times):
            # x_s ~ p(x_s | x_t), with the prediction of x_0 in place of x_0
            pred = warp_prediction(model(state, t), self)
            state = process.step(state, pred, schedule(t), schedule(s), like)
            yield state.x

        # Little noise is left at t_min, so that the last step goes straight to x_0.
        pred = warp_prediction(model(state, times[-1]), self)
        yield process.finish(state, pred, like)


def sample_tokens(
    process: TokenProcess, model: Session, like: Clean, options: TokenSteps
) -> Iterator[Int[Tensor, "B L"]]:
    """Yield every state, the clean sample last; the model predicts only positions that may change."""
    from ..timestep_sampling import time_rows
    from ..tokens.temperature import warp_prediction
    from ..tokens.unmasking import fill, uncertain

    schedule = process.schedule
    times = time_rows(options.steps, options.t_min, like)
    # x_1 ~ prior: B L
    state = process.prior(like)
    for t, s in pairwise(times):
        # Uniform numbers are drawn first: most positions stay under any prediction.
        step = process.begin_step(state, schedule(t), schedule(s), like)
        # p(x_0 | x_t) at the N positions that may change: 1 N V
        rows = warp_prediction(model(state, t, at=step.at), options)
        # x_s ~ p(x_s | x_t)
        state = step.complete(rows)
        yield state.x

    # Tokens that may still be noise at t_min are drawn from p(x_0 | x_t).
    where = uncertain(process, state.x, like)
    rows = warp_prediction(model(state, times[-1], at=where), options)
    yield fill(state.x, where, rows)
