"""Predictor-corrector sampling of tokens (Campbell et al. 2022, section 4.4): ancestral steps, each with corrections.

A correction adds the noise from s up to r and takes a step from r back to s. Noise and an exact step leave p_s as it
is; a correction shorter than the step is more exact than the step, so that several bring the sample nearer to p_s.
Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from itertools import pairwise
from typing import TYPE_CHECKING, ClassVar

from pydantic import Field

from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from dither.registry.flow.protocols import Process, Sampler, Session
    from dither.registry.flow.records import Clean

__all__ = ["PredictorCorrector", "sample"]


class PredictorCorrector(TokenSteps):
    """Ancestral sampling of tokens with corrections: after a step, noise is added again and removed by another step.

    A correction leaves the distribution of the data unchanged, the more nearly the shorter it is; several correct the
    errors of a step.
    """

    name: ClassVar[str] = "predictor-corrector"
    requires = "tokens"
    steps: int = Field(64, ge=1, le=1_000_000)
    """Steps; the model is called steps (corrections + 1) + 1 times."""
    corrections: int = Field(1, ge=0, le=1000)
    """Corrections after each step."""
    reach: float = Field(0.5, gt=0, le=1)
    """How far a correction goes back up, as a share of the step."""

    def build(self) -> Sampler:
        """Return the sampler."""
        return partial(sample, options=self)


def sample(
    process: Process, model: Session, like: Clean, *, options: PredictorCorrector
) -> Iterator[Int[Tensor, "B L"]]:
    """Yield the state after every step, the clean sample last."""
    from ..timesteps import time_rows, token_process
    from ..tokens.temperature import warp_prediction

    process = token_process(process, options.name)
    state, schedule = process.prior(like), process.schedule
    times = time_rows(options.steps, options.t_min, like)
    for t, s in pairwise(times):
        r = s + options.reach * (t - s)
        now, up, then = schedule(t), schedule(r), schedule(s)
        state = process.step(state, warp_prediction(model(state, t), options), now, then, like)
        for _ in range(options.corrections):
            state = process.renoise(state, up.since(then), like)
            state = process.step(state, warp_prediction(model(state, r), options), up, then, like)
        yield state.x
    yield process.finish(state, warp_prediction(model(state, times[-1]), options), like)
