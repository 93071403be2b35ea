"""Ancestral sampling: draw x_s from p(x_s | x_t), step by step (DDPM, Ho et al. 2020, algorithm 2).

Letters: B batch, L length, M features.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from dither.registry import Misfit
from dither.registry.kinds import ModelFacts, ProcessFacts

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

    def warn(self, process: ProcessFacts, model: ModelFacts) -> Iterable[Misfit]:
        """Yield options of steps if one call fills in all."""
        yield from super().warn(process, model)
        for option in ("steps", "t_min") if process.timeless else ():
            if getattr(self, option) != type(self).model_fields[option].default:
                message = f'{option} has no effect: under a fixed process.ratio "ancestral" takes one step'
                fix = f"remove {option}, or remove process.ratio"
                yield Misfit(
                    message, (option,), ("process", "ratio"), fix, code="no-effect"
                )

    def sample(
        self, process: Process, model: Session, like: Clean
    ) -> Iterator[Shaped[Tensor, "B L *M"]]:
        """Yield every state, the clean sample last; a process whose states do not depend on time takes one call."""
        import torch

        from dither.registry.contracts.protocols import TokenProcess

        from ..timestep_sampling import time_rows
        from ..tokens.temperature import warp_prediction

        if isinstance(process, TokenProcess):
            yield from sample_tokens(process, model, like, self)
            return

        state = process.prior(like)
        schedule = process.schedule
        times = time_rows(self.steps, self.t_min, like)
        if process.fixed_time is not None:
            times = torch.full_like(times[:1], process.fixed_time)
        for t, s in pairwise(times):
            pred = warp_prediction(model(state, t), self)
            state = process.step(state, pred, schedule(t), schedule(s), like)
            yield state.x
        pred = warp_prediction(model(state, times[-1]), self)
        yield process.finish(state, pred, like)


def sample_tokens(
    process: TokenProcess, model: Session, like: Clean, options: TokenSteps
) -> Iterator[Int[Tensor, "B L"]]:
    """Yield every state, the clean sample last; the model predicts only positions that may change."""
    from ..timestep_sampling import time_rows
    from ..tokens.temperature import warp_prediction
    from ..tokens.unmasking import fill, uncertain

    state = process.prior(like)
    schedule = process.schedule
    times = time_rows(options.steps, options.t_min, like)
    for t, s in pairwise(times):
        step = process.begin_step(state, schedule(t), schedule(s), like)
        rows = warp_prediction(model(state, t, at=step.at), options)
        state = step.complete(rows)
        yield state.x

    where = uncertain(process, state.x, like)
    rows = warp_prediction(model(state, times[-1], at=where), options)
    yield fill(state.x, where, rows)
