"""Predictor-corrector sampling of tokens (Campbell et al. 2022, section 4.4): ancestral steps, each with corrections.

A correction adds the noise from s up to r and takes a step from r back to s. Noise and an exact
step leave p_s as it is; a correction shorter than the step is more exact than the step, so that
several bring the sample nearer to p_s.
Letters: B batch, L length.
"""

from __future__ import annotations

from collections.abc import Iterator
from itertools import pairwise
from typing import TYPE_CHECKING

from pydantic import Field

from .options import TokenSteps

if TYPE_CHECKING:
    from jaxtyping import Int
    from torch import Tensor

    from dither.registry.contracts.protocols import Session, TokenProcess
    from dither.registry.contracts.records import Clean

__all__ = ["PredictorCorrector"]


class PredictorCorrector(TokenSteps):
    """Ancestral sampling of tokens with corrections: after a step, noise is added again and removed by another step.

    A correction leaves the distribution of the data unchanged, the more nearly the shorter it is;
    several correct the errors of a step.
    """

    name = "predictor-corrector"
    requires = "tokens"
    steps: int = Field(64, ge=1, le=1_000_000)
    """Steps; the model is called steps (corrections + 1) + 1 times."""
    corrections: int = Field(1, ge=0, le=1000)
    """Corrections after each step."""
    reach: float = Field(0.5, gt=0, le=1)
    """How far a correction goes back up, as a share of the step."""

    def sample(
        self, process: TokenProcess, model: Session, like: Clean
    ) -> Iterator[Int[Tensor, "B L"]]:
        """Yield the state after every step, the clean sample last."""
        from ..timestep_sampling import time_rows
        from ..tokens.temperature import warp_prediction
        from ..tokens.unmasking import fill, uncertain

        state = process.prior(like)
        times = time_rows(self.steps, self.t_min, like)
        for t, s in pairwise(times):
            # s < r <= t
            r = s + self.reach * (t - s)
            noise_t = process.schedule(t)
            noise_r = process.schedule(r)
            noise_s = process.schedule(s)

            # Predictor: x_s ~ p(x_s | x_t)
            step = process.begin_step(state, noise_t, noise_s, like)
            rows = warp_prediction(model(state, t, at=step.at), self)
            state = step.complete(rows)

            # Corrector: x_r ~ q(x_r | x_s), x_s ~ p(x_s | x_r)
            for _ in range(self.corrections):
                state = process.renoise(state, noise_r, noise_s, like)
                step = process.begin_step(state, noise_r, noise_s, like)
                rows = warp_prediction(model(state, r, at=step.at), self)
                state = step.complete(rows)
            yield state.x

        where = uncertain(process, state.x, like)
        rows = warp_prediction(model(state, times[-1], at=where), self)
        yield fill(state.x, where, rows)
